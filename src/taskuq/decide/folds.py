"""Calibration folds of a policy that learns from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq.decide.learning import SteadyRules
from taskuq.decide.rules import Examination


class Learning(NamedTuple):
    """Examinations by rules that were learnt from the units outside a fold.

    Arguments:
        units: The unit of each calibration case, numbered from 0.
        seen: What the calibration cases are calibrated by.
        shown: All cases as the rules see them.
    """

    units: NDArray[np.int64]
    seen: Examination
    shown: Examination


# Learns from the units outside a fold (unit,).
LearnFrom: TypeAlias = Callable[[NDArray[np.uint8]], Learning]


def learn_folds(steady: SteadyRules, index: NDArray[np.int64]) -> LearnFrom:
    """Return a function that learns from the units outside a fold.

    Arguments:
        steady: The rules that learn.
        index: The unit of each case of the table, numbered from 0.
    """

    def learn(fold: NDArray[np.uint8]) -> Learning:
        kept = fold[index] == 0
        units = (np.cumsum(fold == 0) - 1)[index[kept]]
        rules, seen = steady.learn(kept, units)
        return Learning(units, seen, steady.seen(rules))

    return learn
