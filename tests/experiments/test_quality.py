"""Image quality of reconstructions."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from raising import refused
from taskuq._config import toml_text
from taskuq._io import read_json
from taskuq.cli.experiments import quality, quality_lines
from taskuq.data._arrays import ArrayDataset, _save_npz
from taskuq.experiments._quality import (
    QualityConfig,
    _frechet_distance,
    _rank_correlation,
    _size_ratio,
    _some_pixels,
    _volume_psnr,
    _volume_ssim,
)
from taskuq.recover import build
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.report._report import write_report
from taskuq.training._weights import save_weights

SMALL_FLOW = FlowConfig(
    coils=2, unet_width=4, unet_pools=2, condition_channels=6, steps_per_layer=3, max_value=1e12
)


def test_psnr_and_ssim_of_a_volume_follow_fastmri():
    metrics = pytest.importorskip("skimage.metrics")
    rng = np.random.default_rng(0)
    truth = rng.random((4, 24, 20)) * np.array([1, 2, 3, 4])[:, None, None]
    found = truth + 0.2 * rng.standard_normal(truth.shape)
    peak = truth.max()
    expected = metrics.peak_signal_noise_ratio(truth, found, data_range=peak)
    assert _volume_psnr(*map(torch.as_tensor, (found, truth))) == pytest.approx(expected)
    slices = [
        metrics.structural_similarity(t, f, data_range=peak)
        for t, f in zip(truth, found, strict=True)
    ]
    assert _volume_ssim(*map(torch.as_tensor, (found, truth))) == pytest.approx(np.mean(slices))


def test_frechet_distance_of_gaussians_is_the_closed_form():
    rng = np.random.default_rng(0)
    white = np.linalg.qr(rng.standard_normal((400, 3)) - 0)[0]
    white = (white - white.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(white.T))).T
    first, second = white * [1.0, 2.0, 3.0], white * [2.0, 2.0, 1.0] + [1.0, 0.0, 2.0]
    # Diagonal covariances: |shift|² + sum of squared differences of the deviations.
    assert _frechet_distance(first, second) == pytest.approx(5 + 1 + 0 + 4)
    assert _frechet_distance(first, first) == pytest.approx(0, abs=1e-9)


def evaluate(folder, images, *, coils=2, normalise=True, **settings):
    """Return the record of a configuration for images of two in each group."""
    groups = np.arange(len(images)) // 2
    data = ArrayDataset(images, label=[0] * len(images), group=groups, normalise=normalise)
    table = {"kind": "npz", "path": str(_save_npz(data, folder / "images.npz")), "coils": coils}
    if "subset" not in settings:
        table["validation_fraction"] = 0.5
    measure = {"accelerations": settings.pop("accelerations", [4]), "published": False}
    (folder / "q.toml").write_text(toml_text({**settings, "data": table, "measure": measure}))
    quality(folder / "q.toml", output=folder / "q.json")
    return read_json(folder / "q.json", "taskuq.quality/1")


def blocks(count):
    return np.kron(np.random.default_rng(1).random((count, 8, 8)), np.ones((4, 4)))


def saved(net, path, kind):
    return str(save_weights(net, path, kind=kind, config=net.config))


def test_networks_are_named_by_their_files(tmp_path):
    net = build("varnet", preset="tiny")
    first, mine, same = (
        saved(net, tmp_path / f"{name}.safetensors", "varnet")
        for name in ("first", "net-of-mine", "varnet")
    )
    rows = evaluate(tmp_path, blocks(4), varnet=first, networks=[mine])["results"]
    assert [row.pop("method") for row in rows] == ["zero-filled", "varnet", "net-of-mine"]
    assert rows[1] == rows[2] != rows[0]
    assert "net-of-mine" in write_report(tmp_path).read_text()
    with refused("table.duplicate", "varnet"):
        evaluate(tmp_path, blocks(4), varnet=first, networks=[same])


def test_table_of_image_quality(tmp_path, capsys):
    varnet = saved(build("varnet", preset="tiny"), tmp_path / "v.safetensors", "varnet")
    flow = saved(ConditionalFlow(SMALL_FLOW), tmp_path / "f.safetensors", "flow")
    record = evaluate(
        tmp_path, blocks(8), varnet=varnet, flow=flow, samples=2, accelerations=[4, 2]
    )
    assert capsys.readouterr().out.strip() == str(tmp_path / "q.json")
    rows = {(row["acceleration"], row["method"]): row for row in record["results"]}
    assert len(rows) == 2 * 3
    assert rows[2, "zero-filled"]["psnr"]["mean"] > rows[4, "zero-filled"]["psnr"]["mean"]
    assert all(row["volumes"] == 2 and row["ssim"]["mean"] <= 1 for row in rows.values())
    assert len(quality_lines(record)) == 7
    assert math.isfinite(record["spread_error_pooled"])
    assert {method for (_, method), row in rows.items() if "spread_error_ratio" in row} == {"flow"}


def test_subset_all_evaluates_all_cases(tmp_path):
    (row,) = evaluate(tmp_path, blocks(4), subset="all")["results"]
    assert row["volumes"] == 2
    with refused("option.conflict"):
        QualityConfig(subset="all", vgg_weights=Path("vgg.safetensors"))


def test_exact_recovery_has_no_psnr(tmp_path):
    # All energy of a constant image lies in the central line, which every round measures.
    record = evaluate(tmp_path, np.ones((8, 32, 32)), coils=0, normalise=False)
    (row,) = record["results"]
    assert row["psnr"] == {"mean": None, "standard_error": None}
    assert (row["exact"], row["volumes"], row["ssim"]["mean"]) == (2, 2, 1.0)
    assert "- " in quality_lines(record)[1]
    assert "Image quality of whole volumes" in write_report(tmp_path).read_text()


def test_pooled_pixels_rank_slices_against_each_other():
    """Slices differ in spread and error, pixels of one slice do not: only pooling sees it."""
    rng = np.random.default_rng(2)
    spread, error = [], []
    for level in (0.01, 0.1):
        truth = torch.ones(32, 32)
        noise = torch.as_tensor(rng.standard_normal((8, 32, 32)) * level)
        alone = _some_pixels(truth + noise, truth + level * torch.sign(noise[0]), seed=0)
        assert abs(_rank_correlation(*alone)) < 0.3
        spread.append(alone[0])
        error.append(alone[1])
    assert alone.shape == (2, 1024)
    assert _rank_correlation(np.concatenate(spread), np.concatenate(error)) > 0.7


@pytest.mark.parametrize("samples", [2, 64])
@pytest.mark.parametrize("size", [0.5, 1, 2])
def test_ratio_of_spread_and_error(size, samples):
    """Samples of the posterior that the truth is drawn from have ratio 1, however many."""
    pixels = []
    for level in (0.01, 0.1):
        rng = np.random.default_rng(2)
        noise = torch.as_tensor(rng.standard_normal((samples + 1, 64, 64))) * level
        drawn = 1 + size * noise[1:]
        pixels.append(_some_pixels(drawn, torch.ones(64, 64) + noise[0], seed=0))
    # The mean of the samples is off by its own error, too.
    expected = size * ((1 + 1 / samples) / (1 + size**2 / samples)) ** 0.5
    assert _size_ratio(np.concatenate(pixels, axis=1), samples) == pytest.approx(expected, rel=0.03)
    assert _size_ratio(np.zeros((2, 5)), samples) is None
