"""Commands on a disk that is full, read-only or in the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import COMMANDS

HERE = Path(__file__).resolve()
FAULTS = ("full", "read_only", "in_the_way")


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Status, sentences and partial files of every command under each fault."""
    folder = tmp_path_factory.mktemp("disk")
    roots = (HERE.parents[1], HERE.parents[2] / "src")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, roots))}
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    can_mount = subprocess.run(
        [*alone, "sh", "-c", 'mount -t tmpfs tmpfs "$0" && "$1" -c ""', folder, sys.executable],
        capture_output=True,
    ).returncode == 0  # fmt: skip
    script = [sys.executable, HERE.with_name("full_disk.py"), folder]
    ran = subprocess.run(
        [*alone, *script, "mount"] if can_mount else [*script, "limit"],
        capture_output=True, text=True, env=environment, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return dict(json.loads(line) for line in ran.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("command", COMMANDS)
def test_disk_fault_is_one_sentence_and_the_command_works_after_it(ends, command):
    for fault in FAULTS:
        status, sentences, partial_files = ends[command][fault]
        assert (status, len(sentences), partial_files) == (1, 1, [])
        assert "there/" in sentences[0]
    assert ends[command]["after"][0] == 0
