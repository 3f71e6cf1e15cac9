"""Contents of a report, built once from the folder of a run."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from taskuq.calibration.bound import Bound, load_bound
from taskuq.calibration.law import calibration_size
from taskuq.calibration.scores import score_name
from taskuq.calibration.units import Unit, unit_named
from taskuq.decide.goal import goal_from_dict
from taskuq.decide.kinds import POLICIES
from taskuq.decide.policy import Policy, load_policy
from taskuq.errors import InputError, MachineError
from taskuq.fingerprints import fingerprint
from taskuq.interval import TaskRange
from taskuq.outputs import TaskOutputs
from taskuq.report import records
from taskuq.report._answer import answer_of
from taskuq.report._explorer import explorer_numbers
from taskuq.report._page import ENDINGS, page_text, write_exports, write_page
from taskuq.report._records import (
    BOUND,
    MONITOR,
    PLAN_SIZE,
    POLICY,
    SIMULATE,
    Record,
    RunFolder,
    StoredRecord,
    Table,
    read_folder,
)
from taskuq.report._scan import OneScan, one_scan
from taskuq.report.figures import Figure, figure_from_dict, figures_of
from taskuq.report.figures.policy import lines_record
from taskuq.words import Words, as_words, round_label

# Experiments in the order in which they tell their story; others follow as they are found.
STORY = {
    "live": "New patients, scanned now",
    "multi-round": "Multi-round scans",
    "interval-length": "Interval length against acceleration",
    "sample-count": "Interval length against the number of posterior samples",
    "coverage-law": "Empirical coverage and its exact law",
    "conditional-coverage": "Coverage within classes and widths",
    "paper-protocol": "The paper's multi-round protocol",
    "recovery-quality": "Image quality of recoveries",
    "classifier-quality": "The task network as a classifier",
    "masks": "Sampling masks",
    "data-splits": "Data splits",
}
# What lies before the statistics, and what only somebody looks for who wants to do it again.
APPENDICES = ("recovery-quality", "classifier-quality", "masks", "data-splits")
ACRONYMS = ("psnr", "ssim", "roc", "ar", "lwr", "cqr", "mlwr")
TABLES: Mapping[str, Callable[[Record, str], Table]] = {
    records.EVALUATE: records.score_table,
    records.SIMULATE: records.policy_table,
    records.QUALITY: records.quality_table,
    records.TASK: records.task_table,
}


@dataclass(frozen=True)
class Experiment:
    """One experiment's section."""

    name: str
    title: str
    claim: str
    finding: str
    settings: dict[str, Any]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    verdict: str | None = None
    number: str | None = None


class Promise(NamedTuple):
    """A sentence of what is guaranteed, and sentences of what is short of it."""

    sentence: str
    shortages: tuple[str, ...] = ()

    def in_words(self, words: Words) -> Promise:
        """Return it in the words of somebody's problem."""
        return Promise(words.said(self.sentence), tuple(map(words.said, self.shortages)))


@dataclass
class Contents:
    """Everything the page shows, gathered; figures by the heading they stand under."""

    folder: RunFolder
    policy: Record | None = None
    simulated: Record | None = None
    alphas: list[float] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    is_by_group: bool = False
    cases: list[CaseReport] = field(default_factory=list)
    numbers: dict[str, Any] | None = None
    scan: OneScan | None = None
    logged: dict[str, str] = field(default_factory=dict)
    evaluations: dict[str, Record] = field(default_factory=dict)
    simulations: dict[str, list[Record]] = field(default_factory=dict)
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    readings: dict[str, str] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def alpha(self) -> float | None:
        """The run's error rate, from wherever it is said first."""
        said = self.folder.run.get("alpha")
        if isinstance(said, int | float) and 0 < said < 1:
            return float(said)
        simulated = [rows[0]["alpha"] for rows in self.simulations.values()]
        evaluated = [record["results"][0]["alpha"] for record in self.evaluations.values()]
        return next((float(a) for a in (*self.alphas, *simulated, *evaluated)), None)

    @property
    def max_width(self) -> float | None:
        """The run's width to stop at, from wherever it is said first."""
        simulated = [found.record for found in self.folder.of(records.SIMULATE)]
        goals = [record.get("goal") for record in (self.policy, *simulated) if record is not None]
        widths = [(goal or {}).get("max_width") for goal in goals]
        for said in (self.folder.run.get("max_width"), *widths):
            if isinstance(said, int | float) and said > 0 and math.isfinite(said):
                return float(said)
        return None

    @property
    def words(self) -> Words:
        """What things are called: as the run says, or its table, or else in plain words."""
        table = self.folder.table
        for said in (self.folder.run, {} if table is None else table.provenance):
            try:
                if said.get("words") is not None:
                    return as_words(said["words"])
            except InputError:
                continue
        return Words()

    @property
    def all_figures(self) -> list[Figure]:
        """All figures, those of experiments among them, each under a name of its own."""
        every = [figure for under in self.figures.values() for figure in under]
        return every + [
            replace(f, name=f"{e.name}-{f.name}") for e in self.experiments for f in e.figures
        ]

    @property
    def all_tables(self) -> list[Table]:
        """All tables, those of experiments among them."""
        of = [replace(t, name=f"{e.name}-{t.name}") for e in self.experiments for t in e.tables]
        return [*self.tables, *of]

    def add(self, record: Record, prefix: str = "") -> None:
        """Put every figure of a record under its heading; one without numbers is left out."""
        by = f", splits by {record['unit']}" if record.get("unit") else ""
        for kind, figure in figures_of(record):
            if figure.is_empty:
                continue
            named = replace(figure, name=f"{prefix}{figure.name}")
            self.figures.setdefault(kind.heading, []).append(named)
            self.titles[named.name] = (kind.title or title_of(figure.name)) + by
            self.readings.setdefault(kind.heading, kind.reading(record))


def gather(folder: RunFolder) -> Contents:
    """Return what the page shows; a record that cannot be shown becomes a note."""
    contents = Contents(folder)
    for found in folder.records:
        try:
            _add(contents, found)
        except (InputError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}"
            contents.notes.append(
                f"{found.path} says it is {found.schema} but is not complete ({reason:.120}), so "
                "it is not shown."
            )
    if folder.unchecked:
        contents.notes.append(
            f"{', '.join(folder.unchecked)} carry no sha256 (an older version, or written by hand),"
            " so nothing tells whether they are as they were written."
        )
    if folder.explorer is not None and folder.explorer.masks is not None:
        masks, rates = folder.explorer.masks, folder.explorer.accelerations
        contents.add({"schema": records.MASKS, "masks": masks, "accelerations": rates})
    story = list(STORY)
    contents.experiments.sort(key=lambda e: story.index(e.name) if e.name in STORY else len(STORY))
    return contents


def experiment_ids(contents: Contents) -> list[str]:
    """Return what links to experiments are called."""
    return [f"experiment-{k + 1}-{e.name}" for k, e in enumerate(contents.experiments)]


def _add(contents: Contents, found: StoredRecord) -> None:
    """Add what a record shows, all of it or nothing."""
    if found.schema == records.EXPERIMENT:
        contents.experiments.append(_experiment(found.record))
        return
    name = slug(found.path.removesuffix(".json"))
    make_table = TABLES.get(found.schema)
    table = None if make_table is None else make_table(found.record, name)
    contents.add(found.record, f"{name}-")
    if table is not None:
        contents.tables.append(table)
    if found.schema == records.EVALUATE:
        contents.evaluations[name] = found.record
    if found.schema == records.SIMULATE:
        contents.simulations[name] = found.record["results"]


def slug(text: str) -> str:
    """Return a name for files and links: letters, digits and hyphens."""
    plain = "".join(c if c.isascii() else f"x{ord(c):x}" for c in text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:80] or "unnamed"


def title_of(name: str) -> str:
    """Return the heading of a figure from its name."""
    words = name.replace("_", "-").split("-")
    words = [word.upper() if word in ACRONYMS else word for word in words]
    words = [re.sub(r"^R(\d+(\.\d+)?)$", r"R = \1", word) for word in words]
    text = " ".join(words).replace(" R = ", ", R = ")
    text = re.sub(r"(R = [\d.]+) ", r"\1, ", text)
    return text[:1].upper() + text[1:]


def _experiment(record: Record) -> Experiment:
    figures = tuple(figure_from_dict(one) for one in record.get("figures", ()))
    tables = record.get("tables", ())
    for one in tables:
        records.require_table(one)
    return Experiment(
        slug(str(record["name"])),
        str(record["title"]),
        str(record.get("claim") or ""),
        str(record.get("finding") or ""),
        dict(record.get("settings") or {}),
        tuple(f for f in figures if not f.is_empty),
        tuple(
            Table(
                slug(str(one["name"])),
                str(one["caption"]),
                tuple(map(str, one["columns"])),
                tuple(tuple(row) for row in one["rows"]),
            )
            for one in tables
        ),
        record["verdict"] if record.get("verdict") in records.VERDICTS else None,
        None if record.get("number") is None else str(record["number"]),
    )


COLUMNS = (
    "case", "group", "label", "task", "source", "promise", "acceleration", "lower", "upper",
    "width", "target", "covered",
)  # fmt: skip


@dataclass(frozen=True)
class CaseReport:
    """The interval reported for one case and task."""

    case: str
    group: str
    label: str
    source: str
    promise: str
    task: str
    acceleration: float | None
    lower: float
    upper: float
    target: float | None
    is_stopped: bool

    @property
    def width(self) -> float:
        """Upper minus lower end; 0 where the interval is empty."""
        return max(self.upper - self.lower, 0.0)

    @property
    def covered(self) -> bool | None:
        """Whether the interval contains the target; None where that is unknown."""
        return None if self.target is None else self.lower <= self.target <= self.upper


def interval_table(reports: Sequence[CaseReport]) -> Table:
    """Return what the policy and the bounds say about each case, one row each."""
    rows = tuple(tuple(getattr(report, name) for name in COLUMNS) for report in reports)
    return Table("intervals", "The interval of each case.", COLUMNS, rows)


def patient_table(table: TaskOutputs | None, reports: Sequence[CaseReport]) -> Table | None:
    """Return one row for each group of a table, or None where there are no groups."""
    if table is None or table.group is None:
        return None
    groups = [str(g) for g in dict.fromkeys(table.group.tolist())]
    counts = Counter(str(g) for g in table.group.tolist())
    sources = list(dict.fromkeys((r.source, r.acceleration) for r in reports if not r.is_stopped))
    stopped = [r for r in reports if r.is_stopped]
    tasks = list(dict.fromkeys(r.task for r in stopped))
    labels = [] if table.label is None else sorted({str(v) for v in table.label.tolist()})
    labels = labels if len(labels) <= 4 else []
    columns = ["group", "cases", *(f"label {name}" for name in labels)]
    if stopped:
        of = [f" of {task}" for task in tasks] if len(tasks) > 1 else [""]
        columns += ["stopped early", "average R", *(f"mean width{task}" for task in of), "missed"]
    columns += [
        f"missed by {source}" + ("" if R is None else f", R = {R:g}") for source, R in sources
    ]
    by_group: dict[str, list[CaseReport]] = {g: [] for g in groups}
    for report in reports:
        by_group[report.group].append(report)
    rows = []
    for g in groups:
        row: list[object] = [g, counts[g]]
        if labels:
            assert table.label is not None
            kinds = Counter(map(str, table.label[table.group.astype(str) == g].tolist()))
            row += [kinds[name] for name in labels]
        if stopped:
            row += _stopping([r for r in by_group[g] if r.is_stopped], tasks)
        mine = [r for r in by_group[g] if not r.is_stopped]
        row += [_missed([r for r in mine if (r.source, r.acceleration) == at]) for at in sources]
        rows.append(tuple(row))
    caption = f"The {len(groups)} groups of the table, one row each."
    if stopped:
        caption += (
            f" Scans are stopped by the stored policy ({stopped[0].source}, {stopped[0].promise}); "
            "the table may hold the cases it was calibrated on, so these rows describe and do not "
            "prove."
        )
    return Table("groups", caption, tuple(columns), tuple(rows))


def task_table(reports: Sequence[CaseReport]) -> Table | None:
    """Return what the stored policy reports task by task, or None where there are not several."""
    tasks: dict[str, list[CaseReport]] = {}
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
        f"Reports of the stored policy ({first.source}, {first.promise}) task by task, each in its "
        "own unit. The table may hold the cases it was calibrated on, so these rows describe and "
        "do not prove."
    )
    head = ("task", "early reports", "mean width", "mean centre error", "missed")
    return Table("tasks", caption, head, tuple(rows))


def _stopping(reports: list[CaseReport], tasks: Sequence[str]) -> list[object]:
    """What became of the scans of a group, each of which reports on all tasks at once."""
    early = _early(reports)
    # The tasks of a case stop together, so that one of them counts scans.
    scans = [r for r in reports if r.task == tasks[0]]
    rates = [r.acceleration or 1.0 for r in scans]
    widths = [_mean([r.width for r in early if r.task == task]) for task in tasks]
    missed = _missed(early)
    if len(tasks) > 1 and missed:
        missed = len({r.case for r in early if r.covered is False})
    return [len(_early(scans)), float(1 / np.mean([1 / R for R in rates])), *widths, missed]


def _early(reports: Sequence[CaseReport]) -> list[CaseReport]:
    return [r for r in reports if (r.acceleration or 1.0) > 1]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _missed(reports: list[CaseReport]) -> int | None:
    known = [r.covered for r in reports if r.covered is not None]
    return sum(not covered for covered in known) if known or not reports else None


# Promises shown where none is short of anything.
SHOWN_PROMISES = 4


def promises(
    evaluations: Iterable[Mapping[str, Any]],
    opened: Sequence[Policy | Bound],
    watches: Iterable[Mapping[str, Any]] = (),
) -> list[Promise]:
    """Return what is guaranteed, each promise once: the first few, and all that are short."""
    withdrawn = {w["policy"]: str(w["sentence"]) for w in watches if w["withdrawn"] is not False}
    found = [Promise(_sentence(one), _shortages(one, withdrawn)) for one in opened]
    if not found:
        found = [p for record in evaluations if (p := _of_splits(record)) is not None]
    found = list(dict.fromkeys(found))
    return [p for k, p in enumerate(found) if k < SHOWN_PROMISES or p.shortages]


def _sentence(stored: Policy | Bound) -> str:
    return stored.sentence if isinstance(stored, Policy) else stored.guarantee.sentence


def _shortages(stored: Policy | Bound, withdrawn: Mapping[str, str]) -> tuple[str, ...]:
    """Why a stored policy or bound does less than its sentence may lead one to think."""
    short = stored.guarantee.shortage
    if isinstance(stored, Policy):
        if short is None and np.isposinf(stored.thresholds).any():
            short = "no scan may stop in a round whose threshold is infinite"
        lost = withdrawn and withdrawn.get(fingerprint(stored.to_dict()))
        return tuple(s for s in (lost, short and f"But {short}.", stored.outlook) if s)
    if short is None and not stored.is_finite:
        short = "no finite interval keeps it: the interval is the whole task range"
    return (f"But {short}.",) if short else ()


def _of_splits(record: Mapping[str, Any]) -> Promise | None:
    """What an evaluation says is guaranteed, where nothing calibrated is stored."""
    first = record["results"][0]
    unit = unit_said(first["unit"])
    if unit is None:
        return None
    without = [r for r in record["results"] if r.get("infinite")]
    short: tuple[str, ...] = ()
    if without:
        worst = max(without, key=lambda r: float(r["infinite"]))
        at = "" if worst["acceleration"] is None else f" at {_round(worst)}"
        share = "all" if float(worst["infinite"]) == 1 else f"{float(worst['infinite']):.4g}"
        short = (
            f"But {share} of the splits give no finite interval{at} "
            f"({worst['score']}): there it is the whole task range.",
        )
    return Promise(
        f"Guaranteed: an interval calibrated as in these splits contains the target of "
        f"{unit.who} with probability at least {1 - first['alpha']:.10g}, if the new "
        f"{first['unit']} is exchangeable with the {first['n_calibration']} calibration "
        f"{first['unit']}s.",
        short,
    )


def _round(row: Mapping[str, Any]) -> str:
    return round_label(float(row["acceleration"]), row.get("round_name"))


def unit_said(said: Any) -> Unit | None:
    """Return the unit that a run or a record names, if it names one."""
    try:
        return unit_named(said, whole=True)
    except InputError:
        return None


def simulated(policy: Policy, contents: Contents) -> Record | None:
    """Return what a policy did in a stored simulation; None where it was not simulated as it is."""
    guarantee, options = policy.guarantee, POLICIES[policy.kind].options
    by_score, by_statistic = "score" in options, "statistic" in options
    alike = {
        "policy": policy.kind,
        "score": score_name(policy.rules[0][0].score) if by_score else "-",
        "statistic": policy.provenance.get("statistic") if by_statistic else None,
        "budget": policy.provenance.get("budget", 1.0),
        "alpha": policy.alpha,
        "unit": "whole-group" if policy.whole_group else guarantee.unit,
        "coverage_of": guarantee.whom.who,
        "given": guarantee.given,
        "samples": policy.samples,
    }
    rates = [*policy.accelerations, 1.0]
    found = []
    for stored in contents.folder.of(SIMULATE):
        rows = contents.simulations.get(slug(stored.path.removesuffix(".json")), [])
        inputs = stored.record.get("inputs") or {}
        if (
            stored.record["goal"] == policy.goal.to_dict()
            and inputs.get("delta") == guarantee.delta
        ):
            found += [row for row in rows if all(row.get(k) == v for k, v in alike.items())]
    found = [row for row in found if [s["acceleration"] for s in row["stops"]] == rates]
    return max(found, key=lambda row: int(row["trials"]), default=None)


TOLERANCES = (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05)
# Sorts behind every path.
LAST = ("\U0010ffff",)
Stored = TypeVar("Stored", Policy, Bound)


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Build the page of a run from its stored results, and return its path.

    Arguments:
        run_dir: The folder of the run; records are recognised wherever they lie in it.

    Example:
        >>> import tempfile
        >>> path = write_report(tempfile.mkdtemp())  # an empty run makes a short page with notes
        >>> "promises nothing" in path.read_text()
        True
    """
    return _of_what_can_be_shown(write_page, run_dir)


def answer_lines(run_dir: str | os.PathLike[str]) -> list[str]:
    """Return what the first screen of a run's page says, as lines for a terminal."""
    # The page's pictures take a while and say nothing here.
    return answer_of(study(replace(read_folder(Path(run_dir)), explorer=None))).lines


def export(run_dir: str | os.PathLike[str], endings: Sequence[str] = ENDINGS) -> Path:
    """Write a run's results as CSV, JSON and LaTeX, its figures and intervals into a folder."""
    return _of_what_can_be_shown(partial(write_exports, endings=endings), run_dir)


def _of_what_can_be_shown(
    write: Callable[[Contents], Path], run_dir: str | os.PathLike[str]
) -> Path:
    """Write a run's results; a record with something odd in it makes them shorter by itself."""
    folder = read_folder(Path(run_dir))
    try:
        return write(study(folder))
    except (InputError, MachineError, MemoryError):
        raise
    except Exception:  # whatever a field of another kind leads to
        shown = replace(folder, run={}, records=(), table=None, table_path=None, explorer=None)
    parts: list[tuple[str, dict[str, Any]]] = [("run.json", {"run": folder.run})]
    parts += [(found.path, {"records": found}) for found in folder.records]
    parts.append((str(folder.table_path), {"table": folder.table, "table_path": folder.table_path}))
    parts.append(("explorer.npz", {"explorer": folder.explorer}))
    for name, part in parts:
        added = (
            {**part, "records": (*shown.records, part["records"])} if "records" in part else part
        )
        try:
            page_text(study(replace(shown, **added)))
            shown = replace(shown, **added)
        except (MachineError, MemoryError):
            raise
        except Exception as error:
            reason = f"cannot be shown ({type(error).__name__}); make it again"
            shown = replace(shown, unreadable=(*shown.unreadable, (name, reason)))
    return write(study(shown))


def study(folder: RunFolder) -> Contents:
    """Gather what a page shows of a run, and compute what follows from its policy and bounds."""
    folder, policies = _opened(folder, POLICY, load_policy)
    folder, bounds = _opened(folder, BOUND, load_bound)
    # A policy called policy.json decided; others lie beside it to be compared.
    names = sorted(policies, key=lambda name: (Path(name).name != "policy.json", name))
    policy = policies[names[0]] if names else None
    folder = replace(
        folder,
        records=tuple(map(_with_goal, folder.records)),
        others=(*folder.others, *((name, POLICY) for name in names[1:])),
    )
    contents = gather(folder)
    opened = [stored for stored in (policy, *bounds.values()) if stored is not None]
    contents.policy = None if policy is None else policy.to_dict()
    contents.simulated = None if policy is None else simulated(policy, contents)
    contents.alphas = [stored.alpha for stored in opened]
    watches = [found.record for found in folder.of(MONITOR)]
    said = promises(contents.evaluations.values(), opened, watches)
    contents.promises = [promise.in_words(contents.words) for promise in said]
    unit = unit_said(folder.run.get("unit") or (policy and policy.guarantee.unit))
    contents.is_by_group = unit is not None and unit.is_group
    contents.logged = _logged(folder)
    try:
        contents.scan = one_scan(policy, folder)
    except InputError as error:
        contents.notes.append(f"No scan of the policy is shown: {error}")
    if folder.table is not None and folder.table.lines is not None:
        contents.add(lines_record(folder.table, contents.words))
    _add_planner(contents, policy)
    _add_cases(contents, policy, bounds)
    _add_numbers(contents, policy)
    return contents


def _opened(
    folder: RunFolder, schema: str, load: Callable[[Path], Stored]
) -> tuple[RunFolder, dict[str, Stored]]:
    """Open stored policies or bounds; what cannot be read is remembered, not raised."""
    opened, unreadable = {}, list(folder.unreadable)
    for found in folder.of(schema):
        try:
            opened[found.path] = load(folder.path / found.path)
        except InputError as error:
            unreadable.append((found.path, str(error).replace(str(folder.path), ".")))
    # Records first, by their paths, then the table and the explorer, as they were read.
    unreadable.sort(key=lambda pair: Path(pair[0]).parts if pair[0].endswith(".json") else LAST)
    return replace(folder, unreadable=tuple(unreadable)), opened


def _with_goal(found: StoredRecord) -> StoredRecord:
    """Say in words until when a simulation scans; a record without it is noted as incomplete."""
    if found.schema != SIMULATE:
        return found
    try:
        until = goal_from_dict(found.record["goal"]).sentence
    except (InputError, KeyError, TypeError):
        return found
    return replace(found, record={**found.record, "until": until})


def _logged(folder: RunFolder) -> dict[str, str]:
    """The reasons that the log of an unfinished table gives."""
    if folder.table is None or not folder.table.missing or folder.table_path is None:
        return {}
    from taskuq.pipeline import status

    path = folder.path / folder.table_path
    try:
        return {str(k): str(v) for k, v in status(path)["failed"].items()} if path.is_dir() else {}
    except (InputError, OSError):
        return {}


def calibration_sizes(alpha: float, delta: float = 0.05, have: int | None = None) -> dict[str, Any]:
    """Return how many calibration cases how much certainty takes, as a record for a figure."""
    sizes = [
        (e, *(calibration_size(alpha, e, delta, two_sided=both) for both in (True, False)))
        for e in TOLERANCES
    ]
    return {"schema": PLAN_SIZE, "alpha": alpha, "delta": delta, "sizes": sizes, "have": have}


def _add_planner(contents: Contents, policy: Policy | None) -> None:
    """Add the planner for the run's error rate, or for a stored question about sizes."""
    asked = contents.folder.of(PLAN_SIZE)
    alpha = asked[0].record.get("alpha") if asked else contents.alpha
    delta = asked[0].record.get("delta", 0.05) if asked else 0.05
    if not isinstance(alpha, float) or not 0.001 <= alpha <= 0.5:
        return
    by_group = policy is None or policy.guarantee.whom.is_group
    have = None if policy is None or by_group else policy.guarantee.n_cases
    try:
        contents.add(calibration_sizes(alpha, float(delta), have))
    except InputError:
        contents.notes.append("No planner is shown for this error rate: its sizes are too large.")


def _add_cases(contents: Contents, policy: Policy | None, bounds: Mapping[str, Bound]) -> None:
    """Add what the run's policy and bounds say about the cases of its table."""
    table = contents.folder.table
    if table is None:
        return
    if policy is not None:
        try:
            contents.cases += policy_reports(policy, table)
        except InputError as error:
            contents.notes.append(f"The policy does not fit the table: {error}")
    for name, bound in bounds.items():
        try:
            contents.cases += bound_reports(bound, table)
        except InputError as error:
            contents.notes.append(f"{name} does not fit the table: {error}")


def _add_numbers(contents: Contents, policy: Policy | None) -> None:
    """Add what the explorer computes with, or say why there is none."""
    folder = contents.folder
    if folder.explorer is None:
        contents.notes.append(
            "No explorer.npz is stored with this run, so there are no pictures to look through."
        )
        return
    run_unit = unit_said(folder.run.get("unit"))
    said = "group" if run_unit is None else run_unit.counted
    try:
        contents.numbers = explorer_numbers(
            folder.explorer,
            alpha=contents.alpha or 0.05,
            max_widths=_widths(contents, policy, folder.explorer.tasks),
            unit=said if policy is None else policy.guarantee.unit,
            task_ranges=_ranges(folder, policy),
        )
    except InputError as error:
        contents.notes.append(f"The explorer cannot be shown: {error}")


def _widths(contents: Contents, policy: Policy | None, tasks: int) -> list[float]:
    """The width to stop at of each task that the explorer shows."""
    own: list[float | None] = [None] * tasks
    if policy is not None and len(policy.task_names) == tasks:
        own = [policy.goal.of(task).max_width for task in range(tasks)]
    return [width or contents.max_width or 0.1 for width in own]


def _ranges(folder: RunFolder, policy: Policy | None) -> list[TaskRange]:
    """The range of each task that the explorer shows, from wherever it is declared first."""
    explorer = folder.explorer
    assert explorer is not None
    declared = [[explorer.of(task).task_range for task in range(explorer.tasks)]]
    known = [one.task_ranges for one in (policy, folder.table) if one is not None]
    declared += [list(ranges) for ranges in known if len(ranges) == explorer.tasks]
    return [next((r for r in of if r is not None), None) for of in zip(*declared, strict=True)]


def policy_reports(policy: Policy, table: TaskOutputs) -> Iterator[CaseReport]:
    """Stop every case of a table by a policy and say what is reported."""
    if list(policy.accelerations) != [float(R) for R in table.accelerations]:
        raise InputError(
            f"it decides at R = {', '.join(f'{R:g}' for R in policy.accelerations)}, the table has "
            f"{', '.join(f'{R:g}' for R in table.accelerations)}"
        )
    n, tasks = table.cases, table.tasks
    stop = np.full(n, table.rounds)
    lower, upper = np.full((n, tasks), np.nan), np.full((n, tasks), np.nan)
    for k in range(table.rounds):
        for members in _together(policy, table):
            decision = policy.decide(round=k, outputs=table.outputs[: k + 1, members])
            here = members[(stop[members] == table.rounds) & np.atleast_1d(decision.stops)]
            at = np.isin(members, here)
            lower[here] = decision.interval.lower.reshape(len(members), tasks)[at]
            upper[here] = decision.interval.upper.reshape(len(members), tasks)[at]
            stop[here] = k
    source = f"{policy.kind} at alpha {policy.alpha:g}"
    promise = "guaranteed" if policy.is_guaranteed else "measured"
    rates = [*map(float, table.accelerations), 1.0]
    for i in range(n):
        is_known = stop[i] == table.rounds
        targets = np.atleast_1d(table.targets_at(min(int(stop[i]), table.rounds - 1))[i])
        for t, name in enumerate(table.task_names):
            z = float(targets[t]) if table.has_targets else None
            # Everything measured means the target is known, where the table holds it.
            ends = (z if z is not None else np.nan,) * 2 if is_known else (lower[i, t], upper[i, t])
            yield CaseReport(
                *_who(table, i), source, promise, name, rates[stop[i]], float(ends[0]),
                float(ends[1]), z, True,
            )  # fmt: skip


def bound_reports(bound: Bound, table: TaskOutputs) -> Iterator[CaseReport]:
    """Give the interval of a bound for every case of a table."""
    k = 0 if bound.acceleration is None else table.round_at(bound.acceleration)
    if bound.acceleration is None and table.rounds > 1:
        raise InputError("it does not say which of the table's accelerations it is for")
    if table.tasks > 1:
        raise InputError("it is for one task, the table has several")
    outputs = table.until(k) if bound.rounds > 1 else table.outputs[k]
    interval = bound(outputs)
    targets = table.targets_at(k)
    source = f"{score_name(bound.score)} at alpha {bound.alpha:g}"
    for i in range(table.cases):
        yield CaseReport(
            *_who(table, i), source, "guaranteed", table.task_names[0], bound.acceleration,
            float(interval.lower[i]), float(interval.upper[i]),
            float(targets[i]) if table.has_targets else None, False,
        )  # fmt: skip


def _who(table: TaskOutputs, i: int) -> tuple[str, str, str]:
    return (
        str(i if table.case is None else table.case[i]),
        "" if table.group is None else str(table.group[i]),
        "" if table.label is None else str(table.label[i]),
    )


def _together(policy: Policy, table: TaskOutputs) -> list[np.ndarray]:
    """Cases that are decided together: all at once, or group by group."""
    if not policy.whole_group:
        return [np.arange(table.cases)]
    if table.group is None:
        raise InputError("it decides about whole groups, the table has none")
    return [np.flatnonzero(table.group == g) for g in np.unique(table.group)]
