"""Readers of the table [data] in the commands, with extensions."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from volumes import write_volume

from raising import refused
from taskuq._config import read_toml, toml_text
from taskuq.cli.app import main
from taskuq.data._arrays import NpzData
from taskuq.data._fastmri import FastMRIData
from taskuq.data._folder import FolderData
from taskuq.data._readers import READERS, open_all, open_data, read_data
from taskuq.table._table import TaskOutputs

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NOTES = "file,slice,study_level,x,y,width,height,label\n"
GROUPS, SLICES, SIZE = 6, 2, 32
CASES = GROUPS * SLICES


def pictures():
    rng = np.random.default_rng(0)
    return np.kron(rng.integers(1, 250, (CASES, 8, 8), dtype=np.uint8), np.ones((4, 4), np.uint8))


LABEL = np.tile([0, 1], GROUPS)
GROUP = np.repeat([f"patient-{k}" for k in range(GROUPS)], SLICES)


def fastmri(folder):
    for part in ("train", "val"):
        for k in range(GROUPS):
            path = folder / part / f"file{part}{k}.h5"
            write_volume(path, slices=SLICES, coils=9, height=40, width=36, seed=k)
    torn = [f"file{p}{k},0,No,1,1,5,5,Meniscus Tear" for p in ("train", "val") for k in range(6)]
    (folder / "knee.csv").write_text(NOTES + "\n".join(torn))
    return {
        "path": str(folder / "train"), "validation_path": str(folder / "val"),
        "labels": str(folder / "knee.csv"), "size": SIZE, "min_lines": SIZE, "slices": "all",
    }  # fmt: skip


def npz(folder):
    # One more case than is kept.
    images, keep = np.concatenate([pictures(), pictures()[:1]]), np.arange(CASES + 1) < CASES
    np.savez(
        folder / "mine.npz", images=images, label=[*LABEL, 0], group=[*GROUP, "other"], keep=keep,
        case=[*(f"case-{k}" for k in range(CASES)), "other"], area=np.arange(CASES + 1.0),
    )  # fmt: skip
    return {"path": str(folder / "mine.npz"), "select": "keep"}


def folder(folder):
    image = pytest.importorskip("PIL.Image")
    rows = ["file,label,group"]
    for k, picture in enumerate(pictures()):
        image.fromarray(picture).save(folder / f"{k}.png")
        rows.append(f"{k}.png,{LABEL[k]},{GROUP[k]}")
    (folder / "labels.csv").write_text("\n".join(rows))
    return {"path": str(folder), "labels": str(folder / "labels.csv"), "size": SIZE}


def atlas(folder):
    pytest.importorskip("nilearn")
    return {"patients": GROUPS, "slices": SLICES, "size": SIZE, "seed": 6}


MAKE = {"fastmri": fastmri, "npz": npz, "folder": folder, "atlas": atlas}


@pytest.fixture(params=[*MAKE])
def data(request, tmp_path):
    """The table [data] of one reader, with files for it."""
    (tmp_path / "data").mkdir()
    own = MAKE[request.param](tmp_path / "data")
    return {"kind": request.param, "coils": 2, "validation_fraction": 0.5, **own}


@pytest.fixture
def start(tmp_path, data, capsys):
    def start_with(command, settings, *options):
        (tmp_path / "config.toml").write_text(toml_text({**settings, "data": data}))
        main([*command.split(), str(tmp_path / "config.toml"), *map(str, options)])
        return capsys.readouterr().out

    return start_with


MEASURE = {"accelerations": [4, 2], "published": False}


def test_every_reader_runs(tmp_path, start, data):
    start("run", {"samples": 1, "measure": MEASURE}, "-o", tmp_path / "table")
    table = TaskOutputs.load(tmp_path / "table")
    whole = "validation_path" in data
    assert len(table.case) == (CASES if whole else CASES // 2)
    assert len(set(table.group)) == (GROUPS if whole else GROUPS // 2)
    assert np.isfinite(table.outputs).all()
    assert table.provenance["configuration"]["data"]["kind"] == data["kind"]


def test_data_check_counts_cases(start, data):
    record = json.loads(start("data check", {}, "--json", "-"))
    folders = 2 if data["kind"] == "fastmri" else 1
    assert record["summary"]["slices"] == folders * CASES
    assert record["summary"]["groups"] == folders * GROUPS


def test_coils_are_simulated_for_recoveries_and_not_for_tasks(start, data, tmp_path):
    start("data check", {})
    reader = read_data(tmp_path / "config.toml")
    plain = reader.open_targets().cases[0].image
    assert open_all(reader)[0].image.shape == (2, SIZE, SIZE)
    assert open_data(reader)[0][0].image.is_complex()
    assert not plain.is_complex()


def test_in_memory_cases_are_the_same(start, data, tmp_path):
    start("data check", {})
    reader = read_data(tmp_path / "config.toml")
    for one, other in zip(
        open_data(reader), open_data(replace(reader, in_memory=True)), strict=True
    ):
        assert np.array_equal(one.groups, other.groups)
        for first, second in zip(one, other, strict=True):
            assert torch.equal(first.image, second.image)
            assert first[1:] == second[1:]


def test_data_of_shipped_configurations_are_read():
    for path in CONFIGS.rglob("*.toml"):
        table, reader = read_toml(path)["data"], read_data(path)
        assert READERS.name_of(type(reader)) == table.pop("kind")
        assert all(str(getattr(reader, key)) == str(value) for key, value in table.items())


@pytest.mark.parametrize(
    ("table", "code", "names"),
    [
        ({"kind": "npz", "patients": 3}, "config.key", ["data.patients", "'npz'", "in_memory"]),
        ({"kind": "atlas", "path": "a"}, "config.key", ["data.path", "'atlas'", "contrast"]),
        ({"kind": "atlas", "target": "volume"}, "choice.unknown",
         ["data.target", "'label', 'lesion_area'"]),
        ({"kind": "nii"}, "choice.unknown", ["'nii'", "fastmri, npz, folder, atlas, chest"]),
    ],
)  # fmt: skip
def test_key_of_another_kind_is_refused(tmp_path, table, code, names):
    (tmp_path / "a.toml").write_text(toml_text({"data": table}))
    with refused(code, *names):
        read_data(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("reader", "opening", "key"),
    [
        (FastMRIData(), open_data, "data.path"),
        (FastMRIData(path=Path("a")), open_all, "data.validation_path"),
        (FastMRIData(path=Path("a")), lambda data: data.open_targets(), "data.labels"),
        (NpzData(), open_all, "data.path"),
        (FolderData(), open_all, "data.path"),
        (FolderData(path=Path("a")), lambda data: data.open_targets(), "data.labels"),
    ],
)
def test_missing_key_is_named(reader, opening, key):
    with refused("config.missing", key):
        opening(reader)


def test_targets_follow_the_selected_cases(tmp_path):
    reader = NpzData(**npz(tmp_path) | {"path": tmp_path / "mine.npz"}, target="area")
    part = reader.open_targets()
    assert part.targets.tolist() == [[float(k)] for k in range(CASES)]
    assert part.cases.cases.tolist() == [f"case-{k}" for k in range(CASES)]
