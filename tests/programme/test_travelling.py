"""What travels between machines: large files in pieces, states without moments, nothing twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripts.programme.bringing import bring, needed
from scripts.programme.packing import Limits, contents, fingerprint, matching, pack, unpack
from scripts.programme.plan import Job, Plan
from scripts.programme.presence import PRESENT, remove_gone, write_present
from scripts.programme.running import Entry, forget, read_status, write_status
from scripts.programme.smaller import light

from taskuq.data.arrays import ArrayDataset
from taskuq.data.simulate import simulated_coils
from taskuq.measure.masks import MaskConfig
from taskuq.outputs import TaskOutputs
from taskuq.recover.folds import Estimating
from taskuq.recover.sampler.config import SamplerConfig
from taskuq.recover.sampler_training import SamplerTraining
from taskuq.recover.varnet import VarNetConfig
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine, train
from taskuq.training.keep import Keep
from taskuq.training.state import load_state


def write(work, name, size=100, *, value=0):
    path = work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([value]) * size)
    return path


def test_a_file_larger_than_an_archive_travels_in_pieces_or_not_at_all(tmp_path):
    work = tmp_path / "work"
    content = np.random.default_rng(0).bytes(100_000)
    write(work, "large.bin").write_bytes(content)
    archives, left_out = pack(["*"], work, tmp_path / "out", Limits(4, 50_000, 150_000))
    assert left_out == []
    assert len(archives) > 1
    assert max(path.stat().st_size for path in archives) <= 50_000
    assert unpack(archives, tmp_path / "home") == ["large.bin"]
    assert (tmp_path / "home" / "large.bin").read_bytes() == content
    assert unpack(archives[1:], tmp_path / "other") == []
    assert pack(["*"], work, tmp_path / "out", Limits(2, 50_000, 150_000)) == ([], ["large.bin"])


def test_what_has_arrived_does_not_travel_again_until_it_changes(tmp_path):
    work = tmp_path / "work"
    for name in ("old.csv", "new.csv"):
        write(work, name)
    archives, _ = pack(["old.csv"], work, tmp_path / "out")
    arrived = {fingerprint(info.name, content) for info, content in contents(archives)}
    for changed, expected in ((False, ["new.csv"]), (True, ["new.csv", "old.csv"])):
        write(work, "old.csv", value=int(changed))
        archives, _ = pack(["*.csv"], work, tmp_path / "out", arrived=arrived)
        assert [info.name for info, _ in contents(archives)] == expected


def test_states_come_behind_all_that_is_done_the_smallest_first(tmp_path):
    for name, size in {"done": 10, "large": 300, "small": 20}.items():
        write(tmp_path, f"runs/{name}/best.safetensors")
        write(tmp_path, f"runs/{name}/resume.safetensors", size)
    write(tmp_path, "runs/done/finished.json")
    found = matching(["runs/*/best.*", "runs/**/resume.safetensors"], tmp_path)
    assert found == [
        "runs/done/best.safetensors",
        "runs/small/resume.safetensors", "runs/large/resume.safetensors",
        "runs/large/best.safetensors", "runs/small/best.safetensors",
    ]  # fmt: skip


def test_a_table_drawn_anew_elsewhere_is_not_mixed_with_what_came_home_of_it_before(tmp_path):
    """A call ends while a table is written; another machine, with other weights, draws it again."""
    home, keep = tmp_path / "home", ["tables/**/*"]

    def call(number, value):
        work = tmp_path / f"work-{number}"
        table = TaskOutputs(np.full((2, 3, 4), value), np.full(3, value), (4, 2))
        table.save(work / "tables/lgg/sampler")
        for shard in sorted(work.rglob("part-*.parquet"))[: 1 - number]:
            shard.unlink()
        write_present(keep, work)
        archives, _ = pack([PRESENT, *keep], work, tmp_path / f"out-{number}")
        put = unpack(archives, home, newer=True)
        return remove_gone(home, put)

    write(home, "tables/lgg/flow/part-000000-aaaaaaaaaaaa.parquet")  # never travelled again
    assert call(0, 0.25) == []
    begun = list((home / "tables/lgg/sampler").glob("part-*.parquet"))
    assert begun
    assert call(1, 0.75) == [path.relative_to(home).as_posix() for path in sorted(begun)]
    assert (TaskOutputs.load(home / "tables/lgg/sampler").targets == 0.75).all()
    assert (home / "tables/lgg/flow/part-000000-aaaaaaaaaaaa.parquet").exists()
    assert remove_gone(home, ["tables/lgg/sampler/header.json"]) == []  # of no call's list


class StopError(Exception):
    pass


def settings():
    tiny = VarNetConfig(cascades=1, width=2, pools=1, sensitivity_width=2, sensitivity_pools=1)
    how = TrainingConfig(epochs=3, batch=4, average=0.9, learning_rate=1e-3)
    return SamplerTraining(
        network=SamplerConfig(width=16, drawn=(8, 8)), training=how, measure=MaskConfig((4, 2)),
        estimate=Estimating(folds=2, network=tiny, training=TrainingConfig(epochs=1, batch=4)),
    )  # fmt: skip


def heads(first, count):

    images = np.random.default_rng(first).random((count, 16, 16))
    return simulated_coils(ArrayDataset(images, label=[0] * count, group="each"), 2, seed=0)


def test_a_stopped_training_goes_on_elsewhere_from_what_came_home(tmp_path, monkeypatch):
    """Stopped while the sampler itself is trained: its networks are not trained again."""
    first, other = tmp_path / "first", tmp_path / "other"
    data, machine = (heads(0, 8), heads(1, 4)), Machine("cpu", progress=False)
    ended = Keep.on_train_epoch_end

    def stopping(self, trainer, module):
        ended(self, trainer, module)
        if self.folder.name == "mine" and trainer.current_epoch == 1:
            raise StopError

    monkeypatch.setattr(Keep, "on_train_epoch_end", stopping)
    with pytest.raises(StopError):
        train(settings(), first / "runs/mine", machine=machine, data=data)
    monkeypatch.undo()
    patterns = ["runs/**/*.toml", "runs/**/finished.json", "runs/*/metrics.csv", "runs/*/*/best.*"]
    archives, _ = pack([*patterns, "runs/**/resume.safetensors"], first, tmp_path / "out")
    unpack(archives, other)
    (other / "runs/mine/best.safetensors").unlink(missing_ok=True)
    estimates = {path: path.stat().st_mtime_ns for path in other.rglob("*/best.safetensors")}
    assert len(estimates) == 3
    best = train(settings(), other / "runs/mine", machine=machine, data=data)
    assert best.exists()
    assert {path: path.stat().st_mtime_ns for path in estimates} == estimates
    rows = (other / "runs/mine/metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2"]
    sizes = [(folder / "runs/mine/resume.safetensors").stat().st_size for folder in (first, other)]
    light(first / "runs/mine/resume.safetensors", tmp_path / "light.safetensors")
    assert (tmp_path / "light.safetensors").stat().st_size < 0.5 * min(sizes)


def test_a_light_state_has_all_weights_and_no_moments(tmp_path):
    from taskuq.training.state import save_state

    weights = {"large": torch.linspace(-1, 1, 5000), "loud": torch.full((5000,), 1e6),
               "small": torch.tensor([1e9]), "count": torch.arange(5000)}  # fmt: skip
    moments = {"state": {0: {"exp_avg": torch.ones(5000)}}, "param_groups": [{"lr": 0.1}]}
    state = {"state_dict": dict(weights), "optimizer_states": [moments], "epoch": 3}
    path = save_state(state, tmp_path / "resume.safetensors")
    found = load_state(light(path, tmp_path / "light.safetensors"))
    assert found["optimizer_states"] == [{"state": {}, "param_groups": [{"lr": 0.1}]}]
    assert found["epoch"] == 3
    for name, value in weights.items():
        assert (found["state_dict"][name].double() - value).abs().max() < 1e-3, name


PLAN = Plan({
    "net": Job(("taskuq train varnet x.toml -o runs/net",), leaves=("runs/net/best.safetensors",)),
    "aside": Job(("taskuq train flow x.toml -o runs/aside",)),
    "stopped": Job(("taskuq train flow x.toml -o runs/stopped",), needs=("net",),
                   leaves=("runs/stopped/best.safetensors",)),
    "lost": Job(("taskuq train flow x.toml -o runs/lost",),
                leaves=("runs/lost/best.safetensors",)),
})  # fmt: skip


def home_of(tmp_path):
    home = tmp_path / "home"
    for name in ("net", "aside", "stopped", "lost"):
        write(home, f"runs/{name}/best.safetensors", 300_000)
    write(home, "runs/stopped/resume.safetensors", 300_000)
    write_status(home, {"net": Entry("done", 1), "aside": Entry("done", 1),
                        "stopped": Entry("unfinished", seconds=9.0),
                        "lost": Entry("unfinished", seconds=9.0)})  # fmt: skip
    return home


def test_another_machine_gets_what_jobs_that_are_not_done_need_in_folders_that_fit(tmp_path):
    home = home_of(tmp_path)
    archives = bring(PLAN, home, tmp_path / "brought", 800_000)
    assert {path.parent.name for path in archives} == {"brought-1", "brought-2"}
    for name in ("brought-1", "brought-2"):
        assert sum(path.stat().st_size for path in (tmp_path / name).iterdir()) <= 800_000
    other = tmp_path / "other"
    taken = unpack(archives, other)
    assert {"status.json", "runs/net/best.safetensors", "runs/stopped/resume.safetensors"} <= {
        *taken
    }
    assert not any("aside" in name for name in taken)
    assert all(not pattern.startswith("runs/aside") for pattern in needed(PLAN, home))


def test_elsewhere_a_job_keeps_what_it_left_only_beside_a_state(tmp_path):
    home = home_of(tmp_path)
    forget(PLAN, home)
    assert (home / "runs/stopped/best.safetensors").exists()
    assert not (home / "runs/lost/best.safetensors").exists()
    states = {name: (entry.state, entry.seconds) for name, entry in read_status(home).items()}
    assert states["net"][0] == "done"
    assert states["stopped"] == states["lost"] == ("waiting", 0.0)
