"""What becomes of SLURM jobs: their results, and where there is none, the queue and their words."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from taskuq.errors import InputError, MachineError
from taskuq.pipeline.engines import Work

# States in which a job does not go on; in all others it does, or may.
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
# Seconds a result may take to be seen by other machines after its job has ended.
GRACE = 15.0
# The queue is asked again after a tenth of the time waited so far, within these seconds.
OFTEN, SELDOM = 1.0, 30.0
ADVICE = {
    "TIMEOUT": "it reached its time limit; give more, e.g. --slurm timeout_min=600",
    "OUT_OF_MEMORY": "it ran out of memory; give more, e.g. --slurm mem_gb=32",
}


class TimeIsUp(BaseException):
    """SLURM has announced the end of a job; no case may take this for an error of its own."""


@dataclass(frozen=True)
class Share:
    """What runs in a job: its pieces, less those that it finished before it was put back in line.

    Arguments:
        work: The whole.
    """

    work: Work

    def __call__(self, todo: list[int]) -> Exception | None:
        """Do pieces and keep them; return what a person should read, if anything.

        Arguments:
            todo: The numbers of the pieces.
        """
        left = self.work.unfinished(todo)
        try:
            with told_of_the_end():
                self.work.do(left)
        except (InputError, MachineError) as error:
            return error
        except TimeIsUp:
            done = len(todo) - len(self.work.unfinished(todo))
            return MachineError(f"{ADVICE['TIMEOUT']}; {done} of its {len(todo)} are kept")
        return None


@contextmanager
def told_of_the_end() -> Iterator[None]:
    """Let the signal before a time limit end the work, so that what is finished is written.

    Submitit puts a job that is driven out back in line and ends it. At a time limit it raises an
    error wherever the program happens to be, which a case would take for its own.
    """
    from submitit.core.job_environment import JobEnvironment

    number = JobEnvironment._usr_sig()
    before = signal.getsignal(number)

    def end(number: int, frame: FrameType | None) -> None:
        try:
            if callable(before):
                before(number, frame)
        except Exception:
            raise TimeIsUp from None

    signal.signal(number, end)
    try:
        yield
    finally:
        signal.signal(number, before)


class Queue:
    """What SLURM says of jobs, asked of the queue itself: accounting may not be there.

    Arguments:
        asked: Which jobs, as squeue is asked for them, e.g. --jobs=12.
    """

    def __init__(self, asked: str) -> None:
        self.asked = asked
        self.began = time.monotonic()
        self.seen = -SELDOM
        self.known: dict[str, str] = {}

    def states(self) -> dict[str, str]:
        """Return the state of each job that is still known; seldom asked where it takes long."""
        now = time.monotonic()
        pause = min(SELDOM, max(OFTEN, (now - self.began) / 10))
        if now - self.seen >= pause:
            self.seen = now
            command = ["squeue", "--noheader", "--array", "--states=all", "--format=%F_%K %T"]
            found = subprocess.run([*command, self.asked], capture_output=True, text=True)
            if found.returncode == 0:
                rows = (line.split() for line in found.stdout.splitlines())
                self.known = {row[0].removesuffix("_N/A"): row[1] for row in rows if len(row) == 2}
            elif "Invalid job id" in found.stderr:
                self.known = {}
            # Else nobody answered; what was known before stands until somebody does.
        return self.known

    def going(self) -> list[str]:
        """Return the jobs that wait or run."""
        return [job for job, state in self.states().items() if state not in ENDED]


@dataclass(frozen=True)
class Failure:
    """Why a job did not do its share.

    Arguments:
        error: In one sentence.
        words: What the job said of it, whole.
    """

    error: Exception
    words: str = ""


def wait(
    jobs: Sequence[Any], look: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Failure | None]]:
    """Yield the place of each job when it has ended, and why it failed, if it did.

    Arguments:
        jobs: What submitit gave for one array.
        look: Called now and then.
    """
    from submitit import SlurmJob

    queue = Queue(f"--jobs={jobs[0].job_id.partition('_')[0]}")
    waiting, ended = dict(enumerate(jobs)), dict[int, float]()
    while waiting:
        for place, job in list(waiting.items()):
            state = "GONE"
            if not isinstance(job, SlurmJob):
                is_over = job.done()
            elif not (is_over := all(task.paths.result_pickle.exists() for task in _tasks(job))):
                state = queue.states().get(job.job_id, state)
                if state in ENDED or state == "GONE":
                    is_over = time.monotonic() - ended.setdefault(place, time.monotonic()) > GRACE
                else:
                    ended.pop(place, None)
            if is_over:
                del waiting[place]
                yield place, _failure(job, state)
        look()
        time.sleep(0.2)


def _failure(job: Any, state: str) -> Failure | None:
    """Return why a job that has ended did not do its share; of tasks, the one that failed first."""
    tasks = _tasks(job)
    ended = [task for task in tasks if task.paths.result_pickle.exists()]
    ended.sort(key=lambda task: task.paths.result_pickle.stat().st_mtime)
    words = ""
    for task in ended:
        kind, found = task._get_outcome_and_result()
        if isinstance(found, Exception):
            return Failure(found)
        if kind != "success":
            words = words or str(found).strip()
    if len(ended) == len(tasks) and not words:
        return None
    if (own := _own_error(words)) is not None:
        return Failure(own)
    words = words or "\n".join(filter(None, (own_words(task.stderr() or "") for task in tasks)))
    lines = words.splitlines() or ["it left no word"]
    last = next((line for line in lines if state in line), lines[-1])
    return Failure(MachineError(ADVICE.get(state, f"{state.lower()}, {last}")), words)


def _own_error(words: str) -> Exception | None:
    """The error for a person with which a traceback ends, if it ends with one."""
    name, _, sentence = words.rpartition("\n")[2].partition(": ")
    kinds = {f"{kind.__module__}.{kind.__name__}": kind for kind in (InputError, MachineError)}
    return kinds[name](sentence) if name in kinds else None


def _tasks(job: Any) -> list[Any]:
    return [job.task(number) for number in range(job.num_tasks)]


def own_words(text: str) -> str:
    r"""Return what a job itself wrote to its error stream; submitit writes there as well.

    Arguments:
        text: The stream.

    Example:
        >>> own_words("submitit WARNING (2026-01-01) - Bypassing signal SIGCONT\nno space left\n")
        'no space left'
    """
    return "\n".join(
        line for line in text.splitlines() if line.strip() and not line.startswith("submitit ")
    )
