"""Image quality of reconstructions."""

from __future__ import annotations

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
    _spread_error_correlation,
    _volume_psnr,
    _volume_ssim,
)
from taskuq.recover import build
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.report._report import write_report
from taskuq.training._weights import save_weights

SMALL_FLOW = FlowConfig(
    coils=2, unet_width=4, unet_pools=2, condition_channels=6, steps=3, limit=1e12
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


def evaluate_twice(folder, name):
    """Evaluate the same weights under two names."""
    images = np.kron(np.random.default_rng(1).random((4, 8, 8)), np.ones((4, 4)))
    data = ArrayDataset(images, label=[0] * 4, group=np.arange(4) // 2)
    net = build("varnet", preset="tiny")
    paths = [str(folder / f"{stem}.safetensors") for stem in ("first", name)]
    for path in paths:
        save_weights(net, path, kind="varnet", config=net.config)
    settings = {
        "varnet": paths[0],
        "recoveries": paths[1:],
        "data": {"kind": "npz", "path": str(_save_npz(data, folder / "images.npz")), "coils": 2,
                 "validation": 0.5},
        "measure": {"accelerations": [4], "published": False},
    }  # fmt: skip
    (folder / "q.toml").write_text(toml_text(settings))
    quality(folder / "q.toml", output=folder / "q.json")
    return read_json(folder / "q.json", "taskuq.quality/1")["results"]


def test_networks_are_named_by_their_files(tmp_path):
    rows = evaluate_twice(tmp_path, "net-of-mine")

    # The name is all the difference.
    assert [row.pop("method") for row in rows] == ["zero-filled", "varnet", "net-of-mine"]
    assert rows[1] == rows[2] != rows[0]
    assert "net-of-mine" in write_report(tmp_path).read_text()


def test_two_networks_of_one_name_are_refused(tmp_path):
    with refused("table.duplicate", "varnet"):
        evaluate_twice(tmp_path, "varnet")


def test_table_of_image_quality(tmp_path, capsys):
    flow = ConditionalFlow(SMALL_FLOW)
    rng = np.random.default_rng(1)
    images = np.kron(rng.random((8, 8, 8)), np.ones((4, 4)))
    data = ArrayDataset(images, label=[0] * 8, group=np.arange(8) // 2)
    path = _save_npz(data, tmp_path / "images.npz")
    net = build("varnet", preset="tiny")
    save_weights(net, tmp_path / "v.safetensors", kind="varnet", config=net.config)
    save_weights(flow, tmp_path / "f.safetensors", kind="flow", config=flow.config)
    settings = {
        "varnet": str(tmp_path / "v.safetensors"),
        "flow": str(tmp_path / "f.safetensors"),
        "samples": 2,
        "data": {"kind": "npz", "path": str(path), "coils": 2, "validation": 0.5},
        "measure": {"accelerations": [4, 2], "published": False},
    }
    (tmp_path / "q.toml").write_text(toml_text(settings))
    quality(tmp_path / "q.toml", output=tmp_path / "q.json")
    assert capsys.readouterr().out.strip() == str(tmp_path / "q.json")
    record = read_json(tmp_path / "q.json", "taskuq.quality/1")
    rows = {(row["acceleration"], row["method"]): row for row in record["results"]}
    assert len(rows) == 2 * 3
    assert rows[2, "zero-filled"]["psnr"]["mean"] > rows[4, "zero-filled"]["psnr"]["mean"]
    assert all(row["volumes"] == 2 and row["ssim"]["mean"] <= 1 for row in rows.values())
    assert len(quality_lines(record)) == 7
    assert math.isfinite(record["spread_error_pooled"])
    assert {method for (_, method), row in rows.items() if "spread_error_ratio" in row} == {"flow"}


def test_part_all_evaluates_all_cases(tmp_path, capsys):
    images = np.kron(np.random.default_rng(1).random((4, 8, 8)), np.ones((4, 4)))
    data = ArrayDataset(images, label=[0] * 4, group=np.arange(4) // 2)
    path = str(_save_npz(data, tmp_path / "images.npz"))
    settings = {
        "part": "all",
        "data": {"kind": "npz", "path": path, "coils": 2},
        "measure": {"accelerations": [4], "published": False},
    }
    (tmp_path / "q.toml").write_text(toml_text(settings))
    quality(tmp_path / "q.toml", output=tmp_path / "q.json")
    (row,) = read_json(tmp_path / "q.json", "taskuq.quality/1")["results"]
    assert row["volumes"] == 2
    with refused("option.conflict"):
        QualityConfig(part="all", features=Path("vgg.safetensors"))


def test_exact_recovery_has_no_psnr(tmp_path, capsys):
    # All energy of a constant image lies in the central line, which every round measures.
    data = ArrayDataset(np.ones((4, 32, 32)), label=[0] * 4, group=[0, 1, 2, 3], normalise=False)
    settings = {
        "data": {"kind": "npz", "path": str(_save_npz(data, tmp_path / "a.npz")), "coils": 0,
                 "validation": 0.5},
        "measure": {"accelerations": [4], "published": False},
    }  # fmt: skip
    (tmp_path / "q.toml").write_text(toml_text(settings))
    quality(tmp_path / "q.toml", output=tmp_path / "q.json")
    record = read_json(tmp_path / "q.json", "taskuq.quality/1")
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


def test_equal_samples_have_no_rank_correlation():
    truth = torch.linspace(1, 2, 16).reshape(4, 4)
    assert math.isnan(_spread_error_correlation(torch.stack([truth, truth]), truth))
