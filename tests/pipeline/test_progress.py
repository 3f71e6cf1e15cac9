"""How far a run is stands on stderr: in a log as lines, and not at all where quiet is asked for."""

import re

import numpy as np
import toy

import taskuq as tq
from taskuq.pipeline import _progress as progress
from taskuq.pipeline._progress import Progress

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3}
PIPELINE = tq.Pipeline(toy.measure, toy.recover, toy.task)


def test_the_last_line_counts_all_cases_and_those_that_failed(capsys):
    images = toy.images(5)
    images[2] = np.nan
    PIPELINE.run(images, **RUN)
    lines = capsys.readouterr().err.splitlines()

    assert re.fullmatch(r"5/5 cases, 1 failed, \S+ cases/s, 0 s left", lines[0])
    assert lines[1].startswith("1 cases failed and are missing from the table, e.g. 2: ")


def test_a_quiet_run_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", -1.0)
    PIPELINE.run(toy.images(3), progress=False, **RUN)

    assert capsys.readouterr().err == ""


def test_a_run_with_nothing_left_says_so(capsys, tmp_path):
    for _ in range(2):
        PIPELINE.run(toy.images(3), store=tmp_path / "t", progress=False, **RUN)
    assert capsys.readouterr().err == ""
    PIPELINE.run(toy.images(3), store=tmp_path / "t", progress=True, **RUN)

    said = capsys.readouterr().err
    assert said.startswith(f"all 3 cases of {tmp_path / 't'} were finished before")
    assert said.count("\n") == 1


def test_a_log_is_given_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", -1.0)
    with Progress(3, 1) as seen:
        seen.step()
        seen.step()

    counts = [line.split(" ")[0] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["2/3", "3/3"]
