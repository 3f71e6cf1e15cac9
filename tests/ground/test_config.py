"""Configurations with tables of several kinds."""

import json
import tomllib
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import pytest

import fuzz_files
from raising import refused
from taskuq._config import Within, from_toml_table, read_config, read_toml, to_toml_table, toml_text
from taskuq._registry import Registry
from taskuq.errors import InputError


@dataclass(frozen=True)
class Disc:
    radius: float = 1.0
    filled: bool | None = None


@dataclass(frozen=True)
class Box:
    edge: int
    names: tuple[str, ...] = ("a", "b")


SHAPES: Registry[type[Disc | Box]] = Registry("shape", {})
SHAPES.register("disc", Disc)
SHAPES.register("box", Box)


@dataclass(frozen=True)
class Drawing:
    shape: Annotated[Disc | Box, SHAPES] = field(default_factory=lambda: Disc(radius=3.0))
    frame: Annotated[Disc | Box, SHAPES] | None = None
    title: str = "mine"


def read(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    return read_config(Drawing, tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", Disc(radius=3.0)),
        ("[shape]\nfilled = true", Disc(radius=3.0, filled=True)),
        ("[shape]\nkind = 'disc'\nfilled = true", Disc(radius=3.0, filled=True)),
        ("[shape]\nkind = 'box'\nedge = 2", Box(2)),
    ],
)
def test_kind_selects_class_and_defaults(tmp_path, text, shape):
    assert read(tmp_path, text).shape == shape


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        ("[shape]\nkind = 'box'\nedge = 2\nradius = 1", "config.key",
         ["shape.radius", "'box'", "edge, names"]),
        ("[shape]\nedge = 2", "config.key", ["shape.edge", "'disc'", "radius, filled"]),
        ("[shape]\nkind = 'ring'", "choice.unknown", ["'ring'", "disc, box"]),
        ("[shape]\nkind = 3", "config.type", ["shape.kind", "3", "disc, box"]),
        ("[frame]\nedge = 3", "config.missing", ["frame.kind", "disc, box"]),
        ("[shape]\nkind = 'box'", "config.missing", ["shape", "edge"]),
        ("shape = 'disc'", "config.type", ["shape", "'disc'", "[shape]"]),
        ("[shape]\nradius = 'wide'", "config.type", ["shape.radius", "'wide'", "number"]),
    ],
)  # fmt: skip
def test_keys_of_another_kind_are_refused(tmp_path, text, code, names):
    with refused(code, *names):
        read(tmp_path, text)


@pytest.mark.parametrize("drawing", [Drawing(), Drawing(Box(1, ("c",)), Disc(2.0), "yours")])
def test_config_survives_toml(tmp_path, drawing):
    (tmp_path / "a.toml").write_text(toml_text(to_toml_table(drawing)))
    assert from_toml_table(Drawing, read_toml(tmp_path / "a.toml")) == drawing


def test_complete_table_is_json():
    table = to_toml_table(Drawing(), complete=True)
    assert json.loads(json.dumps(table)) == table == {
        "shape": {"kind": "disc", "radius": 3.0, "filled": None}, "frame": None, "title": "mine",
    }  # fmt: skip


def test_kind_of_unloaded_module_is_found():
    listed: Registry[type] = Registry("fraction", {"exact": "fractions:Fraction"})
    assert listed.name_of(Fraction) == "exact"


CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FAULTS = {
    "classifier.toml": ["training.betas = [0.9]", "training.epochs = 99999999999999999999"],
    "ct.toml": ["measure.accelerations = [0]", "data.size = 0", "measure.views = 0"],
    "run.toml": ["data.coils = 8000000", "data.patients = -1", "samples = 1000000000000"],
    "flow.toml": ["network.layers = 0", "training.learning_rate = 1" + 400 * "0"],
}


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, lines in FAULTS.items() for line in lines]
)
def test_setting_out_of_range_is_refused(tmp_path, name, line):
    source = fuzz_files.CONFIGS[name.removesuffix(".toml")]
    table = read_toml(CONFIGS / f"{source}.toml")
    changed = tomllib.loads(line)
    for key, value in changed.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    (tmp_path / name).write_text(toml_text(table))
    with pytest.raises(InputError) as caught:
        fuzz_files.read_settings(tmp_path / name)
    assert line.partition(" =")[0] in str(caught.value)
    assert caught.value.code in ("value.invalid", "config.type")


def test_ranges_have_open_and_closed_ends():
    assert [v in Within("(0, 1]") for v in (0, 0.5, 1, 1.5, float("nan"))] == [
        False, True, True, False, False,
    ]  # fmt: skip
    assert [v in Within("[0, 1)") for v in (-1, 0, 1)] == [False, True, False]
