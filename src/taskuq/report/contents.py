"""What the page of a run says: sentences, tables and figures, gathered from its records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taskuq.decide.goal import goal_from_dict
from taskuq.decide.simulation import Simulation
from taskuq.errors import InputError
from taskuq.evaluation.result import EvaluationRecord
from taskuq.report.evaluations import evaluation_figures
from taskuq.report.figure import Figure, figure_from_dict
from taskuq.report.folder import Found, RunFolder
from taskuq.report.planner import planner_figure
from taskuq.report.records import EXPERIMENT, read_evaluation, read_simulations, require_table
from taskuq.report.scans import masks_figure, quality_figures, split_figure
from taskuq.report.simulations import simulation_figures
from taskuq.report.tables import Table, policy_table, score_table
from taskuq.report.tasks import task_figures

# Experiments in the order in which they tell their story; others follow as they are found.
STORY = (
    "live", "interval-length", "sample-count", "coverage-law", "conditional-coverage",
    "multi-round", "paper-protocol", "recovery-quality", "classifier-quality", "masks",
    "data-splits",
)  # fmt: skip
ACRONYMS = ("psnr", "ssim", "roc", "ar", "lwr", "cqr", "mlwr")
LAW = "Coverage against its exact law"


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
    """

    name: str
    title: str
    claim: str
    finding: str
    settings: dict[str, Any]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]


@dataclass
class Contents:
    """Everything the page shows, gathered; figures by the heading they stand under.

    Arguments:
        evaluations: Evaluations by record name.
        simulations: Simulations by record name, with the samples of each result.
        figures: Figures by heading.
        tables: Tables of results.
        experiments: Experiments.
        titles: Headings of figures by their names, where another than the name is wanted.
        notes: What is missing or could not be shown.
    """

    evaluations: dict[str, EvaluationRecord] = field(default_factory=dict)
    simulations: dict[str, list[tuple[int, Simulation]]] = field(default_factory=dict)
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def all_figures(self) -> list[Figure]:
        """All figures, those of experiments among them, each under a name of its own."""
        every = [figure for under in self.figures.values() for figure in under]
        for experiment in self.experiments:
            every += [replace(f, name=f"{experiment.name}-{f.name}") for f in experiment.figures]
        return every

    @property
    def all_tables(self) -> list[Table]:
        """All tables, those of experiments among them."""
        every = list(self.tables)
        for experiment in self.experiments:
            every += [replace(t, name=f"{experiment.name}-{t.name}") for t in experiment.tables]
        return every

    def add(self, heading: str, figures: Sequence[Figure]) -> None:
        """Put figures under a heading; one without numbers is left out."""
        shown = [figure for figure in figures if not figure.is_empty]
        if shown:
            self.figures.setdefault(heading, []).extend(shown)


def gather(folder: RunFolder) -> Contents:
    """Gather what the page shows; a record that cannot be shown becomes a note.

    Arguments:
        folder: The run's folder.
    """
    contents = Contents()
    for found in folder.records:
        add = _READERS.get(found.schema)
        if add is None:
            continue
        try:
            add(contents, found)
        except (InputError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}"
            contents.notes.append(
                f"{found.path} says it is {found.schema} but is not complete ({reason:.120}), so "
                "it is not shown."
            )
    if folder.explorer is not None and folder.explorer.masks is not None:
        masks, rates = folder.explorer.masks, folder.explorer.accelerations
        contents.add("Measurement and images", [masks_figure(masks, rates)])
    _add_planner(contents, folder)
    contents.experiments.sort(key=lambda e: STORY.index(e.name) if e.name in STORY else len(STORY))
    return contents


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


def _stem(found: Found) -> str:
    return slug(found.path.removesuffix(".json"))


def _add_evaluation(contents: Contents, found: Found) -> None:
    record = read_evaluation(found.record)
    name = _stem(found)
    figures = [replace(f, name=f"{name}-{f.name}") for f in evaluation_figures(record)]
    table = score_table(record, name)
    contents.evaluations[name] = record
    contents.tables.append(table)
    by = f"splits by {record.results[0].unit}"
    for figure in figures:
        short = figure.name.removeprefix(f"{name}-")
        contents.titles[figure.name] = f"{title_of(short)}, {by}"
        if short.startswith("width-against"):
            heading = "Widths of intervals"
        elif short.startswith("coverage-"):
            heading = LAW
        else:
            heading = "Coverage within classes and widths"
        contents.add(heading, [figure])


def _add_simulation(contents: Contents, found: Found) -> None:
    results = read_simulations(found.record)
    goal = goal_from_dict(found.record["goal"])
    name = _stem(found)
    most = max(p for p, _ in results)
    figures = simulation_figures([r for p, r in results if p == most])
    table = policy_table(results, goal.sentence, name)
    contents.simulations[name] = results
    contents.tables.append(table)
    for figure in figures:
        renamed = replace(figure, name=f"{name}-{figure.name}")
        by = f"splits by {results[0][1].unit}"
        contents.titles[renamed.name] = f"{title_of(figure.name)}, {by}"
        contents.add("When scans stop", [renamed])


def _add_quality(contents: Contents, found: Found) -> None:
    name = _stem(found)
    rows = tuple(
        (
            float(row["acceleration"]), str(row["method"]), _finite(row["psnr"]["mean"]),
            row["psnr"]["standard_error"], _finite(row["ssim"]["mean"]),
            row["ssim"]["standard_error"], row.get("fid"), row.get("volumes"),
        )
        for row in found.record["results"]
    )  # fmt: skip
    figures = quality_figures(found.record)
    contents.tables.append(
        Table(
            name,
            "Image quality of whole volumes; errors are standard errors over volumes. Measured.",
            ("R", "method", "PSNR", "± PSNR", "SSIM", "± SSIM", "FID", "volumes"),
            rows,
        )
    )
    contents.add("Measurement and images", [replace(f, name=f"{name}-{f.name}") for f in figures])


def _finite(mean: Any) -> float | None:
    # A volume that is recovered exactly leaves its row without a mean PSNR.
    return None if mean is None else float(mean)


def _add_task(contents: Contents, found: Found) -> None:
    name = _stem(found)
    figures = [replace(f, name=f"{name}-{f.name}") for f in task_figures(found.record)]
    measures = ("auroc", "accuracy", "precision", "recall", "robust_accuracy", "error")
    rows = [
        (part, str(row["task"]), row["cases"], row["groups"], *(row.get(m) for m in measures))
        for part, found_rows in found.record["parts"].items()
        for row in found_rows
    ]
    kept = [k for k, m in enumerate(measures) if any(r[4 + k] is not None for r in rows)]
    contents.tables.append(
        Table(
            name,
            "The task network on patients it did not learn from. Measured.",
            ("part", "task", "cases", "groups", *(measures[k].replace("_", " ") for k in kept)),
            tuple((*r[:4], *(r[4 + k] for k in kept)) for r in rows),
        )
    )
    contents.add("Task network", figures)


def _add_split(contents: Contents, found: Found) -> None:
    figure = replace(split_figure(found.record), name=f"{_stem(found)}-groups")
    contents.titles[figure.name] = "Who is learnt from and who is judged"
    contents.add("Measurement and images", [figure])


def _add_experiment(contents: Contents, found: Found) -> None:
    record = found.record
    figures = tuple(figure_from_dict(one) for one in record.get("figures", ()))
    tables = []
    for one in record.get("tables", ()):
        require_table(one)
        tables.append(
            Table(
                slug(str(one["name"])),
                str(one["caption"]),
                tuple(map(str, one["columns"])),
                tuple(tuple(row) for row in one["rows"]),
            )
        )
    contents.experiments.append(
        Experiment(
            slug(str(record["name"])),
            str(record["title"]),
            str(record.get("claim") or ""),
            str(record.get("finding") or ""),
            dict(record.get("settings") or {}),
            tuple(f for f in figures if not f.is_empty),
            tuple(tables),
        )
    )


def _add_planner(contents: Contents, folder: RunFolder) -> None:
    """Add the planner for the run's error rate, or for a stored question about sizes."""
    asked = folder.of("taskuq.plan-size/1")
    alpha = asked[0].record.get("alpha") if asked else run_alpha(folder, contents)
    delta = asked[0].record.get("delta", 0.05) if asked else 0.05
    if not isinstance(alpha, float) or not 0.001 <= alpha <= 0.5:
        return
    have = None
    if folder.policy is not None and not folder.policy.guarantee.whom.is_group:
        have = folder.policy.guarantee.n_cases
    try:
        contents.add("Planning a study", [planner_figure(alpha, float(delta), have)])
    except InputError:
        contents.notes.append("No planner is shown for this error rate: its sizes are too large.")


def run_alpha(folder: RunFolder, contents: Contents) -> float | None:
    """Return the run's error rate, from wherever it is said first."""
    said = folder.run.get("alpha")
    if isinstance(said, int | float) and 0 < said < 1:
        return float(said)
    if folder.policy is not None:
        return folder.policy.alpha
    for bound in folder.bounds.values():
        return bound.alpha
    for simulated in contents.simulations.values():
        return simulated[0][1].alpha
    for evaluated in contents.evaluations.values():
        return evaluated.results[0].alpha
    return None


def run_width(folder: RunFolder) -> float | None:
    """Return the run's width to stop at, from wherever it is said first."""
    goals = [folder.run.get("max_width")]
    if folder.policy is not None:
        goals.append(folder.policy.goal.max_width)
    goals += [(f.record.get("goal") or {}).get("max_width") for f in folder.of("taskuq.simulate/1")]
    for said in goals:
        if isinstance(said, int | float) and said > 0 and math.isfinite(said):
            return float(said)
    return None


_READERS: dict[str, Callable[[Contents, Found], None]] = {
    "taskuq.evaluate/1": _add_evaluation,
    "taskuq.simulate/1": _add_simulation,
    "taskuq.quality/1": _add_quality,
    "taskuq.task/1": _add_task,
    "taskuq.split/1": _add_split,
    EXPERIMENT: _add_experiment,
}
