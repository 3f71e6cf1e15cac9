"""Registries and their extensions."""

import sys

import pytest

import taskuq._registry
from raising import refused
from taskuq._registry import VARIABLE, Registry

SHAPES = Registry("shape", {})


@pytest.fixture
def extension(tmp_path, monkeypatch):
    """Write an extension, name it in the environment, and forget it afterwards."""
    monkeypatch.setattr(taskuq._registry, "_loaded", set())
    monkeypatch.setattr(SHAPES, "_known", {})
    monkeypatch.setitem(sys.modules, "its_test", sys.modules[__name__])

    def write(name, code):
        path = tmp_path / f"{name}.py"
        path.write_text(f"from its_test import SHAPES\n{code}\n")
        monkeypatch.setenv(VARIABLE, str(path))
        return path

    yield write
    for name in ("round_shape", "broken_shape", "json"):
        module = sys.modules.get(name)
        if module is not None and str(tmp_path) in (module.__file__ or ""):
            del sys.modules[name]


def test_extension_file_is_run_once(extension):
    extension("round_shape", "SHAPES.register('round', len)")
    assert SHAPES["round"] is len
    assert list(SHAPES) == ["round"]


def test_imported_extension_is_not_run_again(extension, monkeypatch):
    path = extension("round_shape", "class Round: pass\nSHAPES.register('round', Round)")
    monkeypatch.syspath_prepend(path.parent)
    import round_shape

    assert SHAPES["round"] is round_shape.Round
    with refused("choice.unknown", "square", "round"):
        SHAPES["square"]


@pytest.mark.parametrize("code", ["import nowhere_at_all", "1 / 0", "def :"])
def test_broken_extension_is_refused_every_time(code, extension):
    extension("broken_shape", code)
    for _ in range(2):
        with refused("component.invalid", "broken_shape.py"):
            SHAPES["square"]


def test_mended_extension_is_tried_again(extension):
    extension("broken_shape", "1 / 0")
    with refused("component.invalid", "ZeroDivisionError"):
        SHAPES["round"]
    extension("broken_shape", "SHAPES.register('round', len)")
    assert SHAPES["round"] is len


def test_extension_replaces_no_module(extension):
    extension("json", "SHAPES.register('round', len)")
    with refused("component.invalid", "json"):
        SHAPES["round"]


def test_name_is_registered_once(extension):
    SHAPES.register("round", len)
    SHAPES.register("round", len)
    with refused("choice.unknown", "round"):
        SHAPES.register("round", max)
