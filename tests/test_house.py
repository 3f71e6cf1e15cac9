"""The house in order: no circles between modules, no long modules, no long functions."""

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "src"
LONGEST_MODULE = 400
LONGEST_FUNCTION = 60


def name_of(path, root=SOURCES):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree, known):
    """The modules of ours that a module imports when it runs, at its top or inside functions."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom | ast.Import) or id(node) in for_types:
            continue
        base = node.module if isinstance(node, ast.ImportFrom) else None
        names = [f"{base}.{name.name}" if base else name.name for name in node.names]
        yield from (name if name in known else base for name in names)


def graph_of(root=SOURCES):
    """Who imports whom."""
    paths = {name_of(path, root): path for path in sorted(root.rglob("*.py"))}
    return {
        name: {other for other in imports_of(ast.parse(path.read_text()), paths) if other in paths}
        - {name}
        for name, path in paths.items()
    }


def circle(graph):
    """A way from some module back to itself, or nothing."""
    done = set()

    def search(name, way):
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := search(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := search(name, []))), [])


def code_lines(function):
    """The lines of a function without its docstring."""
    first = function.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    documented = is_text and isinstance(first.value.value, str)
    words = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - words


def long_functions(source):
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and code_lines(node) > LONGEST_FUNCTION
    ]


def test_no_module_imports_itself_by_way_of_others():
    assert circle(graph_of()) == []


def test_a_circle_through_a_function_is_found(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    from b import g\n")
    (tmp_path / "b.py").write_text("import c\n")
    (tmp_path / "c.py").write_text("from a import f\n")

    assert circle(graph_of(tmp_path)) == ["a", "b", "c", "a"]


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=name_of)
def test_modules_and_functions_are_short(path):
    source = path.read_text()

    assert len(source.splitlines()) <= LONGEST_MODULE
    assert long_functions(source) == []


def test_a_long_function_is_found():
    body = "    x = 1\n" * LONGEST_FUNCTION

    assert long_functions(f'def f():\n    """Words."""\n{body}') == ["f"]
    assert long_functions(f'def f():\n    """Words."""\n{body[10:]}') == []
