"""Settings of the documentation site, which ``make docs`` builds."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "taskuq"
author = "the taskuq authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "extensions.access",
    "extensions.commands",
    "extensions.configuration",
    "extensions.formulas",
    "extensions.gallery",
    "extensions.links",
    "extensions.notebooks",
    "extensions.reference",
]
exclude_patterns = ["_build"]
# Options begin with two dashes, which must not become one.
smartquotes = False
html_theme = "furo"
html_title = "taskuq"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_search_scorer = str(Path(__file__).parent / "extensions/scorer.js")

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
# Headings up to this level can be linked to, as on the pages that show the repository.
myst_heading_anchors = 4
# Formulas are MathML, made when the site is built: pages load nothing from a network.
html_math_renderer = "mathml"

# Types are shown in signatures as the sources write them; arguments are described in the text.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# Annotations name types as their module does; if two subpackages have a type of one name, the link
# leads to one of them.
suppress_warnings = ["ref.python"]
