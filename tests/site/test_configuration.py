import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
from extensions import configuration

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs").rglob("*.toml"))


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft7Validator(configuration.schema())


def classes():
    return list(configuration.sections())


def test_every_key_has_a_meaning():
    assert len(classes()) > 40
    for cls in classes():
        known = configuration.meanings(cls)
        assert all(known.get(name, "").endswith(".") for name in configuration.hints(cls)), cls


def test_missing_meaning_is_found():
    @dataclass
    class Bare:
        """Settings without a sentence for one key.

        Args:
            first: Number of the first.
        """

        first: int = 0
        second: int = 0  #: Number of the second.
        #: Number of the third.
        third: int = 0
        fourth: int = 0  # a comment about the code

    numbers = ("first", "second", "third")
    assert configuration.meanings(Bare) == {name: f"Number of the {name}." for name in numbers}


def test_reference_has_each_table_and_key_once():
    text = configuration.reference()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings)) == len(classes())
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(configuration.hints(cls)) for cls in classes())
    assert "| `ema` | number in [0, 1) | `0.0` | Decay of the moving average" in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_schema_accepts_shipped_configurations(validator, path):
    validator.validate(tomllib.loads(path.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"part": "all"},
        {"samples": "32"},
        {"samples": 1.5},
        {"subset": "test"},
        {"data": {"kind": "atlas", "validation": 0.1}},
        {"data": {"kind": "atlas", "patients": "many"}},
        {"data": {"kind": "cloud"}},
        {"measure": {"accelerations": 8}},
        {"measure": {"views": 96}},
        {"task": {"kind": "multi", "tasks": {"area": {"kind": "area"}}}},
        {"task": {"kind": "multi", "tasks": {"area": {"threshold": 0.5}}}},
    ],
)
def test_schema_refuses_unknown_keys_and_wrong_types(validator, change):
    shipped = tomllib.loads((ROOT / "configs/atlas/run-zero-filled.toml").read_text())
    assert validator.is_valid(shipped)
    assert not validator.is_valid(shipped | change)


def test_stored_schema_is_current():
    stored = configuration.SCHEMA.read_text()
    assert stored == configuration.schema_text(), "python -m extensions.configuration in docs/"
    assert json.loads(stored)["anyOf"]


def test_every_number_of_a_setting_has_a_range():
    """But for those whose meaning has none."""
    free = {"snr_db", "temperatures", "threshold"}
    found = set()
    for cls in configuration.sections():
        for name, hint in configuration.hints(cls).items():
            if re.search(r"\b(int|float)\b", str(hint)) and "Within" not in str(hint):
                found.add(name)
    assert found <= free
