"""Run the jobs of a plan side by side, for as long as a call may take, and know what was done."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scripts.programme.carrying import LATE, ROOT
from scripts.programme.plan import Job, Plan

from taskuq.files import write_json
from taskuq.training.folder import FINISHED, RESUME

STATUS, SCHEMA = "status.json", "taskuq.programme/1"
# How long a process may take to end when it is told to, and how often processes are looked at.
ENDING, PAUSE = 5.0, 0.05

Clock = Callable[[], float]


@dataclass(frozen=True)
class Entry:
    """How far a job has come.

    Arguments:
        state: ``"waiting"``, ``"unfinished"``, ``"done"``, ``"failed"``, or ``"left out"`` where
            a job that it needs failed.
        commands: How many of its commands have ended well.
        seconds: How long it ran, in all calls.
        why: A few words.
    """

    state: str = "waiting"
    commands: int = 0
    seconds: float = 0.0
    why: str = ""


class Running:
    """A job that is being run: one of its commands at a time, all writing to one log."""

    def __init__(self, name: str, job: Job, entry: Entry, work: Path, clock: Clock) -> None:
        self.name, self.job, self.entry, self.work = name, job, entry, work
        self.clock, self.begun = clock, clock()
        self.process: subprocess.Popen[bytes] | None = None
        self.next()

    @property
    def seconds(self) -> float:
        """How long the job ran, in all calls."""
        return self.entry.seconds + self.clock() - self.begun

    def next(self) -> None:
        """Begin with the command behind those that have ended."""
        words = shlex.split(self.job.run[self.entry.commands])
        module = ["-m", "taskuq.commands.app"] if words[0] == "taskuq" else []
        log = self.work / "logs" / f"{self.name}.txt"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ {shlex.join(words)}\n".encode())
            file.flush()
            self.process = subprocess.Popen(
                [sys.executable, *module, *words[1:]],
                cwd=self.work, env=surroundings(self.work), stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,  # with all processes that it starts it can be ended
            )  # fmt: skip

    def look(self) -> Entry | None:
        """What has become of the job; None while it runs."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return self._too_long() if self.seconds > 60 * self.job.minutes else None
        if code:
            return self._ended("failed", f"ended with {code}: {last_line(self.work, self.name)}")
        self.entry = replace(self.entry, commands=self.entry.commands + 1)
        if self.entry.commands < len(self.job.run):
            self.next()
            return None
        if missing := lacking(self.job, self.work):
            return self._ended("failed", f"left no {missing}")
        return self._ended("done", "")

    def signal(self, number: int) -> None:
        """Tell the job something, and everything that it has started."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self, state: str, why: str, patience: float = ENDING) -> Entry:
        """End the job, and everything that it has started."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.signal(signal.SIGKILL)
        self.process.wait()
        return self._ended(state, why)

    def _too_long(self) -> Entry:
        missing, why = lacking(self.job, self.work), f"stopped after {self.job.minutes:g} minutes"
        is_done = self.job.leaves and not missing
        return self.stop("done" if is_done else "failed", why)

    def _ended(self, state: str, why: str) -> Entry:
        return replace(self.entry, state=state, why=why, seconds=round(self.seconds, 1))


def run(
    plan: Plan,
    work: Path,
    seconds: float,
    *,
    tell: Callable[[str], None] = print,
    after: Callable[[], None] = lambda: None,
    clock: Clock = time.monotonic,
) -> dict[str, Entry]:
    """Run what is not done yet, and return how far each job has come.

    Arguments:
        plan: The programme.
        work: Where jobs run, and where what they leave stays for the next call.
        seconds: After how long everything is stopped that still runs.
        tell: Called with a line whenever a job begins or ends.
        after: Called when a job has ended.
        clock: Seconds.
    """
    begin = clock()
    entries = _before(plan, work)
    running: dict[str, Running] = {}
    try:
        while (left := seconds - (clock() - begin)) > 0:
            for name in ready(plan, entries, running, left / 60):
                running[name] = Running(name, plan.job[name], entries[name], work, clock)
                tell(f"{name} begins")
            if not running:
                break
            time.sleep(PAUSE)
            for name, entry in _ended(running).items():
                entries[name] = entry
                tell(f"{name}: {entry.state}, {entry.seconds:.0f} s {entry.why}".rstrip())
                write_status(work, entries)
                after()
    finally:  # jobs have sessions of their own, and would go on after whatever ends this one
        entries |= _stopped(running)
        entries = _left_out(plan, entries)
        write_status(work, entries)
    return entries


def _ended(running: dict[str, Running]) -> dict[str, Entry]:
    found = {name: entry for name, one in running.items() if (entry := one.look())}
    for name in found:
        del running[name]
    return found


def _stopped(running: dict[str, Running]) -> dict[str, Entry]:
    """End what still runs."""
    for one in running.values():
        one.signal(signal.SIGTERM)  # all of them, before any is waited for
    until, why = time.monotonic() + ENDING, "the call was over"
    return {
        name: one.stop("unfinished", why, max(0.0, until - time.monotonic()))
        for name, one in running.items()
    }


def lacking(job: Job, work: Path) -> str:
    """A file that the job has to leave and that is not there; nothing where all are."""
    return next((name for name in job.leaves if not (work / name).exists()), "")


def forget(plan: Plan, work: Path) -> None:
    """Begin jobs that are not done with their first command, on a machine they did not begin on.

    Their minutes count from 0 again. Trainings among their commands that have ended are not done
    again, and those whose state came along go on. Where neither came, what was left halfway is
    removed: it would let a job be done without having been run.

    Arguments:
        plan: The programme.
        work: A folder of work that was filled from archives.
    """
    known = read_status(work)
    entries = {name: known.get(name, Entry()) for name in plan.job}
    for name, entry in entries.items():
        if entry.state != "done":
            entries[name] = Entry()
            for left in plan.job[name].leaves:
                beside = (work / left).parent
                if not any((beside / kept).exists() for kept in (RESUME, FINISHED)):
                    (work / left).unlink(missing_ok=True)
    write_status(work, entries)


def _before(plan: Plan, work: Path) -> dict[str, Entry]:
    """Where the jobs stand when a call begins: what failed or left what is gone is done again."""
    known = read_status(work)
    entries = {}
    for name, job in plan.job.items():
        entry = known.get(name, Entry())
        if job.each_call or (entry.state == "done" and lacking(job, work)):
            entry = Entry()
        elif entry.state == "failed":
            entry = replace(entry, state="waiting", seconds=0.0, why="")
        elif entry.state != "done":
            entry = replace(entry, state="waiting", why="")
        if entry.state == "waiting" and entry.commands >= len(job.run):
            entry = replace(entry, commands=0)  # all ended well, and yet something was missing
        entries[name] = entry
    return entries


def ready(
    plan: Plan, entries: Mapping[str, Entry], running: Collection[str], minutes: float
) -> list[str]:
    """Which jobs begin now.

    Arguments:
        plan: The programme.
        entries: How far each job has come.
        running: Which of them run.
        minutes: How many are left of the call.
    """
    free = plan.places - sum(plan.job[name].takes for name in running)
    chosen = []
    for name, job in plan.job.items():
        is_next = entries[name].state == "waiting" and name not in running
        if not is_next or minutes < job.left or not _has(entries, job.needs):
            continue
        if job.takes > free:
            break  # nothing overtakes: a job that needs the machine alone would never begin
        free -= job.takes
        chosen.append(name)
    return chosen


def _has(entries: Mapping[str, Entry], needs: tuple[str, ...]) -> bool:
    return all(entries[name].state == "done" for name in needs)


def _left_out(plan: Plan, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Say of jobs that never began because of others which these are."""
    for _ in plan.job:
        for name, job in plan.job.items():
            lost = [n for n in job.needs if entries[n].state in ("failed", "left out")]
            if entries[name].state == "waiting" and lost:
                entries[name] = Entry("left out", why=f"needs {lost[0]}")
    return entries


def surroundings(work: Path) -> dict[str, str]:
    """The environment of a job: this repository, what was carried, and no idle threads."""
    paths = [ROOT / "src", ROOT, work / LATE]
    base = work / "base.npz"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
        "OMP_WAIT_POLICY": "PASSIVE",
        "MPLBACKEND": "Agg",
        **({"TASKUQ_ATLAS_BASE": str(base)} if base.exists() else {}),
    }


def last_line(work: Path, name: str) -> str:
    """The last words of a job's log, if it is there: no job fails because of another's log."""
    log = work / "logs" / f"{name}.txt"
    text = log.read_text(errors="replace").strip() if log.exists() else "there is no log"
    return text.rpartition("\n")[2][-300:]


def read_status(work: Path) -> dict[str, Entry]:
    """How far jobs had come in earlier calls."""
    path = work / STATUS
    if not path.exists():
        return {}
    record: dict[str, Any] = json.loads(path.read_text())
    return {name: Entry(**entry) for name, entry in record["jobs"].items()}


def write_status(work: Path, entries: dict[str, Entry]) -> None:
    """Keep how far jobs have come."""
    jobs = {name: asdict(entry) for name, entry in entries.items()}
    write_json(work / STATUS, {"schema": SCHEMA, "jobs": jobs})
