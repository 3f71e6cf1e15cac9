"""Image quality as a task: metrics, tables by Pipeline, level goals, libraries with weights."""

import sys

import numpy as np
import pytest
import torch

import taskuq as tq
from raising import refused
from taskuq._config import read_config
from taskuq.data._atlas import AtlasData
from taskuq.data._readers import open_all
from taskuq.experiments._run import RunConfig, open_run
from taskuq.measure._coils import rss
from taskuq.measure._mri import MaskConfig
from taskuq.task import DISTS, LPIPS, NMSE, PSNR, SSIM, ImageQuality
from taskuq.task._backbone import VGG16

RATES, SAMPLES = (8.0, 4.0, 2.0), 6


def noisy(measurement, *, samples, seed):
    """A sampler whose spread falls with R, as its error does."""
    image = measurement.preview
    noise = np.random.default_rng(seed).normal(size=(samples, *image.shape))
    scale = 0.03 * measurement.acceleration * float(image.max())
    return (image + scale * torch.as_tensor(noise).float()).abs()


@pytest.fixture(scope="module")
def atlas():
    pytest.importorskip("nilearn")
    return open_all(AtlasData(patients=12, slices=2, size=48, coils=4))


@pytest.fixture(scope="module")
def table(atlas):
    scanner = MaskConfig(RATES).scanner(48, noise=0.0, seed=0)
    task = ImageQuality(lambda x, y: float((x - y).abs().mean()), name="MAE", range=(0, np.inf))
    both = {"psnr": PSNR(), "ssim": SSIM(), "mae": task}
    made = {
        name: tq.Pipeline(scanner, noisy, one).run(
            atlas, accelerations=RATES, samples=SAMPLES, seed=0, progress=False
        )
        for name, one in both.items()
    }
    return scanner, made


def by_hand(metric, atlas, scanner):
    from taskuq._seeds import case_seed

    outputs, targets = np.empty((3, len(atlas), SAMPLES)), np.empty((3, len(atlas)))
    for k, R in enumerate(RATES):
        for i in range(len(atlas)):
            item = atlas[i]
            seed = case_seed(0, item.case, R)
            drawn = noisy(scanner(item.image, R), samples=SAMPLES, seed=seed)
            reported, truth = drawn.mean(0).double().numpy(), rss(item.image).double().numpy()
            outputs[k, i] = [metric(reported, one.double().numpy()) for one in drawn]
            targets[k, i] = metric(reported, truth)
    return outputs, targets


def test_tables_equal_arrays_computed_by_hand(atlas, table):
    scanner, made = table
    metrics = pytest.importorskip("skimage.metrics")
    hand = {
        "psnr": lambda x, y: metrics.peak_signal_noise_ratio(y, x, data_range=y.max()),
        "ssim": lambda x, y: metrics.structural_similarity(y, x, data_range=y.max()),
        "mae": lambda x, y: np.abs(x - y).mean(),
    }
    for name, metric in hand.items():
        outputs, targets = by_hand(metric, atlas, scanner)
        assert made[name].has_round_targets
        assert np.allclose(made[name].outputs, outputs, rtol=1e-6, atol=1e-6)
        assert np.allclose(made[name].targets, targets, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "goal"), [("psnr", {"at_least": 19}), ("mae", {"at_most": 0.1})])
def test_level_goals_are_planned_by_patient(table, name, goal):
    table = table[1][name]
    assert tq.plan(table, alpha=0.2, **goal).guarantee.unit == "group"
    (found,) = tq.simulate(table, alpha=0.2, policies=["fixed-width"], splits=40, seed=0, **goal)
    assert found.mean_acceleration > 1
    assert found.coverage >= 0.8


def test_runs_resume_with_targets_by_round(atlas, tmp_path):
    scanner = MaskConfig(RATES).scanner(48, noise=0.0, seed=0)
    settings = {"accelerations": RATES, "samples": 2, "seed": 0, "store": tmp_path / "table"}
    first = tq.Pipeline(scanner, noisy, PSNR()).run(atlas, progress=False, **settings)
    again = tq.Pipeline(scanner, noisy, PSNR()).run(atlas, progress=False, **settings)
    assert np.array_equal(first.targets, again.targets)
    with refused("resume.mismatch"):
        tq.Pipeline(scanner, noisy, NMSE()).run(atlas, progress=False, **settings)


def test_quality_of_equal_images_is_perfect():
    image = torch.rand(9, 8)
    for task, best in ((PSNR(), 100), (SSIM(), 1), (NMSE(), 0)):
        assert task.compare(image, image[None]).tolist() == pytest.approx([best])
    assert NMSE().compare(torch.zeros(9, 8), image[None]).tolist() == pytest.approx([1])
    # Without signal nothing is divided by zero.
    for task in (PSNR(), SSIM(), NMSE()):
        assert task.compare(image, torch.zeros(1, 9, 8)).isfinite().all()


@pytest.mark.parametrize("unit", [1e-6, 1e4])
def test_quality_does_not_depend_on_the_unit(unit):
    reported, images = torch.rand(9, 8), torch.rand(3, 9, 8)
    for task in (PSNR(), SSIM(), NMSE()):
        found = task.compare(unit * reported, unit * images)
        assert torch.allclose(found, task.compare(reported, images), rtol=1e-4)


def test_refusals(atlas):
    scanner = MaskConfig(RATES).scanner(48, noise=0.0, seed=0)
    run = {"accelerations": RATES, "samples": 1, "seed": 0, "progress": False}
    with refused("component.invalid", "needs samples"):
        tq.Pipeline(scanner, noisy, PSNR()).run(atlas, **run)
    with refused("component.invalid", "one number"):
        ImageQuality(lambda x, y: x - y)(torch.rand(2, 8, 8))
    with refused("shape.mismatch"):
        PSNR().compare(torch.rand(8, 7), torch.rand(2, 8, 8))
    with refused("shape.mismatch", "7×7"):
        SSIM()(torch.rand(2, 6, 9))


RUN = """
samples = 3
subset = "all"
measure = { accelerations = [8, 4] }
recover = { kind = "zero-filled" }
data = { kind = "atlas", patients = 4, slices = 1, size = 48, coils = 2 }
[task]
kind = "multi"
tasks.psnr = { kind = "psnr" }
"""


def test_configurations_name_quality_tasks(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN + 'tasks.ssim = { kind = "ssim" }\ntasks.nmse = { kind = "nmse" }\n')
    task = read_config(RunConfig, path).task.open("cpu")
    assert task.names == ("psnr", "ssim", "nmse")
    images = torch.rand(3, 8, 8)
    assert task.compare(images[0], images).shape == task(images).shape == (3, 3)
    path.write_text(RUN + 'tasks.mean = { kind = "mean-intensity" }\n')
    with refused("option.conflict"):
        open_run(read_config(RunConfig, path))


@pytest.fixture(scope="module")
def vgg(tmp_path_factory):
    """Random weights of VGG-16 in a file; its last layers are not used."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in VGG16().state_dict().items()}
    draw = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(shape, generator=draw) / shape[1:].numel() ** 0.5
        if name.startswith("features")
        else torch.zeros(shape, dtype=torch.float16)
        for name, shape in shapes.items()
    }
    save_file(state, path := tmp_path_factory.mktemp("vgg") / "vgg16.safetensors")
    return path


def test_perceptual_metrics_use_the_weights_of_the_user(vgg, tmp_path):
    pytest.importorskip("torchmetrics", minversion="1.8")
    generator = torch.Generator().manual_seed(0)
    image, noise = torch.rand(2, 20, 18, generator=generator)
    for kind in (LPIPS, DISTS):
        (tmp_path / "run.toml").write_text(
            f'[task]\nkind = "{kind.__name__.lower()}"\nweights = "{vgg}"\n'
        )
        task = read_config(RunConfig, tmp_path / "run.toml").task.open("cpu")
        found = task.compare(image, torch.stack([image, image + 0.1 * noise, image + noise]))
        assert found[0].item() == pytest.approx(0, abs=1e-6)
        assert found[0] < found[1] < found[2]
        with refused("shape.mismatch", "16×16"):
            task(torch.rand(2, 15, 20))


@pytest.mark.parametrize("kind", [LPIPS, DISTS])
def test_perceptual_metrics_without_weights_or_library(kind, vgg, tmp_path, monkeypatch):
    with refused("file.missing", "VGG-16"):
        kind(tmp_path / "vgg16.safetensors").open("cpu")
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.image", None)
    with refused("dependency.missing", "taskuq[perceptual]"):
        kind(vgg).open("cpu")
