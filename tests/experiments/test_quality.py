import numpy as np
import pytest
import torch
from volumes import save_npz

from raising import refused
from taskuq._config import read_config, toml_text
from taskuq._io import read_json
from taskuq.cli.app import main
from taskuq.cli.experiments import quality, quality_lines
from taskuq.data._arrays import ArrayDataset
from taskuq.experiments import _quality as metric
from taskuq.recover import build
from taskuq.recover._methods import ZeroFilled
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.report._report import write_report
from taskuq.training._weights import save_weights

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
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
    assert metric._volume_psnr(*map(torch.as_tensor, (found, truth))) == pytest.approx(expected)
    slices = [
        metrics.structural_similarity(t, f, data_range=peak)
        for t, f in zip(truth, found, strict=True)
    ]
    assert metric._volume_ssim(*map(torch.as_tensor, (found, truth))) == pytest.approx(
        np.mean(slices)
    )


def test_frechet_distance_of_gaussians_is_the_closed_form():
    rng = np.random.default_rng(0)
    white = np.linalg.qr(rng.standard_normal((400, 3)) - 0)[0]
    white = (white - white.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(white.T))).T
    first, second = white * [1.0, 2.0, 3.0], white * [2.0, 2.0, 1.0] + [1.0, 0.0, 2.0]
    # Diagonal covariances: |shift|² + sum of squared differences of the deviations.
    assert metric._frechet_distance(first, second) == pytest.approx(5 + 1 + 0 + 4)
    assert metric._frechet_distance(first, first) == pytest.approx(0, abs=1e-9)


def evaluate(folder, images, *, coils=2, normalise=True, **settings):
    """Return the record of a configuration for images of two in each group."""
    groups = np.arange(len(images)) // 2
    data = ArrayDataset(images, label=[0] * len(images), group=groups, normalise=normalise)
    table = {"kind": "npz", "path": str(save_npz(data, folder / "images.npz")), "coils": coils}
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
    for key in ("spread_error_ratio", "spread_error_correlation"):
        assert {method for (_, method), row in rows.items() if key in row} == {"flow"}


def test_ratio_of_spread_and_error():
    zero, truth = np.zeros(2), torch.rand(4, 4)
    pairs = [
        metric._variance_and_error(torch.stack([truth + x for x in shifts]), truth)
        for shifts in ((1.0, 3.0), (-2.0, 0.0, 2.0))
    ]
    assert np.allclose(pairs, [(2 * 3 / 2, 4), (4 * 4 / 3, 0)], atol=1e-5)
    found = {"psnr": zero, "rejected": zero, "correlation": zero, "variance": np.array(pairs)}
    expected = ((3 + 16 / 3) / 4) ** 0.5
    assert metric._row(found)["spread_error_ratio"] == pytest.approx(expected, rel=1e-5)
    for lost in ([np.nan, np.inf], [np.inf, 1.0], [1.0, np.nan]):
        row = metric._row({**found, "variance": np.array([lost])})
        assert "spread_error_ratio" not in row


def test_subset_all_evaluates_all_cases(tmp_path):
    (row,) = evaluate(tmp_path, blocks(4), subset="all")["results"]
    assert row["volumes"] == 2


def test_exact_recovery_has_no_psnr(tmp_path):
    # All energy of a constant image lies in the central line, which every round measures.
    record = evaluate(tmp_path, np.ones((8, 32, 32)), coils=0, normalise=False)
    (row,) = record["results"]
    assert row["psnr"] == {"mean": None, "standard_error": None}
    assert (row["exact"], row["volumes"], row["ssim"]["mean"]) == (2, 2, 1.0)
    assert "- " in quality_lines(record)[1]
    assert "Image quality of whole volumes" in write_report(tmp_path).read_text()


@pytest.fixture
def config(tmp_path):
    """Two volumes, judged as they are zero-filled and by a network."""
    np.savez(tmp_path / "a.npz", images=blocks(8), label=[0] * 8, group=np.arange(8) // 2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build("varnet", preset="tiny")
    saved(net, tmp_path / "v.safetensors", "varnet")
    path = tmp_path / "q.toml"
    path.write_text(
        f"varnet = '{tmp_path}/v.safetensors'\n[data]\nkind = 'npz'\npath = '{tmp_path}/a.npz'\n"
        "coils = 2\nvalidation_fraction = 0.5\n[measure]\naccelerations = [4, 2]\n"
        "published = false\n"
    )
    return path


def judged(config, output, *more):
    asked = ["quality", config, "-o", output, "--device", "cpu", "--threads", "1", *more]
    main([str(word) for word in asked])
    return read_json(output, "taskuq.quality/1")


def test_jobs_give_the_record_of_one_process(config, tmp_path, capsys):
    alone = judged(config, tmp_path / "alone.json")
    shared = judged(
        config, tmp_path / "jobs.json", "--engine", "slurm", "--address", "local", "--workers", "2"
    )
    assert shared == alone
    assert len(alone["results"]) == 4
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("R = ")]
    stages = [f"R = {R}, {method}" for R in (4, 2) for method in ("zero-filled", "varnet")]
    assert said == stages  # of the process alone
    assert not (tmp_path / "jobs-pieces").exists()


class Moments(torch.nn.Module):
    """Features of few numbers."""

    def __init__(self, path):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, images, limits):
        scaled = self.weight * images / limits[:, None, None]
        return torch.stack([scaled.mean((1, 2)), scaled.std((1, 2))], 1)


def test_stopped_evaluation_is_resumed(config, tmp_path, monkeypatch):
    monkeypatch.setattr(metric, "load_vgg", Moments)
    (tmp_path / "vgg.safetensors").write_text("weights")
    config.write_text(f"vgg_weights = '{tmp_path}/vgg.safetensors'\n{config.read_text()}")
    settings, store = read_config(metric.QualityConfig, config), tmp_path / "pieces"
    alone = metric.evaluate_quality(settings, quiet=True)
    whole, seen = metric._QualityWork.evaluate, []

    def stopping(self, piece):
        seen.append(piece)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return whole(self, piece)

    monkeypatch.setattr(metric._QualityWork, "evaluate", stopping)
    with pytest.raises(KeyboardInterrupt):
        metric.evaluate_quality(settings, store=store, quiet=True)
    assert len(list(store.glob("piece-*.npz"))) == 3
    assert metric.evaluate_quality(settings, store=store, quiet=True) == alone
    assert len(seen) == 4 + 6  # nine pieces, of which three were kept
    assert all(row["fid"] > 0 for row in alone["results"])
    assert not store.exists()


def test_full_measurement_has_the_features_of_the_reference(config, tmp_path):
    images = np.random.default_rng(0).random((4, 8, 8)) * np.array([1, 2, 3, 9])[:, None, None]
    data = ArrayDataset(images, [0] * 4, [0] * 4, normalise=False)
    masks = read_config(metric.QualityConfig, config).measure
    methods, cases = {"zero-filled": ZeroFilled()}, (0, 1, 2, 3)
    work = metric._QualityWork([], tmp_path, data, data, methods, Moments(None), masks, 1, 0)
    # At R = 1 everything is measured.
    recovered, reference = (
        work.evaluate(metric._QualityChunk(name, 1.0, cases)) for name in (*methods, None)
    )
    np.testing.assert_allclose(recovered["features"], reference["features"], rtol=1e-5)


def test_pieces_of_another_evaluation_are_refused(config, tmp_path, monkeypatch):
    settings, store = read_config(metric.QualityConfig, config), tmp_path / "pieces"

    def stopping(self, piece):
        raise KeyboardInterrupt

    monkeypatch.setattr(metric._QualityWork, "evaluate", stopping)
    with pytest.raises(KeyboardInterrupt):
        metric.evaluate_quality(settings, store=store, quiet=True)
    with refused("resume.mismatch"):
        metric.evaluate_quality(settings, store=store, quiet=True, threads=7)
    saved(build("varnet", preset="tiny"), tmp_path / "v.safetensors", "varnet")
    with refused("resume.mismatch"):
        metric.evaluate_quality(read_config(metric.QualityConfig, config), store=store, quiet=True)
