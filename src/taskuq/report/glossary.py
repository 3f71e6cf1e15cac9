"""The words of the trade, explained on hover and at the end of the page."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

# In the order in which the page lists them.
TERMS = {
    "AR": "absolute residual: an interval of one width around a point estimate",
    "LWR": "locally weighted residual: as wide as the samples spread",
    "CQR": "conformalized quantile regression: from one sample quantile to another, widened",
    "MLWR": "moderated LWR: a spread that is steadied by all cases' spreads",
    "α": "the error rate: at most this share of reports may miss the truth",
    "τ": "the width at which a scan may stop",
    "R̄": "the average acceleration: a full scan's measurements over those taken, harmonic mean",
    "q̂": "the calibrated quantile that intervals are widened by",
    "coverage": "how often reports or intervals contain the truth",
    "exchangeable": "as if new and calibration units had been shuffled: none is special",
}
LETTERS = ("AR", "LWR", "CQR", "MLWR", "α", "τ", "R̄", "q̂")
# Scores stand in tables and legends under the names that commands know; "ar" only by itself.
_NAMES = {name.lower(): name for name in LETTERS if name.isascii()}
_WRITTEN = sorted([*LETTERS, *(name for name in _NAMES if name != "ar")], key=len, reverse=True)
_FOUND = re.compile(rf"(?<![\w-])({'|'.join(_WRITTEN)})(?![\w-])")


def glossary() -> list[tuple[str, str]]:
    """Return all terms with what they mean."""
    return list(TERMS.items())


def explained(text: str) -> Markup:
    """Return text with its acronyms and letters explained on hover; everything is escaped.

    Example:
        >>> print(explained("LWR < AR"))
        <abbr title="locally ...">LWR</abbr> &lt; <abbr title="absolute ...">AR</abbr>
        >>> print(explained("<b>"), explained("WARY"))
        &lt;b&gt; WARY
        >>> print(explained("paper lwr"))
        paper <abbr title="locally ...">lwr</abbr>
    """
    whole = _NAMES.get(text)
    if whole is not None:
        return _abbr(text, whole)
    pieces = _FOUND.split(str(text))
    return Markup("").join(
        _abbr(piece, _NAMES.get(piece, piece)) if k % 2 else escape(piece)
        for k, piece in enumerate(pieces)
    )


def _abbr(text: str, term: str) -> Markup:
    return Markup('<abbr title="{}">{}</abbr>').format(TERMS[term], text)
