"""Small finite populations that are hard on guarantees: each is drawn from a number, its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

# What can be hard about a population. Several hold at once: see ``draw``.
SIZES = ("hard units are large", "hard units are small", "sizes mean nothing")
GRIDS = (None, 255, 16)
SPREADS = ("spread follows error", "spread lies", "some have no spread")
PLACES = ("hard units in stratum 0", "one stratum each", "strata mean nothing")


@dataclass(frozen=True)
class Unit:
    """A case, or a group of cases.

    Arguments:
        outputs: (round, case, sample, task).
        targets: (case, task).
        strata: The stratum of each case (case,); it serves as the label too.
        weight: The likelihood ratio of the unit under a shift.
    """

    outputs: np.ndarray
    targets: np.ndarray
    strata: np.ndarray
    weight: float

    def __len__(self) -> int:
        return len(self.targets)


def stretched(unit: Unit, size: int) -> Unit:
    """Repeat the cases of a unit until there are so many."""
    index = np.arange(size) % len(unit)
    return Unit(unit.outputs[:, index], unit.targets[index], unit.strata[index], unit.weight)


@dataclass(frozen=True)
class Population:
    """Units, of which each is as likely as any other to be the new one.

    Arguments:
        units: The units.
        task_range: The declared range, if any.
    """

    units: tuple[Unit, ...]
    task_range: tuple[float, float] | None

    def others(self, new: int) -> Cases:
        """Return the cases of all units but one."""
        return Cases.of(self.units[:new] + self.units[new + 1 :])


@dataclass(frozen=True)
class Cases:
    """The cases of some units together; the group of a case is the place of its unit."""

    outputs: np.ndarray
    targets: np.ndarray
    strata: np.ndarray
    weights: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, units: tuple[Unit, ...]) -> Cases:
        """Put units together in this order."""
        sizes = [len(unit) for unit in units]
        return cls(
            np.concatenate([unit.outputs for unit in units], axis=1),
            np.concatenate([unit.targets for unit in units]),
            np.concatenate([unit.strata for unit in units]),
            np.repeat([unit.weight for unit in units], sizes),
            np.repeat(np.arange(len(units)), sizes),
        )


def draw(
    seed: int, *, units: tuple[int, int] = (4, 9), smallest: int = 1, largest: int = 1,
    rounds: int = 1, samples: int = 2, tasks: int = 1, strata: int = 2,
) -> Population:  # fmt: skip
    """Draw a population from its seed.

    Errors and spreads shrink from round to round, not always; the second task has its hard cases
    elsewhere; `largest` is 1 where cases are the units.
    """
    rng = np.random.default_rng([16, seed])
    size, grid, spread, place = (
        names[rng.integers(len(names))] for names in (SIZES, GRIDS, SPREADS, PLACES)
    )
    count = int(rng.integers(units[0], units[1] + 1))
    hard = rng.random(count) < rng.choice([0.1, 0.3, 0.5])
    made = []
    for is_hard in hard:
        n = int(rng.integers(smallest, largest + 1))
        if size != SIZES[2]:
            n = largest if is_hard == (size == SIZES[0]) else smallest
        made.append(
            Unit(
                *_numbers(rng, bool(is_hard), (rounds, n, samples, tasks), spread, grid),
                _strata(rng, bool(is_hard), n, strata, place),
                weight=float(rng.choice([0.001, 0.1, 1.0, 3.0])),
            )
        )
    return Population(tuple(made), (0.0, 1.0) if grid == 255 else None)


def draw_groups_in_strata(seed: int, **how: int | tuple[int, int]) -> Population:
    """Draw a population whose groups lie in one stratum each."""
    population = draw(seed, **how)  # type: ignore[arg-type]  # as draw takes them
    units = [replace(u, strata=np.full(len(u), u.strata[0])) for u in population.units]
    return replace(population, units=tuple(units))


def draw_sites(seed: int, *, units: tuple[int, int], rounds: int) -> Population:
    """Draw sites with a small and a large patient, who differ in difficulty; strata name them."""
    count = int(np.random.default_rng([17, seed]).integers(units[0], units[1] + 1))
    few, many = (
        draw(2 * seed + k, units=(count, count), smallest=low, largest=high, rounds=rounds)
        for k, (low, high) in enumerate([(1, 2), (4, 6)])
    )
    sites = []
    for small, large in zip(few.units, many.units, strict=True):
        both = Cases.of((small, large))
        sites.append(Unit(both.outputs, both.targets, both.group, 1.0))
    return Population(tuple(sites), few.task_range and many.task_range)


def _numbers(
    rng: np.random.Generator,
    hard: bool,
    shape: tuple[int, int, int, int],
    spread: str,
    grid: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (round, case, sample, task) and targets (case, task) of a unit."""
    rounds, n, samples, tasks = shape
    size = np.where(np.arange(tasks) % 2 == int(hard), 0.05, 0.3)
    targets = rng.random((n, tasks))
    common, own = rng.standard_normal((1, 1, tasks)), rng.standard_normal((rounds, n, tasks))
    shrinking = np.linspace(1, 0.3, rounds)[:, None, None]
    errors = size * (0.7 * common + 0.7 * own) * shrinking
    scale = {SPREADS[0]: size, SPREADS[1]: 0.35 - size}.get(spread, size)
    spreads = scale * rng.choice([0.25, 0.5, 1.0], (rounds, n, tasks)) * shrinking
    if spread == SPREADS[2]:
        spreads = spreads * (rng.random(spreads.shape) < 0.7)
    pattern = np.linspace(-1, 1, samples) if samples > 1 else np.zeros(1)
    outputs = (targets + errors)[:, :, None] + spreads[:, :, None] * pattern[:, None]
    if grid is not None:
        targets, outputs = np.round(targets * grid) / grid, np.round(outputs * grid) / grid
    if grid == 255:
        outputs = np.clip(outputs, 0, 1)
    return outputs, targets


def _strata(rng: np.random.Generator, hard: bool, n: int, count: int, place: str) -> np.ndarray:
    if place == PLACES[0] and count > 1:
        at_home = rng.random(n) < 0.9
        return np.where(at_home == hard, 0, rng.integers(1, count, n))
    if place == PLACES[1]:
        return np.full(n, rng.integers(count))
    return rng.integers(count, size=n)
