"""Formulas as MathML, which browsers render without script or network."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)
# Commands that docutils lacks: dots, small sums, fences of a fixed size; letters with accents, whose
# subscripts it would put below them; and fractions of digits without braces, which it joins.
SAME = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"\\dots(?![a-z])", r"\\ldots"),
        (r"\\frac(\d)(\d)", r"\\frac{\1}{\2}"),
        (r"(\\(?:hat|bar|tilde)\s*(?:\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]))", r"{\1{}}"),
        (r"\\textstyle\s*\\sum", r"{\\textstyle\\sum}"),
        (r"\\(big|Big)(?=[)\]]|\\})", r"\\\1r"),
        (r"\\(big|Big)(?![a-z])", r"\\\1l"),
    )
)


def mathml(node: nodes.Element, *, as_block: bool) -> str:
    """Return the formula of a node as MathML; warn if it cannot be parsed."""
    tex = node.astext().strip()
    for pattern, known in SAME:
        tex = pattern.sub(known, tex)
    if as_block and "\\\\" in tex and "\\begin" not in tex:
        tex = f"\\begin{{aligned}}{tex}\\end{{aligned}}"
    try:
        return tex2mathml(tex, as_block=as_block)
    except MathError as error:
        logger.warning("formula %r: %s", tex, error, location=node, type="formula")
        return f"<code>{node.astext()}</code>"


def visit_inline(translator, node):
    translator.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_block(translator, node):
    # The keyboard scrolls wide formulas.
    translator.body.append(translator.starttag(node, "div", CLASS="formula", TABINDEX="0"))
    translator.body.append(mathml(node, as_block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
