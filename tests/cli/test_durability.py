"""Short run of the durability trials, with planted faults."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import durability
from taskuq._io import file_lock
from taskuq.cli import app


# As long as a busy machine needs: a command that hangs ends the run by itself.
@pytest.mark.timeout(3000)
def test_disturbed_commands_give_the_same_result():
    script = [sys.executable, durability.__file__, "--short"]
    ran = subprocess.run(script, capture_output=True, text=True, timeout=2900)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    assert ran.stdout.count(" same") == len(durability.SHORT)


def leave_a_trace():
    Path("out").mkdir(exist_ok=True)
    with open("out/trace", "a") as file:
        file.write("x")
    time.sleep(0.5)


def leave_a_partial():
    Path("out").mkdir(exist_ok=True)
    Path("out/.x.partial").touch()


@pytest.mark.parametrize("job", [leave_a_trace, leave_a_partial, lambda: 1 / 0])
def test_planted_fault_is_seen(tmp_path, monkeypatch, job):
    digest = lambda: durability.written("trace")  # noqa: E731
    monkeypatch.setitem(durability.JOBS, "run", (job, digest))
    base = tmp_path / "base"
    base.mkdir()
    whole = (0.5, durability.result(digest, base))
    counts = durability.trials("two at once", "run", base, 1, random.Random(0), *whole)
    assert any(what.startswith("FAULT") for what in counts)


@pytest.mark.parametrize("words", ["masks --learn masks.toml -o x.npz", "quality q.toml -o x.json"])
def test_second_writer_is_refused_and_overwrites_nothing(tmp_path, monkeypatch, capsys, words):
    configs = Path(__file__).resolve().parents[2] / "configs"
    monkeypatch.chdir(tmp_path)
    atlas = (configs / "atlas/masks.toml").read_text()
    Path("masks.toml").write_text(atlas)
    Path("q.toml").write_text('[data]\nkind = "atlas"\npatients = 6\n')
    name = words.split()[-1]
    Path(name).write_text("of the first")
    overwrite = ["--overwrite"] * words.startswith("masks")
    with file_lock(tmp_path / f".{name}.lock"), pytest.raises(SystemExit) as stopped:
        app.main([*words.split(), *overwrite])
    assert stopped.value.code == 2
    assert "another process is working on" in capsys.readouterr().err
    assert Path(name).read_text() == "of the first"
