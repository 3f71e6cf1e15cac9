"""Commands whose output goes to a disk that is full, read-only or in the way, and then not.

Runs in a mount namespace where that is allowed. Prints a line of JSON for each command: its name,
and for each fault and for the time after it status, sentences and partial files.
"""

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import h5py
import numpy as np

from fuzz_files import make
from taskuq.cli.app import main
from taskuq.errors import GuaranteeWarning

# Each command, with the place of its output, and the name of that output.
COMMANDS = {
    "predict": ("intervals.csv", "predict bound.json table -o {}"),
    "evaluate": ("figures", "evaluate table.npz --splits 5 --figures {}"),
    "plan": ("policy.json", "plan table.npz --alpha 0.3 --max-width 0.4 -o {}"),
    "run": ("outputs", "run run.toml -o {} --device cpu"),
    "table as a folder": ("copy", "table table.npz -o {}"),
    "table as a file": ("copy.npz", "table table.csv -o {}"),
    "data prepare": ("cache", "data prepare large --cache {}"),
    "data preview": ("preview.png", "data preview images.npz -o {}"),
    "train": ("weights", "train varnet train.toml -o {} --no-progress --accelerator cpu"),
    "report": ("page/report.html", "report there/page"),
}


def ended(words):
    said = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(said), warnings.catch_warnings():
            # Some inputs are the cases of the calibration.
            warnings.simplefilter("ignore", GuaranteeWarning)
            main(words)
        status = 0
    except SystemExit as stopped:
        status = stopped.code or 0
    except BaseException as error:
        status = f"a traceback: {type(error).__name__}"
    lines = [line for line in said.getvalue().splitlines() if line.startswith("taskuq: ")]
    return [status, lines]


def filled(place):
    """Put a run beside which its page is to be written into a place."""
    shutil.copytree("page", place / "page")


def mounted(place):
    """Lay an empty disk of 2 MB over a place."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=True)
    filled(place)


@contextmanager
def full(place, target, can_mount):
    """A disk without a free byte; or, where nothing can be mounted, a limit on every file."""
    if can_mount:
        mounted(place)
        with open(place / "filler", "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        yield
        subprocess.run(["umount", place], check=True)
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


@contextmanager
def read_only(place, target, can_mount):
    """A disk that cannot be written; or folders without the permission."""
    if can_mount:
        mounted(place)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        yield
        subprocess.run(["umount", place], check=True)
        return
    folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield
    for folder in folders:
        folder.chmod(0o755)


@contextmanager
def in_the_way(place, target, can_mount):
    """A folder where a file is to be, or a file where a folder is to be."""
    shutil.rmtree(target, ignore_errors=True)  # an empty folder of the command before
    if target.suffix:
        (target / "mine").mkdir(parents=True)
    else:
        target.write_text("mine")
    yield
    is_there = (target / "mine").is_dir() if target.suffix else target.read_text() == "mine"
    assert is_there, "what was in the way is gone"
    shutil.rmtree(target) if target.suffix else target.unlink()


def tried(name, can_mount):
    place = Path("there")
    output, text = COMMANDS[name]
    words, found = text.format(place / output).split(), {}
    for trouble in (full, read_only, in_the_way):
        with trouble(place, place / output, can_mount):
            found[trouble.__name__] = ended(words)
            found[trouble.__name__].append(sorted(p.name for p in place.rglob(".*.partial")))
    found["after"] = ended(words)
    return found


def begin():
    make(os.getcwd())
    Path("there").mkdir()
    filled(Path("there"))
    Path("large").mkdir()
    with h5py.File("large/file1.h5", "w") as file:
        values = np.random.default_rng(0).normal(size=(1, 9, 320, 320)).astype(np.complex64)
        file["kspace"] = values
        file.attrs["acquisition"] = "CORPD_FBK"
    Path("train.toml").write_text(
        "[network]\ncascades = 1\nwidth = 2\npools = 1\nsensitivity_width = 2\n"
        "sensitivity_pools = 1\n[training]\nepochs = 1\nbatch = 2\n[data]\nkind = 'npz'\n"
        "path = 'images.npz'\ncoils = 2\nvalidation_fraction = 0.34\n[measure]\n"
        "accelerations = [4, 2]\npublished = false\n"
    )


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    begin()
    for name in COMMANDS:
        sys.__stdout__.write(json.dumps([name, tried(name, sys.argv[2] == "mount")]) + "\n")
        sys.__stdout__.flush()
