"""What a programme is expected to do in its calls: the same order and places, foreseen minutes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scripts.programme.plan import Plan
from scripts.programme.running import Entry, ready

# Minutes of a call before its first job begins, and until a job that goes on is where it was.
BEGINNING, AGAIN = 0.3, 0.7


@dataclass(frozen=True)
class Stay:
    """A job in a call.

    Arguments:
        name: The job.
        begin: When it begins, in minutes of the call.
        end: When it ends, or is stopped with the call.
        is_done: Whether it is done then.
    """

    name: str
    begin: float
    end: float
    is_done: bool


def foreseen(plan: Plan, calls: Sequence[float], before: Collection[str] = ()) -> list[list[Stay]]:
    """Which jobs run when in each call, on one machine that stays.

    Arguments:
        plan: The programme; a job takes its expected minutes.
        calls: How many minutes each call has.
        before: Jobs that are done already.
    """
    entries = {name: Entry("done" if name in before else "waiting") for name in plan.job}
    left = {name: job.expected or job.minutes for name, job in plan.job.items()}
    found = []
    for minutes in calls:
        for name, job in plan.job.items():
            if job.each_call:
                entries[name] = Entry()
                left[name] = job.expected or job.minutes
        found.append(_call(plan, entries, left, minutes))
    return found


def _call(
    plan: Plan, entries: dict[str, Entry], left: dict[str, float], minutes: float
) -> list[Stay]:
    now, running, stays = BEGINNING, dict[str, float](), list[Stay]()
    while now < minutes:
        for name in ready(plan, entries, running, minutes - now):
            running[name] = now
        if not running:
            break
        name = min(running, key=lambda one: running[one] + left[one])
        end = running[name] + left[name]
        if end > minutes:
            break
        now = end
        stays.append(Stay(name, running.pop(name), end, is_done=True))
        entries[name] = Entry("done")
    for name, begin in running.items():
        stays.append(Stay(name, begin, minutes, is_done=False))
        left[name] += AGAIN - (minutes - begin)
    return sorted(stays, key=lambda stay: stay.begin)


def words(plan: Plan, calls: Sequence[float], before: Collection[str] = ()) -> list[str]:
    """The schedule in lines, and what is not reached.

    Arguments:
        plan: The programme.
        calls: How many minutes each call has.
        before: Jobs that are done already.
    """
    lines, done = list[str](), set(before)
    for number, stays in enumerate(foreseen(plan, calls, before), 1):
        lines.append(f"call {number}, {calls[number - 1]:.1f} minutes")
        for stay in stays:
            end = "" if stay.is_done else "  goes on in the next call"
            lines.append(f"  {stay.begin:4.1f} to {stay.end:4.1f}  {stay.name}{end}")
        done |= {stay.name for stay in stays if stay.is_done}
    missed = [name for name in plan.job if name not in done]
    return [*lines, f"not reached: {', '.join(missed) or 'nothing'}"]
