"""TODO."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.table._parquet import TableHeader, TableWriter

PAIRS = 15


def begin(folder, seed, together, answers, pairs):
    """Begin tables at the same moment as another process, and say which were ours to begin."""
    accepted = []
    for pair in range(pairs):
        together.wait()
        try:
            TableWriter(Path(folder) / f"{pair}", TableHeader((4.0,), 3, provenance={"seed": seed}))
            accepted.append(pair)
        except tq.InputError:
            pass
    answers.put(accepted)


def begun_by_two(folder, seeds):
    context = multiprocessing.get_context("spawn")
    together, answers = context.Barrier(2), context.Queue()
    writers = [
        context.Process(target=begin, args=(str(folder), seed, together, answers, PAIRS))
        for seed in seeds
    ]
    for writer in writers:
        writer.start()
    found = [answers.get(timeout=300) for _ in writers]
    for writer in writers:
        writer.join()
    return found


def test_one_of_two_writers_with_other_seeds_is_accepted(tmp_path):
    first, second = begun_by_two(tmp_path, (1, 2))

    assert not set(first) & set(second)
    assert set(first) | set(second) == set(range(PAIRS))


def test_two_writers_with_one_seed_are_accepted(tmp_path):
    assert begun_by_two(tmp_path, (1, 1)) == [list(range(PAIRS))] * 2


def test_a_header_that_is_a_link_is_not_written_through(tmp_path):
    """A dangling link counts as taken: nothing is made where it points to."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "table.json").symlink_to(tmp_path / "elsewhere.json")

    with pytest.raises(tq.InputError):
        TableWriter(tmp_path / "t", TableHeader((4.0,), 3))
    assert not (tmp_path / "elsewhere.json").exists()


def test_a_pipe_among_the_shards_of_a_table_is_refused(tmp_path):
    tq.TaskOutputs(np.zeros((1, 2, 3)), np.zeros(2), (4.0,)).save(tmp_path / "t")
    os.mkfifo(tmp_path / "t" / "part-000009-pipe.parquet")

    with refused("file.format"):
        tq.TaskOutputs.load(tmp_path / "t")
