"""Image quality by every engine: the record of one process, whoever judged the pieces."""

import numpy as np
import pytest
import torch

from raising import refused
from taskuq._config import read_config
from taskuq._io import read_json
from taskuq.cli.app import main
from taskuq.data._arrays import ArrayDataset
from taskuq.experiments._quality import QualityConfig, _QualityChunk, _QualityWork, evaluate_quality
from taskuq.recover import build
from taskuq.recover._methods import ZeroFilled
from taskuq.training._weights import save_weights

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def config(tmp_path):
    """Two volumes, judged as they are zero-filled and by a network."""
    rng = np.random.default_rng(1)
    images = np.kron(rng.random((8, 8, 8)), np.ones((4, 4)))
    np.savez(tmp_path / "a.npz", images=images, label=[0] * 8, group=np.arange(8) // 2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build("varnet", preset="tiny")
    save_weights(net, tmp_path / "v.safetensors", kind="varnet", config=net.config)
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
    monkeypatch.setattr("taskuq.experiments._quality._load_vgg", Moments)
    (tmp_path / "vgg.safetensors").write_text("weights")
    config.write_text(f"vgg_weights = '{tmp_path}/vgg.safetensors'\n{config.read_text()}")
    settings, store = read_config(QualityConfig, config), tmp_path / "pieces"
    alone = evaluate_quality(settings, quiet=True)
    whole, seen = _QualityWork.evaluate, []

    def stopping(self, piece):
        seen.append(piece)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return whole(self, piece)

    monkeypatch.setattr(_QualityWork, "evaluate", stopping)
    with pytest.raises(KeyboardInterrupt):
        evaluate_quality(settings, store=store, quiet=True)
    assert len(list(store.glob("piece-*.npz"))) == 3
    assert evaluate_quality(settings, store=store, quiet=True) == alone
    assert len(seen) == 4 + 6  # nine pieces, of which three were kept
    assert all(row["fid"] > 0 for row in alone["results"])
    assert not store.exists()


def test_full_measurement_has_the_features_of_the_reference(config, tmp_path):
    images = np.random.default_rng(0).random((4, 8, 8)) * np.array([1, 2, 3, 9])[:, None, None]
    data = ArrayDataset(images, [0] * 4, [0] * 4, normalise=False)
    masks = read_config(QualityConfig, config).measure
    methods, cases = {"zero-filled": ZeroFilled()}, (0, 1, 2, 3)
    work = _QualityWork([], tmp_path, data, data, methods, Moments(None), masks, 1, 0)
    # At R = 1 everything is measured.
    recovered, reference = (
        work.evaluate(_QualityChunk(name, 1.0, cases)) for name in (*methods, None)
    )
    np.testing.assert_allclose(recovered["features"], reference["features"], rtol=1e-5)


def test_pieces_of_another_evaluation_are_refused(config, tmp_path, monkeypatch):
    settings, store = read_config(QualityConfig, config), tmp_path / "pieces"

    def stopping(self, piece):
        raise KeyboardInterrupt

    monkeypatch.setattr(_QualityWork, "evaluate", stopping)
    with pytest.raises(KeyboardInterrupt):
        evaluate_quality(settings, store=store, quiet=True)
    with refused("resume.mismatch"):
        evaluate_quality(settings, store=store, quiet=True, threads=7)
    net = build("varnet", preset="tiny")
    save_weights(net, tmp_path / "v.safetensors", kind="varnet", config=net.config)
    with refused("resume.mismatch"):
        evaluate_quality(read_config(QualityConfig, config), store=store, quiet=True)
