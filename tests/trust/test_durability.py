"""What is written is on the disk, of two who begin a table one does, and a stop keeps the work."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from taskuq import _io as disk
from taskuq._io import ExistingFileError, atomic_write, write_json
from taskuq.errors import MachineError
from taskuq.pipeline._local import RunLog
from taskuq.pipeline._pipeline import status
from taskuq.table._parquet import TableHeader, TableWriter, _shard_paths, write_case_list

PAIRS = 60


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
def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_we_go_on(
    tmp_path, monkeypatch, exclusive
):
    def write():
        write_json(tmp_path / "a.json", {"alpha": 0.1}, exclusive=exclusive)

    assert events_of(monkeypatch, write) == "fmd"


def test_new_folders_are_on_the_disk_too(tmp_path, monkeypatch):
    def write():
        write_json(tmp_path / "new" / "newer" / "a.json", {})

    assert events_of(monkeypatch, write) == "ddfmd"


def test_every_file_of_a_table_is_on_the_disk(tmp_path, monkeypatch):
    def save():
        tq.TaskOutputs(np.ones((2, 3, 4)), np.ones(3), (4, 2), missing_cases=["a"]).save(
            tmp_path / "t"
        )

    # The folder, then header, roster and two shards.
    assert events_of(monkeypatch, save) == "d" + "fmd" * 4


def test_a_file_that_must_be_new_is_made_once(tmp_path):
    write_json(tmp_path / "a.json", {"seed": 1}, exclusive=True)
    with pytest.raises(ExistingFileError):
        write_json(tmp_path / "a.json", {"seed": 2}, exclusive=True)

    assert '"seed": 1' in (tmp_path / "a.json").read_text()
    assert os.listdir(tmp_path) == ["a.json"]


def test_without_hard_links_a_file_is_made_once_all_the_same(tmp_path, monkeypatch):
    def no_links(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    test_a_file_that_must_be_new_is_made_once(tmp_path)


def begin(folder, seed, together, answers, pairs):
    """Begin tables at the same moment as another process, and say which were ours to begin."""
    accepted = []
    for pair in range(pairs):
        together.wait()
        try:
            TableWriter(Path(folder) / f"{pair}", TableHeader((4.0,), 3, provenance={"seed": seed}))
            accepted.append(pair)
        except tq.InputError:
            pass
    answers.put(accepted)


def begun_by_two(folder, seeds):
    context = multiprocessing.get_context("spawn")
    together, answers = context.Barrier(2), context.Queue()
    writers = [
        context.Process(target=begin, args=(str(folder), seed, together, answers, PAIRS))
        for seed in seeds
    ]
    for writer in writers:
        writer.start()
    found = [answers.get(timeout=120) for _ in writers]
    for writer in writers:
        writer.join()
    return found


def test_of_sixty_pairs_of_writers_with_other_seeds_one_each_is_accepted(tmp_path):
    first, second = begun_by_two(tmp_path, (1, 2))

    assert not set(first) & set(second)
    assert set(first) | set(second) == set(range(PAIRS))


def test_of_sixty_pairs_of_writers_with_one_seed_both_are_accepted(tmp_path):
    assert begun_by_two(tmp_path, (1, 1)) == [list(range(PAIRS))] * 2


def test_a_second_roster_is_not_written_over_the_first(tmp_path):
    write_case_list(tmp_path, ["a"])
    with pytest.raises(ExistingFileError):
        write_case_list(tmp_path, ["b"])


SCRIPT = """
import signal, sys, time
import numpy as np
import taskuq as tq

# Whoever starts the tests in the background leaves them deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

def recover(measurement, *, samples, seed):
    if measurement[0, 0] == 6:
        print("six", flush=True)
        time.sleep(60)
    return np.repeat(measurement[None], samples, axis=0)

images = np.arange(9.0)[:, None, None] * np.ones((1, 4, 4))
pipeline = tq.Pipeline(lambda image, acceleration: image, recover, lambda x: x.mean((1, 2)))
pipeline.run(images, accelerations=(4, 2), samples=2, seed=0, progress=False, store=sys.argv[1])
"""


def stopped_in_the_seventh_case(folder, number):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=-1, stderr=-1, text=True
    ) as run:
        assert run.stdout.readline() == "six\n"
        run.send_signal(number)
        said = run.communicate(timeout=60)[1]
    return run.returncode, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_writes_what_is_finished(tmp_path, number):
    code, said = stopped_in_the_seventh_case(tmp_path / "t", number)

    assert code == (143 if number == signal.SIGTERM else -number)
    assert status(tmp_path / "t")["finished"] == 6
    if number == signal.SIGINT:
        assert "6 of 9 cases are finished and kept" in said
    assert not list((tmp_path / "t").glob(".*"))


@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (SystemExit, 143)])
def test_the_command_line_says_what_a_stop_keeps(monkeypatch, capsys, kind, code):
    from taskuq.cli import app

    def stop(arguments):
        stopped = kind(143)
        stopped.add_note("stopped; 3 of 9 cases are finished")
        raise stopped

    monkeypatch.setattr(app, "app", stop)
    with pytest.raises(SystemExit) as ended:
        app.main(["run"])

    assert ended.value.code == code
    assert capsys.readouterr().err == "taskuq: stopped; 3 of 9 cases are finished\n"


STOPPED = """
import sys
from pathlib import Path
from taskuq.cli import app as app, service as audit, data as data
def stop(log: Path) -> None:
    stopped = KeyboardInterrupt()
    stopped.add_note("stopped; 3 of 9 cases are finished")
    raise stopped
audit.audit = data.preview = stop
app.main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", [["audit"], ["data", "preview"]])
def test_control_c_says_what_is_kept(command):
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED, *command, "a"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130
    assert ended.stderr == "taskuq: stopped; 3 of 9 cases are finished\n"


def test_a_stop_while_a_file_is_written_leaves_what_was_there(tmp_path):
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


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_log_that_is_no_file_is_not_written_through(tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine\n")
    (tmp_path / "t").mkdir()
    log = tmp_path / "t" / "log.jsonl"
    make = {"link": lambda: log.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(log)}
    make.get(kind, log.mkdir)()

    with pytest.raises(MachineError, match=r"cannot write .*log\.jsonl"):
        RunLog(tmp_path / "t").failed("a", ValueError("x"))
    assert elsewhere.read_text() == "mine\n"
    assert RunLog(tmp_path / "t").failures() == {}


def test_a_header_that_is_a_link_is_not_written_through(tmp_path):
    """A dangling link counts as taken: nothing is made where it points to."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "table.json").symlink_to(tmp_path / "elsewhere.json")

    with pytest.raises(tq.InputError):
        TableWriter(tmp_path / "t", TableHeader((4.0,), 3))
    assert not (tmp_path / "elsewhere.json").exists()


def test_bytes_that_are_no_text_in_a_log_are_passed_over(tmp_path):
    log = RunLog(tmp_path)
    log.failed("a", ValueError("x"))
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(b'\xff\xfe{"event": "failed"\n' + b"[" * 10**5 + b'\n{"event": "failed"}\n')

    assert log.failures()["a"] == "ValueError: x"


def test_somebody_elses_handler_of_sigterm_is_left_alone():
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with disk.sigterm_as_exit():
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_shards_are_written_side_by_side(tmp_path):
    writers = [TableWriter(tmp_path, TableHeader((4.0,), 3)) for _ in range(2)]
    for writer in writers:
        writer.write(["a"], 4.0, np.ones((1, 3)), [0.0])

    assert len(_shard_paths(tmp_path)) == 2
