"""A programme in seconds: limits, failures, what is done again and what is brought home."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from scripts.programme import packing
from scripts.programme.beside import Beside
from scripts.programme.carrying import put
from scripts.programme.packing import Limits, pack, unpack
from scripts.programme.plan import Job, Plan, read_plan
from scripts.programme.preparing import closure, prepare
from scripts.programme.running import Entry, forget, read_status, run, write_status

from taskuq.errors import InputError
from taskuq.settings import read_toml
from taskuq.task import build
from taskuq.weights.files import read_tensors, save_weights

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"tell": lambda line: None}


def says(text, *, then=""):
    """A command that adds a line to a file of its folder."""
    code = f"open('said.txt', 'a').write('{text} '); {then}"
    return f'python -c "{code}"'


def said(work):
    path = work / "said.txt"
    return path.read_text().split() if path.exists() else []


def late_when(work, count):
    """A clock that jumps by a minute and a half when so much was said."""
    return lambda: 90.0 if len(said(work)) >= count else 0.0


def names_in(archive):
    with tarfile.open(archive) as tar:
        return tar.getnames()


def states(work):
    return {name: entry.state for name, entry in read_status(work).items()}


def test_jobs_run_behind_what_they_need_and_once(tmp_path):
    plan = Plan({
        "last": Job((says("last"),), needs=("first",)),
        "first": Job((says("first"), says("again"))),
        "each": Job((says("each"),), needs=("last",), each_call=True),
    })  # fmt: skip
    for _ in range(2):
        run(plan, tmp_path, 60, **QUIET)
    assert said(tmp_path) == ["first", "again", "last", "each", "each"]
    assert set(states(tmp_path).values()) == {"done"}


def test_what_fails_takes_along_what_needs_it_and_nothing_else(tmp_path):
    plan = Plan({
        "bad": Job((says("bad", then="raise SystemExit('no luck')"), says("never"))),
        "next": Job((says("next"),), needs=("bad",)),
        "behind": Job((says("behind"),), needs=("next",)),
        "empty": Job((says("empty"),), leaves=("nothing.npz",)),
        "other": Job((says("other"),)),
    })  # fmt: skip
    entries = run(plan, tmp_path, 60, **QUIET)
    assert sorted(said(tmp_path)) == ["bad", "empty", "other"]
    assert states(tmp_path) == {
        "bad": "failed", "next": "left out", "behind": "left out", "empty": "failed",
        "other": "done",
    }  # fmt: skip
    assert "no luck" in entries["bad"].why
    assert entries["behind"].why == "needs next"
    assert entries["empty"].why == "left no nothing.npz"


def test_a_job_that_fails_without_a_log_takes_no_other_along(tmp_path):
    remove = "import os; os.remove('logs/bad.txt'); raise SystemExit('no luck')"
    plan = Plan({"bad": Job((says("bad", then=remove),)), "other": Job((says("other"),))}, places=1)
    entries = run(plan, tmp_path, 60, **QUIET)
    assert states(tmp_path) == {"bad": "failed", "other": "done"}
    assert entries["bad"].why == "ended with 1: there is no log"


def test_a_job_that_left_too_little_is_done_again_from_its_beginning(tmp_path):
    finds = "import os, pathlib; os.path.exists('go') and pathlib.Path('found.npz').touch()"
    plan = Plan({"finds": Job((says("looks"), says("finds", then=finds)), leaves=("found.npz",))})
    run(plan, tmp_path, 60, **QUIET)
    assert states(tmp_path) == {"finds": "failed"}
    (tmp_path / "go").touch()
    run(plan, tmp_path, 60, **QUIET)
    assert said(tmp_path) == ["looks", "finds"] * 2
    assert states(tmp_path) == {"finds": "done"}


def test_whatever_ends_a_call_ends_its_jobs(tmp_path):
    forever = "print(os.getpid(), file=open('{}.pid', 'w')); time.sleep(600)"
    plan = Plan({
        name: Job((f'python -c "import os, time; {forever.format(name)}"',)) for name in "ab"
    })  # fmt: skip

    pids, raised = [tmp_path / f"{name}.pid" for name in "ab"], []

    def interrupted():
        have_begun = all(path.exists() and path.read_text().endswith("\n") for path in pids)
        if have_begun and not raised:
            raised.append(KeyboardInterrupt())
            raise raised[0]
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, 60, clock=interrupted, **QUIET)
    for path in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
    assert states(tmp_path) == {"a": "unfinished", "b": "unfinished"}


def test_a_call_ends_at_its_limit_and_the_next_one_goes_on(tmp_path):
    # The second command ends only where a file is there that the first call does not have.
    wait = "import os, time; [time.sleep(0.02) for _ in iter(lambda: os.path.exists('go'), True)]"
    plan = Plan({
        "long": Job((says("begun"), says("waits", then=wait), says("ended"))),
        "late": Job((says("late"),)),
    }, places=1)  # fmt: skip
    entries = run(plan, tmp_path, 60, clock=late_when(tmp_path, 2), **QUIET)
    assert states(tmp_path) == {"long": "unfinished", "late": "waiting"}
    assert said(tmp_path) == ["begun", "waits"]
    assert entries["long"].seconds == 90
    (tmp_path / "go").touch()
    run(plan, tmp_path, 60, **QUIET)
    assert said(tmp_path) == ["begun", "waits", "waits", "ended", "late"]
    assert set(states(tmp_path).values()) == {"done"}


def test_a_job_that_takes_too_long_is_done_where_it_left_what_it_has_to(tmp_path):
    forever = "import time; time.sleep(600)"
    plan = Plan({
        "left": Job((says("left", then=forever),), minutes=1, leaves=("said.txt",)),
        "lost": Job((says("lost", then=forever),), minutes=1, leaves=("other.txt",)),
    })  # fmt: skip
    entries = run(plan, tmp_path, 600, clock=late_when(tmp_path, 2), **QUIET)
    assert states(tmp_path) == {"left": "done", "lost": "failed"}
    assert entries["left"].why == "stopped after 1 minutes"


def test_no_more_jobs_run_at_once_than_there_are_places_and_none_overtakes(tmp_path):
    # Each job looks at who runs beside it.
    look = (
        "import os, time; open('on-{0}', 'w').close(); time.sleep(0.3); "
        "print(*[f for f in os.listdir() if f.startswith('on-')], file=open('{0}.txt', 'w')); "
        "os.remove('on-{0}')"
    )
    names = ("a", "b", "alone", "c")
    plan = Plan(
        {
            name: Job((f'python -c "{look.format(name)}"',), takes=2 if name == "alone" else 1)
            for name in names
        },
        places=2,
    )
    order = []
    run(plan, tmp_path, 60, tell=order.append)
    beside = {name: (tmp_path / f"{name}.txt").read_text().split() for name in names}
    assert beside["alone"] == ["on-alone"]
    assert max(map(len, beside.values())) <= 2
    begun = [line.split()[0] for line in order if line.endswith("begins")]
    assert begun == list(names)


def test_what_matters_most_comes_home_first(tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    for name, size in {"a": 30_000, "b": 70_000, "c": 30_000, "d": 500, "e": 30_000}.items():
        (work / f"{name}.bin").write_bytes(bytes(size))
    patterns = ["b.*", "a.*", "c.*", "*.bin", "absent"]
    archives, left_out = pack(patterns, work, out, Limits(2, 50_000, 90_000))
    assert left_out == ["b.bin", "e.bin"]  # one is too large, the other too late
    assert [names_in(path) for path in archives] == [["a.bin", "d.bin"], ["c.bin"]]
    sizes = [path.stat().st_size for path in archives]
    assert max(sizes) <= 50_000
    assert sum(sizes) <= 90_000
    (work / "a.bin").write_bytes(b"mine")
    (work / "c.bin").unlink()
    assert unpack(archives, work) == ["c.bin"]
    assert (work / "a.bin").read_bytes() == b"mine"


def test_what_a_later_call_made_replaces_what_an_earlier_one_left_at_home(tmp_path):
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    for call in (1, 2):
        for name in ("status.json", "same.bin") if call == 1 else ("status.json",):
            (work / name).write_text(str(call))
            os.utime(work / name, (1e9 + call, 1e9 + call))
        pack(["*"], work, tmp_path / f"out-{call}")
    first, second = ([tmp_path / f"out-{call}" / "part-1.tar"] for call in (1, 2))
    unpack(first, home, newer=True)
    assert unpack(second, home) == []
    assert unpack(second, home, newer=True) == ["status.json"]
    assert unpack(first, home, newer=True) == []
    assert [(home / name).read_text() for name in ("status.json", "same.bin")] == ["2", "1"]


def test_weights_come_home_in_half_and_everything_else_as_it_is(tmp_path):
    work, net = tmp_path / "work", build("classifier", preset="tiny")
    path = work / "runs" / "mine" / "best.safetensors"
    path.parent.mkdir(parents=True)
    save_weights(net, path, kind="classifier", config=net.config, notes={"reached": {"epoch": 3}})
    archives, _ = pack(["runs/*/best.*"], work, tmp_path / "out")
    unpack(archives, tmp_path / "home")
    home = tmp_path / "home" / "runs" / "mine" / "best.safetensors"
    assert home.stat().st_size < 0.7 * path.stat().st_size
    for name, value in read_tensors(path).items():
        assert (read_tensors(home)[name].float() - value.float()).abs().max() < 1e-2, name
    assert read_toml(home.with_suffix(".toml"))["reached"]["epoch"] == 3


def test_what_cannot_be_read_or_is_gone_keeps_nothing_else_from_home(tmp_path, monkeypatch):
    work, told = tmp_path / "work", []
    weights = work / "runs" / "mine" / "best.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(bytes(100))
    weights.with_suffix(".toml").write_text("kind = 'classifier'\n[network]\n")
    (work / "status.json").write_text("{}")
    names = ["gone.csv", "runs/mine/best.safetensors", "runs/mine/best.toml", "status.json"]
    monkeypatch.setattr(packing, "matching", lambda patterns, folder: names)
    (archive,), left_out = pack(["*"], work, tmp_path / "out", tell=told.append)
    assert names_in(archive) == names[1:]
    assert left_out == []
    assert [line.split(" is ")[0] for line in told] == names[:2]
    unpack([archive], tmp_path / "home")
    assert (tmp_path / "home" / names[1]).read_bytes() == bytes(100)


def test_a_file_that_goes_while_it_is_packed_is_packed_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "log.txt").write_text("one")
    write = packing._write

    def late(target, archive):
        (tmp_path / "log.txt").unlink()
        return write(target, archive)

    monkeypatch.setattr(packing, "_write", late)
    (archive,), _ = pack(["*.txt"], tmp_path, tmp_path / "out")
    unpack([archive], tmp_path / "home")
    assert (tmp_path / "home" / "log.txt").read_text() == "one"


def test_archives_of_an_earlier_time_do_not_stay(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.bin").write_bytes(bytes(30_000))
    out, limits = tmp_path / "out", Limits(2, 50_000, 90_000)
    assert len(pack(["*.bin"], tmp_path, out, limits)[0]) == 2
    (tmp_path / "b.bin").unlink()
    archives, _ = pack(["*.bin"], tmp_path, out, limits)
    assert sorted(out.iterdir()) == archives == [out / "part-1.tar"]


def test_what_fails_beside_the_jobs_is_said(tmp_path):
    told = []
    beside = Beside(lambda: 1 / 0, 0, told.append)
    beside()
    beside.end()
    assert [line.split(": ")[1] for line in told] == ["ZeroDivisionError"]


def test_on_another_machine_what_is_done_stays_and_what_is_not_begins_anew(tmp_path):
    forever = "import os, time; os.path.exists('go') or time.sleep(600)"
    plan = Plan({
        "done": Job((says("done", then="open('kept.npz', 'w')"),), leaves=("kept.npz",)),
        "lost": Job((says("lost", then="open('lost.npz', 'w')"),), leaves=("lost.npz",)),
        "half": Job((says("half", then="open('half.npz', 'w')"), says("waits", then=forever)),
                    minutes=2, leaves=("half.npz",)),
    }, places=1)  # fmt: skip
    first, other = tmp_path / "first", tmp_path / "other"
    for work in (first, other):
        work.mkdir()
    run(plan, first, 60, clock=late_when(first, 4), **QUIET)
    assert states(first) == {"done": "done", "lost": "done", "half": "unfinished"}
    archives, _ = pack(["status.json", "kept.npz", "half.npz"], first, tmp_path / "out")
    unpack(archives, other)
    forget(plan, other)
    assert not (other / "half.npz").exists()
    (other / "go").touch()
    run(plan, other, 60, **QUIET)
    assert said(other) == ["lost", "half", "waits"]
    assert set(states(other).values()) == {"done"}
    assert read_status(other)["half"].seconds < 60  # 90 of the first machine do not count


def test_what_is_done_beside_is_done_once_at_a_time_and_waited_for():
    go, done = threading.Event(), []
    beside = Beside(lambda: go.wait(60) and done.append(1), seconds=0)
    for _ in range(3):
        beside()
    assert done == []
    go.set()
    beside.end()
    assert done == [1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[job.a]\nrun = ['rm -r x']", "begin with taskuq or python"),
        ("[job.a]\nrun = ['python x']\nneeds = ['b']", "job.a needs b, which is no job"),
        ("[job.a]\nrun = ['python x']\nneeds = ['a']", "in a circle: a"),
        ("[job.a]\nrun = ['python x']\ntakes = 4", "takes 4 of 3 places"),
        ("keep = ['../x']", "../x is outside"),
        ("[job.a]\nruns = ['python x']", "job.a.runs is not a setting"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_in_a_sentence(text, sentence, tmp_path):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_plan(tmp_path / "plan.toml")


def test_the_command_runs_a_plan_from_what_was_carried(tmp_path):
    """In a process of its own: nothing but a folder of work, a plan and what was prepared."""
    prepare(tmp_path / "carry", ["base"], {})
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "keep = ['found.txt']\n[job.atlas]\nleaves = ['a.npz']\nrun = ['taskuq data atlas "
        "--patients 1 --slices 2 --size 32 -o a.npz', \"python -c 'import os, taskuq; "
        'print(os.environ[\\"TASKUQ_ATLAS_BASE\\"], file=open(\\"found.txt\\", \\"w\\"))\'"]\n'
    )
    command = [sys.executable, "-m", "scripts.programme", "run", str(plan)]
    options = ["-o", "out", "--work", "work", "--carried", "carry", "--seconds", "100"]
    command += [str(tmp_path / word) if word[0].isalpha() else word for word in options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "work" / "a.npz").exists()
    assert "atlas" in done.stdout.splitlines()[-1]
    unpack([tmp_path / "out" / "part-1.tar"], tmp_path / "home")
    found = (tmp_path / "home" / "found.txt").read_text().strip()
    assert found == str((tmp_path / "work" / "base.npz").resolve())


def test_all_comes_home_where_mps_does_not_quit_and_an_unfinished_job_begins_anew(tmp_path):
    control = tmp_path / "bin" / "nvidia-cuda-mps-control"
    control.parent.mkdir()
    # It takes longer to quit than is waited for; nothing is left of it when the test is over.
    control.write_text('#!/bin/sh\n[ "$1" = "-d" ] || exec sleep 3\n')
    control.chmod(0o755)
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "keep = ['found.txt']\n[job.a]\nleaves = ['found.txt']\n"
        'run = ["python -c \'open(\\"found.txt\\", \\"w\\")\'"]\n'
    )
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    write_status(earlier, {"a": Entry("unfinished", commands=0, seconds=599.0)})
    archives, _ = pack(["status.json"], earlier, tmp_path / "packed")
    words = ["run", plan, "-o", tmp_path / "out", "--work", tmp_path / "work", "--seconds", 60]
    code = (
        "import scripts.programme.sharing as s, scripts.programme.__main__ as m; "
        "s.PROBE, s.QUITTING = 'pass', 0.2; m.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words), "--packed", *archives],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": f"{control.parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "share the GPU by MPS" in done.stdout
    assert {"status.json", "found.txt"} <= set(names_in(tmp_path / "out" / "part-1.tar"))
    assert read_status(tmp_path / "work")["a"].seconds < 599


def test_carried_packages_are_found_behind_those_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "site").mkdir()
    for name in ("only_carried", "jinja2"):
        (tmp_path / "site" / f"{name}.py").write_text("carried = True\n")
    put(None, tmp_path)
    look = "import jinja2, only_carried; assert only_carried.carried; jinja2.Environment"
    run(Plan({"look": Job((f'python -c "{look}"',))}), tmp_path, 60, **QUIET)
    assert states(tmp_path) == {"look": "done"}


def test_packages_that_travel_are_plain_python():
    names = {one.metadata["Name"].lower() for one in closure(("cyclopts",))}
    assert {"cyclopts", "rich", "attrs"} <= names
    with pytest.raises(InputError, match="not plain Python"):
        closure(("scipy",))
