"""Rounds that have names are called by them wherever results are printed."""

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.experiments._claims import ClaimInputs, ClaimSettings
from taskuq.experiments._data_splits import _data_splits

NAMES = ["one frame", "four frames"]


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    truth = rng.random(60)
    outputs = truth[:, None] + 0.1 * rng.standard_normal((2, 60, 4))
    return tq.TaskOutputs(outputs, truth, (16, 4), round_names=NAMES)


def test_evaluations_name_their_round(table):
    by_name = tq.evaluate_exact(table, acceleration="four frames", alpha=0.2)
    drawn = tq.evaluate(table, acceleration=16, alpha=0.2, trials=5, rng=np.random.default_rng(0))

    assert repr(by_name).startswith("mlwr, four frames: ")
    assert repr(drawn).startswith("mlwr, one frame: ")
    assert by_name.to_dict()["acceleration"] == 4
    plain = tq.evaluate_exact(table.outputs[0], table.targets, acceleration=16, alpha=0.2)
    assert repr(plain).startswith("mlwr, R = 16: ")


@pytest.mark.parametrize(
    "command", [["evaluate", "--exact"], ["simulate", "--max-width", "0.5", "--splits", "3"]]
)
def test_commands_name_rounds(table, command, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    path = table.save(tmp_path / "table.npz")
    main([command[0], str(path), *command[1:], "--alpha", "0.2", "--score", "lwr"])
    shown = "".join(capsys.readouterr())

    assert all(name in shown for name in NAMES)
    assert "R=16" not in shown
    assert "R=4" not in shown


def test_commands_take_rounds_by_name(table, tmp_path, capsys):
    path, bound = str(table.save(tmp_path / "table.npz")), str(tmp_path / "bound.json")
    for given in (["evaluate", path, "--exact"], ["calibrate", path, "-o", bound]):
        main([*given, "--alpha", "0.2", "--score", "lwr", "--acceleration", "four frames"])
    assert tq.load_bound(bound).acceleration == 4
    assert "one frame" not in "".join(capsys.readouterr())

    with pytest.raises(SystemExit):
        main(["evaluate", path, "--exact", "--acceleration", "two frames"])
    assert "there is no round 'two frames'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["predict", bound, path, "--acceleration", "one frame"])
    assert "was calibrated at acceleration 4, not one frame" in capsys.readouterr().err


def test_cases_without_groups_are_counted_one_by_one(table):
    parts, _ = _data_splits(ClaimInputs(table), ClaimSettings())["tables"]

    assert parts["rows"] == [["calibrate and test", 60, None, None, None]]
