import numpy as np
import pytest
import toy
from toy import RUN, same

import taskuq as tq
from raising import refused
from taskuq.pipeline import _local as local
from taskuq.pipeline._executor import CaseExecutor, Executor
from taskuq.pipeline._pipeline import status

PIPELINE = tq.Pipeline(toy.measure, toy.recover, toy.task)


def test_table_equals_a_plain_loop(tmp_path):
    images = toy.images(5)
    table = PIPELINE.run(
        images, store=tmp_path / "t", group=list("aabbc"), site=list("HHHHK"), **RUN
    )
    executor = Executor(toy.recover, toy.task, seed=3)
    chain = CaseExecutor(toy.measure, executor, toy.ACCELERATIONS, samples=4)
    for i, image in enumerate(images):
        (one,) = chain.run([image], [str(i)])
        assert np.array_equal(table.outputs[:, i], one.outputs[..., 0].astype(np.float32))
        assert table.targets[i] == one.targets[0]
    assert list(table.group) == list("aabbc")
    assert list(table.site) == list("HHHHK")


def test_size_of_shards_changes_nothing(tmp_path, monkeypatch):
    whole = PIPELINE.run(toy.images(7), store=tmp_path / "whole", **RUN)
    monkeypatch.setattr(local, "ROWS", 1)
    single = PIPELINE.run(toy.images(7), store=tmp_path / "single", **RUN)
    assert len(list((tmp_path / "single").glob("part-*"))) == 7
    assert same(whole, single)


def test_resumed_run_recomputes_three_cases(tmp_path):
    PIPELINE.run(toy.images(8), store=tmp_path / "t", **RUN)
    ran = []

    def counted(measurement, *, samples, seed):
        ran.append(seed)
        return toy.recover(measurement, samples=samples, seed=seed)

    again = tq.Pipeline(toy.measure, counted, toy.task).run(
        toy.images(8), store=tmp_path / "t", **RUN
    )
    assert again.cases == 8
    assert len(ran) == 3 * len(toy.ACCELERATIONS)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 5},
        {"seed": 4},
        {"accelerations": (8.0, 2.0)},
        {"configuration": {"net": "b"}},
        {"case": list("abc")},
    ],
)
def test_changed_configuration_is_refused(tmp_path, change):
    base = {**RUN, "configuration": {"net": "a"}}
    PIPELINE.run(toy.images(3), store=tmp_path / "t", **base)
    with refused("resume.mismatch"):
        PIPELINE.run(toy.images(3), store=tmp_path / "t", **{**base, **change})
    fresh = PIPELINE.run(toy.images(3), store=tmp_path / "t", overwrite=True, **{**base, **change})
    assert fresh.cases == 3


@pytest.mark.parametrize("overwrite", [False, True])
def test_run_folder_has_one_writer(tmp_path, overwrite):
    images, seen = toy.images(3), []

    def recover(measurement, *, samples, seed):
        if not seen:
            seen.append(True)
            with refused("file.exists", str(tmp_path / "t")):
                PIPELINE.run(images, store=tmp_path / "t", overwrite=overwrite, **RUN)
        return toy.recover(measurement, samples=samples, seed=seed)

    pipeline = tq.Pipeline(toy.measure, recover, toy.task)
    table = pipeline.run(images, store=tmp_path / "t", **RUN)
    assert seen
    assert same(table, PIPELINE.run(images, **RUN))
    events = local.RunLog(tmp_path / "t").events()
    assert [e["cases"] for e in events if e["event"] == "finished"] == [3]


@pytest.mark.parametrize("name", ["thesis.tex", ".keys", "part-1.parquet", "part-0-a.parquet/x"])
def test_overwrite_removes_nothing_else(tmp_path, name):
    PIPELINE.run(toy.images(3), store=tmp_path, **RUN)
    before = sorted(tmp_path.iterdir())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    with refused("file.exists"):
        PIPELINE.run(toy.images(3), store=tmp_path, overwrite=True, **RUN)
    assert (tmp_path / name).read_text() == "years of work"
    assert set(before) < set(tmp_path.iterdir())


def test_case_names_are_no_file_names(tmp_path):
    names = ["../evil", "/evil", "a/b", "..", "C:\\evil"]
    table = PIPELINE.run(toy.images(5), store=tmp_path / "t", case=names, **RUN)
    assert list(table.case) == names
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert all(path.is_file() for path in (tmp_path / "t").iterdir())


def test_failed_cases_are_listed_and_retried(tmp_path):
    images = list(toy.images(5))
    good = images[2]
    images[2] = np.full_like(good, np.nan)
    table = PIPELINE.run(images, store=tmp_path / "t", **RUN)
    assert table.missing_cases == ("2",)
    assert table.cases == 4
    assert "NaN" in status(tmp_path / "t")["failed"]["2"]
    images[2] = good
    mended = PIPELINE.run(images, store=tmp_path / "t", **RUN)
    assert same(mended, PIPELINE.run(toy.images(5), **RUN))
    assert status(tmp_path / "t")["failed"] == {}


def test_unreadable_image_fails_alone(tmp_path):
    class Torn:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 1:
                raise OSError("truncated file")
            return toy.images(4)[index]

    table = PIPELINE.run(Torn(), store=tmp_path / "t", **RUN)
    assert table.missing_cases == ("1",)


def test_run_without_success_ends_early():
    def broken(images):
        raise RuntimeError("no such weights")

    with refused("component.invalid", "no such weights"):
        tq.Pipeline(toy.measure, toy.recover, broken).run(toy.images(30), **RUN)


def test_every_image_is_read_once():
    class Counted(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    read = []
    PIPELINE.run(Counted(toy.images(6)), **RUN)
    assert sorted(read) == list(range(6))


@pytest.mark.parametrize("part", ["measure", "recover", "task"])
def test_component_that_is_not_callable_is_refused(part):
    parts = {"measure": toy.measure, "recover": toy.recover, "task": toy.task, part: "weights.pt"}
    with refused("component.invalid", part):
        tq.Pipeline(**parts)


def test_group_at_two_sites_is_refused_before_anything_is_recovered():
    def unused(*args, **options):
        raise AssertionError

    with refused("table.duplicate"):
        tq.Pipeline(toy.measure, unused, toy.task).run(
            toy.images(2), accelerations=(2,), samples=2, seed=0, group=[0, 0], site=["a", "b"]
        )


def test_rounds_have_names_and_costs():
    run = {**RUN, "accelerations": None, "costs": {"1 s": 1, "2 s": 2}, "full_cost": 16}
    ranges = {"mean": (0, 1), "largest": (0, np.inf)}
    table = tq.Pipeline(toy.measure, toy.recover, toy.two_tasks).run(
        toy.images(9)[:, 0], task_names=list(ranges), task_range=ranges, **run
    )
    assert table.round_names == ("1 s", "2 s")
    assert table.accelerations.tolist() == [16, 8]
    assert table.task_ranges == ((0, 1), (0, np.inf))
    assert tq.calibrate(table, acceleration="2 s", task="mean", alpha=0.1).acceleration == 8


def too_few(measurement, *, samples, seed):
    return toy.recover(measurement, samples=samples - 2, seed=seed)


def one_missing(images):
    return toy.two_tasks(images)[:, : 2 if len(images) == 1 else 1]


@pytest.mark.parametrize(
    ("recover", "task"),
    [(too_few, toy.task), (toy.recover, one_missing), (toy.recover, lambda x: 0 * x[:, 0, 0] / 0)],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_error_names_case(recover, task):
    with refused("component.invalid", "north"):
        tq.Pipeline(toy.measure, recover, task).run(toy.images(1), case=["north"], **RUN)
