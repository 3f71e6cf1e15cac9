"""How the documentation site is built: ``make docs``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "taskuq"
author = "the taskuq authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "cyclopts.ext.sphinx",
    "extensions.access",
    "extensions.formulas",
    "extensions.gallery",
    "extensions.links",
    "extensions.reference",
]
exclude_patterns = ["_build"]
# Two dashes begin an option, and stay two.
smartquotes = False
html_theme = "furo"
html_title = "taskuq"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
# Headings up to this level can be linked to, as on the pages that show the repository.
myst_heading_anchors = 4
# Formulas are MathML, made here: nothing is fetched when a page is read.
html_math_renderer = "mathml"

# Types stand in the signatures as the sources write them; arguments in the text.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# Annotations name types as their module does; where two rooms have a type of one name, the link
# leads to one of them.
suppress_warnings = ["ref.python"]
