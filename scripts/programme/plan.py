"""What a programme is: jobs with the public commands, what each needs, and what is brought home."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from taskuq.errors import InputError
from taskuq.settings import from_table, read_toml

# What a command may begin with; there is no shell.
STARTS = ("taskuq", "python")


@dataclass(frozen=True)
class Job:
    """Commands that are run one after another, a table ``[job.NAME]``.

    Arguments:
        run: The commands, each beginning with taskuq or python. One that has ended is not run
            again in a later call; one that was stopped is, and goes on where it can.
        needs: Jobs that have to be done before.
        minutes: After how many minutes, of all calls together, the job is stopped.
        leaves: Files that it has to leave. A job that is stopped after its minutes is done where
            they are there.
        takes: How many of the plan's places it takes.
        left: It begins where so many minutes are left of a call.
        each_call: Whether it is done anew in every call: where it changes what a call brings along.
        expected: How many minutes it is thought to take, for the schedule; all its minutes where
            nothing is said.
    """

    run: tuple[str, ...]
    needs: tuple[str, ...] = ()
    minutes: float = 10.0
    leaves: tuple[str, ...] = ()
    takes: int = 1
    left: float = 0.5
    each_call: bool = False
    expected: float = 0.0

    def __post_init__(self) -> None:
        strange = [line for line in self.run if line.split()[:1] not in [[s] for s in STARTS]]
        if strange or not self.run:
            raise InputError(
                f"a job runs {', '.join(map(repr, strange)) or 'nothing'}; give commands that "
                f"begin with {' or '.join(STARTS)}"
            )
        if self.takes < 1 or not self.minutes > 0 or not 0 <= self.expected <= self.minutes:
            raise InputError(
                f"a job takes {self.takes} places for {self.minutes} minutes, {self.expected} "
                "expected; give at least one place, some minutes, and expect no more than these"
            )


@dataclass(frozen=True)
class Plan:
    """A programme, one TOML file.

    Arguments:
        job: The jobs by name. What is ready begins in the order of the file, and nothing overtakes.
        places: How many jobs run side by side, where each takes one place.
        keep: Patterns of files to bring home, what matters most first.
    """

    job: dict[str, Job] = field(default_factory=dict)
    places: int = 3
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, job in self.job.items():
            unknown = [other for other in job.needs if other not in self.job]
            if unknown:
                raise InputError(f"job.{name} needs {', '.join(unknown)}, which is no job")
            if job.takes > self.places:
                raise InputError(f"job.{name} takes {job.takes} of {self.places} places")
            _refuse_outside(job.leaves)
        _refuse_outside(self.keep)
        self._refuse_circles()

    def _refuse_circles(self) -> None:
        ordered: set[str] = set()
        while rest := [name for name in self.job if name not in ordered]:
            ready = {name for name in rest if ordered.issuperset(self.job[name].needs)}
            if not ready:
                raise InputError(f"jobs need each other in a circle: {', '.join(rest)}")
            ordered |= ready


def read_plan(path: Path, places: int | None = None) -> Plan:
    """Read a programme from its TOML file.

    Arguments:
        path: The file.
        places: How many jobs run side by side, instead of what it says; a job that takes more of
            them takes all.
    """
    plan: Plan = from_table(Plan, read_toml(path))
    if places is None:
        return plan
    jobs = {name: replace(job, takes=min(job.takes, places)) for name, job in plan.job.items()}
    return replace(plan, job=jobs, places=places)


def _refuse_outside(names: tuple[str, ...]) -> None:
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{name} is outside the folder of work; give a path in it")
