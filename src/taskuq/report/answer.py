"""The answer of a run: one sentence, three numbers, the promise, and what each claim came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from taskuq.report.contents import STORY, Contents, Promise, experiment_ids
from taskuq.report.records import (
    HELD,
    IN_PART,
    NOT_HELD,
    NOT_MEASURED,
    VERDICTS,
    Record,
    number,
    policy_name,
    round_called,
)
from taskuq.report.tables import shown

NOTHING = (
    "Nothing was measured yet: no simulation of a policy and no evaluation of intervals is stored "
    "with this run."
)
UNPROMISED = (
    "No calibrated bound or policy is stored with this run, so this page promises nothing. What "
    "follows is measured."
)
# A measured mean may fall below what was asked for by this many standard errors, by chance.
CHANCE = 2.0


class Number(NamedTuple):
    """One of the numbers that everybody looks for, with its error and what it is."""

    value: str
    error: str
    what: str

    def __str__(self) -> str:
        return f"{self.value} {self.error}".strip()


class Verdict(NamedTuple):
    """What a claim came to, with one number and where to read on; '' where there is nothing."""

    verdict: str
    title: str
    number: str
    link: str


@dataclass(frozen=True)
class Answer:
    """What a reader should know who reads nothing else.

    Arguments:
        sentence: What was found.
        numbers: How much was measured, how often reports held the truth, how wide they were.
        measured: For whom and how these were measured.
        promise: What is guaranteed, with every shortage; None where nothing is.
        verdicts: What each claim came to.
    """

    sentence: str
    numbers: tuple[Number, ...]
    measured: str
    promise: Promise | None
    verdicts: tuple[Verdict, ...]

    @property
    def lines(self) -> list[str]:
        """The same on a terminal, a few lines."""
        said = [self.sentence]
        wide = max((len(str(n)) for n in self.numbers), default=0)
        said += [f"  {n!s:>{wide}}  {n.what}" for n in self.numbers]
        said += [self.measured] if self.measured else []
        promise = self.promise or Promise(UNPROMISED)
        said += [promise.sentence, *promise.shortages]
        return said + ([self.tally] if self.verdicts else [])

    @property
    def tally(self) -> str:
        """How many claims held."""
        counts = {v: sum(one.verdict == v for one in self.verdicts) for v in VERDICTS}
        found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        return f"Claims: {found}." if found else "No claim was judged."


def answer_of(contents: Contents) -> Answer:
    """Return the answer of a run, from its records."""
    best = best_simulation(contents)
    promise = contents.promises[0] if contents.promises else None
    verdicts = tuple(_verdicts(contents, best))
    if best is not None:
        return Answer(*_of_simulation(contents, best), promise, verdicts)
    found = _of_evaluation(contents)
    return Answer(*(found or (NOTHING, (), "")), promise, verdicts)


def best_simulation(contents: Contents) -> Record | None:
    """Return what the run's own policy did in a simulation, or else the fastest guaranteed one."""
    unit = contents.folder.run.get("unit")
    rows = [r for results in contents.simulations.values() for r in results]
    rows = [r for r in rows if unit is None or r["unit"] == unit] or rows
    mine = [r for r in rows if contents.policy and r["policy"] == contents.policy["kind"]]
    promised = [r for r in mine or rows if r["guaranteed"]]
    return max(promised, key=lambda r: number(r["mean_acceleration"]), default=None)


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent, a dash for what is missing.

    Example:
        >>> print(percent(0.1234).split(), percent(1.0, 0).split(), percent(math.nan))
        ['12.3', '%'] ['100', '%'] –
    """
    return "–" if math.isnan(value) else f"{100 * value:.{digits}f}\u00a0%"


def _error(value: float, text: str) -> str:
    return "" if math.isnan(value) else f"±\u00a0{text}"


def _deviation(value: float, of: float) -> str:
    """A standard deviation in digits; what rounding leaves of a fixed width is none."""
    return _error(value, f"{value:.2g}" if value > 1e-9 * abs(of) else "0")


def _of_simulation(contents: Contents, best: Record) -> tuple[str, tuple[Number, ...], str]:
    R, coverage = number(best["mean_acceleration"]), number(best["coverage"])
    R_error = number(best["standard_errors"]["mean_acceleration"])
    error = number(best["standard_errors"]["coverage"])
    asked = f"{100 * (1 - best['alpha']):.6g}\u00a0%"
    width, deviation = number(best["width"]), number(best.get("sd", {}).get("width"))
    measurements = contents.words.many("measurement")
    most = "" if contents.max_width is None else f"; asked for: at most {contents.max_width:g}"
    tasks = (contents.policy or {}).get("task_names", ())
    widest = ", the widest of their tasks" if len(tasks) > 1 else ""
    numbers = (
        Number(
            percent(1 / R), _error(R_error, percent(R_error / R**2)),
            f"of the {measurements} were needed on average, R̄ = {R:.2f}",
        ),
        Number(
            percent(coverage), _error(error, percent(error)),
            f"of the time the report held the truth; asked for: at least {asked}",
        ),
        Number(
            shown(width), _deviation(deviation, width),
            f"is the mean width of early reports{widest}{most}",
        ),
    )  # fmt: skip
    sentence = (
        f"Measuring each {contents.words.case} only until the answer is certain enough took "
        f"{percent(1 / R, 0)} of the {measurements}, and the reports held the truth "
        f"{percent(coverage)} of the time."
    )
    whom = contents.words.said(best["mean_over"])
    measured = (
        f"Measured for {whom}, over {best['trials']} random splits ("
        f"{policy_name(best)}); ± is one standard error, of the width one standard deviation "
        "between splits."
    )
    return sentence, numbers, measured


def _of_evaluation(contents: Contents) -> tuple[str, tuple[Number, ...], str] | None:
    rows = [
        (row, record)
        for record in contents.evaluations.values()
        for row in record["results"]
        if not math.isnan(number(row["width"]["mean"]))
    ]
    if not rows:
        return None
    low, record = min(rows, key=lambda pair: number(pair[0]["width"]["mean"]))
    coverage, width = low["coverage"], low["width"]
    at = f" at {round_called(record, low['acceleration'])}" if low["acceleration"] else ""
    errors = number(coverage["sd"]), number(width["sd"])
    numbers = (
        Number(
            percent(number(coverage["mean"])), _error(errors[0], percent(errors[0])),
            f"of the time the interval held the truth; asked for: at least "
            f"{100 * (1 - low['alpha']):.6g}\u00a0%",
        ),
        Number(
            shown(number(width["mean"])), _deviation(errors[1], number(width["mean"])),
            "is the mean width of the intervals",
        ),
    )  # fmt: skip
    how = "over all splits" if low["trials"] is None else f"over {low['trials']} random splits"
    return (
        f"The narrowest intervals, of {low['score']}{at}, are {numbers[1].value} wide on average "
        f"and held the truth {numbers[0].value} of the time.",
        numbers,
        f"Measured {how} by {contents.words.said(low['unit'])}; ± is one standard deviation "
        "between splits. When to stop was not simulated.",
    )


def _verdicts(contents: Contents, best: Record | None) -> list[Verdict]:
    found = []
    if best is not None:
        coverage, asked = number(best["coverage"]), 1 - best["alpha"]
        slack = CHANCE * number(best["standard_errors"]["coverage"])
        reached = coverage + (0.0 if math.isnan(slack) else slack) >= asked
        verdict = HELD if coverage >= asked else IN_PART if reached else NOT_HELD
        chance = ", within chance" if verdict == IN_PART else ""
        found.append(
            Verdict(
                verdict, f"Reports hold the truth {asked:g} of the time", f"{coverage:.4f}{chance}",
                "results",
            )
        )  # fmt: skip
    ids = experiment_ids(contents)
    known = {e.name for e in contents.experiments}
    for identity, e in zip(ids, contents.experiments, strict=True):
        found.append(Verdict(e.verdict or "measured", e.title, e.number or "", identity))
    claims = {name: title for name, title in STORY.items() if name != "live"}
    if known & set(claims):
        missing = [title for name, title in claims.items() if name not in known]
        found += [Verdict(NOT_MEASURED, title, "", "") for title in missing]
    return found
