"""Terminology: the terms of a report, from the user or from the measurement system."""

import numpy as np
import pytest

from raising import refused
from taskuq._config import from_toml_table
from taskuq.table._terminology import MRI, Terminology, as_terminology, round_label


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"image": "x"}, "config.key"),
        ({"case": ""}, "value.invalid"),
        ({"case": 3}, "value.invalid"),
        ({"case": "x" * 61}, "value.invalid"),
        (7, "config.type"),
    ],
)
def test_wrong_terminology_is_refused(words, code):
    with refused(code):
        as_terminology(words)


def test_round_without_an_acceleration_has_a_label():
    assert round_label(np.nan) == "the only round"


def test_run_has_the_terminology_of_its_system_or_file():
    run_module = pytest.importorskip("taskuq.experiments._run")
    settings = [{}, {"measure": {"kind": "tomography"}}, {"terminology": {"case": "head"}}]
    found = [
        run_module._Run(None, None, from_toml_table(run_module.RunConfig, table), None).terminology
        for table in settings
    ]
    assert found[0] == MRI
    assert found[1].measurement == "view"
    assert found[2] == Terminology(case="head")
