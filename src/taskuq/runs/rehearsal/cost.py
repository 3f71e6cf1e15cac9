"""From what a few steps took to what the whole experiment takes: hours and gigabytes."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskuq.data.made_fastmri import Layout
from taskuq.outputs import TaskOutputs
from taskuq.pipeline.log import RunLog
from taskuq.runs.rehearsal.recipe import Line
from taskuq.settings import read_toml

# The paper's counts: volumes and slices to train on, and those judged.
TRAINING_VOLUMES, TRAINING_SLICES = 484, 17286
JUDGED_VOLUMES, JUDGED_SLICES = 100, 2188
VOLUME_SLICES = TRAINING_SLICES / TRAINING_VOLUMES
# Volumes of both acquisitions in the download.
FOLDERS = {"knee_multicoil_train": 973, "knee_multicoil_val": 199}
# Slices of those that are used, all of which are prepared.
PREPARED = {"knee_multicoil_train": TRAINING_SLICES,
            "knee_multicoil_val": round(JUDGED_VOLUMES * VOLUME_SLICES)}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """A command that was run.

    Arguments:
        line: The command.
        work: The working folder.
        seconds: How long it took.
        grown: By how many bytes what it makes has grown.
        said: What it said, with the second at which it said so.
    """

    line: Line
    work: Path
    seconds: float
    grown: int
    said: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Cost:
    """What a command took for each unit of its work, and what all of its work takes.

    Arguments:
        unit: What is counted: a step, a slice, a file.
        each: Seconds for one, once everything is loaded and compiled.
        first: Seconds of the first, where it was measured apart.
        hours: What the whole experiment takes on this machine; None where nothing is known.
        bytes: What it leaves on disk.
        note: What to know about it.
    """

    unit: str = ""
    each: float | None = None
    first: float | None = None
    hours: float | None = None
    bytes: float | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def cost_of(done: Done) -> Cost:
    """What a command costs; commands that read tables alone are not projected.

    Arguments:
        done: The command.
    """
    known: Callable[[Done], Cost] | None = _COSTS.get(done.line.verb)
    return Cost(bytes=done.grown) if known is None else known(done)


def full_training(record: Mapping[str, Any], learned: int, tuned: int) -> float:
    """Hours of a training on all of fastMRI, from the record of a trial.

    Arguments:
        record: A trial's ``timing.json``.
        learned: Slices to train on.
        tuned: Slices that decide which weights are best.
    """
    from taskuq.training.timing import projected_hours

    before = record["before"]
    if before is not None:
        before = {**before, "projected_hours": full_training(before, learned, tuned)}
    batch = int(record["batch"])
    scaled = {
        "steps_per_epoch": math.ceil(learned / batch),
        "validation_steps": math.ceil(tuned / batch),
        "epoch_s": None,
        "before": before,
    }
    return projected_hours({**record, **scaled})


def _training(done: Done) -> Cost:
    from taskuq.training.timing import read_timing

    assert done.line.config is not None
    config = read_toml(done.work / done.line.config)
    record = read_timing(done.work / done.line.makes[0])
    share = config.get("split", {}).get("train", 1 - config["data"].get("validation", 0.0))
    learned = round(TRAINING_SLICES * share)
    return Cost(
        unit="step",
        each=record["step_s"],
        first=record["first_step_s"],
        hours=full_training(record, learned, TRAINING_SLICES - learned),
        bytes=done.grown,
        note=f"{record['parameters'] / 1e6:.1f} M parameters, batch {record['batch']}, "
        f"{record['epochs']} epochs",
        details=record,
    )


def _run(done: Done) -> Cost:
    (folder,) = done.line.makes
    events = [e for e in RunLog(done.work / folder).events() if e["event"] == "finished"]
    cases, seconds = int(events[-1]["cases"]), float(events[-1]["seconds"])
    each = seconds / cases if cases else done.seconds
    return Cost(
        unit="slice",
        each=each,
        hours=each * JUDGED_SLICES / 3600,
        bytes=done.grown * JUDGED_SLICES / TaskOutputs.load(done.work / folder).cases,
        note="all rounds",
    )


def _quality(done: Done) -> Cost:
    """The median over accelerations of what a method took: the first compiles."""
    stages = [(at, text) for at, text in done.said if text.startswith(("R = ", "features of "))]
    if not stages:
        return Cost(bytes=done.grown)
    ends = [*(at for at, _ in stages[1:]), done.seconds]
    took: dict[str, list[float]] = {}
    reference = 0.0
    for (at, text), end in zip(stages, ends, strict=True):
        if text.startswith("R = "):
            took.setdefault(text.rpartition(", ")[2], []).append(end - at)
        else:
            (number,) = re.findall(r"\d+", text)
            reference = (end - at) / int(number)
    rounds = max(map(len, took.values()))
    cases = _judged(done.work)
    each = rounds * sum(map(statistics.median, took.values())) / cases
    return Cost(
        unit="slice",
        each=each,
        hours=(each * JUDGED_SLICES + reference * TRAINING_SLICES) / 3600,
        bytes=done.grown,
        note="all rounds and methods" + (", and FID's reference" if reference else ""),
    )


def _prepare(done: Done) -> Cost:
    from taskuq.data.volume import open_volume

    folder = done.line.words[2]
    files = sorted((done.work / folder).rglob("*.h5"))
    slices = sum(open_volume(path).slices for path in files)
    begun = next((at for at, text in done.said if "files are used" in text), 0.0)
    each, total = (done.seconds - begun) / slices, PREPARED[Path(folder).name]
    return Cost("slice", each, hours=each * total / 3600, bytes=done.grown / slices * total)


def _check(done: Done) -> Cost:
    folder = done.line.words[2]
    each = done.seconds / len(list((done.work / folder).rglob("*.h5")))
    total = FOLDERS[Path(folder).name]
    return Cost("file", each, hours=each * total / 3600, bytes=done.grown,
                note="its start counted in")  # fmt: skip


# By the command; what is not here reads tables, which takes seconds to minutes at any size.
_COSTS: dict[str, Callable[[Done], Cost]] = {
    "train": _training,
    "run": _run,
    "quality": _quality,
    "data prepare": _prepare,
    "data check": _check,
}


def raw_bytes() -> dict[str, float]:
    """What the download takes on disk, by folder.

    Example:
        >>> {name: f"{size / 1e9:.0f} GB" for name, size in raw_bytes().items()}
        {'knee_multicoil_train': '982 GB', 'knee_multicoil_val': '201 GB'}
    """
    return {name: count * VOLUME_SLICES * Layout().slice_bytes for name, count in FOLDERS.items()}


def _judged(work: Path) -> int:
    """The judged slices of the validation volumes that quality looks at, annotated or not."""
    from taskuq.data.preparation import Preparation
    from taskuq.data.volume import open_volume

    rule = Preparation()
    volumes = map(open_volume, (work / "data/knee_multicoil_val").rglob("*.h5"))
    return sum(
        len(rule.chosen_slices(volume.slices))
        for volume in volumes
        if volume.acquisition == rule.acquisition
    )
