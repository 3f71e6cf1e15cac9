"""Contents of a report, collected from the folder of a run."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from taskuq._io import fingerprint
from taskuq.conformal._bound import Bound, load_bound
from taskuq.conformal._units import Unit, make_unit
from taskuq.conformal.scores import score_name
from taskuq.errors import GuaranteeWarning, InputError
from taskuq.interval import TaskRange
from taskuq.policy._kinds import POLICIES
from taskuq.policy._policy import Policy, load_policy
from taskuq.report import _records as records
from taskuq.report._explorer import explorer_numbers
from taskuq.report._records import Record, RunFolder, StoredRecord, Table, slug, title_of
from taskuq.report._scan import OneScan, one_scan
from taskuq.report.figures import Figure, figure_from_dict, figures_from_record
from taskuq.report.figures._imaging import calibration_sizes
from taskuq.report.figures._policy import lines_record
from taskuq.table._table import TaskOutputs
from taskuq.table._terminology import Terminology, as_terminology, round_label

# Experiments in the order of the report; others follow.
STORY = {
    "live": "New patients, scanned now",
    "multi-round": "Multi-round scans",
    "interval-length": "Interval length against acceleration",
    "sample-count": "Interval length against posterior samples",
    "coverage-law": "Empirical coverage and its exact law",
    "conditional-coverage": "Coverage within classes and widths",
    "paper-protocol": "The paper's multi-round protocol",
    "examples": "Example reconstructions and intervals",
    "recovery-quality": "Image quality of reconstructions",
    "classifier-quality": "The task network as a classifier",
    "masks": "Sampling masks",
    "data-splits": "Data splits",
}
_TABLES: Mapping[str, Callable[[Record, str], Table | tuple[Table, ...]]] = {
    records.EVALUATE: records._score_tables,
    records.SIMULATE: records._policy_tables,
    records.DIAGNOSE: records._sample_table,
    records.QUALITY: records._quality_table,
    records.TASK: records._network_table,
}
# Guarantees shown if none has a shortage.
_SHOWN_GUARANTEES = 4
_COLUMNS = (
    "case", "group", "label", "task", "source", "guarantee", "acceleration", "lower", "upper",
    "width", "target", "covered",
)  # fmt: skip
_DESCRIPTIVE = "table may contain calibration cases, so these rows are only descriptive."
_Stored = TypeVar("_Stored", Policy, Bound)


@dataclass(frozen=True)
class _Experiment:
    name: str
    title: str
    claim: str
    finding: str
    settings: dict[str, Any]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    verdict: str | None = None
    number: str | None = None
    criterion: str = ""


@dataclass(frozen=True)
class _CaseReport:
    """Interval reported for one case and task."""

    case: str
    group: str
    label: str
    source: str
    guarantee: str
    task: str
    acceleration: float | None
    lower: float
    upper: float
    target: float | None
    is_stopped: bool

    @property
    def width(self) -> float:
        return max(self.upper - self.lower, 0.0)

    @property
    def covered(self) -> bool | None:
        return None if self.target is None else self.lower <= self.target <= self.upper


class Statement(NamedTuple):
    """Guarantee in one sentence, and sentences with its caveats."""

    sentence: str
    shortages: tuple[str, ...] = ()


class _Section(NamedTuple):
    """Figures under one heading, as pairs of title and figure."""

    heading: str
    reading: str
    figures: list[tuple[str, Figure]]


@dataclass(frozen=True)
class Contents:
    """Contents of the report of a run."""

    folder: RunFolder
    words: Terminology
    alpha: float | None
    max_width: float | None
    policy: Record | None  # as stored
    simulated: Record | None  # the policy's own simulation
    guarantees: list[Statement]
    is_by_group: bool
    cases: list[_CaseReport]
    numbers: dict[str, Any] | None  # of the explorer
    scan: OneScan | None
    failed: dict[str, str]  # reasons from the log of the table, by case
    evaluations: dict[str, Record]  # by record name
    simulations: dict[str, list[Record]]
    diagnoses: set[str]
    sections: list[_Section]
    tables: list[Table]
    experiments: list[_Experiment]
    notes: list[str]

    @property
    def all_figures(self) -> list[Figure]:
        every = [figure for section in self.sections for _, figure in section.figures]
        return every + [
            replace(f, name=f"{e.name}-{f.name}") for e in self.experiments for f in e.figures
        ]

    @property
    def all_tables(self) -> list[Table]:
        of = [replace(t, name=f"{e.name}-{t.name}") for e in self.experiments for t in e.tables]
        return [*self.tables, *of]

    @property
    def what(self) -> Mapping[str, Any]:
        """Description of the data, measurement, recovery and task, as stored with the run."""
        what = self.folder.run.get("what")
        return what if isinstance(what, Mapping) else {}

    def class_name(self, label: object) -> str:
        """Return the name of a class label in the run's ``classes``, or else a default name."""
        names = self.folder.run.get("classes")
        known = names.get(str(label)) if isinstance(names, Mapping) else None
        return f"class {label}" if known is None and str(label).isdigit() else str(known or label)

    @property
    def experiment_ids(self) -> list[str]:
        return [f"experiment-{k + 1}-{e.name}" for k, e in enumerate(self.experiments)]


def build_contents(folder: RunFolder) -> Contents:
    """Read and compute the contents of a report; add a note for each unusable record."""
    folder, policies = _opened(folder, records.POLICY, load_policy)
    folder, bounds = _opened(folder, records.BOUND, load_bound)
    # A policy called policy.json decided; others are stored for comparison.
    names = sorted(policies, key=lambda name: (Path(name).name != "policy.json", name))
    policy = policies[names[0]] if names else None
    folder = replace(
        folder, others=(*folder.others, *((name, records.POLICY) for name in names[1:]))
    )
    shown, notes = _shown_records(folder)
    evaluations = {s.name: s.record for s in shown if s.schema == records.EVALUATE}
    simulations = {s.name: s.record["results"] for s in shown if s.schema == records.SIMULATE}
    opened = [stored for stored in (policy, *bounds.values()) if stored is not None]
    alphas = [stored.alpha for stored in opened]
    alphas += [rows[0]["alpha"] for rows in simulations.values()]
    alphas += [record["results"][0]["alpha"] for record in evaluations.values()]
    alpha = next(map(float, alphas), None)
    if isinstance(given := folder.run.get("alpha"), int | float) and 0 < given < 1:
        alpha = float(given)
    stored_policy = None if policy is None else policy.to_dict()
    words, max_width = _words(folder), _max_width(folder, stored_policy)
    monitors = [found.record for found in folder.of(records.MONITOR)]
    guarantees = _guarantees(evaluations.values(), opened, monitors)
    unit = _unit(folder.run.get("unit") or (policy and policy.guarantee.unit))
    scan = sizes = numbers = None
    with _noted(notes, "No scan of the policy is shown: "):
        scan = one_scan(policy, folder)
    with _noted(notes, "No calibration sizes are shown: "):
        sizes = _sample_sizes(folder, alpha, policy)
    cases = _cases(folder.table, policy, bounds, notes)
    with _noted(notes, "The explorer cannot be shown: "):
        numbers = _explorer_numbers(folder, alpha, max_width, policy)
    experiments = [s.experiment for s in shown if s.experiment is not None]
    story = list(STORY)
    experiments.sort(key=lambda e: story.index(e.name) if e.name in STORY else len(STORY))
    return Contents(
        folder=folder, words=words, alpha=alpha, max_width=max_width, policy=stored_policy,
        simulated=None if policy is None else _simulated(policy, folder, simulations),
        guarantees=[Statement(words.apply(s), tuple(map(words.apply, of))) for s, of in guarantees],
        is_by_group=unit is not None and unit.is_group, cases=cases, numbers=numbers, scan=scan,
        failed=_failed(folder), evaluations=evaluations, simulations=simulations,
        diagnoses={s.name for s in shown if s.schema == records.DIAGNOSE},
        sections=_sections([*shown, *_computed(folder, words, sizes)]),
        tables=[table for s in shown for table in s.tables], experiments=experiments,
        notes=notes,
    )  # fmt: skip


class _Shown(NamedTuple):
    """Figures, tables and experiment of one JSON result."""

    name: str
    schema: str
    record: Record
    figures: Sequence[tuple[str, str, str, Figure]] = ()  # heading, reading, title, figure
    tables: tuple[Table, ...] = ()
    experiment: _Experiment | None = None


def _shown_records(folder: RunFolder) -> tuple[list[_Shown], list[str]]:
    shown, notes = [], []
    for found in folder.records:
        try:
            shown.append(_shown(found))
        except (InputError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = str(error) if isinstance(error, InputError) else type(error).__name__
            notes.append(
                f"{found.path} is an incomplete {found.schema} record ({reason:.120}) and is not "
                "shown."
            )
    if folder.unchecked:
        notes.append(
            f"No sha256 is stored in {', '.join(folder.unchecked)} (written by an older version or "
            "by hand), so damage cannot be detected."
        )
    return shown, notes


def _shown(found: StoredRecord) -> _Shown:
    if found.schema == records.EXPERIMENT:
        return _Shown("", found.schema, found.record, experiment=_experiment(found.record))
    name = slug(found.path.removesuffix(".json"))
    made = _TABLES[found.schema](found.record, name) if found.schema in _TABLES else ()
    tables = (made,) if isinstance(made, Table) else made
    return _Shown(name, found.schema, found.record, _figures(found.record, f"{name}-"), tables)


def _figures(record: Record, prefix: str = "") -> list[tuple[str, str, str, Figure]]:
    is_split = record.get("unit") and record["schema"] != records.DIAGNOSE
    by = f", splits by {record['unit']}" if is_split else ""
    return [
        (
            kind.heading,
            kind.reading(record),
            (figure.title or title_of(figure.name)) + by,
            replace(figure, name=f"{prefix}{figure.name}"),
        )
        for kind, figure in figures_from_record(record)
        if not figure.is_empty
    ]


def _computed(folder: RunFolder, words: Terminology, sizes: Record | None) -> Iterator[_Shown]:
    """Yield contents that are computed, not stored: masks, chosen lines, calibration sizes."""
    found: list[Record] = []
    if folder.explorer is not None and folder.explorer.masks is not None:
        masks, rates = folder.explorer.masks, folder.explorer.accelerations
        found.append({"schema": records.MASKS, "masks": masks, "accelerations": rates})
    if folder.table is not None and folder.table.sampled_lines is not None:
        found.append(lines_record(folder.table, words))
    found += [] if sizes is None else [sizes]
    for record in found:
        yield _Shown("", record["schema"], record, _figures(record))


def _sections(shown: Iterable[_Shown]) -> list[_Section]:
    found: dict[str, _Section] = {}
    for one in shown:
        for heading, reading, title, figure in one.figures:
            section = found.setdefault(heading, _Section(heading, reading, []))
            section.figures.append((title, figure))
    return list(found.values())


def _experiment(record: Record) -> _Experiment:
    figures = tuple(figure_from_dict(one) for one in record.get("figures", ()))
    tables = record.get("tables", ())
    for one in tables:
        records._require_table(one)
    return _Experiment(
        slug(str(record["name"])), str(record["title"]), str(record.get("claim") or ""),
        str(record.get("finding") or ""), dict(record.get("settings") or {}),
        tuple(f for f in figures if not f.is_empty),
        tuple(
            Table(slug(str(one["name"])), str(one["caption"]), tuple(map(str, one["columns"])),
                  tuple(map(tuple, one["rows"])))
            for one in tables
        ),
        record["verdict"] if record.get("verdict") in records.VERDICTS else None,
        None if record.get("number") is None else str(record["number"]),
        str(record.get("criterion") or "none; the results are descriptive."),
    )  # fmt: skip


def _opened(
    folder: RunFolder, schema: str, load: Callable[[Path], _Stored]
) -> tuple[RunFolder, dict[str, _Stored]]:
    """Load stored policies or bounds by path; record unreadable ones in ``folder``."""
    opened, unreadable = {}, list(folder.unreadable)
    for found in folder.of(schema):
        try:
            opened[found.path] = load(folder.path / found.path)
        except InputError as error:
            unreadable.append((found.path, str(error).replace(str(folder.path), ".")))
    return replace(folder, unreadable=tuple(unreadable)), opened


def _failed(folder: RunFolder) -> dict[str, str]:
    """Return the error of each failed case, from the log of an unfinished table."""
    path = folder.path / (folder.table_path or "")
    if folder.table is None or not folder.table.missing_cases or not path.is_dir():
        return {}
    from taskuq.pipeline._pipeline import status

    try:
        return {str(k): str(v) for k, v in status(path)["failed"].items()}
    except (InputError, OSError):
        return {}


@contextmanager
def _noted(notes: list[str], sentence: str) -> Iterator[None]:
    """Turn an InputError in the ``with`` body into a note that begins with ``sentence``."""
    try:
        with warnings.catch_warnings():
            # A report may show calibration cases; it marks them.
            warnings.simplefilter("ignore", GuaranteeWarning)
            yield
    except InputError as error:
        notes.append(f"{sentence}{error}")


def _words(folder: RunFolder) -> Terminology:
    for given in (folder.run, {} if folder.table is None else folder.table.provenance):
        try:
            if given.get("words") is not None:
                return as_terminology(given["words"])
        except InputError:
            continue
    return Terminology()


def _max_width(folder: RunFolder, policy: Record | None) -> float | None:
    simulated = [found.record for found in folder.of(records.SIMULATE)]
    goals = [record.get("goal") for record in (policy, *simulated) if record is not None]
    widths = [(goal or {}).get("max_width") for goal in goals]
    for width in (folder.run.get("max_width"), *widths):
        if isinstance(width, int | float) and width > 0 and math.isfinite(width):
            return float(width)
    return None


def _simulated(
    policy: Policy, folder: RunFolder, simulations: Mapping[str, list[Record]]
) -> Record | None:
    """Return the simulation result that has the policy's settings and the most splits, or None."""
    guarantee, options = policy.guarantee, POLICIES[policy.kind].options
    by_score, by_statistic = "score" in options, "statistic" in options
    alike = {
        "policy": policy.kind,
        "score": score_name(policy._rules[0][0].score) if by_score else "-",
        "statistic": policy.provenance.get("statistic") if by_statistic else None,
        "budget": policy.provenance.get("budget", 1.0),
        "alpha": policy.alpha,
        "unit": "whole-group" if policy.whole_group else guarantee.unit,
        "coverage_of": guarantee._unit.covered,
        "given": guarantee.given,
        "samples": policy.samples,
    }
    rates = [*policy.accelerations, 1.0]
    found = []
    for stored in folder.of(records.SIMULATE):
        rows = simulations.get(slug(stored.path.removesuffix(".json")), [])
        inputs = stored.record.get("inputs") or {}
        if (
            stored.record["goal"] == policy.goal.to_dict()
            and inputs.get("delta") == guarantee.delta
        ):
            found += [row for row in rows if all(row.get(k) == v for k, v in alike.items())]
    found = [row for row in found if [s["acceleration"] for s in row["stops"]] == rates]
    return max(found, key=lambda row: int(row["trials"]), default=None)


def _guarantees(
    evaluations: Iterable[Record], opened: Sequence[Policy | Bound], monitors: Iterable[Record]
) -> list[Statement]:
    """Return the guarantees to show: the first few, and all others that have caveats."""
    withdrawn = {w["policy"]: str(w["sentence"]) for w in monitors if w["withdrawn"] is not False}
    found = [
        Statement(
            one.statement if isinstance(one, Policy) else one.guarantee.statement,
            _shortages(one, withdrawn),
        )
        for one in opened
    ]
    if not found:
        found = [p for record in evaluations if (p := _of_splits(record)) is not None]
    found = list(dict.fromkeys(found))
    return [p for k, p in enumerate(found) if k < _SHOWN_GUARANTEES or p.shortages]


def _shortages(stored: Policy | Bound, withdrawn: Mapping[str, str]) -> tuple[str, ...]:
    """Return the caveats of a policy's or bound's guarantee as sentences."""
    short = stored.guarantee.caveat
    if isinstance(stored, Policy):
        if short is None and np.isposinf(stored.thresholds).any():
            short = "no scan can stop in some of the rounds: their threshold is infinite"
        lost = withdrawn and withdrawn.get(fingerprint(stored.to_dict()))
        return tuple(s for s in (lost, short and f"But {short}.", stored.warning) if s)
    if short is None and not stored.is_finite:
        short = "no finite interval has this guarantee: the interval is the whole task range"
    return (f"But {short}.",) if short else ()


def _of_splits(record: Mapping[str, Any]) -> Statement | None:
    """Return the guarantee of the intervals in an evaluation record, or None."""
    first = record["results"][0]
    unit = _unit(first["unit"])
    if unit is None:
        return None
    delta = (record.get("inputs") or {}).get("delta")
    given = "" if delta is None else f", except for a fraction {delta:g} of calibration sets"
    assumed = "exchangeable with" if delta is None else "i.i.d. with"
    without = [r for r in record["results"] if r.get("infinite")]
    short: tuple[str, ...] = ()
    if without:
        worst = max(without, key=lambda r: float(r["infinite"]))
        at = (
            ""
            if worst["acceleration"] is None
            else f" at {round_label(float(worst['acceleration']), worst.get('round_name'))}"
        )
        share = f"in a fraction {float(worst['infinite']):.4g} of the splits"
        share = "in all splits" if float(worst["infinite"]) == 1 else share
        short = (
            f"But {share}, no finite interval exists{at} ({worst['score']}): the interval is the "
            "whole task range.",
        )
    return Statement(
        f"Guaranteed: an interval calibrated as in these splits contains the target of "
        f"{unit.covered} with probability at least {1 - first['alpha']:.10g}{given}, if the new "
        f"{first['unit']} is {assumed} the {first['n_calibration']} calibration "
        f"{first['unit']}s.",
        short,
    )


def _unit(name: Any) -> Unit | None:
    try:
        return make_unit(name, whole=True)
    except InputError:
        return None


def _sample_sizes(folder: RunFolder, alpha: float | None, policy: Policy | None) -> Record | None:
    """Return a record of calibration sizes for the stored alpha (else the given one), or None."""
    stored = folder.of(records.PLAN_SIZE)
    alpha = stored[0].record.get("alpha") if stored else alpha
    delta = stored[0].record.get("delta", 0.05) if stored else 0.05
    if not isinstance(alpha, float) or not 0.001 <= alpha <= 0.5:
        return None
    by_group = policy is None or policy.guarantee._unit.is_group
    have = None if policy is None or by_group else policy.guarantee.n_cases
    return calibration_sizes(alpha, float(delta), have)


def _cases(
    table: TaskOutputs | None, policy: Policy | None, bounds: Mapping[str, Bound], notes: list[str]
) -> list[_CaseReport]:
    """Return the interval of each case and task under the policy and under each bound."""
    if table is None:
        return []
    named = ({} if policy is None else {"The policy": policy}) | dict(bounds)
    found: list[_CaseReport] = []
    for name, stored in named.items():
        reports = _policy_reports if isinstance(stored, Policy) else _bound_reports
        with _noted(notes, f"{name} does not fit the table: "):
            found += list(reports(stored, table))  # type: ignore[arg-type]
    return found


def _explorer_numbers(
    folder: RunFolder, alpha: float | None, max_width: float | None, policy: Policy | None
) -> dict[str, Any] | None:
    explorer = folder.explorer
    if explorer is None:
        raise InputError("no explorer.npz is stored with this run", code="file.missing")
    run_unit = _unit(folder.run.get("unit"))
    unit = "group" if run_unit is None else run_unit.counted
    widths: list[float | None] = [None] * explorer.tasks
    if policy is not None and len(policy.task_names) == explorer.tasks:
        widths = [policy.goal.for_task(task).max_width for task in range(explorer.tasks)]
    return explorer_numbers(
        explorer,
        alpha=alpha or 0.05,
        widths=[width or max_width or 0.1 for width in widths],
        unit=unit if policy is None else policy.guarantee.unit,
        ranges=_ranges(folder, policy),
        within="class" if policy is not None and policy.guarantee.kind == "class" else "all",
    )


def _ranges(folder: RunFolder, policy: Policy | None) -> list[TaskRange]:
    """Return the range of each task, from the first of explorer, policy and table that has one."""
    explorer = folder.explorer
    assert explorer is not None
    declared = [[explorer.for_task(task).task_range for task in range(explorer.tasks)]]
    known = [one.task_ranges for one in (policy, folder.table) if one is not None]
    declared += [list(ranges) for ranges in known if len(ranges) == explorer.tasks]
    return [next((r for r in of if r is not None), None) for of in zip(*declared, strict=True)]


def _policy_reports(policy: Policy, table: TaskOutputs) -> Iterator[_CaseReport]:
    """Yield the interval that a policy reports for each case and task of a table."""
    if list(policy.accelerations) != [float(R) for R in table.accelerations]:
        own, others = (", ".join(f"{R:g}" for R in one.accelerations) for one in (policy, table))
        text = f"it decides at R = {own}, the table has {others}"
        raise InputError(text, code="policy.mismatch")
    n, tasks = table.cases, table.tasks
    stop = np.full(n, table.rounds)
    lower, upper = np.full((n, tasks), np.nan), np.full((n, tasks), np.nan)
    group = table.group if policy.whole_group else np.zeros(n)
    if group is None:
        raise InputError("it decides for whole groups; the table has none", code="groups.missing")
    jointly = [np.flatnonzero(group == g) for g in np.unique(group)]
    for k in range(table.rounds):
        for members in jointly:
            decision = policy.decide(round=k, outputs=table.outputs[: k + 1, members])
            here = members[(stop[members] == table.rounds) & np.atleast_1d(decision.stops)]
            at = np.isin(members, here)
            lower[here] = decision.interval.lower.reshape(len(members), tasks)[at]
            upper[here] = decision.interval.upper.reshape(len(members), tasks)[at]
            stop[here] = k
    source = f"{policy.kind} at alpha {policy.alpha:g}"
    guarantee = "guaranteed" if policy.is_guaranteed else "measured"
    rates = [*map(float, table.accelerations), 1.0]
    for i in range(n):
        is_known = stop[i] == table.rounds
        targets = np.atleast_1d(table.targets_at(min(int(stop[i]), table.rounds - 1))[i])
        for t, name in enumerate(table.task_names):
            z = float(targets[t]) if table.has_targets else None
            # A fully sampled scan yields the target itself, if the table holds it.
            ends = (z if z is not None else np.nan,) * 2 if is_known else (lower[i, t], upper[i, t])
            yield _CaseReport(
                *_who(table, i), source, guarantee, name, rates[stop[i]], float(ends[0]),
                float(ends[1]), z, True,
            )  # fmt: skip


def _bound_reports(bound: Bound, table: TaskOutputs) -> Iterator[_CaseReport]:
    """Yield the interval of a bound for each case of a table."""
    k = 0 if bound.acceleration is None else table.round_index(bound.acceleration)
    if bound.acceleration is None and table.rounds > 1:
        text = "the table has several accelerations and the bound records none"
        raise InputError(text, code="rounds.invalid")
    if table.tasks > 1:
        raise InputError("it is for one task, the table has several", code="policy.mismatch")
    outputs = table.rounds_up_to(k) if bound.rounds > 1 else table.outputs[k]
    interval = bound(outputs)
    targets = table.targets_at(k)
    source = f"{score_name(bound.score)} at alpha {bound.alpha:g}"
    for i in range(table.cases):
        yield _CaseReport(
            *_who(table, i), source, "guaranteed", table.task_names[0], bound.acceleration,
            float(interval.lower[i]), float(interval.upper[i]),
            float(targets[i]) if table.has_targets else None, False,
        )  # fmt: skip


def _who(table: TaskOutputs, i: int) -> tuple[str, str, str]:
    case = str(i if table.case is None else table.case[i])
    group, label = (None if ids is None else ids[i] for ids in (table.group, table.label))
    return case, "" if group is None else str(group), "" if label is None else str(label)


def interval_table(reports: Sequence[_CaseReport]) -> Table:
    rows = tuple(tuple(getattr(report, name) for name in _COLUMNS) for report in reports)
    return Table("intervals", "The interval of each case.", _COLUMNS, rows)


def patient_table(table: TaskOutputs | None, reports: Sequence[_CaseReport]) -> Table | None:
    """Return a table with one row for each group of the task outputs, or None."""
    if table is None or table.group is None:
        return None
    groups = [str(g) for g in dict.fromkeys(table.group.tolist())]
    counts = Counter(str(g) for g in table.group.tolist())
    sources = list(dict.fromkeys((r.source, r.acceleration) for r in reports if not r.is_stopped))
    stopped = [r for r in reports if r.is_stopped]
    tasks = list(dict.fromkeys(r.task for r in stopped))
    labels = [] if table.label is None else sorted({str(v) for v in table.label.tolist()})
    by_group: dict[str, list[_CaseReport]] = {g: [] for g in groups}
    for report in reports:
        by_group[report.group].append(report)
    rows = []
    for g in groups:
        row: dict[str, object] = {"group": g, "cases": counts[g]}
        if table.label is not None and len(labels) <= 4:
            kinds = Counter(map(str, table.label[table.group.astype(str) == g].tolist()))
            row |= {f"label {name}": kinds[name] for name in labels}
        if stopped:
            row |= _stopping([r for r in by_group[g] if r.is_stopped], tasks)
        for source, R in sources:
            mine = [r for r in by_group[g] if not r.is_stopped and r.source == source]
            at = "" if R is None else f", R = {R:g}"
            row[f"missed by {source}{at}"] = _missed([r for r in mine if r.acceleration == R])
        rows.append(row)
    caption = f"The {len(groups)} groups of the table, one row each."
    if stopped:
        caption += (
            f" Scans are stopped by the stored policy ({stopped[0].source}, "
            f"{stopped[0].guarantee}); the {_DESCRIPTIVE}"
        )
    return records._table_of("groups", caption, rows)


def task_table(reports: Sequence[_CaseReport]) -> Table | None:
    """Return a table of the policy's interval widths and misses by task; None for one task."""
    tasks: dict[str, list[_CaseReport]] = {}
    for report in reports:
        if report.is_stopped:
            tasks.setdefault(report.task, []).append(report)
    if len(tasks) < 2:
        return None
    first = next(iter(tasks.values()))[0]
    rows = []
    for task, of in tasks.items():
        early = _early(of)
        errors = [abs(r.target - (r.lower + r.upper) / 2) for r in early if r.target is not None]
        rows.append((task, len(early), _mean([r.width for r in early]), _mean(errors), _missed(of)))
    caption = (
        f"Intervals reported by the stored policy ({first.source}, {first.guarantee}), by task; "
        f"each task has its own unit. The {_DESCRIPTIVE}"
    )
    head = ("task", "stopped early", "mean width", "mean centre error", "missed")
    return Table("tasks", caption, head, tuple(rows))


def _stopping(reports: list[_CaseReport], tasks: Sequence[str]) -> dict[str, object]:
    """Return early stops, mean acceleration, interval widths and misses of one group, by column."""
    early = _early(reports)
    # The tasks of a case stop together, so that one of them counts scans.
    scans = [r for r in reports if r.task == tasks[0]]
    rates = [r.acceleration or 1.0 for r in scans]
    widths = {
        f"mean width of {task}" if len(tasks) > 1 else "mean width": _mean(
            [r.width for r in early if r.task == task]
        )
        for task in tasks
    }
    missed = _missed(early)
    if len(tasks) > 1 and missed:
        missed = len({r.case for r in early if r.covered is False})
    average = float(1 / np.mean([1 / R for R in rates]))
    return {"stopped early": len(_early(scans)), "average R": average, **widths, "missed": missed}


def _early(reports: Sequence[_CaseReport]) -> list[_CaseReport]:
    return [r for r in reports if (r.acceleration or 1.0) > 1]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _missed(reports: list[_CaseReport]) -> int | None:
    known = [r.covered for r in reports if r.covered is not None]
    return sum(not covered for covered in known) if known or not reports else None
