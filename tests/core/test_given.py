"""A table, its path and a data frame stand for each other; what does not fit says what to do."""

import numpy as np
import pandas as pd
import pytest

import taskuq as tq
from taskuq.errors import InputError

rng = np.random.default_rng(2)
CASES = [f"quake {k}" for k in range(60)]
ROUNDS = {"3 shots": 30.0, "10 shots": 9.0}


def rows():
    """Two tasks in two rounds, as somebody's program writes them."""
    made = []
    for task, unit in (("count", 10.0), ("depth", 1.0)):
        z = unit * rng.random(60)
        for name, R in ROUNDS.items():
            x = z[:, None] + 0.1 * unit * rng.standard_normal((60, 3))
            frame = pd.DataFrame(x, columns=["output_0", "output_1", "output_2"])
            made.append(frame.assign(case=CASES, round=name, acceleration=R, task=task, target=z))
    return pd.concat(made, ignore_index=True)


FRAME = rows()
TABLE = tq.TaskOutputs.load(FRAME)
ASKED = {"alpha": 0.2, "acceleration": "10 shots"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: tq.calibrate(t, **ASKED, task="depth"),
        lambda t: tq.calibrate_joint(t, **ASKED),
        lambda t: tq.evaluate_exact(t, **ASKED, task="count"),
        lambda t: tq.plan(t, alpha=0.2, max_width={"count": 8, "depth": 0.8}),
    ],
)
def test_a_frame_and_a_path_do_what_their_table_does(tmp_path, ask):
    FRAME.to_csv(tmp_path / "quakes.csv", index=False)

    assert str(ask(TABLE)) == str(ask(FRAME)) == str(ask(tmp_path / "quakes.csv"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.drop(columns="task"), "keep one, or tell tasks apart by a column task"),
        (lambda f: f.drop(columns="acceleration"), "names rounds and gives no accelerations"),
        (lambda f: f.assign(task=["", *f.task[1:]]), "names no task in row 1; fill the column"),
    ],
)
def test_rows_that_lack_something_are_told_which_column(change, sentence):
    with pytest.raises(InputError, match=sentence):
        tq.TaskOutputs.load(change(FRAME))


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: tq.TaskOutputs(np.ones((3, 9)), np.ones(9), (8, 4, 2)), r"outputs\[..., None\]"),
        (lambda: tq.TaskOutputs(np.ones((3, 9, 1)), np.ones(9)), "give accelerations="),
        (lambda: tq.calibrate(TABLE, **ASKED, task=1), "by its name, got 1; the table has count"),
        (lambda: tq.plan(TABLE, alpha=0.2), "when to stop is missing; give max_width"),
    ],
)
def test_what_is_missing_is_called_by_its_name(ask, sentence):
    with pytest.raises(InputError, match=sentence):
        ask()


def test_a_round_of_unknown_acceleration_has_no_number():
    assert str(tq.TaskOutputs(np.ones(5), np.ones(5))) == (
        "TaskOutputs(1 round, 5 cases, 1 sample, 1 task)"
    )
