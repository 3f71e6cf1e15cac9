"""predict writes one line per case and task, in time that grows with the lines alone."""

import csv

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli import calibrate as bounds
from taskuq.cli.app import main

RNG = np.random.default_rng(3)
TRUTH = RNG.random((60, 2))
OUTPUTS = np.clip(TRUTH[:, None] + 0.1 * RNG.standard_normal((60, 4, 2)), 0, 1)
HEAD = ["case", "group", "acceleration", "task", "lower", "upper", "width", "center", "target"]


@pytest.fixture
def files(tmp_path):
    table, bound = tmp_path / "table.npz", tmp_path / "bound.json"
    tq.TaskOutputs(
        OUTPUTS[None], TRUTH, (8,), group=np.arange(60) // 5, task_names=("tear", "fluid")
    ).save(table)
    main(["calibrate", str(table), "--joint", "scale", "--alpha", "0.2", "-o", str(bound)])
    return bound, table, tmp_path / "intervals.csv"


def predict(files):
    bound, table, output = files
    main(["predict", str(bound), str(table), "-o", str(output)])
    return output.read_bytes()


def expected(bound, table):
    """One line at a time, each from its own case and task."""
    loaded, interval = tq.TaskOutputs.load(table), bounds._load(bound)(OUTPUTS)
    yield [*HEAD, "covered"]
    for i, k in np.ndindex(60, 2):
        one, z = interval[i, k], float(TRUTH[i, k])
        numbers = (one.lower, one.upper, one.width, one.center, z)
        yield [str(i), str(loaded.group[i]), "8", loaded.task_names[k],
               *(repr(float(v)) for v in numbers), str(int(one.contains(z)))]  # fmt: skip


@pytest.mark.parametrize("cases", [7, 65536])
def test_each_line_is_that_of_its_case_and_task(files, monkeypatch, cases):
    monkeypatch.setattr(bounds, "CASES", cases)
    lines = predict(files).decode().splitlines()

    assert list(csv.reader(lines)) == list(expected(*files[:2]))


def test_no_property_of_all_intervals_is_computed_for_each_line(files, monkeypatch):
    asked = []
    for name in ("width", "center"):
        whole = getattr(tq.Interval, name)
        monkeypatch.setattr(
            tq.Interval, name, property(lambda self, f=whole.fget: asked.append(1) or f(self))
        )
    predict(files)

    assert len(asked) == 2


def test_the_bound_of_one_task_is_asked_for_that_task(files, capsys):
    bound, table, output = map(str, files)
    main(["calibrate", table, "--task", "fluid", "--alpha", "0.2", "-o", bound])
    with pytest.raises(SystemExit):
        main(["predict", bound, table, "-o", output])
    assert "is for one task, and the table has tear, fluid" in capsys.readouterr().err
    main(["predict", bound, table, "--task", "fluid", "-o", output])

    assert {row["task"] for row in csv.DictReader(files[2].read_text().splitlines())} == {"fluid"}
