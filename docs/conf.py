project = "taskuq"
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
html_theme = "furo"
html_title = "taskuq"
exclude_patterns = ["_build"]
# Links between pages name files as they are in the repository, which is where most people read.
suppress_warnings = ["myst.xref_missing"]
