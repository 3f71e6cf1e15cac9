"""Answer of a report: sentence, numbers, guarantee and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from taskuq.report._contents import STORY, Contents, Statement
from taskuq.report._records import (
    HELD,
    NOT_HELD,
    NOT_MEASURED,
    VERDICTS,
    Record,
    number,
    policy_name,
    round_called,
    shown,
    two_digits,
)

NOTHING = (
    "Nothing was measured yet: no simulation of a policy and no evaluation of intervals is stored "
    "with this run."
)
NO_GUARANTEE = (
    "No calibrated bound or policy is stored with this run, so this page guarantees nothing. What "
    "follows is measured."
)
OTHERS = (
    "This policy was not simulated: no simulation that is stored with this run has its kind, "
    "score, error rate, goal, unit, rounds and samples."
)
SEVERAL = (
    "Several policies were simulated and none of them is stored with this run: none is taken here, "
    "for anyone who takes the best of them has no guarantee left."
)
# A measured mean may fall below what was asked for by this many standard errors, by chance.
CHANCE = 2.0


class _Number(NamedTuple):
    """A number of the first screen, with its error and its meaning."""

    value: str
    error: str
    what: str

    def __str__(self) -> str:
        return f"{self.value} {self.error}".strip()


class _Verdict(NamedTuple):
    """Outcome of a claim, with one number and a link."""

    verdict: str
    title: str
    number: str
    link: str


class _Answer(NamedTuple):
    """The first screen of a report."""

    sentence: str
    numbers: tuple[_Number, ...]
    measured: str
    guarantee: Statement | None
    verdicts: tuple[_Verdict, ...]

    @property
    def lines(self) -> list[str]:
        """The same as lines for a terminal."""
        lines = [self.sentence]
        wide = max((len(str(n)) for n in self.numbers), default=0)
        lines += [f"  {n!s:>{wide}}  {n.what}" for n in self.numbers]
        lines += [self.measured] if self.measured else []
        guarantee = self.guarantee or Statement(NO_GUARANTEE)
        lines += [guarantee.sentence, *guarantee.shortages]
        counts = {v: sum(one.verdict == v for one in self.verdicts) for v in VERDICTS}
        found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        tally = f"Claims: {found}." if found else "No claim was judged."
        return [*lines, tally] if self.verdicts else lines


def answer_of(contents: Contents) -> _Answer:
    best = _the_simulation(contents)
    guarantee = contents.guarantees[0] if contents.guarantees else None
    verdicts = tuple(_verdicts(contents, best))
    if best is not None and number(best["early"]) == 0:
        return _Answer(*_of_full_scans(contents, best), guarantee, verdicts)
    if best is not None:
        if guarantee is not None and _is_worse_early(best):
            warning = (
                f"But of the reports of scans that stopped early "
                f"{_percent(1 - number(best['coverage_early']))} missed the truth: scans that "
                "measured everything count as reports that hold it."
            )
            guarantee = guarantee._replace(shortages=(*guarantee.shortages, warning))
        return _Answer(*_of_simulation(contents, best), guarantee, verdicts)
    sentence, numbers, measured = _of_evaluation(contents) or ("", (), "")
    if contents.simulations:
        sentence = f"{OTHERS if contents.policy else SEVERAL} {sentence}".strip()
    return _Answer(sentence or NOTHING, numbers, measured, guarantee, verdicts)


def _the_simulation(contents: Contents) -> Record | None:
    """Return the simulation of the run's policy, or the only guaranteed one without a policy."""
    if contents.policy is not None:
        return contents.simulated
    unit = contents.folder.run.get("unit")
    rows = [r for results in contents.simulations.values() for r in results if r["guaranteed"]]
    rows = [r for r in rows if unit is None or r["unit"] == unit] or rows
    most = max((int(r["samples"]) for r in rows), default=0)
    rows = [r for r in rows if int(r["samples"]) == most]
    return rows[0] if len(rows) == 1 else None


def _percent(value: float, digits: int = 1) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.{digits}f}\u00a0%"


def _error(value: float, text: str) -> str:
    return "" if math.isnan(value) else f"±\u00a0{text}"


def _deviation(value: float, of: float) -> str:
    """Format a standard deviation; a width that varies by rounding alone is fixed."""
    return "fixed" if value <= 1e-9 * abs(of) else _error(value, two_digits(value))


def _slack(best: Record, share: float = 1.0) -> float:
    """Chance error of the coverage of a fraction of all scans."""
    error = number(best["standard_errors"]["coverage"])
    return 0.0 if math.isnan(error) else CHANCE * error / share


def _is_worse_early(best: Record) -> bool:
    """Return True if early reports clearly miss the nominal coverage."""
    slack = _slack(best, number(best["early"]))
    return number(best["coverage_early"]) + slack < 1 - number(best["alpha"])


def _of_full_scans(contents: Contents, best: Record) -> tuple[str, tuple[_Number, ...], str]:
    """_Answer of a policy under which no scan stopped early."""
    words = contents.words
    units = words.many("case" if best["unit"] == "case" else "group")
    asked = f"at least {100 * (1 - best['alpha']):.6g}\u00a0%"
    numbers = (
        _Number(_percent(1.0), "", f"of the {words.many('measurement')} were needed"),
        _Number("–", "", f"of early reports held the truth: there were none; asked for: {asked}"),
        _Number("–", "", "is the mean width of early reports: there were none"),
    )
    return (
        f"No scan could stop early: calibrated on {best['n_calibration']} {units}, the policy "
        f"measured every {words.case} in full. Nothing was saved, and no early report was judged.",
        numbers,
        f"Over {best['trials']} random splits ({policy_name(best)}).",
    )


def _width(contents: Contents, best: Record) -> _Number:
    """Width of early reports; tasks with limits of their own have no common mean."""
    stored = contents.policy
    goal: Record = stored["goal"] if stored else {"max_width": contents.max_width}
    limits = [(one["task"], one["max_width"]) for one in goal.get("tasks", ())]
    if len({limit for _, limit in limits}) > 1:
        limited = [f"{task} {limit:g}" for task, limit in limits if limit is not None]
        return _Number("as asked", "", f"early reports are at most this wide: {', '.join(limited)}")
    most = "" if goal["max_width"] is None else f"; asked for: at most {goal['max_width']:g}"
    tasks = (contents.policy or {}).get("task_names", ())
    widest = ", the widest of their tasks" if len(tasks) > 1 else ""
    width, deviation = number(best["width"]), number(best.get("sd", {}).get("width"))
    what = f"is the mean width of early reports{widest}{most}"
    return _Number(shown(width), _deviation(deviation, width), what)


def _of_simulation(contents: Contents, best: Record) -> tuple[str, tuple[_Number, ...], str]:
    R, coverage = number(best["mean_acceleration"]), number(best["coverage"])
    R_error = number(best["standard_errors"]["mean_acceleration"])
    error = number(best["standard_errors"]["coverage"])
    asked = f"{100 * (1 - best['alpha']):.6g}\u00a0%"
    early_coverage = _percent(number(best["coverage_early"]))
    measurements = contents.words.many("measurement")
    numbers = (
        _Number(
            _percent(1 / R), _error(R_error, _percent(R_error / R**2)),
            f"of the {measurements} were needed on average, R̄ = {R:.2f}",
        ),
        _Number(
            _percent(coverage), _error(error, _percent(error)),
            f"of reports held the truth; asked for: at least {asked}; {early_coverage} of the "
            f"{_percent(number(best['early']))} that stopped early",
        ),
        _width(contents, best),
    )  # fmt: skip
    but = f", but only {early_coverage} where scans stopped early" if _is_worse_early(best) else ""
    sentence = (
        f"Measuring each {contents.words.case} only until the answer is certain enough took "
        f"{_percent(1 / R, 0)} of the {measurements}, and the reports held the truth "
        f"{_percent(coverage)} of the time{but}."
    )
    whom = contents.words.apply(best["mean_over"])
    varies = ", of the width one standard deviation between splits"
    measured = (
        f"Measured for {whom}, over {best['trials']} random splits ({policy_name(best)}); ± is one "
        f"standard error{varies if '±' in numbers[-1].error else ''}."
    )
    return sentence, numbers, measured


def _of_evaluation(contents: Contents) -> tuple[str, tuple[_Number, ...], str] | None:
    rows = [
        (row, record)
        for record in contents.evaluations.values()
        for row in record["results"]
        if not math.isnan(number(row["width"]["mean"]))
        # What was asked for elsewhere is not what this run's policy guarantees.
        and (contents.policy is None or row["alpha"] == contents.policy["alpha"])
    ]
    if not rows:
        return None
    narrowest: dict[str | None, tuple[Record, Record]] = {}
    for row, record in sorted(rows, key=lambda pair: number(pair[0]["width"]["mean"])):
        narrowest.setdefault(row.get("task"), (row, record))
    low = min((row for row, _ in narrowest.values()), key=lambda r: number(r["coverage"]["mean"]))
    coverage, error = number(low["coverage"]["mean"]), number(low["coverage"]["sd"])
    asked = f"asked for: at least {100 * (1 - low['alpha']):.6g}\u00a0%"
    of = " of the worst task" if len(narrowest) > 1 else ""
    what = f"of the time the interval{of} held the truth; {asked}"
    held = _Number(_percent(coverage), _error(error, _percent(error)), what)
    sentence, width = _narrowest(narrowest)
    how = "over all splits" if low["trials"] is None else f"over {low['trials']} random splits"
    return (
        f"{sentence} held the truth {'at least ' if of else ''}{held.value} of the time.",
        (held, width),
        f"Measured {how} by {contents.words.apply(low['unit'])}; ± is one standard deviation "
        "between splits. When to stop was not simulated.",
    )


def _narrowest(found: Mapping[str | None, tuple[Record, Record]]) -> tuple[str, _Number]:
    """Widths of the narrowest intervals, as the start of a sentence and as a number."""
    of = {}
    for task, (row, record) in found.items():
        at = f" at {round_called(record, row['acceleration'])}" if row["acceleration"] else ""
        of[task] = f"{row['score']}{at}", number(row["width"]["mean"]), number(row["width"]["sd"])
    if len(of) > 1:
        # Widths of several tasks have no common mean.
        each = ", ".join(f"{task} {shown(mean)} ({by})" for task, (by, mean, _) in of.items())
        widths = ", ".join(f"{task} {shown(mean)}" for task, (_, mean, _) in of.items())
        sentence = f"The narrowest intervals are this wide on average: {each}. They"
        return sentence, _Number("by task", "", f"mean widths: {widths}")
    ((by, mean, sd),) = of.values()
    width = _Number(shown(mean), _deviation(sd, mean), "is the mean width of the intervals")
    return f"The narrowest intervals, of {by}, are {width.value} wide on average and", width


def _verdicts(contents: Contents, best: Record | None) -> list[_Verdict]:
    found = [_of_reports(contents, best)] if contents.policy or best else []
    for identity, e in zip(contents.experiment_ids, contents.experiments, strict=True):
        found.append(_Verdict(e.verdict or "measured", e.title, e.number or "", identity))
    claims = {name: title for name, title in STORY.items() if name != "live"}
    known = {e.name for e in contents.experiments} & set(claims)
    missing = [title for name, title in claims.items() if known and name not in known]
    return found + [_Verdict(NOT_MEASURED, title, "", "") for title in missing]


def _of_reports(contents: Contents, best: Record | None) -> _Verdict:
    """_Verdict on the coverage of reports."""
    source = best or contents.policy
    assert source is not None
    asked = 1 - source["alpha"]
    title = f"Reports hold the truth {asked:g} of the time"
    if best is None:
        return _Verdict(NOT_MEASURED, title, "this policy was not simulated", "results")
    if number(best["early"]) == 0:
        return _Verdict(NOT_MEASURED, title, "no scan stopped early", "results")
    is_early = best.get("given") == "early"
    coverage = number(best["coverage_early" if is_early else "coverage"])
    slack = _slack(best, number(best["early"]) if is_early else 1.0)
    verdict = HELD if coverage + slack >= asked else NOT_HELD
    # What falls short is seen with its error: chance may explain it.
    error = f" ± {slack / CHANCE:.2g}" if slack and coverage < asked else ""
    return _Verdict(verdict, title, f"{coverage:.4f}{error}", "results")
