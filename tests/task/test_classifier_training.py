"""Training of task networks, and their metrics."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as few
from hypothesis import strategies as st
from scipy.stats import binom

from bits import same_bits
from raising import refused
from taskuq._config import read_config
from taskuq.cli.run import train_command
from taskuq.data._arrays import ArrayDataset, NpzData
from taskuq.data._dataset import LabelledSubset, SplitConfig
from taskuq.task import load
from taskuq.task._backbone import BackboneConfig, InitConfig
from taskuq.task._cases import AugmentConfig
from taskuq.task._classifier import ClassifierConfig
from taskuq.task._classifier_training import (
    AttackConfig,
    _classifier_metrics,
    _ClassifierTraining,
    _regression_metrics,
)
from taskuq.task._metrics import (
    auroc,
    classification_rates,
    reliability,
    require_classes,
    roc_curve,
)
from taskuq.task._simclr import _SimCLRConfig, _SimCLRTraining
from taskuq.training._checkpoints import _read_log
from taskuq.training._config import TrainingConfig
from taskuq.training._fit import TrainerOptions, train
from taskuq.training._networks import NETWORKS
from taskuq.training._weights import read_tensors

ROOT = Path(__file__).resolve().parents[2]
CPU = TrainerOptions(accelerator="cpu", progress=False)
TINY = BackboneConfig("small", width=4, blocks=(1, 1))
SPLIT = SplitConfig(train=0.5, tune=0.25)


@pytest.fixture
def settings(spots):
    return _ClassifierTraining(
        network=ClassifierConfig(TINY, hidden=(8,), dropout=0.1, tasks=("spot",)),
        training=TrainingConfig(epochs=6, batch=16, learning_rate=1e-2),
        data=NpzData(path=spots, in_memory=True),
        split=SPLIT,
        augment=AugmentConfig(rotation=5.0, shift=0.05, crop=0.9),
        attack=AttackConfig(radius=2.0, steps=3, step_size=0.5),
    )


def final(folder):
    return read_tensors(folder / "last.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(same_bits(v, second[k]) for k, v in first.items())


def test_classifier_learns_and_resumes_with_the_same_bits(settings, tmp_path):
    """Views, attacks and dropout depend on the epoch and the step alone."""
    best = train(settings, tmp_path / "whole", machine=CPU)
    (row,) = _classifier_metrics(load(best), settings.open_parts()[2], AttackConfig(radius=0.5))
    assert row["cases"] == 24
    assert row["auroc"] > 0.95
    assert row["robust_accuracy"] <= row["accuracy"]
    # The constant schedule lets the same training be cut short by fewer epochs.
    half = replace(settings, training=replace(settings.training, epochs=3))
    train(half, tmp_path / "parts", machine=CPU)
    config = tmp_path / "parts" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 3", "epochs = 6"))
    train(settings, tmp_path / "parts", machine=CPU)
    assert same(final(tmp_path / "parts"), final(tmp_path / "whole"))


def test_classes_are_sampled_equally_often(settings):
    settings = replace(settings, balance_by="sampling")
    train_, tune, _ = settings.prepare(CPU)
    targets = np.linspace(0, 1, len(train_))[:, None] > 0.9
    rare = replace(train_, targets=targets.astype(float))
    epochs = [[rare._drawn(epoch, k) for k in range(len(rare))] for epoch in range(40)]
    positive = targets[np.concatenate(epochs), 0]
    low, high = binom.ppf([1e-9, 1 - 1e-9], positive.size, 0.5)
    assert low <= positive.sum() <= high
    assert epochs[0] != epochs[1]
    assert epochs[0] == [rare._drawn(0, k) for k in range(len(rare))]
    assert tune._drawn(3, 5) == 5
    two = replace(settings, network=replace(settings.network, tasks=("spot", "other")))
    with refused("option.conflict"):
        two.prepare(CPU)


def test_weights_are_averaged_from_an_epoch_on(settings, tmp_path):
    """The saved weights are the mean of those after epochs 2, 3 and 4, also after a restart."""
    settings = replace(settings, balance_by="sampling")

    def trained(epochs, folder, average_from=0):
        training = replace(settings.training, epochs=epochs, average_from=average_from)
        train(replace(settings, training=training), tmp_path / folder, machine=CPU)
        return final(tmp_path / folder)

    plain = [trained(epochs, f"plain-{epochs}") for epochs in (2, 3, 4)]
    trained(3, "mean", average_from=2)
    config = tmp_path / "mean" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 3", "epochs = 4"))
    mean = trained(4, "mean", average_from=2)
    learned = [name for name in mean if name.endswith(("weight", "bias"))]
    assert learned
    for name in learned:
        expected = torch.stack([one[name].double() for one in plain]).mean(0)
        assert torch.allclose(mean[name].double(), expected, rtol=1e-5, atol=1e-7)


def test_training_stops_without_progress(settings, tmp_path):
    training = replace(settings.training, epochs=40, patience=2, checkpoint_every=7)
    patient = replace(settings, training=training)
    train(patient, tmp_path, machine=CPU)
    stopped = final(tmp_path)
    rows = _read_log(tmp_path / "metrics.csv")
    best = max(range(len(rows)), key=lambda k: rows[k]["validation_auroc"])
    assert len(rows) == best + 3 < 40
    train(patient, tmp_path, machine=CPU)  # nothing is left to do
    assert len(_read_log(tmp_path / "metrics.csv")) == len(rows)
    assert same(final(tmp_path), stopped)


def test_classifier_starts_from_simclr(settings, tmp_path):
    contrastive = _SimCLRTraining(
        network=_SimCLRConfig(TINY, hidden=8, embedding=8, temperature=0.2),
        training=replace(settings.training, epochs=4),
        data=settings.data,
        split=SPLIT,
        augment=AugmentConfig(rotation=5.0, contrast=0.5, blur=1.0),
    )
    best = train(contrastive, tmp_path / "simclr", machine=CPU)
    losses = [row["validation_loss"] for row in _read_log(tmp_path / "simclr" / "metrics.csv")]
    # A step of length 0 shows what training starts from; batch statistics move all the same.
    still = replace(settings.training, epochs=1, learning_rate=1e-30)
    begun = replace(settings, training=still, init_from=InitConfig(simclr=best))
    train(begun, tmp_path / "classifier", machine=CPU)
    before, after = read_tensors(best), final(tmp_path / "classifier")
    assert min(losses) < losses[0]
    shared = [k for k in before if k.startswith("backbone.") and k.endswith("weight")]
    assert len(shared) > 5
    assert all(same_bits(before[name], after[name]) for name in shared)


def test_simclr_skips_a_batch_of_one(settings, tmp_path):
    contrastive = _SimCLRTraining(
        network=_SimCLRConfig(TINY, hidden=8, embedding=8),
        training=replace(settings.training, epochs=1, batch=47),  # 48 cases: one is left over
        data=settings.data,
        split=SPLIT,
    )
    train(contrastive, tmp_path / "a", machine=CPU)
    assert all(torch.isfinite(v.float()).all() for v in final(tmp_path / "a").values())
    alone = replace(contrastive, training=replace(contrastive.training, batch=1))
    with refused("value.invalid"):
        train(alone, tmp_path / "b", machine=CPU)


def test_lesion_area_is_learned_in_its_unit(settings, tmp_path):
    numbers = replace(
        settings,
        network=replace(settings.network, tasks=("area",), output="positive", units=("mm²",)),
        data=replace(settings.data, target="area"),
        attack=AttackConfig(radius=0),
        training=replace(settings.training, epochs=12),
    )
    network = load(train(numbers, tmp_path, machine=CPU))
    (row,) = _regression_metrics(network, numbers.open_parts()[2])
    assert row["explained"] > 0.5
    assert network.names == ("area (mm²)",)


def test_images_of_mixed_sizes_are_refused(settings, tmp_path):
    class Mixed(ArrayDataset):
        def __getitem__(self, index):
            item = super().__getitem__(index)
            return item._replace(image=item.image[:, : 8 - index % 2])

    mixed = Mixed(np.random.default_rng(0).random((4, 8, 8)), [0, 1, 0, 1], "image")
    part = LabelledSubset(mixed, np.array([[0.0], [1.0], [0.0], [1.0]]))
    with refused("shape.mismatch", "8×7"):
        train(settings, tmp_path, machine=CPU, data=(part, part))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"data": {"target": "volume"}}, "table.column"),
        ({"data": {"select": "area"}}, "dtype.invalid"),
        ({"data": {"path": None}}, "config.missing"),
        ({"data": {"target": "both"}}, "shape.mismatch"),
        ({"init_from": {"imagenet": Path("a.pth")}}, "option.unused"),
        ({"init_from": {"simclr": Path("a.safetensors")}}, "file.missing"),
    ],
)
def test_wrong_settings_are_refused(settings, tmp_path, change, code):
    ((table, changes),) = change.items()
    wrong = replace(settings, **{table: replace(getattr(settings, table), **changes)})
    with refused(code):
        train(wrong, tmp_path, machine=CPU)


@pytest.mark.parametrize("kind", ["simclr", "classifier"])
def test_configurations_are_read(kind):
    for path in (ROOT / "configs").rglob(f"{kind}*.toml"):
        settings = read_config(NETWORKS[kind].training, path)
        if "fastmri" in str(path):
            paper = (_ClassifierTraining if kind == "classifier" else _SimCLRTraining)()
            assert settings.network.backbone == paper.network.backbone
            assert settings.training.epochs == paper.training.epochs
            assert settings.training.batch == 128


COMMAND = """
[network.backbone]
kind = "small"
width = 4
blocks = [1, 1]
[training]
epochs = 2
batch = 16
[data]
kind = "npz"
path = "{path}"
[split]
path = "{split}"
train = 0.5
tune = 0.25
"""


def test_commands_write_weights_record_and_curves(spots, tmp_path, capsys):
    text = COMMAND.format(path=spots, split=tmp_path / "split.json")
    (tmp_path / "a.toml").write_text(text)
    options = {"accelerator": "cpu", "progress": False}
    train_command("simclr")(tmp_path / "a.toml", output=tmp_path / "s", **options)
    start = f'[init_from]\nsimclr = "{tmp_path}/s/best.safetensors"\n[attack]\nradius = 0\n'
    (tmp_path / "b.toml").write_text(text + start)
    train_command("classifier")(tmp_path / "b.toml", output=tmp_path / "c", **options)
    printed = capsys.readouterr()
    assert printed.out.split() == [str(tmp_path / f / "best.safetensors") for f in "sc"]
    assert "AUROC" in printed.err
    record = json.loads((tmp_path / "c" / "quality.json").read_text())
    assert [record["parts"][p][0]["groups"] for p in ("tune", "judge")] == [6, 6]
    for name in ("roc-finding.svg", "reliability-finding.svg"):
        assert (tmp_path / "c" / name).read_text().startswith("<?xml")


cases = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(0, 1)),
    min_size=2,
    max_size=40,
).filter(lambda c: len({label for _, label in c}) == 2)


@few(max_examples=30)
@given(cases)
def test_auroc_is_the_fraction_of_ordered_pairs_and_the_area_under_the_curve(found):
    positive = [z for z, y in found if y]
    negative = [z for z, y in found if not y]
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert auroc(*zip(*found, strict=True)) == pytest.approx(np.mean(pairs))
    false, true = roc_curve(*zip(*found, strict=True))
    assert np.trapezoid(true, false) == pytest.approx(np.mean(pairs))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)


@few(max_examples=30)
@given(cases)
def test_reliability_bins_hold_every_case_once(found):
    z, y = zip(*found, strict=True)
    bins = reliability(z, y)
    assert sum(b["cases"] for b in bins) == len(z)
    assert sum(b["cases"] * b["positive"] for b in bins) == pytest.approx(sum(y))
    assert sum(b["cases"] * b["mean"] for b in bins) == pytest.approx(sum(z))


def test_classification_rates():
    found = classification_rates([0.9, 0.8, 0.6, 0.4, 0.2, 0.1], [1, 0, 1, 1, 0, 0])
    assert found == pytest.approx({"accuracy": 4 / 6, "precision": 2 / 3, "recall": 2 / 3})
    assert np.isnan(classification_rates([0.1, 0.2], [0, 1])["precision"])  # no positives
    with refused("value.nonfinite"):
        auroc([0.1, float("nan")], [0, 1])


@pytest.mark.parametrize(
    ("labels", "code", "value"),
    [
        ([0, 0, 0], "units.few", "0"),
        ([0, 1, 2], "value.invalid", "2"),
        ([0.0, 0.5, 1.0], "value.invalid", "0.5"),
        ([[0, 1], [1, 1]], "units.few", "1"),
    ],
)
def test_labels_of_one_class_are_refused(labels, code, value):
    with refused(code, "tuning patients", value):
        require_classes(labels, "tuning patients")
