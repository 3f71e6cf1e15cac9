"""The same cases and networks under several orders of lines: one table for each order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taskuq.checks import no_gradients
from taskuq.decide.already_read import AlreadyRead
from taskuq.errors import InputError, OtherTableError, first_line
from taskuq.files import write_json
from taskuq.interval import BoolArray
from taskuq.measure.adaptive import AdaptiveLines, Choosing
from taskuq.measure.centre import center_lines
from taskuq.measure.mask_files import how_made, read_masks, save_masks
from taskuq.measure.masks import MaskConfig, line_counts
from taskuq.pipeline import Pipeline
from taskuq.pipeline.cases import as_cases
from taskuq.protocols import Measure
from taskuq.runs.imaging import Imaging
from taskuq.runs.run import Run, RunConfig, open_run
from taskuq.seeds import case_seed
from taskuq.settings import to_table

COST = "taskuq.order-cost/1"
# Cases whose choices are timed, after one that pays for what is loaded once.
TIMED = 8


@dataclass(frozen=True)
class OrdersConfig(Imaging):
    """What is compared, on whom, beside what every run is made of.

    The data are of patients whom no order was learned on; recovery and task are the same for every
    order.

    Arguments:
        name: What the comparison is called, e.g. 'Atlas'.
        part: Which images: 'all', or the 'training' or 'validation' groups.
        draws: How many random draws by inverse distance to compare with; MRI alone.
        learned: Masks that were learned by the task, as ``taskuq masks --learn`` writes them.
        variance: Masks that were learned by plain variance.
        choose: How lines are chosen for each case; by nobody where it says nothing.
        cases: Look at so many cases alone, the first; at all where it says nothing.
        widths: The widths that scans stop at, at error rates of 0.05 and 0.1.
    """

    name: str = "Atlas"
    part: Literal["all", "training", "validation"] = "all"
    draws: int = 5
    learned: Path | None = None
    variance: Path | None = None
    choose: Choosing | None = None
    cases: int | None = None
    widths: tuple[float, float] = (0.1, 0.2)

    def run(self) -> RunConfig:
        """The run of one order."""
        shared = {of.name: getattr(self, of.name) for of in fields(Imaging)}
        return RunConfig(**shared, part=self.part)


def equidistant_masks(width: int, accelerations: tuple[float, ...]) -> BoolArray:
    """Nested masks whose lines outside the centre lie as evenly as nesting allows.

    Half of the first round is the centre; the other lines follow in the order of van der Corput.

    Arguments:
        width: The number of k-space columns.
        accelerations: R of each round, decreasing.

    Example:
        >>> np.flatnonzero(equidistant_masks(16, (4, 2))[0])
        array([ 0,  7,  8, 10])
    """
    counts = line_counts(width, accelerations)
    centre = center_lines(width, max(1, counts[0] // 2))
    free = np.flatnonzero(~centre)
    bits = max(1, (len(free) - 1).bit_length())
    order = [int(f"{k:0{bits}b}"[::-1], 2) for k in range(2**bits)]
    spread = [int(free[k]) for k in order if k < len(free)]
    masks = np.stack([centre] * len(counts))
    for mask, count in zip(masks, counts, strict=True):
        mask[spread[: count - int(centre.sum())]] = True
    return masks


def orders_of(config: OrdersConfig, width: int) -> dict[str, BoolArray]:
    """The fixed masks that are compared, (round, line) each, by the names of their orders.

    Arguments:
        config: What is compared.
        width: Of the images, in pixels.
    """
    rates, system = config.measure.accelerations, config.measure
    orders: dict[str, BoolArray] = {}
    if isinstance(system, MaskConfig):
        for k in range(config.draws):
            drawn = replace(system, published=False, file=None, rule="inverse-distance", seed=k)
            orders[f"inverse-distance {k}"] = drawn.masks(width)
        orders["equidistant"] = equidistant_masks(width, rates)
    else:
        orders["evenly spread"] = system.masks(width)
    lines = next(iter(orders.values())).shape[1]
    for name in ("variance", "learned"):
        path = getattr(config, name)
        if path is not None:
            _refuse_other_cases(path, config)
            orders[name] = read_masks(path, rates, lines)
    return orders


def measure_orders(
    config: OrdersConfig,
    folder: Path,
    *,
    device: str | None = None,
    batch: int | None = None,
    quiet: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Fill one table for each order; a comparison that was cut off goes on.

    Tables of other settings, networks or another version, and those that another machine began and
    this one does not give again, are told of and begin anew.

    Arguments:
        config: What is compared.
        folder: Where tables go, each in a folder of its name.
        device: Where networks run; the best there is where None.
        batch: How many cases run at once; by memory where None.
        quiet: Show no progress.
        tell: Called with a line for each order.
    """
    if config.choose is not None:
        config.choose.require_samples(config.samples)
    run = open_run(config.run(), device)
    width = int(run.images[0].image.shape[-1])
    masks = orders_of(config, width)
    measures: dict[str, Measure] = {}
    for name, lines in masks.items():
        path = save_masks(folder / f"{name}.npz", lines, config.measure.accelerations)
        system = replace(config.measure, file=path)  # type: ignore[type-var]  # a dataclass
        measures[name] = system.scanner(width, noise=config.noise, seed=config.seed)
    if config.choose is not None:
        # Everybody's first round is that of the best order there is.
        first = next(name for name in ("learned", "variance", *masks) if name in masks)
        rule = config.choose.rule(measures[first], masks[first], config.measure.accelerations)
        measures["adaptive"] = rule
        write_json(folder / "cost.json", _choice_times(run, config, rule))
    for name, measure in measures.items():
        tell(f"{config.name}: {name}")
        fill = partial(_fill, run, config, measure, folder / name, batch, quiet)
        try:
            fill()
        except OtherTableError as error:
            tell(f"{name} begins anew: {first_line(error)}")
            fill(fresh=True)
    write_json(
        folder / "orders.json",
        {"schema": COST, "name": config.name, "orders": list(measures),
         "configuration": to_table(config, complete=True)},
    )  # fmt: skip
    return folder


def _fill(
    run: Run,
    config: OrdersConfig,
    measure: Measure,
    store: Path,
    batch: int | None,
    quiet: bool,
    *,
    fresh: bool = False,
) -> None:
    pipeline = Pipeline(measure, run.pipeline.recover, run.pipeline.task, run.pipeline.device)
    about: dict[str, Any] = {"order": store.name, "fingerprints": run.fingerprints}
    if isinstance(measure, AdaptiveLines):
        about["rule"] = measure.fingerprint
    pipeline.run(
        _Some(run.images, config.cases), accelerations=config.measure.accelerations,
        round_names=config.measure.round_names, samples=config.samples, seed=config.seed,
        store=store, configuration=about, batch=batch, quiet=quiet, fresh=fresh,
    )  # fmt: skip


class _Some:
    """The first cases of a data set, with all that is known of them."""

    def __init__(self, images: Any, count: int | None) -> None:
        n = len(images) if count is None else min(count, len(images))
        cases = as_cases(images)
        self.images, self.cases = images, list(cases.case[:n])
        self.groups = None if cases.group is None else cases.group[:n]
        self.labels = None if cases.label is None else cases.label[:n]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Any:
        return self.images[index]


def _refuse_other_cases(path: Path, config: OrdersConfig) -> None:
    """Refuse an order that was learned on cases of the same reader and seed as those judged."""
    learned_on = how_made(path).get("configuration", {}).get("data")
    if learned_on is not None and config.part == "all" and learned_on == _data_of(config):
        raise InputError(
            f"{path} was learned on the very data that it is to be judged on; give patients whom "
            "it has not seen"
        )


def _data_of(config: OrdersConfig) -> Any:
    return to_table(config, complete=True)["data"]


def _choice_times(run: Run, config: OrdersConfig, rule: AdaptiveLines) -> Mapping[str, Any]:
    """Seconds of drawing and of choosing in each round but the last, medians over some cases."""
    import torch

    recover: Any = run.pipeline.recover
    task: Any = run.pipeline.task
    cases, rates = as_cases(run.images), config.measure.accelerations
    chain = run.pipeline.chain(rates, samples=config.samples, seed=config.seed)
    drawing: list[list[float]] = [[] for _ in rates[:-1]]
    choosing: list[list[float]] = [[] for _ in rates[:-1]]

    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    for index in range(min(TIMED + 1, len(cases))):
        image, name = chain.place(cases.image(index)), cases.case[index]
        lines = rule.first()
        for k, R in enumerate(rates[:-1]):
            scan = rule.take(image, R, lines)
            begin = now()
            drawn = recover(scan, samples=config.samples, seed=case_seed(config.seed, name, R))
            drawing[k].append(now() - begin)
            with no_gradients():
                told = AlreadyRead.of(task, drawn)  # as in a scan
                begin = now()
                lines = rule.choose(k, scan, drawn, told, lines)
            choosing[k].append(now() - begin)

    def milliseconds(seconds: list[list[float]]) -> list[float]:
        return [1e3 * float(np.median(of[1:] or of)) for of in seconds]

    return {
        "schema": COST,
        "accelerations": list(rates[:-1]),
        "cases": min(TIMED + 1, len(cases)),
        "samples": config.samples,
        "device": str(run.pipeline.device),
        "drawing": milliseconds(drawing),
        "choosing": milliseconds(choosing),
    }
