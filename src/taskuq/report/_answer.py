"""First screen of a report: the main result, its guarantee, and outcomes of claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from taskuq.conformal._exact import is_below
from taskuq.report._contents import STORY, Contents, Statement
from taskuq.report._records import (
    NOT_SUPPORTED,
    NOT_TESTED,
    SUPPORTED,
    VERDICTS,
    Record,
    number,
    parts_of,
    policy_name,
    round_called,
    shown,
    two_digits,
)
from taskuq.report.figures import method_label
from taskuq.report.figures._imaging import task_auroc
from taskuq.table._terminology import count_noun, round_label

NOTHING = (
    "No results yet: no simulation of a policy and no evaluation of intervals is stored with this "
    "run."
)
NO_GUARANTEE = (
    "No calibrated bound or policy is stored with this run, so nothing is guaranteed. All results "
    "are measured."
)
OTHERS = (
    "This policy was not simulated: no stored simulation has its kind, score, error rate, goal, "
    "unit, rounds and samples."
)
SEVERAL = (
    "Several policies were simulated and none of them is stored with this run. No numbers are "
    "shown: choosing the best of them would void the guarantee."
)
PAPER_SCORES = ("ar", "lwr", "cqr")
# Standard errors by which a measured mean may fall below its target by chance.
CHANCE = 2.0
MISSING = "none; no record of this experiment is stored with the run."


class _Number(NamedTuple):
    """Number on the first screen, with its uncertainty and meaning."""

    value: str
    error: str
    what: str

    def __str__(self) -> str:
        return f"{self.value} {self.error}".strip()


class _Worst(NamedTuple):
    """The class or site with the lowest coverage."""

    kind: str
    name: str
    coverage: float
    error: float
    alpha: float
    by: str = ""  # the score and the round of an evaluation

    @property
    def is_below(self) -> bool:
        return is_below(self.coverage, self.error, self.alpha)

    def __str__(self) -> str:
        found = f"{_percent(self.coverage)} {_error(self.error, _percent(self.error))}".strip()
        far = f", more than {CHANCE:g} standard errors below {100 * (1 - self.alpha):.6g}\u00a0%"
        by = f", {self.by}" if self.by else ""
        return f"Worst {self.kind}: {found} ({self.name}{by}){far if self.is_below else ''}"


class _Verdict(NamedTuple):
    """Outcome of a claim, with one number, a link and the criterion."""

    verdict: str
    title: str
    number: str
    link: str
    criterion: str


class _Answer(NamedTuple):
    """First screen of a report."""

    sentence: str
    numbers: tuple[_Number, ...]
    measured: str
    guarantee: Statement | None
    verdicts: tuple[_Verdict, ...]
    about: tuple[tuple[str, str], ...]  # task, data, baseline
    worst: tuple[_Worst, ...] = ()  # classes and sites with the lowest coverage

    @property
    def lines(self) -> list[str]:
        """Texts of the first screen, as lines for a terminal."""
        lines = [self.sentence]
        wide = max((len(str(n)) for n in self.numbers), default=0)
        lines += [f"  {n!s:>{wide}}  {n.what}" for n in self.numbers]
        lines += [f"  {'!' if one.is_below else '':>{wide}}  {one}" for one in self.worst]
        lines += [self.measured] if self.measured else []
        guarantee = self.guarantee or Statement(NO_GUARANTEE)
        lines += [guarantee.sentence, *guarantee.shortages]
        counts = {v: sum(one.verdict == v for one in self.verdicts) for v in VERDICTS}
        found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        return [*lines, f"Claims: {found}."] if self.verdicts else lines


# AUROC below which a task network is called uninformative.
_LOW_AUROC = 0.6


def answer_of(contents: Contents) -> _Answer:
    """Return a report's first screen, which mentions missing cases and an uninformative task."""
    answer, table = _answer(contents), contents.folder.table
    if table is None:
        return answer
    sentence = answer.sentence
    if (area := task_auroc(table)) is not None and area[0] < _LOW_AUROC:
        sentence += (
            f" But the task hardly detects the labelled finding, even on true images (AUROC "
            f"{area[0]:.2f}): narrow intervals for its output may still be useless."
        )
    if missing := len(table.missing_cases):
        cases = contents.words.apply(count_noun(missing, "case"))
        total = missing + table.cases
        sentence = f"Unfinished: {cases} of {total} are missing from the table. {sentence}"
    return answer._replace(sentence=sentence)


def _answer(contents: Contents) -> _Answer:
    best = _the_simulation(contents)
    guarantee = contents.guarantees[0] if contents.guarantees else None
    verdicts, about = tuple(_verdicts(contents, best)), tuple(_about(contents, best))
    if best is not None and number(best["early"]) == 0:
        return _Answer(*_of_full_scans(contents, best), guarantee, verdicts, about)
    if best is not None:
        if guarantee is not None and _is_worse_early(best):
            warning = (
                f"But {_percent(1 - number(best['coverage_early']))} of the intervals of scans "
                "that stopped early missed the truth; overall coverage includes full scans."
            )
            guarantee = guarantee._replace(shortages=(*guarantee.shortages, warning))
        worst = tuple(_worst(contents, [best]))
        answer = _of_simulation(contents, best, worst)
        return _Answer(*answer, guarantee, verdicts, about, worst)
    rows = _evaluated(contents)
    worst = tuple(_worst(contents, [row for row, _ in rows]))
    sentence, numbers, measured = _of_evaluation(contents, rows) or ("", (), "")
    if contents.simulations:
        sentence = f"{OTHERS if contents.policy else SEVERAL} {sentence}".strip()
    return _Answer(sentence or NOTHING, numbers, measured, guarantee, verdicts, about, worst)


def _about(contents: Contents, best: Record | None) -> Iterator[tuple[str, str]]:
    """Yield (term, text) pairs that describe the task, the data and the baseline of a run."""
    table, words = contents.folder.table, contents.words
    task, data = (_first_sentence(contents.what.get(key)) for key in ("task", "data"))
    if table is not None:
        task = task or ", ".join(name for name in table.task_names if name != "task")
        groups = 0 if table.group is None else len(set(table.group.tolist()))
        of = f" of {count_noun(groups, 'group')}" if groups else ""
        data = f"{data} {words.apply(count_noun(table.cases, 'case') + of)}.".strip()
    yield from ((term, text) for term, text in (("Task", task), ("Data", data)) if text)
    if table is not None and (area := task_auroc(table)) is not None:
        error = "" if math.isnan(area[1]) else f" ± {two_digits(area[1])}"
        yield "Task network", f"AUROC {area[0]:.3f}{error} on the true images of the table."
    if (paper := _baseline(contents, best)) is not None:
        yield (
            "Baseline",
            f"The paper's stopping rule ({method_label(paper['score'])}), without guarantee: "
            f"R̄ = {number(paper['mean_acceleration']):.3g}, coverage {shown(paper['coverage'])}.",
        )


def _first_sentence(text: object) -> str:
    return str(text or "").partition(". ")[0].rstrip(".") + "." if text else ""


def _baseline(contents: Contents, best: Record | None) -> Record | None:
    """Return the result of the paper's policy and scores with the highest acceleration, or None."""
    for rows in contents.simulations.values():
        if best is not None and best["policy"] != "paper" and any(row is best for row in rows):
            rows = [r for r in rows if r["score"] in PAPER_SCORES]
            paper = [r for r in rows if r["policy"] == "paper" and r["samples"] == best["samples"]]
            return max(paper, key=lambda r: number(r["mean_acceleration"]), default=None)
    return None


def _worst(contents: Contents, rows: Sequence[Record]) -> Iterator[_Worst]:
    """Yield the class and the site with the lowest coverage in any of the results."""
    for kind in ("class", "site"):
        found = []
        for row in rows:
            by = ""
            if "policy" not in row and len(rows) > 1:
                R = row["acceleration"]
                at = f" at {round_label(R, row.get('round_name'))}" if R else ""
                by = f"{method_label(row['score'])}{at}"
            for part in parts_of(row, kind):
                named = contents.class_name(part.name) if kind == "class" else part.name
                alpha = number(row["alpha"])
                found.append(_Worst(kind, named, part.coverage, part.error, alpha, by))
        if known := [one for one in found if not math.isnan(one.coverage)]:
            yield min(known, key=lambda one: one.coverage)


def _the_simulation(contents: Contents) -> Record | None:
    """Return the simulation result of the run's policy, or the only one with a guarantee."""
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
    """Format a standard deviation, or return 'fixed' if it is only a rounding error."""
    return "fixed" if value <= 1e-9 * abs(of) else _error(value, two_digits(value))


def _slack(best: Record, share: float = 1.0) -> float:
    """Return the margin of error of coverage that is measured on a given share of the scans."""
    error = number(best["standard_errors"]["coverage"])
    return 0.0 if math.isnan(error) else CHANCE * error / share


def _is_worse_early(best: Record) -> bool:
    """Return True if the coverage of scans that stop early is significantly below 1 - alpha."""
    slack = _slack(best, number(best["early"]))
    return number(best["coverage_early"]) + slack < 1 - number(best["alpha"])


def _of_full_scans(contents: Contents, best: Record) -> tuple[str, tuple[_Number, ...], str]:
    """Return a sentence, numbers and a footnote on a policy that stopped no scan early."""
    words = contents.words
    units = words.many("case" if best["unit"] == "case" else "group")
    target = f"at least {100 * (1 - best['alpha']):.6g}\u00a0%"
    numbers = (
        _Number(_percent(1.0), "", f"of the {words.many('measurement')} were measured"),
        _Number("–", "", f"coverage of scans that stopped early ({target} required): none did"),
        _Number("–", "", "mean interval width of scans that stopped early: none did"),
    )
    return (
        f"No scan could stop early: calibrated on {best['n_calibration']} {units}, the policy "
        f"measured every {words.case} in full. Nothing was saved, and early stops could not be "
        "evaluated.",
        numbers,
        f"Over {best['trials']} random splits ({policy_name(best)}).",
    )


def _width(contents: Contents, best: Record) -> _Number:
    """Return the mean interval width of scans that stop early, or the width limits by task."""
    stored = contents.policy
    goal: Record = stored["goal"] if stored else {"max_width": contents.max_width}
    limits = [(one["task"], one["max_width"]) for one in goal.get("tasks", ())]
    if len({limit for _, limit in limits}) > 1:
        limited = [f"{task} {limit:g}" for task, limit in limits if limit is not None]
        return _Number("≤ limit", "", f"width of early stops; limits: {', '.join(limited)}")
    most = "" if goal["max_width"] is None else f" (limit {goal['max_width']:g})"
    tasks = (contents.policy or {}).get("task_names", ())
    widest = ", widest task" if len(tasks) > 1 else ""
    width, deviation = number(best["width"]), number(best.get("sd", {}).get("width"))
    what = f"mean interval width of scans that stopped early{widest}{most}"
    return _Number(shown(width), _deviation(deviation, width), what)


def _of_simulation(
    contents: Contents, best: Record, worst: Sequence[_Worst]
) -> tuple[str, tuple[_Number, ...], str]:
    R, coverage = number(best["mean_acceleration"]), number(best["coverage"])
    R_error = number(best["standard_errors"]["mean_acceleration"])
    error = number(best["standard_errors"]["coverage"])
    target = f"{100 * (1 - best['alpha']):.6g}\u00a0%"
    early_coverage = _percent(number(best["coverage_early"]))
    measurements = contents.words.many("measurement")
    paper = _baseline(contents, best)
    rate = math.nan if paper is None else number(paper["mean_acceleration"])
    against = "" if paper is None else f" (baseline {_percent(1 / rate)}, R̄ = {rate:.3g})"
    share = _percent(number(best["early"]))
    of_early = f"; {early_coverage} among the {share} of scans that stopped early"
    of_early = "; all scans stopped early" if share == _percent(1.0) else of_early
    numbers = (
        _Number(
            _percent(1 / R), _error(R_error, _percent(R_error / R**2)),
            f"of the {measurements} acquired, R̄ = {R:.3g}{against}",
        ),
        _Number(
            _percent(coverage), _error(error, _percent(error)),
            f"of reported intervals contained the truth (at least {target} required){of_early}",
        ),
        _width(contents, best),
    )  # fmt: skip
    early = [f"{early_coverage} for scans that stopped early"] if _is_worse_early(best) else []
    low = [*early, *(f"{_percent(one.coverage)} for {one.name}" for one in worst if one.is_below)]
    but = f", but only {' and '.join(low)}" if low else ""
    sentence = (
        f"Measuring each {contents.words.case} only until the answer is certain enough took "
        f"{_percent(1 / R, 0)} of the {measurements}, and the reported intervals contained the "
        f"truth {_percent(coverage)} of the time{but}."
    )
    whom = contents.words.apply(best["mean_over"])
    varies = "; for the width, it is one standard deviation over splits"
    measured = (
        f"Measured for {whom}, over {best['trials']} random splits ({policy_name(best)}); ± is one "
        f"standard error{varies if '±' in numbers[-1].error else ''}."
    )
    return sentence, numbers, measured


def _evaluated(contents: Contents) -> list[tuple[Record, Record]]:
    """Return all evaluation results at the policy's error rate, as pairs (result, record)."""
    return [
        (row, record)
        for record in contents.evaluations.values()
        for row in record["results"]
        if not math.isnan(number(row["width"]["mean"]))
        # Results at other error rates do not describe this run's policy.
        and (contents.policy is None or row["alpha"] == contents.policy["alpha"])
    ]


def _of_evaluation(
    contents: Contents, rows: Sequence[tuple[Record, Record]]
) -> tuple[str, tuple[_Number, ...], str] | None:
    if not rows:
        return None
    narrowest: dict[str | None, tuple[Record, Record]] = {}
    for row, record in sorted(rows, key=lambda pair: number(pair[0]["width"]["mean"])):
        narrowest.setdefault(row.get("task"), (row, record))
    low = min((row for row, _ in narrowest.values()), key=lambda r: number(r["coverage"]["mean"]))
    coverage, error = number(low["coverage"]["mean"]), number(low["coverage"]["sd"])
    target = f"at least {100 * (1 - low['alpha']):.6g}\u00a0% required"
    of = " of the worst task" if len(narrowest) > 1 else ""
    what = f"of intervals{of} contained the truth ({target})"
    covered = _Number(_percent(coverage), _error(error, _percent(error)), what)
    sentence, width = _narrowest(narrowest)
    how = "over all splits" if low["trials"] is None else f"over {low['trials']} random splits"
    return (
        f"{sentence} contained the truth {'at least ' if of else ''}{covered.value} of the time.",
        (covered, width),
        f"Measured {how} by {contents.words.apply(low['unit'])}; ± is one standard deviation "
        "over splits. Stopping was not simulated.",
    )


def _narrowest(found: Mapping[str | None, tuple[Record, Record]]) -> tuple[str, _Number]:
    """Return the start of a sentence on the narrowest intervals, and their mean width."""
    of = {}
    for task, (row, record) in found.items():
        at = f" at {round_called(record, row['acceleration'])}" if row["acceleration"] else ""
        of[task] = (
            f"{method_label(row['score'])}{at}",
            number(row["width"]["mean"]),
            number(row["width"]["sd"]),
        )
    if len(of) > 1:
        # Widths of several tasks have no common mean.
        each = ", ".join(f"{task} {shown(mean)} ({by})" for task, (by, mean, _) in of.items())
        widths = ", ".join(f"{task} {shown(mean)}" for task, (_, mean, _) in of.items())
        sentence = f"The narrowest intervals are this wide on average: {each}. They"
        return sentence, _Number("by task", "", f"mean widths: {widths}")
    ((by, mean, sd),) = of.values()
    width = _Number(shown(mean), _deviation(sd, mean), "mean width of the intervals")
    return f"The narrowest intervals ({by}) are {width.value} wide on average and", width


def _verdicts(contents: Contents, best: Record | None) -> list[_Verdict]:
    found = [_of_reports(contents, best)] if contents.policy or best else []
    if best is not None and number(best["early"]) > 0 and (worst := list(_worst(contents, [best]))):
        found.append(_of_parts(worst))
    for identity, e in zip(contents.experiment_ids, contents.experiments, strict=True):
        verdict = e.verdict or NOT_TESTED
        found.append(_Verdict(verdict, e.title, e.number or "", identity, e.criterion))
    claims = {name: title for name, title in STORY.items() if name not in ("live", "examples")}
    known = {e.name for e in contents.experiments} & set(claims)
    missing = [title for name, title in claims.items() if known and name not in known]
    return found + [_Verdict(NOT_TESTED, title, "", "", MISSING) for title in missing]


def _of_parts(worst: Sequence[_Worst]) -> _Verdict:
    """Compare the lowest measured coverage of any class or site with 1 - alpha."""
    low, target = min(worst, key=lambda one: one.coverage), 1 - worst[0].alpha
    kinds = " and ".join(f"each {one.kind}" for one in worst)
    error = "" if math.isnan(low.error) else f" ± {low.error:.2g}"
    return _Verdict(
        NOT_SUPPORTED if any(one.is_below for one in worst) else SUPPORTED,
        f"Reported intervals contain the truth with probability {target:g} within {kinds}",
        f"{low.coverage:.3f}{error}", "results",
        f"The lowest coverage is at least {target:g}, within {CHANCE:g} standard errors.",
    )  # fmt: skip


def _of_reports(contents: Contents, best: Record | None) -> _Verdict:
    """Compare the measured coverage of the policy with 1 - alpha."""
    source = best or contents.policy
    assert source is not None
    target = 1 - source["alpha"]
    title = f"Reported intervals contain the truth with probability {target:g}"
    criterion = f"Mean coverage is at least {target:g}, within {CHANCE:g} standard errors."
    if best is None:
        return _Verdict(NOT_TESTED, title, "this policy was not simulated", "results", criterion)
    if number(best["early"]) == 0:
        return _Verdict(NOT_TESTED, title, "no scan stopped early", "results", criterion)
    is_early = best.get("given") == "early"
    coverage = number(best["coverage_early" if is_early else "coverage"])
    slack = _slack(best, number(best["early"]) if is_early else 1.0)
    verdict = SUPPORTED if coverage + slack >= target else NOT_SUPPORTED
    # A shortfall is shown with its error: chance may explain it.
    error = f" ± {slack / CHANCE:.2g}" if slack and coverage < target else ""
    return _Verdict(verdict, title, f"{coverage:.3f}{error}", "results", criterion)
