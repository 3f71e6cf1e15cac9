import ast
import doctest
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src/taskuq"
MODULES = sorted(PACKAGE.rglob("*.py"))
ARCHITECTURE = PACKAGE.parents[1] / "docs/explanation/architecture.md"

# What each part may import of the others. A part may always import itself and the ground.
GROUND = {
    "interval", "protocols", "errors", "_arrays", "_display", "_io", "_config", "_registry",
    "_seeds",
}  # fmt: skip
ALLOWED = {
    "table": set(),
    "conformal": {"table"},
    # Policies and the pipeline do not know each other.
    "policy": {"table", "conformal"},
    "pipeline": {"table"},
    "scan": {"table", "conformal", "policy", "pipeline"},
    "measure": {"table"},
    "data": {"measure"},
    # A network never imports the statistics that evaluate it.
    "training": {"pipeline"},
    "recover": {"measure", "pipeline", "data", "training"},
    "task": {"measure", "data", "training"},
    "report": {"table", "conformal", "policy", "pipeline"},
}
ALLOWED["experiments"] = set(ALLOWED)
ALLOWED["service"] = set(ALLOWED) - {"report"}
ALLOWED["cli"] = set(ALLOWED)
ALLOWED["plot"] = {"table", "conformal", "policy", "scan", "report"}
ALLOWED["deepinv"] = {"conformal", "pipeline", "measure", "recover"}
ALLOWED["sklearn"] = {"conformal"}
ALLOWED["metrics"] = set()
ALLOWED["__main__"] = {"cli"}
WITHOUT_TORCH = ("table", "conformal", "policy", "report", "plot", *sorted(GROUND))
HEAVY = {"torch", "lightning", "pytorch_lightning", "torchmetrics", "torchvision"}


def part_of(module):
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def nodes_of(module):
    """The syntax of a file, and of the examples in its docstrings."""
    tree = ast.parse(module.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        yield node
        text = ast.get_docstring(node) if isinstance(node, documented) else None
        for example in doctest.DocTestParser().get_examples(text or ""):
            yield from ast.walk(ast.parse(example.source))


def imports_of(module):
    """Every module a file imports, at its top, inside functions or in examples, by full name."""
    package = "taskuq." + ".".join(module.relative_to(PACKAGE).parts[:-1])
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.rstrip(".").split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
            yield base
            # "from taskuq import calibration" names the part only here.
            if base == "taskuq":
                yield from (f"taskuq.{name.name}" for name in node.names)


def parts_imported(module):
    """The parts of the package that a file imports; other names of its menu are no parts."""
    names = {name.split(".")[1] for name in imports_of(module) if name.startswith("taskuq.")}
    return {n for n in names if (PACKAGE / n).is_dir() or (PACKAGE / f"{n}.py").exists()}


def forbidden(module):
    """The parts a module imports although it may not."""
    part = part_of(module)
    if part in GROUND:
        return parts_imported(module) - GROUND
    return parts_imported(module) - GROUND - {part} - ALLOWED.get(part, set())


def test_imports_go_one_way():
    assert {str(m): found for m in MODULES if (found := forbidden(m))} == {}


def test_statistics_never_import_torch():
    light = [m for m in MODULES if part_of(m) in WITHOUT_TORCH]
    assert {str(m) for m in light for n in imports_of(m) if n.split(".")[0] in HEAVY} == set()
    assert "torch" in imports_of(PACKAGE / "recover/_methods.py")


def test_order_has_no_cycle():
    order = list(ALLOWED)
    assert all(order.index(low) < order.index(part) for part in order for low in ALLOWED[part])
    assert {part_of(module) for module in MODULES} == {"__init__", *GROUND, *ALLOWED}


def test_document_shows_the_same_table():
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    order = list(ALLOWED)
    shown = {
        part: set(order[: order.index(part)])
        if may == "all of the above"
        else set(re.findall(r"`(\w+)`", may))
        for part, may in rows
    }
    assert shown == ALLOWED


@pytest.mark.parametrize(
    "name", re.findall(r"`((?:[a-z_]+\.)+\w+)`", ARCHITECTURE.read_text().split("## The path")[1])
)
def test_walk_names_existing_functions(name):
    assert callable(pkgutil.resolve_name(f"taskuq.{name}")) or name.endswith("POLICIES")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from taskuq.evaluation._exact import Moments", {"evaluation"}),
        ("import taskuq.decide", {"decide"}),
        ("def f():\n    from taskuq import evaluation", {"evaluation"}),
        ("from ..evaluation import exact", {"evaluation"}),
        ("from taskuq.errors import InputError\nfrom . import rank", set()),
        ('def f():\n    """Go.\n\n    >>> from taskuq import decide\n    """', {"decide"}),
    ],
)
def test_planted_import_is_found(source, found, tmp_path, monkeypatch):
    folder = tmp_path / "table"
    folder.mkdir()
    for name in ("evaluation", "decide"):
        (tmp_path / name).mkdir()
    (tmp_path / "errors.py").touch()
    (folder / "planted.py").write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    assert forbidden(folder / "planted.py") == found


def loaded_by(statement):
    """The top-level modules that a fresh Python holds after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import taskuq", {"torch", "matplotlib", "scipy", "pyarrow", "numba"}),
        ("import taskuq; taskuq.calibrate; taskuq.evaluate", {"torch", "matplotlib", "scipy"}),
        ("import taskuq; taskuq.calibrate([[0.], [1.]] * 9, [0.] * 18, alpha=.1, score='lwr')",
         {"torch", "matplotlib", "pyarrow", "numba"}),
    ],
)  # fmt: skip
def test_import_is_cheap(statement, heavy):
    assert loaded_by(statement) & heavy == set()
