"""Files: locks, JSON keys, durability, decompression bombs."""

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq import _io as disk
from taskuq._config import read_toml
from taskuq._io import (
    BLOCK,
    WHOLE,
    ExistingFileError,
    append_jsonl,
    atomic_write,
    content_fingerprint,
    file_lock,
    load_json,
    open_npz,
    to_json_value,
    write_json,
)
from taskuq.errors import MachineError


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
    with pytest.warns(UserWarning, match="not support locks"), file_lock(tmp_path / "l", what="it"):
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


TABLE = tq.TaskOutputs(np.ones((2, 3, 4)), np.ones(3), (4, 2), missing_cases=["a"])


@pytest.mark.parametrize(
    ("write", "events"),
    [
        (lambda folder: write_json(folder / "a.json", {}), "fmd"),
        (lambda folder: write_json(folder / "a.json", {}, exclusive=True), "fmd"),
        (lambda folder: write_json(folder / "new" / "newer" / "a.json", {}), "ddfmd"),
        # The folder, then header, roster and two shards.
        (lambda folder: TABLE.save(folder / "t"), "d" + "fmd" * 4),
    ],
)
def test_files_and_new_folders_are_synced_before_their_names(tmp_path, monkeypatch, write, events):
    assert events_of(monkeypatch, lambda: write(tmp_path)) == events


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


def test_output_goes_through_links(tmp_path):
    (tmp_path / "real").mkdir()
    for name, target in (("a.json", "real/b.json"), ("c.json", str(tmp_path / "a.json"))):
        (tmp_path / name).symlink_to(target)
    for seed in (1, 2):  # the file is new, then replaced
        write_json(tmp_path / "c.json", {"seed": seed})
        assert load_json(tmp_path / "real/b.json")["seed"] == seed
    assert (tmp_path / "a.json").is_symlink()
    assert (tmp_path / "c.json").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(MachineError):
        write_json(tmp_path / "loop", {})


def test_output_goes_into_pipes_and_open_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_json(tmp_path / "pipe", {"seed": 1})
    assert json.loads(os.read(reader, 1000))["seed"] == 1
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    with open(tmp_path / "held", "w+") as held:
        (tmp_path / "out").symlink_to(f"/proc/self/fd/{held.fileno()}")
        write_json(tmp_path / "out", {"seed": 2})
        assert json.load(held)["seed"] == 2
    os.close(reader)
    assert sorted(os.listdir(tmp_path)) == ["held", "out", "pipe"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_device_stays_a_device(tmp_path):
    os.mknod(tmp_path / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    write_json(tmp_path / "null", {})
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


def test_outputs_follow_the_umask_and_private_ones_do_not(tmp_path):
    modes = {}
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
        write_json(tmp_path / "b.json", {}, private=True)
        with atomic_write(tmp_path / "c") as partial:  # as libraries do that write their own file
            partial.unlink()
            partial.touch(0o600)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"a.json": 0o640, "b.json": 0o600, "c": 0o640}


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    code = "import os, sys\nfrom taskuq._io import atomic_write\n"
    code += "with atomic_write(sys.argv[1]) as partial: os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")])
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    alive = tmp_path / left.name.replace(left.name.split("_")[1], str(os.getpid()))
    alive.touch()
    write_json(tmp_path / "b", {})
    assert {p.name for p in tmp_path.iterdir()} == {"b", alive.name}


def test_name_of_a_new_log_is_synced(tmp_path, monkeypatch):
    append = lambda: append_jsonl(tmp_path / "log.jsonl", [{"a": 1}], durable=True)  # noqa: E731
    assert events_of(monkeypatch, append) == "fd"
    assert events_of(monkeypatch, append) == "f"


def test_short_writes_are_completed(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    append_jsonl(tmp_path / "log", [{"text": "long enough"}])
    monkeypatch.undo()
    assert (tmp_path / "log").read_text() == '{"text": "long enough"}\n'


def test_reading_has_an_upper_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "LARGEST_TEXT", 10)
    (tmp_path / "a").write_text("[" + "0," * 10 + "0]")
    for path in (tmp_path / "a", "/dev/zero"):
        for read in (disk.load_json, read_toml):
            with refused("file.format", str(path)):
                read(path)
    with refused("file.format", "/dev/zero"):
        tq.TaskOutputs.load("/dev/zero")
    with refused("file.format", "/dev/zero"):
        list(disk.read_jsonl(Path("/dev/zero")))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("descr", ["|u1", "|S0", "<U0"])
def test_array_header_that_claims_more_than_the_file_is_refused(tmp_path, version, descr):
    text = repr({"descr": descr, "fortran_order": False, "shape": (10**12,)}).encode()
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("outputs.npy", b"\x93NUMPY" + bytes(version) + size + text)
    with refused("file.damaged", "1000000000000"), open_npz(tmp_path / "a.npz") as arrays:
        arrays["outputs"]


@pytest.mark.parametrize("kind", ["<u4", ">u4"])
def test_text_that_is_not_unicode_is_refused(tmp_path, kind):
    """NumPy reads such text, and fails where a word of it is taken."""
    points = np.array([[65, 0x10FFFF], [66, 0x10FFFF]], kind)
    for change, code in ((0, None), (1, "file.damaged")):
        points[1, 1] += change
        np.savez(tmp_path / "a.npz", case=points.view(f"{kind[0]}U2")[:, 0])
        with refused(code) if code else nullcontext(), open_npz(tmp_path / "a.npz") as arrays:
            assert arrays["case"][1] == "B\U0010ffff"


def test_comment_that_hides_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", outputs=[1.0], group=[3])
    content = bytearray((tmp_path / "a.npz").read_bytes())
    place = content.index(b"PK\x01\x02")
    content[place + 32] = content.index(b"PK\x05\x06") - content.rindex(b"PK\x01\x02")
    (tmp_path / "a.npz").write_bytes(content)
    with np.load(tmp_path / "a.npz") as arrays:
        assert list(arrays) == ["outputs"]
    with refused("file.damaged"), open_npz(tmp_path / "a.npz"):
        pass


def test_lock_is_exclusive_while_its_file_comes_and_goes(tmp_path):
    path, inside, errors = tmp_path / "new" / "l", [], []

    def work():
        for _ in range(40):
            with file_lock(path, wait=True):
                inside.append(1)
                errors.append(len(inside) != 1)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    (tmp_path / "new").mkdir()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 160
    assert not any(errors)
    assert list((tmp_path / "new").iterdir()) == []
