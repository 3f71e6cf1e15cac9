"""Stored tables: drawn by one command for any recovery, and put into the package."""

import numpy as np
import pytest
from scripts import tables

from taskuq.outputs import TaskOutputs
from taskuq.recover import build
from taskuq.runs.run import open_run, read_run
from taskuq.weights.files import save_weights

PARTS = """
seed = 3
[data]
kind = "atlas"
seed = 1
patients = 2
size = 48
slices = 2
coils = 2
[measure]
accelerations = [4, 2]
[task{task}]
kind = "mean-intensity"
"""
METHOD = 'kind = "{kind}"\nweights = "{weights}"\nprecision = "float32"\n'


@pytest.fixture
def networks(tmp_path, monkeypatch):
    """Small networks, and configurations of the embedded experiment's kind that name them."""
    monkeypatch.setattr(tables, "CONFIGS", tmp_path)
    found = {kind: tmp_path / f"{kind}.safetensors" for kind in ("varnet", "sampler")}
    for kind, path in found.items():
        net = build(kind, preset="tiny")
        notes = {"estimate": {"weights": str(found["varnet"])}} if kind == "sampler" else {}
        save_weights(net, path, kind=kind, config=net.config, notes=notes)
    for kind, samples in (("sampler", 3), ("varnet", 1)):
        text = f'part = "all"\nsamples = {samples}{PARTS.format(task="")}[recover]\n'
        text += METHOD.format(kind=kind, weights=found[kind])
        (tmp_path / f"table-{kind}.toml").write_text(text)
    text = f"samples = 3{PARTS.format(task='.lesion')}[recover.sampler]\n"
    text += METHOD.format(kind="sampler", weights=found["sampler"])
    (tmp_path / "samplers.toml").write_text(text)
    return found


def test_tables_are_those_of_their_runs_and_say_so(networks, tmp_path, monkeypatch):
    drawn = ["sampler", "varnet", f"other={networks['sampler']}"]
    tables.draw(tmp_path / "out", drawn, None, "cpu")
    monkeypatch.setattr("taskuq.runs.stored.FOLDER", tmp_path)
    tables.install(tmp_path / "out", ["sampler=other", "varnet"])

    for name in ("sampler", "varnet"):
        run = open_run(read_run(tmp_path / f"table-{name}.toml"), "cpu")
        rates, samples = run.config.measure.accelerations, run.config.samples
        expected = run.pipeline.run(
            run.images, accelerations=rates, samples=samples, seed=3, quiet=True
        )
        found = TaskOutputs.load(tmp_path / f"atlas-{name}.npz")
        assert found.case.tolist() == expected.case.tolist()
        assert found.provenance["configuration"] == run.configuration
        np.testing.assert_allclose(found.outputs, expected.outputs, rtol=1e-5)


def test_a_second_judge_that_is_not_there_is_left_out_and_said_to_be(networks, tmp_path, capsys):
    second = '[task.second]\nkind = "classifier"\nweights = "no/best.safetensors"\n'
    with (tmp_path / "samplers.toml").open("a") as file:
        file.write(second)
    tables.draw(tmp_path / "out", ["sampler"], 1, "cpu")

    assert "task second is left out" in capsys.readouterr().out
    assert [path.parent.name for path in (tmp_path / "out").glob("*/*/table.json")] == ["lesion"]


def test_fewer_patients_are_the_first_ones(networks, tmp_path):
    tables.draw(tmp_path / "out", ["varnet"], 1, "cpu")

    found = TaskOutputs.load(tmp_path / "out" / "varnet" / "lesion.npz")
    assert set(found.group) == {"patient-0"}
