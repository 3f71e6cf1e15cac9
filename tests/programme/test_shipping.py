"""What a programme trained goes into the package by one command, with cards and curves."""

from __future__ import annotations

import pytest
from scripts.shipping import TRAINED, after, embedded

from taskuq.recover import build
from taskuq.settings import read_toml
from taskuq.weights.files import read_tensors, save_weights

METRICS = "epoch,step,training_loss,validation_loss,seconds\n0,10,1.0,0.9,2.0\n1,20,0.8,0.7,3.5\n"
PRESETS = {"varnet": "tiny", "flow": "around", "sampler": "tiny"}


@pytest.fixture
def work(tmp_path):
    """The folder of a programme, its networks untrained and small."""
    notes = {
        "data": {"seed": 3, "patients": 600},
        "training": {"batch": 16},
        "reached": {"epoch": 1, "loss": 0.7},
    }
    whose = {"varnet": {}, "flow": {"estimate": "here"}, "sampler": {"estimate": {"folds": 0}}}
    for kind, name in TRAINED.items():
        net, folder = build(kind, preset=PRESETS[kind]), tmp_path / "work" / "runs" / name
        folder.mkdir(parents=True)
        given = notes | whose[kind]
        path = folder / "best.safetensors"
        save_weights(net, path, kind=kind, config=net.config, notes=given)
        (folder / "metrics.csv").write_text(METRICS)
    (tmp_path / "work" / "quality-atlas.json").write_text("{}")
    return tmp_path / "work"


def test_everything_goes_where_it_belongs(work, tmp_path):
    package, root = tmp_path / "taskuq" / "weights", tmp_path / "root"
    for folder in (package, root / "docs" / "curves", tmp_path / "taskuq" / "runs" / "stored"):
        folder.mkdir(parents=True)
    done = embedded(work, root, package)
    assert all(path.exists() for path in done)
    assert read_toml(package / "flow-atlas.toml")["estimate"] == "varnet-atlas"
    assert read_toml(package / "sampler-atlas.toml")["estimate"] == {"weights": "varnet-atlas"}
    assert (root / "docs" / "curves" / "sampler-atlas.csv").read_text() == METRICS
    card = (package / "sampler-atlas.md").read_text()
    for words in ("2 epochs, 20 steps of 16 slices", "epoch 2, the best", "0.2 million", "6 s of"):
        assert words in card
    kept = read_tensors(package / "varnet-atlas.safetensors")
    trained = read_tensors(work / "runs" / "atlas-varnet" / "best.safetensors")
    assert all((kept[name] - trained[name]).abs().max() < 1e-2 for name in trained)


def test_the_rest_is_done_by_commands_that_are_there(work):
    import importlib.util

    reached = (
        "lgg/flow/adversarial/table.json",
        "atlas/flow/cost.json",
        "unlike/ensemble/cost.json",
    )
    for file in (*reached, "atlas/varnet/lesion.npz"):
        (work / "tables" / file).parent.mkdir(parents=True)
        (work / "tables" / file).touch()
    (work / "any-head.json").touch()
    assert len(after(work)) == 8
    assert ["scripts.tables", "install", str(work / "tables/atlas"), "varnet"] in after(work)
    for words in after(work):
        assert importlib.util.find_spec(words[0]) is not None, words[0]


def test_what_was_not_reached_is_not_judged(work):
    commands = [" ".join(words) for words in after(work)]
    assert commands
    for words in commands:
        assert not any(one in words for one in ("any_head", "judge", "install"))


def test_networks_that_were_not_trained_anew_stay(work, tmp_path):
    package, root = tmp_path / "taskuq" / "weights", tmp_path / "root"
    for folder in (package, root / "docs" / "curves", tmp_path / "taskuq" / "runs" / "stored"):
        folder.mkdir(parents=True)
    (work / "runs" / TRAINED["flow"] / "best.safetensors").unlink()
    (work / "quality-atlas.json").unlink()
    assert {path.name for path in embedded(work, root, package)} == {
        "varnet-atlas.safetensors", "sampler-atlas.safetensors"
    }  # fmt: skip
