"""What looks like a probability is said to look like one, and never clipped on a guess."""

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.table._table import suggest_range

rng = np.random.default_rng(0)
OUTPUTS, TARGETS = rng.random((2, 60, 4)), rng.random(60)
PLAIN = tq.TaskOutputs(OUTPUTS, TARGETS, (8, 4))
HINT = "no range is declared"
ASKED = {"alpha": 0.2, "max_width": 0.5}


@pytest.mark.parametrize(
    "table",
    [
        tq.TaskOutputs(OUTPUTS, TARGETS, (8, 4), task_range=(0, 1)),
        tq.TaskOutputs(OUTPUTS - 0.1, TARGETS, (8, 4)),
        tq.TaskOutputs(OUTPUTS, TARGETS * 1.1, (8, 4)),
    ],
)
def test_what_is_declared_or_reaches_beyond_is_not_spoken_of(table):
    assert suggest_range(table) is None
    assert "--range 0,1 " in suggest_range(PLAIN)


def test_of_several_tasks_those_are_named_that_may_be_probabilities():
    x, z = np.stack([OUTPUTS, 90 * OUTPUTS], -1), np.stack([TARGETS, 90 * TARGETS], -1)
    said = suggest_range(tq.TaskOutputs(x, z, (8, 4), task_names=["tear", "area"]))

    assert "targets of tear are" in said
    assert "--range tear=0:1 " in said


@pytest.mark.parametrize("command", ["calibrate", "evaluate", "plan", "simulate", "report"])
def test_page_and_command_line_say_it_until_it_is_declared(tmp_path, capsys, command):
    path = PLAIN.save(tmp_path / "table.npz")
    options = {
        "calibrate": ["--acceleration", "8"], "evaluate": ["--splits", "20"],
        "plan": ["--max-width", "0.5"], "simulate": ["--max-width", "0.5", "--splits", "20"],
        "report": ["--splits", "20"],
    }  # fmt: skip
    ends = [] if command in ("evaluate", "simulate") else ["-o", str(tmp_path / "made")]
    for declared in ([], ["--range", "0,1"]):
        main([command, str(path), "--alpha", "0.2", *options[command], *declared, *ends])
        assert (HINT in capsys.readouterr().err) == (not declared)


def test_the_page_says_it_and_clips_nothing(tmp_path):
    page = tq.make_report(PLAIN, tmp_path / "page", **ASKED, splits=20)
    policy = tq.load_policy(page.parent / "policy.json")

    assert HINT in page.read_text()
    assert policy.task_ranges == (None,)
