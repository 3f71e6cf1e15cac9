"""What the page of a run says: sentences, tables and figures, gathered from its records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from taskuq.errors import InputError
from taskuq.report import records
from taskuq.report.cases import CaseReport
from taskuq.report.figure import Figure, figure_from_dict, figures_of
from taskuq.report.folder import RunFolder, StoredRecord
from taskuq.report.records import Record
from taskuq.report.scan import OneScan
from taskuq.report.tables import Table
from taskuq.words import Words, as_words

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
    """One experiment's section.

    Arguments:
        name: For links and files.
        title: The heading.
        claim: What was claimed.
        finding: What was found.
        settings: What decided the numbers.
        figures: Its figures.
        tables: Its tables.
        verdict: One of :data:`~taskuq.report.records.VERDICTS`; None where nothing was judged.
        number: The one number to remember.
    """

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
    """Everything the page shows, gathered; figures by the heading they stand under.

    What follows from a run's policy, bounds and calibration set is computed elsewhere and put in.

    Arguments:
        folder: The run's folder.
        policy: The record of the policy that decided.
        simulated: What that policy, as it is, did in a simulation; None where it is in none.
        alphas: The error rates of that policy and of stored bounds.
        promises: What is guaranteed, and what is short of it.
        is_by_group: Whether it is guaranteed for new groups, not for new cases.
        cases: The interval of each case of the table.
        numbers: What the explorer computes with, as values that JSON can hold.
        scan: One scan that the policy stops.
        logged: Cases that failed, each with the reason that the table's log gives.
        evaluations: Evaluations by record name.
        simulations: What each policy of a simulation did, by record name.
        figures: Figures by heading.
        readings: How figures are to be read, by heading.
        tables: Tables of results.
        experiments: Experiments.
        titles: What figures are called, by their names.
        notes: What is missing or could not be shown.
    """

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
    """Return a name for files and links: letters, digits and hyphens.

    Example:
        >>> slug("Evaluate by case/R = 16"), slug("<script>"), slug("表")
        ('evaluate-by-case-r-16', 'script', 'x8868')
    """
    plain = "".join(c if c.isascii() else f"x{ord(c):x}" for c in text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:80] or "unnamed"


def title_of(name: str) -> str:
    """Return the heading of a figure from its name.

    Example:
        >>> title_of("psnr-against-acceleration"), title_of("coverage-R16-lwr")
        ('PSNR against acceleration', 'Coverage, R = 16, LWR')
    """
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
