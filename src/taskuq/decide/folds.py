"""Calibration folds of a policy that learns from them: what it sees in each of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.steady import ScalePieces
from taskuq.decide.learning import SteadyRules
from taskuq.decide.rules import Examination
from taskuq.interval import FloatArray


class Learning(NamedTuple):
    """What a policy that learns sees once it has learnt from the units outside a fold.

    Arguments:
        units: The unit of each calibration case, numbered from 0.
        seen: What the calibration cases are calibrated by.
        shown: All cases as the rules see them.
    """

    units: NDArray[np.int64]
    seen: Examination
    shown: Examination


# What learns from the units outside a fold (unit,).
LearnFrom: TypeAlias = Callable[[NDArray[np.uint8]], Learning]


def learn_folds(steady: SteadyRules, index: NDArray[np.int64], *, is_compiled: bool) -> LearnFrom:
    """Return what learns from the units outside a fold, for many folds.

    Arguments:
        steady: What learns.
        index: The unit of each case of the table, numbered from 0.
        is_compiled: Whether the compiled loops do the work; the numbers are the same.
    """
    pieces = _pieces(steady) if is_compiled else None
    if pieces is not None:
        parts = steady.parts
        return CompiledFolds(
            steady=steady,
            index=index,
            sizes=np.bincount(index),
            pieces=pieces,
            largest=np.array([[part.base.largest for part in row] for row in parts]),
            score=np.array([[part.score for part in row] for row in parts]),
            lowest=np.stack([np.max([p.base.lowest for p in row], axis=0) for row in parts]),
        ).learn

    def learn(fold: NDArray[np.uint8]) -> Learning:
        kept = fold[index] == 0
        units = _renumbered(fold)[index[kept]]
        rules, seen = steady.learn(kept, units)
        return Learning(units, seen, steady.seen(rules))

    return learn


@runtime_checkable
class Pieced(Protocol):
    """A learner whose scales are made of pieces."""

    def pieces(self) -> ScalePieces | None:
        """Return what scales are made of, where something is learnt."""


@final
@dataclass(frozen=True)
class CompiledFolds:
    """Folds by compiled loops, with all that does not change from fold to fold side by side.

    Arguments:
        steady: What learns.
        index: The unit of each case of the table, numbered from 0.
        sizes: The number of cases of each unit.
        pieces: What scales are made of, every array of it (round, task, ...).
        largest: Largest thresholds at scale 1 (round, task, case).
        score: Scores at scale 1 (round, task, case).
        lowest: Thresholds below which intervals are empty (round, case).
    """

    steady: SteadyRules
    index: NDArray[np.int64]
    sizes: NDArray[np.int64]
    pieces: ScalePieces
    largest: FloatArray
    score: FloatArray
    lowest: FloatArray

    def learn(self, fold: NDArray[np.uint8]) -> Learning:
        """Learn from the units outside a fold."""
        from taskuq.calibration.median_kernels import unit_medians
        from taskuq.decide import fold_kernels

        rounds, tasks, cases = self.largest.shape
        rows, units = 2 * rounds * tasks, len(fold)
        orders, pieces = self.pieces.orders, self.pieces[1:]
        value, ends = np.empty(rows, np.int64), np.empty((2, rows, units), np.int64)
        unit_medians(orders.reshape(rows, cases), self.index, self.sizes, fold, value, *ends)
        scaling, parts = self.steady.spec.policy.rules.scaling, self.steady.parts
        at_one = self.largest, self.score, scaling < 0, parts[0][0].base.is_risk
        kept = np.flatnonzero(fold[self.index] == 0)
        surely, largest, score = (np.empty((rounds, len(kept))) for _ in range(3))
        low, high = ends.reshape(2, rounds, tasks, 2, units)
        fold_kernels.bracketed(
            kept, self.index, low, high, *pieces, *at_one, surely, largest, score
        )
        bases = tuple(tuple(part.base for part in row) for row in parts)
        seen = Examination(self.lowest[:, kept], largest, score, bases, surely)
        scale = np.empty(self.largest.shape)
        largest, score = np.empty((rounds, cases)), np.empty((rounds, cases))
        fold_kernels.learnt(
            value.reshape(rounds, tasks, 2), *pieces, *at_one, scale, largest, score
        )
        rescaled = tuple(
            tuple(one.rescaled(u, scaling) for one, u in zip(*both, strict=True))
            for both in zip(bases, scale, strict=True)
        )
        shown = Examination(self.lowest, largest, score, rescaled)
        return Learning(_renumbered(fold)[self.index[kept]], seen, shown)


def _pieces(steady: SteadyRules) -> ScalePieces | None:
    """What the scales of all rounds and tasks are made of, where compiled loops know how."""
    found = [
        [part.learner.pieces() if isinstance(part.learner, Pieced) else None for part in row]
        for row in steady.parts
    ]
    # A score that is capped where the window begins does not fall in step with the scale.
    capped = any(np.isfinite(part.base.window_from) for row in steady.parts for part in row)
    if capped or any(one is None for row in found for one in row):
        return None

    def stack(name: str) -> np.ndarray:
        return np.array([[getattr(one, name) for one in row] for row in found])

    return ScalePieces(
        orders=stack("orders"),
        level=stack("level"),
        typical=stack("typical"),
        growth=stack("growth"),
        own=stack("own"),
        degrees=float(stack("degrees").flat[0]),
        all_degrees=float(stack("all_degrees").flat[0]),
    )


def _renumbered(fold: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The number of each unit among those outside a fold."""
    return np.cumsum(fold == 0) - 1
