"""Reference of the Python API, from the docstrings: a page for each subpackage.

Public are the names of ``import taskuq as tq``, the names that a subpackage lists in its
``__all__``, every protocol, and the names that a page of these docs imports. The page of the first
is written by hand in the order of use; the others are written here before Sphinx reads.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PACKAGE = DOCS.parent / "src/taskuq"
PYTHON = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def top_level() -> dict[str, str]:
    """Return each name of the package itself and the subpackage it comes from."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    return {
        name.name: f"taskuq.{node.module}" if node.module else "taskuq"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def imported(text: str) -> list[tuple[str, str]]:
    """Return the imports of taskuq in the Python code of a page, as (module, name)."""
    found = []
    for match in PYTHON.finditer(text):
        code = "\n".join(line.removeprefix(match[1]) for line in match[2].splitlines())
        try:
            tree = ast.parse(code)
        except SyntaxError:  # a block that only shows something
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taskuq."):
                found += [(node.module, name.name) for name in node.names]
    return found


def public() -> list[tuple[str, str]]:
    """Return the other public names with their modules, each object once."""
    subpackages = sorted(f"taskuq.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))
    subpackages += ["taskuq.deepinv", "taskuq.metrics", "taskuq.sklearn"]
    listed = [
        (subpackage, name)
        for subpackage in subpackages
        for name in getattr(importlib.import_module(subpackage), "__all__", ())
    ]
    protocols = ast.parse((PACKAGE / "protocols.py").read_text()).body
    listed += [
        ("taskuq.protocols", node.name) for node in protocols if isinstance(node, ast.ClassDef)
    ]
    pages = [page.read_text() for page in sorted(DOCS.rglob("*.md")) if "_made" not in page.parts]
    listed += sorted({pair for text in pages for pair in imported(text)})
    taskuq = importlib.import_module("taskuq")
    seen = [getattr(taskuq, name) for name in top_level()]
    found = []
    for module, name in listed:
        thing = getattr(importlib.import_module(module), name)
        if not inspect.ismodule(thing) and not any(thing is other for other in seen):
            seen.append(thing)
            found.append((module, name))
    return found


def directive(module: str, name: str) -> list[str]:
    """Return the autodoc directive of a name."""
    thing = getattr(importlib.import_module(module), name)
    if inspect.isclass(thing):
        # scikit-learn writes these methods, with links to its own site.
        without = "   :exclude-members: set_fit_request, set_predict_request, set_score_request"
        return [f".. autoclass:: {module}.{name}", "   :members:", without]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {module}.{name}"]
    return [f".. autodata:: {module}.{name}", "   :no-value:"]


def page(subpackage: str, names: list[tuple[str, str]]) -> str:
    """Return the page of a subpackage, with a section for each module that names come from."""
    about = inspect.getdoc(importlib.import_module(subpackage)) or ""
    lines = [f"# `{subpackage}`", "", about.split("\n\n")[0].replace("\n", " "), ""]
    listed = [
        name
        for name, source in top_level().items()
        if source == subpackage or source.startswith(subpackage + ".")
    ]
    if listed:
        lines += [
            "At the top level: " + ", ".join(f"{{py:obj}}`taskuq.{one}`" for one in listed) + ".",
            "",
        ]
    for module in dict.fromkeys(module for module, _ in names):
        if module != subpackage:
            lines += [f"## `{module}`", ""]
        for where, name in names:
            if where == module:
                lines += ["```{eval-rst}", *directive(module, name), "```", ""]
    return "\n".join(lines)


def write_pages(app):
    subpackages: dict[str, list[tuple[str, str]]] = {}
    for module, name in public():
        subpackages.setdefault(".".join(module.split(".")[:2]), []).append((module, name))
    pages = {
        f"{name.removeprefix('taskuq.')}.md": page(name, of) for name, of in subpackages.items()
    }
    write_changed(Path(app.srcdir) / "_made/reference", pages)


def write_changed(folder: Path, texts: dict[str, str]) -> None:
    """Write the files of a folder that changed, so that Sphinx reads no other, and remove the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in set(folder.iterdir()) - {folder / name for name in texts}:
        path.unlink()


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
