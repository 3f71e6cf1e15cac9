"""Tables for a paper: LaTeX with booktabs, every name escaped."""

from __future__ import annotations

from taskuq.report.tables import Table, shown

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "∞": r"$\infty$", "±": r"$\pm$", "–": "--",
    "−": "$-$", "α": r"$\alpha$", "τ": r"$\tau$", "\n": " ", "\r": " ",
}  # fmt: skip


def escaped(text: str) -> str:
    r"""Return text that LaTeX sets as it is.

    Arguments:
        text: Any text.

    Example:
        >>> print(escaped("50 % of a_b \\input{x}"))
        50 \% of a\_b \textbackslash{}input\{x\}
    """
    return "".join(SPECIAL.get(c, c) for c in text)


def latex_table(table: Table) -> str:
    r"""Return a table as LaTeX; it needs the package booktabs.

    Arguments:
        table: The table.

    Example:
        >>> print(latex_table(Table("t", "Widths.", ("score", "width"), (("lwr", 0.2),))))
        \begin{table}
        \caption{Widths.}
        \label{tab:t}
        \begin{tabular}{lr}
        \toprule
        score & width \\
        \midrule
        lwr & 0.2 \\
        \bottomrule
        \end{tabular}
        \end{table}
    """
    count = len(table.columns)
    words = [k == 0 or any(isinstance(row[k], str) for row in table.rows) for k in range(count)]
    lines = [
        r"\begin{table}",
        rf"\caption{{{escaped(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{''.join('l' if word else 'r' for word in words)}}}",
        r"\toprule",
        " & ".join(escaped(column) for column in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(escaped(shown(v)) for v in row) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)
