"""The figures of an evaluation: widths, coverage histograms, conditional coverage."""

from __future__ import annotations

from collections.abc import Sequence

from taskuq.evaluation.result import Evaluation, EvaluationRecord
from taskuq.report.figure import Figure, Series


def evaluation_figures(record: EvaluationRecord) -> list[Figure]:
    """Return the figures that a record supports.

    Arguments:
        record: All evaluations of one command.

    Example:
        >>> from taskuq.experiments.comparison import Comparison, compare
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=8), seed=0)
        >>> record = compare(table, Comparison(trials=50, unit="case"))
        >>> [figure.name for figure in evaluation_figures(record)][:2]
        ['width-against-acceleration', 'coverage-R16-ar']
    """
    figures = []
    results = [r for r in record.results if r.task == record.results[0].task]
    most = max(r.samples for r in results)
    full = [r for r in results if r.samples == most]
    if len({r.acceleration for r in full}) > 1:
        figures.append(_against_acceleration(full))
    if len({r.samples for r in results}) > 1:
        figures.append(_against_samples(results))
    figures += [_histogram(r) for r in full if r.histogram is not None]
    for R in dict.fromkeys(r.acceleration for r in full):
        here = [r for r in full if r.acceleration == R]
        figures += _conditional(here, f"R{R:g}" if R else "one-round")
    return figures


def _scores(results: Sequence[Evaluation]) -> list[str]:
    return list(dict.fromkeys(r.score for r in results))


def _against_acceleration(results: Sequence[Evaluation]) -> Figure:
    return Figure(
        name="width-against-acceleration",
        caption="Mean interval width against acceleration; bars are one standard deviation over "
        "splits.",
        x_label="acceleration R",
        y_label="mean interval width",
        x_scale="log2",
        series=tuple(
            Series(
                name,
                tuple(r.acceleration or 1.0 for r in results if r.score == name),
                tuple(r.width.mean for r in results if r.score == name),
                tuple(r.width.sd for r in results if r.score == name),
            )
            for name in _scores(results)
        ),
    )


def _against_samples(results: Sequence[Evaluation]) -> Figure:
    R = results[0].acceleration
    here = [r for r in results if r.acceleration == R]
    at = f" at R = {R:g}" if R else ""
    return Figure(
        name="width-against-samples",
        caption=f"Mean interval width against the number p of posterior samples{at}.",
        x_label="posterior samples p",
        y_label="mean interval width",
        x_scale="log2",
        series=tuple(
            Series(
                name,
                tuple(float(r.samples) for r in here if r.score == name),
                tuple(r.width.mean for r in here if r.score == name),
                tuple(r.width.sd for r in here if r.score == name),
            )
            for name in _scores(here)
        ),
    )


def _histogram(result: Evaluation) -> Figure:
    histogram = result.histogram
    assert histogram is not None
    coverage = tuple(c / result.n_test for c in histogram.covered)
    at = f" at R = {result.acceleration:g}" if result.acceleration else ""
    return Figure(
        name=f"coverage-R{result.acceleration:g}-{result.score}"
        if result.acceleration
        else f"coverage-{result.score}",
        caption=f"Empirical coverage of {result.score}{at} over {result.trials} random splits, "
        f"against its exact law (goodness-of-fit p = {histogram.p_value:.2g}).",
        x_label="empirical coverage",
        y_label="splits",
        series=(
            Series("random splits", coverage, tuple(map(float, histogram.trials)), style="bars"),
            Series("exact law", coverage, histogram.expected, style="step"),
        ),
    )


def _conditional(results: Sequence[Evaluation], where: str) -> list[Figure]:
    figures = []
    target = 1 - results[0].alpha
    for name, caption, label in (
        ("class_coverage", "Coverage within each class", "class"),
        ("size_coverage", "Coverage by width of the interval", "interval width"),
    ):
        if not any(getattr(r, name) for r in results):
            continue
        figures.append(
            Figure(
                name=f"{name.replace('_', '-')}-{where}",
                caption=f"{caption}; measured, not guaranteed. An empty stratum is left out.",
                x_label=label,
                y_label="coverage",
                x_scale="category",
                reference=(("target", target),),
                series=tuple(
                    Series(
                        r.score,
                        tuple(s.name for s in getattr(r, name)),
                        tuple(s.coverage if s.trials else None for s in getattr(r, name)),
                        style="points",
                    )
                    for r in results
                ),
            )
        )
    return figures
