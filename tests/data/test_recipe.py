"""Brain volumes with a broken one and a patient scanned twice, through every command."""

import h5py
import numpy as np
import pytest

from taskuq.cli.app import main
from taskuq.data._synthetic_fastmri import FINDING, FastMRILayout, _make_volume, _SyntheticVolume
from taskuq.data._volume import COLUMNS
from taskuq.table._table import TaskOutputs

pytest.importorskip("nilearn")
MADE = """
[data]
kind = "fastmri"
path = "train"
validation_path = "val"
labels = "labels.csv"
pathology = "{finding}"
cache = "cache"
acquisition = "AXT2"
size = 38
min_lines = 38
slices = "all"
"""
MEASURE = "[measure]\naccelerations = [4, 2]\npublished = false\n"
TRAINING = "[training]\nepochs = 1\nbatch = 8\nworkers = 0\n"
VARNET = "[network]\ncascades = 1\nwidth = 1\npools = 1\nsensitivity_width = 1\n"
CLASSIFIER = "[network]\nhidden = [4]\nbackbone = { kind = 'small', width = 4, blocks = [1, 1] }\n"
TASK = "[task]\nkind = 'classifier'\nweights = 'runs/classifier/best.safetensors'\n"
RECOVER = "[recover]\nkind = 'varnet'\nweights = 'runs/varnet/best.safetensors'\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rows = []
    for number in range(24):
        part, coils = "train" if number < 8 else "val", 16 + 2 * (number % 3)
        path = tmp_path / part / f"file_brain_AXT2_200_{number:07d}.h5"
        layout = FastMRILayout(height=76, width=39 + number % 2, coils=coils, recon=38)
        rows += _make_volume(_SyntheticVolume(path, 5, number, "AXT2"), layout)
        with h5py.File(path, "r+") as file:
            file.attrs["patient_id"] = f"patient-{max(number, 9)}" if number > 7 else f"p{number}"
            if number == 7:
                file["kspace"][2, 3, 4, 5] = np.nan
        if number == 6:
            path.write_bytes(path.read_bytes()[:-1000])
    (tmp_path / "labels.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    made = MADE.format(finding=FINDING)
    for name, text in (
        ("varnet", VARNET + TRAINING + made + MEASURE),
        ("classifier", CLASSIFIER + TRAINING + made + "[split]\ntrain = 0.6\ntune = 0.4\n"),
        ("run", "subset = 'all'\nsamples = 1\n" + made + MEASURE + RECOVER + TASK),
        ("quality", "varnet = 'runs/varnet/best.safetensors'\nsamples = 1\n" + made + MEASURE),
    ):
        (tmp_path / f"{name}.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMANDS = (
    ("data check train --labels labels.csv --acquisition AXT2 --size 38 --min-lines 38", 0),
    ("data prepare train --cache cache --acquisition AXT2 --size 38 --min-lines 38", 2),
    ("train varnet varnet.toml -o runs/varnet", 0),
    ("train classifier classifier.toml -o runs/classifier", 0),
    ("run run.toml -o runs/brain/table", 0),
    ("quality quality.toml -o runs/brain/quality.json", 0),
    ("experiment all --point runs/brain/table --splits 5 -o runs/brain", 0),
    ("report runs/brain", 0),
)


def test_every_command_takes_brain_volumes(folder, capsys):
    for line, status in COMMANDS:
        found = 0
        try:
            main(line.split())
        except SystemExit as ended:
            found = ended.code or 0
        printed = capsys.readouterr()
        assert found == status, (line, printed)
        for name, fault in (("6", "cannot be opened"), ("7", "NaN in slice 2")):
            if line.startswith(("data", "train varnet")):
                assert f"000000{name}.h5" in (both := printed.out + printed.err)
                assert fault in " ".join(both.split())
    table = TaskOutputs.load(folder / "runs/brain/table")
    assert table.outputs.shape == (2, 80, 1)
    assert len(set(table.group)) == 15  # two of 16 volumes are of one patient
    assert (folder / "runs/brain/report.html").exists()
