"""Where commands meet the machine: one sentence, the right status, nothing half written or lost."""

import gzip
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from border_script import COMMANDS

import taskuq as tq
from taskuq._io import open_npz, with_checksum, write_json
from taskuq.cli import app
from taskuq.data._folder import _count_frames
from taskuq.data._volume import open_volume
from taskuq.errors import InputError, MachineError
from taskuq.pipeline._adapters import RecoveryFolder
from taskuq.report._report import write_report

HERE = Path(__file__).resolve()
TROUBLES = ("full", "read_only", "in_the_way")


def status_of(words):
    with pytest.raises(SystemExit) as ended:
        app.main([str(word) for word in words])
    return ended.value.code


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """What every command that writes did under each trouble, in a process of its own."""
    folder = tmp_path_factory.mktemp("border")
    roots = (HERE.parents[1], HERE.parents[2] / "src")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, roots))}
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    can_mount = subprocess.run(
        [*alone, "mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True
    ).returncode == 0  # fmt: skip
    script = [sys.executable, HERE.with_name("border_script.py"), folder]
    ran = subprocess.run(
        [*alone, *script, "mount"] if can_mount else [*script, "limit"],
        capture_output=True, text=True, env=environment, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return dict(json.loads(line) for line in ran.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_refuses_is_one_sentence_and_status_1(ends, command, trouble):
    status, said, half_written = ends[command][trouble]

    assert status == 1
    assert len(said) == 1
    assert "there/" in said[0]
    assert half_written == []


@pytest.mark.parametrize("command", COMMANDS)
def test_when_the_trouble_is_over_the_same_command_works(ends, command):
    assert ends[command]["after"][0] == 0


def test_a_full_pipe_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "taskuq.cli.app", "sample-size", "--json", "-"]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(command, stdout=full, stderr=-1, text=True)

    assert ran.returncode == 1
    assert ran.stderr == "taskuq: I/O error (No space left on device); rerun the command\n"


ERRORS = {
    OSError(28, "No space left on device", "a.json"): (1, "a.json"),
    MemoryError(): (1, "out of memory"),
    torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"): (1, "(CUDA out of memory. Tried)"),
    MachineError("the disk is full"): (1, "the disk is full"),
    InputError("alpha is 2", code="alpha.invalid"): (2, "alpha is 2"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"): (2, "invalid start byte"),
    zipfile.BadZipFile("no zip"): (2, "no zip"),
    KeyError("schema"): (1, "--traceback"),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("flags", [(), ("--traceback",)])
def test_every_error_is_one_sentence_and_a_traceback_for_whoever_asks(
    monkeypatch, capsys, error, flags
):
    def fail(arguments):
        assert arguments == ["run"]
        raise error

    monkeypatch.setattr(app, "app", fail)
    status, word = ERRORS[error]

    assert status_of(["run", *flags]) == status
    said = capsys.readouterr().err.splitlines()
    assert word in said[-1]
    assert said[-1].startswith("taskuq: ")
    assert (len(said) > 1) == bool(flags)


def refused(act, *words):
    with pytest.raises(InputError) as error:
        act()
    assert all(word in str(error.value) for word in words), error.value


def test_an_archive_that_unpacks_to_gigabytes_is_refused_unopened(tmp_path):
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("images.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_2_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (700, 2**20)}
        )
        for _ in range(700):
            file.write(bytes(2**20))

    def read():
        with open_npz(path) as arrays:
            arrays["images"]

    refused(read, "would unpack to 0.734 GB")


def test_a_dicom_file_with_a_billion_frames_is_refused(tmp_path):
    from fuzz_files import write_dicom

    write_dicom(np.zeros((16, 16), np.uint8), tmp_path / "a.dcm")
    content = (tmp_path / "a.dcm").read_bytes()
    assert _count_frames(tmp_path / "a.dcm") == 1
    place = content.index(b"\x28\x00\x08\x00IS") + 8
    forged = (
        content[: place - 2] + (10).to_bytes(2, "little") + b"999999999 " + content[place + 2 :]
    )
    (tmp_path / "a.dcm").write_bytes(forged)

    refused(lambda: _count_frames(tmp_path / "a.dcm"), "a.dcm")


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_a_volume_of_a_billion_slices_is_refused(tmp_path, ending):
    import nibabel

    header = nibabel.Nifti2Header()
    header.set_data_dtype(np.uint8)
    content = bytearray(header.binaryblock + bytes(4 + 64))
    content[16:80] = np.array([3, 10**6, 10**6, 1, 1, 1, 1, 1], "<i8").tobytes()
    (tmp_path / f"a{ending}").write_bytes(
        gzip.compress(content) if ending.endswith("gz") else content
    )

    refused(lambda: _count_frames(tmp_path / f"a{ending}"), "would unpack to 1000 GB")


def test_k_space_that_is_a_folder_or_claims_gigabytes_is_refused(tmp_path):
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file.create_group("kspace")
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("kspace", (1000, 100, 640, 640), np.complex64, chunks=(1, 1, 64, 64))

    refused(lambda: open_volume(tmp_path / "group.h5"), "no dataset kspace")
    refused(lambda: open_volume(tmp_path / "large.h5"), "would unpack to 327.7 GB")


def test_k_space_with_a_hole_is_not_counted_as_used(tmp_path, capsys):
    with h5py.File(tmp_path / "file1.h5", "w") as file:
        values = np.ones((2, 9, 8, 8), np.complex64)
        values[1, 0, 0, 0] = np.nan
        file["kspace"] = values
    words = ["--acquisition", "", "--min-lines", "8", "--size", "8", "--slices", "all"]
    app.main(["data", "check", str(tmp_path), *words, "--thorough", "--json", "-"])

    assert json.loads(capsys.readouterr().out)["summary"]["used"] == 0


def test_recoveries_that_claim_more_than_their_file_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    with open(tmp_path / "a" / "R8.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6, 4)}
        )
    refused(lambda: RecoveryFolder(tmp_path).load("a", 8.0, samples=1), "R8.npy")


def test_recoveries_in_nifti_files_can_become_tensors(tmp_path):
    import nibabel
    import torch

    (tmp_path / "a").mkdir()
    values = np.random.default_rng(0).random((4, 6, 3)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "a" / "R8.nii")

    found = torch.as_tensor(RecoveryFolder(tmp_path).load("a", 8.0, samples=3))
    np.testing.assert_array_equal(found[1], np.rot90(values[:, :, 1]))


LABELS = {
    "a short row": ("file,label,group\na.png\n", "file or label"),
    "an empty row": ("file,label,group\n,,\n", "file or label"),
    "a path from the root": ("file,label,group\n/etc/passwd,1,a\n", "relative to"),
    "a zero byte": ("file,label,group\na\0b.png,1,a\n", "does not exist"),
    "a long name": ("file,label,group\n" + "a" * 5000 + ".png,1,a\n", "cannot be read"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_an_odd_row_of_labels_is_one_sentence(tmp_path, capsys, kind):
    text, word = LABELS[kind]
    (tmp_path / "labels.csv").write_text(text)

    assert status_of(["data", "check", tmp_path, "--labels", tmp_path / "labels.csv"]) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert word in said


FLAGS = {
    "masks --seed -1": "--seed",
    "evaluate t.npz --seed -1": "--seed",
    "simulate t.npz --seed -1": "--seed",
    "evaluate t.npz --range 0,1e308": "1e+308",
}


@pytest.mark.parametrize("words", FLAGS)
def test_odd_flags_are_bad_input(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    tq.TaskOutputs(np.zeros((1, 20, 2)), np.zeros(20)).save("t.npz")

    assert status_of(words.split()) == 2
    assert FLAGS[words] in capsys.readouterr().err


RECORDS = {
    "evaluate.json": {"schema": "taskuq.evaluate/1", "unit": 3, "results": [{"alpha": []}]},
    "simulate.json": {"schema": "taskuq.simulate/1", "results": [{"alpha": "x", "stops": 7}]},
    "status.json": {"schema": "taskuq.status/1", "failed": [1], "cases": {}, "finished": None},
    "run.json": {"schema": "taskuq.run/1", "title": [1], "unit": [], "alpha": "x"},
    "check.json": {"schema": "taskuq.data-check/1", "files": 3, "summary": None},
}


@pytest.mark.parametrize("odd", RECORDS)
def test_one_odd_record_makes_a_shorter_page(tmp_path, odd):
    write_json(tmp_path / odd, RECORDS[odd])
    write_json(tmp_path / "size.json", {"schema": "taskuq.plan-size/1", "alpha": 0.1})

    assert "</html>" in write_report(tmp_path).read_text()


@pytest.mark.parametrize("field", ["alpha", "score", "coverage", "width", "acceleration"])
def test_an_odd_field_of_an_evaluation_leaves_the_other_evaluation(tmp_path, field):
    from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table

    rng = np.random.default_rng(0)
    table = tq.TaskOutputs(rng.random((1, 60, 4)), rng.random(60), (8.0,))
    record = evaluate_table(table, EvaluationGrid(scores=("ar",), splits=5, seed=0)).to_dict()
    write_json(tmp_path / "good.json", record)
    bad = json.loads(json.dumps(record))
    bad["results"][0][field] = {"a": [None]}
    write_json(tmp_path / "odd.json", with_checksum(bad))
    page = write_report(tmp_path).read_text()

    assert "odd.json" in page
    assert 'id="fig-good' in page


def test_a_pipe_in_a_run_folder_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "table").mkdir()
    os.mkfifo(tmp_path / "table" / "table.json")

    assert "pipe.json" in write_report(tmp_path).read_text()


def test_a_pipe_among_the_shards_of_a_table_is_refused(tmp_path):
    tq.TaskOutputs(np.zeros((1, 2, 3)), np.zeros(2), (4.0,)).save(tmp_path / "t")
    os.mkfifo(tmp_path / "t" / "part-000009-pipe.parquet")

    refused(lambda: tq.TaskOutputs.load(tmp_path / "t"), "is a link")
