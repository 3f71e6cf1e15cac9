"""Files: locks, JSON keys, durability, decompression bombs."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import zipfile

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq import _io as disk
from taskuq._io import (
    BLOCK,
    WHOLE,
    ExistingFileError,
    atomic_write,
    content_fingerprint,
    file_lock,
    open_npz,
    to_json_value,
    write_json,
)


def test_second_holder_of_a_lock_is_refused(tmp_path):
    path = tmp_path / "l"
    with file_lock(path, what="it"), refused("file.exists", "it"), file_lock(path, what="it"):
        pass
    with file_lock(path):
        pass


def test_missing_locks_are_a_warning(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    done = []
    with pytest.warns(UserWarning, match="has no locks"), file_lock(tmp_path / "l", what="it"):
        done.append(True)
    assert done


def test_keys_of_a_record_are_text_or_numbers():
    assert to_json_value({2: {0.5: float("inf")}}) == {"2": {"0.5": "inf"}}
    for key in (True, None):
        with refused("dtype.invalid", str(key)):
            to_json_value([{"a": {key: 1.0}}])


def test_fingerprint_of_a_large_file_sees_size_and_ends(tmp_path):
    path = tmp_path / "a"
    content = bytearray(WHOLE + 10**6)
    path.write_bytes(content)
    whole = content_fingerprint(path)
    for place in (0, BLOCK - 1, len(content) - 1):
        changed = content.copy()
        changed[place] = 1
        path.write_bytes(changed)
        assert content_fingerprint(path) != whole
    path.write_bytes(content + b"\0")
    assert content_fingerprint(path) != whole


def events_of(monkeypatch, do):
    """What reached the disk, in order: f for a file, d for a folder, m for a move."""
    seen = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def synced(file):
        seen.append("d" if os.path.isdir(f"/proc/self/fd/{file}") else "f")
        fsync(file)

    def moved(act):
        def move(*arguments):
            seen.append("m")
            act(*arguments)

        return move

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "replace", moved(replace))
        patch.setattr(os, "link", moved(link))
        do()
    return "".join(seen)


@pytest.mark.parametrize("exclusive", [False, True])
def test_file_is_synced_before_its_name(tmp_path, monkeypatch, exclusive):
    def write():
        write_json(tmp_path / "a.json", {"alpha": 0.1}, exclusive=exclusive)

    assert events_of(monkeypatch, write) == "fmd"


def test_new_folders_are_synced(tmp_path, monkeypatch):
    def write():
        write_json(tmp_path / "new" / "newer" / "a.json", {})

    assert events_of(monkeypatch, write) == "ddfmd"


def test_files_of_a_table_are_synced(tmp_path, monkeypatch):
    def save():
        tq.TaskOutputs(np.ones((2, 3, 4)), np.ones(3), (4, 2), missing_cases=["a"]).save(
            tmp_path / "t"
        )

    # The folder, then header, roster and two shards.
    assert events_of(monkeypatch, save) == "d" + "fmd" * 4


def test_exclusive_file_is_created_once(tmp_path):
    write_json(tmp_path / "a.json", {"seed": 1}, exclusive=True)
    with pytest.raises(ExistingFileError):
        write_json(tmp_path / "a.json", {"seed": 2}, exclusive=True)
    assert '"seed": 1' in (tmp_path / "a.json").read_text()
    assert os.listdir(tmp_path) == ["a.json"]


def test_exclusive_file_without_hard_links(tmp_path, monkeypatch):
    def no_links(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    test_exclusive_file_is_created_once(tmp_path)


def test_interrupted_write_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"alpha": 0.1})
    before = (tmp_path / "a.json").read_bytes()

    def stopped():
        with atomic_write(tmp_path / "a.json") as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert (tmp_path / "a.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.json"]


def test_foreign_sigterm_handler_is_kept():
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with disk.sigterm_as_exit():
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_archive_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "ROOM", 2**20)
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("images.npy", "w") as file,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": (5, 2**20)}
        np.lib.format.write_array_header_2_0(file, header)
        file.write(bytes(5 * 2**20))
    with refused("file.damaged", "0.005243 GB"), open_npz(tmp_path / "bomb.npz") as arrays:
        arrays["images"]
