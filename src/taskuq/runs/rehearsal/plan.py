"""A day's plan: which command on how many GPUs, in which order, from a rehearsal's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from taskuq.errors import InputError
from taskuq.runs.rehearsal.recipe import Line

GPUS = (1, 4, 8)


@dataclass(frozen=True)
class Step:
    """One command of a plan.

    Arguments:
        begin: The hour at which it begins.
        end: The hour at which it ends.
        gpus: How many GPUs it takes; 0 where it needs none.
        command: What is typed.
    """

    begin: float
    end: float
    gpus: int
    command: str


def plan_steps(record: Mapping[str, Any], gpus: int) -> list[Step]:
    """Share out the commands to GPUs so that the last training ends soonest.

    Trainings that do not follow each other run side by side, each chain on a number of GPUs that
    divides its batches; hours are taken to shrink with the number of GPUs. Before them all data
    are looked at and prepared, after them runs and quality share all GPUs.

    Arguments:
        record: What :meth:`taskuq.runs.rehearsal.run.Rehearsal.run` returned; all must have passed.
        gpus: How many GPUs there are.
    """
    results = record["lines"]
    lost = [r["line"] for r in results if r["status"] != "passed"]
    if lost:
        raise InputError(
            f"{len(lost)} commands of the rehearsal did not pass, first '{lost[0]}'; there is no "
            "plan until all do"
        )
    now, plan = 0.0, []
    trainings = [r for r in results if _verb(r) == "train"]
    first, last = results.index(trainings[0]), results.index(trainings[-1])
    for result in results[:first]:
        plan.append(Step(now, now + _hours(result), 0, _command(result)))
        now = plan[-1].end
    chains = _chains(trainings)
    shares = _shares(chains, gpus)
    if gpus == 1:
        chains, shares = [trainings], (1,)
    ends = []
    for chain, share in zip(chains, shares, strict=True):
        at = now
        for result in chain:
            extra = f" --devices {share}" if share > 1 else ""
            plan.append(Step(at, at + _hours(result) / share, share, _command(result) + extra))
            at = plan[-1].end
        ends.append(at)
    now = max(ends)
    for result in results[last + 1 :]:
        is_gpu = bool(result["peak_gpu_bytes"])
        shared = gpus if is_gpu and _verb(result) in ("run", "quality") else 1
        extra = f" --engine ray --workers {shared}" if shared > 1 else ""
        took = _hours(result) / shared
        plan.append(Step(now, now + took, shared if is_gpu else 0, _command(result) + extra))
        now = plan[-1].end
    return plan


def plan_markdown(record: Mapping[str, Any], gpus: Sequence[int] = GPUS) -> str:
    """The plans for some numbers of GPUs, as Markdown.

    Arguments:
        record: What :meth:`taskuq.runs.rehearsal.run.Rehearsal.run` returned.
        gpus: The numbers.
    """
    if record["passed"] < record["commands"]:
        return "No plan: not every command passed."
    parts = []
    for count in gpus:
        steps = plan_steps(record, count)
        plural = "GPU" if count == 1 else "GPUs"
        parts += [
            f"**{count} {plural}: {_clock(max(step.end for step in steps))} hours**",
            "",
            "| from, h | to, h | GPUs | command |",
            "|---|---|---|---|",
            *_rows(steps),
            "",
        ]
    return "\n".join(parts)


def _rows(steps: Sequence[Step]) -> Iterator[str]:
    """Long steps one by one; what takes minutes and no GPU in one row."""
    small: list[Step] = []
    for step in [*steps, None]:
        if step is not None and step.gpus == 0:
            small.append(step)
            continue
        if small:
            verbs = dict.fromkeys(f"`{Line('', each.command).verb}`" for each in small)
            names = ", ".join(verbs)
            yield f"| {_clock(small[0].begin)} | {_clock(small[-1].end)} | 0 | {names} |"
            small = []
        if step is not None:
            yield f"| {_clock(step.begin)} | {_clock(step.end)} | {step.gpus} | `{step.command}` |"


def _chains(trainings: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Trainings in chains: one that starts from another's weights comes after it."""
    chains: list[list[Mapping[str, Any]]] = []
    for result in trainings:
        for chain in chains:
            if any(other["line"] in result["after"] for other in chain):
                chain.append(result)
                break
        else:
            chains.append([result])
    return chains


def _shares(chains: Sequence[Sequence[Mapping[str, Any]]], gpus: int) -> tuple[int, ...]:
    """How many GPUs each chain gets, so that the longest is as short as can be."""
    possible = [
        [n for n in range(1, gpus + 1) if all(_batch(result) % n == 0 for result in chain)]
        for chain in chains
    ]
    fitting = [shares for shares in product(*possible) if sum(shares) <= gpus]
    if not fitting:
        # Fewer GPUs than chains: one after the other.
        return (1,) * len(chains)

    def longest(shares: tuple[int, ...]) -> tuple[float, int]:
        hours = (sum(map(_hours, c)) / n for c, n in zip(chains, shares, strict=True))
        return max(hours), sum(shares)

    return min(fitting, key=longest)


def _batch(result: Mapping[str, Any]) -> int:
    details = (result["cost"] or {}).get("details", {})
    return int(details.get("batch", 1))


def _hours(result: Mapping[str, Any]) -> float:
    projected = (result["cost"] or {}).get("hours")
    return float(result["seconds"]) / 3600 if projected is None else float(projected)


def _verb(result: Mapping[str, Any]) -> str:
    return Line("", result["line"]).verb


def _command(result: Mapping[str, Any]) -> str:
    return " ".join(result["line"].replace("\\\n", " ").split())


def _clock(hours: float) -> str:
    return f"{hours:.1f}" if hours else "0"
