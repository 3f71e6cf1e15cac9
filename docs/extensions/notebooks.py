"""Tutorials from the scripts in ``examples``: pages with results, and notebooks.

A script is in percent format: ``# %% [markdown]`` begins a cell of text, ``# %%`` one of code.
Pages are made with the site; ``python docs/extensions/notebooks.py`` writes the notebooks.
"""

import ast
import contextlib
import io
import json
import re
import shutil
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def scripts() -> list[Path]:
    return sorted(EXAMPLES.glob("*.py"))


def cells(script: Path) -> list[tuple[str, str]]:
    """Return the cells of a script, as ('markdown' or 'code', text)."""
    found = []
    for part in re.split(r"^# %%", script.read_text(), flags=re.MULTILINE)[1:]:
        kind, _, text = part.partition("\n")
        if kind.strip() == "[markdown]":
            text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        found.append(("markdown" if kind.strip() else "code", text.strip()))
    return found


def notebook(script: Path) -> str:
    """Return a notebook without results."""
    made = []
    for k, (kind, text) in enumerate(cells(script)):
        cell = {"cell_type": kind, "id": f"cell-{k}", "metadata": {}}
        cell["source"] = text.splitlines(keepends=True)
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def run(script: Path, pictures: Path) -> list[str]:
    """Run a script in an empty folder; return what each cell prints and save its pictures."""
    import matplotlib as mpl
    from matplotlib import pyplot

    names, printed = {"__name__": "__main__"}, []
    pictures.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mpl.rc_context({"svg.hashsalt": "taskuq"}),
        warnings.catch_warnings(),
    ):
        mpl.use("Agg")
        warnings.simplefilter("ignore")
        pyplot.close("all")
        for k, (kind, text) in enumerate(cells(script)):
            out = io.StringIO()
            if kind == "code":
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                    exec(compile(text, f"{script.name}, cell {k}", "exec"), names)
                for figure in map(pyplot.figure, pyplot.get_fignums()):
                    figure.savefig(pictures / f"{script.stem}-{k}.svg", metadata={"Date": None})
                pyplot.close("all")
            printed.append(out.getvalue())
    return printed


def is_installed(script: Path) -> bool:
    """Return True if what a script imports is installed."""
    tree = ast.walk(ast.parse(script.read_text()))
    named = [name.name for node in tree if isinstance(node, ast.Import) for name in node.names]
    return all(find_spec(name.partition(".")[0]) for name in named)


def page(script: Path, pictures: Path) -> str:
    """Return a tutorial in Markdown, with results if its libraries are installed."""
    found = cells(script)
    printed = run(script, pictures) if is_installed(script) else [""] * len(found)
    lines = []
    for k, ((kind, text), out) in enumerate(zip(found, printed, strict=True)):
        lines.append(text if kind == "markdown" else f"```python\n{text}\n```")
        if out.strip():
            lines.append(f"```text\n{out.rstrip()}\n```")
        if (pictures / f"{script.stem}-{k}.svg").exists():
            lines.append(f"![Result](../pictures/{script.stem}-{k}.svg)")
    source = f"Notebook: `examples/{script.stem}.ipynb`"
    return "\n\n".join([*lines, source]) + "\n"


def write_pages(app):
    from extensions.reference import write_changed

    made = Path(app.srcdir) / "_made"
    shutil.rmtree(made / "pictures", ignore_errors=True)
    pages = {f"{one.stem}.md": page(one, made / "pictures") for one in scripts()}
    write_changed(made / "tutorials", pages)


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    for one in scripts():
        one.with_suffix(".ipynb").write_text(notebook(one))
