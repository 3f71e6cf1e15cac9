"""What another machine needs to go on, from what came home: networks of jobs that are done, states.

What jobs that are not done need comes first, in the order of the plan. It travels in folders that
fit beside the repository, one after another, as often as there is something left.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts.programme.packing import Limits, contents, fingerprint, pack
from scripts.programme.plan import Job, Plan
from scripts.programme.running import STATUS, read_status

# What a training goes on from, and what other jobs read of it.
ENDS = ("config.toml", "finished.json", "metrics.csv", "best.*", "last.*", "resume.*")
MADE = re.compile(r"(?<= -o )(?:runs|tables)/[\w.-]+")


def made_by(job: Job) -> list[str]:
    """Folders and files that the commands of a job make."""
    return [name for line in job.run for name in MADE.findall(line)]


def needed(plan: Plan, home: Path) -> list[str]:
    """Patterns of what jobs that are not done yet go on from, what matters most first.

    Arguments:
        plan: The programme.
        home: The folder that archives were unpacked into.
    """
    known = read_status(home)
    found = [STATUS]
    for name, job in plan.job.items():
        if name in known and known[name].state == "done" and not job.each_call:
            continue
        for other in [*_before(plan, name), name]:
            for made in made_by(plan.job[other]):
                found += [made, *(f"{made}/**/{end}" for end in ENDS)]
        # Tables that were begun go on; those that are done stay at home.
        found += [f"{made}/**/*" for made in made_by(job) if made.startswith("tables/")]
    return list(dict.fromkeys(["runs/*-split.json", *found]))


def bring(plan: Plan, home: Path, folder: Path, room: int) -> list[Path]:
    """Write FOLDER-1, FOLDER-2, ..., each of at most so many bytes, and return their archives.

    Arguments:
        plan: The programme.
        home: The folder that archives were unpacked into.
        folder: What their names begin with.
        room: Bytes of one.
    """
    limits, brought = Limits(files=8, each=room // 4, together=room), set[str]()
    archives: list[Path] = []
    for number in range(1, 9):
        out = folder.with_name(f"{folder.name}-{number}")
        written, left_out = pack(needed(plan, home), home, out, limits, arrived=brought)
        archives += written
        brought |= {fingerprint(info.name, content) for info, content in contents(written)}
        if not written or not left_out:
            break
    return archives


def _before(plan: Plan, name: str) -> list[str]:
    """All jobs that a job needs, and that these need."""
    needs = plan.job[name].needs
    return [other for need in needs for other in (*_before(plan, need), need)]
