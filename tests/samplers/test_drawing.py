"""What is kept of samples that are drawn side by side."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from taskuq.data.arrays import ArrayDataset, NpzData, save_npz
from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.measure.masks import MaskConfig
from taskuq.outputs import TaskOutputs
from taskuq.recover.methods import RECOVERIES, ZeroFilled
from taskuq.runs.run import RunConfig, open_run
from taskuq.runs.samplers.drawing import SamplersConfig, draw, pixel_summary
from taskuq.runs.samplers.judging import judge, read_samplers
from taskuq.runs.samplers.words import markdown
from taskuq.settings import from_table, read_settings, to_table
from taskuq.task.methods import MeanIntensityMethod

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RATES = (4.0, 2.0)
P = 5


class Noise:
    """Zero-filled images with noise; rejects a draw for each case."""

    temperature = 1.0

    def __init__(self, size):
        self.size, self.rejected = size, 0

    def __call__(self, measurement, *, samples, seed):
        self.rejected += 1
        image = rss(measurement.zero_filled)
        noise = torch.randn(samples, *image.shape, generator=torch.Generator().manual_seed(seed))
        return image + self.size * noise


@dataclass(frozen=True)
class Noisy:
    size: float = 0.1

    def open(self, device):
        return Noise(self.size)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setitem(RECOVERIES._known, "noisy", Noisy)
    images = np.random.default_rng(0).random((5, 32, 32))
    data = ArrayDataset(images, label=[0, 1, 0, 1, 1], group=["a", "a", "b", "b", "c"])
    path = save_npz(data, tmp_path / "data.npz")
    return SamplersConfig(
        data=NpzData(path=path, coils=2),
        measure=MaskConfig(RATES),
        recover={"mine": Noisy(), "loud": Noisy(0.5), "point": ZeroFilled()},
        task={"mean": MeanIntensityMethod(), "corner": MeanIntensityMethod((0, 0.5), (0, 0.5))},
        samples=P,
        seed=3,
        batch=2,
    )


def test_tables_are_those_of_a_run(config, tmp_path):
    draw(config, tmp_path / "out", device="cpu")
    run = open_run(
        RunConfig(
            data=config.data, part="all", measure=config.measure, recover=Noisy(),
            task=config.task["corner"], samples=P, seed=3,
        ),
        "cpu",
    )  # fmt: skip
    expected = run.pipeline.run(run.images, accelerations=RATES, samples=P, seed=3, quiet=True)
    found = TaskOutputs.load(tmp_path / "out" / "mine" / "corner")

    np.testing.assert_allclose(found.outputs, expected.outputs, rtol=1e-6)
    np.testing.assert_allclose(found.targets, expected.targets, rtol=1e-6)
    assert found.group.tolist() == expected.group.tolist()
    assert found.case.tolist() == expected.case.tolist()


def test_a_sampler_that_fails_is_told_of_and_the_others_go_on(config, tmp_path):
    said = []
    draw(config, tmp_path / "out", device="cpu", tell=said.append)
    stored = read_samplers([tmp_path / "out"])

    assert "point was given up: it gives 1 samples where 5 are due" in said
    assert not stored["point"].tables
    assert stored["point"].cost["failed"]
    assert set(stored["loud"].tables) == {"mean", "corner"}


def test_only_the_task_networks_that_are_asked_judge(config, tmp_path):
    draw(config, tmp_path / "out", device="cpu")
    assert set(read_samplers([tmp_path / "out"], tasks=["corner"])["loud"].tables) == {"corner"}
    with pytest.raises(InputError, match="no table is of centre; choose from"):
        read_samplers([tmp_path / "out"], tasks=["corner", "centre"])

    # What was drawn for other networks alone is no failure to draw.
    for name in ("corner", "mean"):
        other = {f"other:{name}": str(tmp_path / "out" / "loud" / name)}
        found = read_samplers([tmp_path / "out"], other, tasks=["corner"])
        assert ("other" in found) == (name == "corner")
    assert "point" in found


def test_cost_and_pixels_have_a_number_for_each_round(config, tmp_path):
    draw(config, tmp_path / "out", device="cpu")
    loud = read_samplers([tmp_path / "out"])["loud"]

    # Three batches of two cases: the last one is filled up.
    assert loud.cost["rejected"] == [6, 6]
    assert all(time > 0 for time in loud.cost["milliseconds"])
    assert loud.cost["method"] == {"kind": "noisy", "size": 0.5}
    assert loud.pixels["error"].shape == (2, 5)
    np.testing.assert_allclose(loud.pixels["variance"], 0.25, rtol=0.1)


def test_drawing_again_replaces_what_was_stored(config, tmp_path):
    for _ in range(2):
        draw(config, tmp_path / "out", device="cpu")

    assert TaskOutputs.load(tmp_path / "out" / "mine" / "mean").cases == 5


def test_the_file_is_read_back_as_it_was_written(config):
    table = to_table(config)

    assert table["recover"]["loud"] == {"kind": "noisy", "size": 0.5}
    assert from_table(SamplersConfig, table) == config


@pytest.mark.parametrize("data", ["lgg", "atlas"])
def test_the_project_compares_its_sampler_with_the_flow(data):
    config = read_settings(SamplersConfig, CONFIGS / data / "samplers.toml")

    assert {"flow", "sampler"} <= set(config.recover)
    assert config.samples == 32


def test_a_table_of_names_has_tables_inside():
    with pytest.raises(InputError, match="recover is 3; make it tables with names"):
        from_table(SamplersConfig, {"recover": 3})
    with pytest.raises(InputError, match=r"recover\.mine\.kind is None"):
        from_table(SamplersConfig, {"recover": {"mine": {}}})


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(InputError, match="no sampler or no task is named"):
        draw(SamplersConfig(), tmp_path)


def test_block_ranks_of_exchangeable_images_are_flat():
    images = torch.rand(P + 1, 32, 32, generator=torch.Generator().manual_seed(0))
    # A half so dark that some of its blocks count and some do not.
    images[:, :, :16] *= torch.linspace(0.03, 0.08, 16)
    rest = [[k for k in range(P + 1) if k != i] for i in range(P + 1)]
    found = pixel_summary(torch.stack([images[r] for r in rest]), images)
    counts = found["ranks_4"].sum(0)

    assert 32 < counts[0] < 64
    assert (counts == counts[0]).all()


def test_mean_squares_are_those_of_each_case():
    generator = torch.Generator().manual_seed(1)
    drawn, truth = torch.rand(2, P, 16, 16, generator=generator), torch.zeros(2, 16, 16)
    found = SimpleNamespace(**pixel_summary(drawn, truth))

    for k, samples in enumerate(drawn.numpy()):
        assert found.error[k] == pytest.approx(np.square(samples.mean(0)).mean(), rel=1e-5)
        assert found.error_of_one[k] == pytest.approx(np.square(samples[0]).mean(), rel=1e-5)
        assert found.variance[k] == pytest.approx(samples.var(0, ddof=1).mean(), rel=1e-5)


def test_samples_of_another_seed_are_not_written_over(config, tmp_path):
    draw(config, tmp_path / "out", device="cpu")
    before = TaskOutputs.load(tmp_path / "out/mine/mean").outputs
    with pytest.raises(InputError, match=r"mine holds what was drawn with seed 3"):
        draw(replace(config, seed=4), tmp_path / "out", device="cpu")
    assert np.array_equal(TaskOutputs.load(tmp_path / "out/mine/mean").outputs, before)
    draw(config, tmp_path / "out", device="cpu")


def test_a_judgement_of_two_seeds_says_so(config, tmp_path):
    for seed, name in ((3, "mine"), (4, "loud")):
        one = replace(config, seed=seed, recover={name: config.recover[name]})
        draw(one, tmp_path / str(seed), device="cpu")
    about = markdown(judge(read_samplers([tmp_path / "3", tmp_path / "4"]), trials=5))
    assert about.endswith("drawn with seed 3: mine, seed 4: loud.")
    assert "drawn with" not in markdown(judge(read_samplers([tmp_path / "3"]), trials=5))


def script(*words):
    return subprocess.run(
        [sys.executable, "-m", "scripts.samplers", *map(str, words)],
        cwd=CONFIGS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("draw", "absent.toml", "-o", "out"), "cannot read absent.toml: "),
        (
            ("draw", "configs/lgg/samplers.toml", "-o", "out", "--only", "flaw"),
            "configs/lgg/samplers.toml has no flaw; choose from flow, sampler, ",
        ),
        (("judge", "nowhere"), "no sampler with a table is there; "),
    ],
)
def test_the_script_says_one_sentence_of_bad_input(words, said):
    found = script(*words)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(said)
    assert len(found.stderr.splitlines()) == 1
