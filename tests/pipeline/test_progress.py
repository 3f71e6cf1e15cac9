"""Progress lines on stderr."""

import re

import numpy as np
import toy

import taskuq as tq

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3}
PIPELINE = tq.Pipeline(toy.measure, toy.recover, toy.task)


def test_last_line_counts_cases_and_failures(capsys):
    images = toy.images(5)
    images[2] = np.nan
    PIPELINE.run(images, **RUN)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"5/5 cases, 1 failed, \S+ cases/s, 0 s left", lines[0])
    assert lines[1].startswith("1 cases failed and are missing from the table, e.g. 2: ")


def test_finished_run_prints_one_line(capsys, tmp_path):
    for _ in range(2):
        PIPELINE.run(toy.images(3), store=tmp_path / "t", progress=False, **RUN)
    assert capsys.readouterr().err == ""
    PIPELINE.run(toy.images(3), store=tmp_path / "t", progress=True, **RUN)
    said = capsys.readouterr().err
    assert said.startswith(f"all 3 cases of {tmp_path / 't'} were finished before")
    assert said.count("\n") == 1
