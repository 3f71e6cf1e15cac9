"""Thresholds of many trials at once, each calibrated on its own fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from taskuq.decide.stopping import Calibrator, Losses, smallest_allowed, smallest_certified
from taskuq.evaluation.splits import test_folds
from taskuq.evaluation.trials import Splitting, promised_ranking, run_trials
from taskuq.interval import BoolArray, FloatArray


@final
@dataclass(frozen=True)
class Splits(Calibrator):
    """Thresholds of every trial, each calibrated on its own fold.

    Arguments:
        splitting: How units are split.
    """

    splitting: Splitting

    @property
    def units(self) -> int:
        """The number of units to calibrate on; where groups of cases are split, about so many."""
        left = self.splitting.units - self.splitting.n_test
        return left if self._by_unit else len(self.index) * left // self.splitting.units

    @property
    def _by_unit(self) -> bool:
        """Whether units are split, and not groups of them."""
        return self.unit.is_group or not len(self.splitting.unit_of_case)

    @property
    def allowed(self) -> float | FloatArray:
        """The weight of scores that may lie above a quantile, in all trials or in each."""
        splits = self.splitting
        if self._by_unit:
            return self.promise.allowed(self.units)
        # Groups are split, but cases are the unit: how many calibrate differs between trials.
        tested = splits.case_folds(np.arange(splits.trials)).sum(axis=1, dtype=np.int64)
        counts, which = np.unique(len(self.index) - tested, return_inverse=True)
        return np.array([self.promise.allowed(int(n)) for n in counts])[which]

    def quantiles(self, scores: FloatArray) -> FloatArray:
        """Return the quantile of each row of scores (row, case) in every trial (row, trial)."""
        allowed, of_case = self.allowed, self.splitting.unit_of_case
        index = of_case if len(of_case) else self.index
        rankings = [promised_ranking(row, self.promise, allowed, index) for row in scores]
        found = run_trials(self.splitting, rankings, np.zeros((len(scores), 0, len(self.index))))
        return np.stack([r.quantiles(p) for r, p in zip(rankings, found.position, strict=True)])

    def found(self, find: Callable[[BoolArray], float]) -> FloatArray:
        """Return what is found in the calibration fold of each trial (trial,)."""
        splits = self.splitting
        fold = splits.folds if self._by_unit else splits.case_folds
        return np.array([find(fold(np.array([t]))[0] == 0) for t in range(splits.trials)])

    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        """Return the smallest threshold at which the groups of each fold lose what is allowed."""
        splits, allowed = self.splitting, self.promise.allowed(self.units)
        bets, each_loss = self.promise.bets, losses(thresholds)
        step = max(1, 20_000_000 // len(thresholds))
        found: list[FloatArray] = []
        for start in range(0, splits.trials, step):
            count = min(step, splits.trials - start)
            folds = test_folds(splits.seed, start, count, splits.units, splits.n_test)
            if bets is None:
                found.append(smallest_allowed(thresholds, (1.0 - folds) @ each_loss, allowed))
            else:
                each = [
                    smallest_certified(thresholds, each_loss[fold == 0], bets) for fold in folds
                ]
                found.append(np.array(each))
        return np.concatenate(found)
