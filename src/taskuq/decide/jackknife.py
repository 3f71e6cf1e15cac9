"""Standard errors of a simulation: a jackknife that leaves groups out and calibrates again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskuq.decide.replay import Scans
from taskuq.evaluation.splits import fold_sizes, hash_word
from taskuq.evaluation.trials import Splitting
from taskuq.interval import FloatArray

# More replicates would make no visible digit of a standard error more certain.
REPLICATES = 300
# Replicates tell how much of their variance is linear only if its error is below this share.
CLEAR = 0.25


@dataclass(frozen=True)
class Replicates:
    """What a policy does where part of the table is left out and it is calibrated on the rest.

    Arguments:
        cost: The mean share of measurements taken by the rest, :math:`1/R_T` (replicate,).
        coverage: The share of the rest for which the promise holds (replicate,).
        kept: Which groups of the table make up the rest (replicate, group).
    """

    cost: FloatArray
    coverage: FloatArray
    kept: FloatArray

    @classmethod
    def measured(
        cls,
        planned: Callable[[int], tuple[Scans, FloatArray]],
        splitting: Splitting,
        group_of_case: NDArray[np.int64],
        pool: NDArray[np.int64],
    ) -> Replicates:
        """Measure the rest of every replicate.

        Arguments:
            planned: The stored scans, and the threshold of each round that was calibrated on the
                rest of a replicate.
            splitting: Which groups of these scans are left out.
            group_of_case: The group of each case of the table, numbered from 0.
            pool: Which cases of the table the scans are of.
        """
        folds, found = splitting.all_folds, np.empty((2, splitting.trials))
        for r, fold in enumerate(folds):
            scans, thresholds = planned(r)
            rest = fold[scans.group_of_case] == 0
            stopped, hit = scans.outcomes(thresholds, scans.seen.score)
            total = scans.weight[rest].sum()
            found[0, r] = (scans.weight * scans.cost[stopped])[rest].sum() / total
            found[1, r] = scans.kept(hit, rest) / total
        # Whoever was set aside to learn from is kept in every replicate.
        kept = np.ones((splitting.trials, int(group_of_case.max()) + 1))
        kept[:, np.unique(group_of_case[pool])] -= folds
        return cls(found[0], found[1], kept)


def left_out(splitting: Splitting, group: NDArray[np.int64], *, by_unit: bool) -> Splitting | None:
    """Return whom the replicates of a jackknife leave out; None where there is one group.

    Arguments:
        splitting: How units are split in trials.
        group: The group of each case, numbered from 0; each its own where there are none.
        by_unit: Whether these groups are the units: as many as are tested are left out.
    """
    groups = int(group.max()) + 1
    if groups < 2:
        return None
    n_test = splitting.n_test if by_unit or groups == len(group) else fold_sizes(groups)[1]
    seed, trials = hash_word(splitting.seed + 1), min(splitting.trials, REPLICATES)
    return Splitting(groups, n_test, trials, seed, group, splitting.is_compiled)


def standard_errors(
    parts: Sequence[Replicates], acceleration: FloatArray, coverage: FloatArray
) -> dict[str, float]:
    """Return the errors of a mean acceleration and coverage over splits, NaN where unknown.

    Arguments:
        parts: The replicates of each tuning fold.
        acceleration: The mean acceleration of each split (trial,).
        coverage: The coverage of each split (trial,).
    """
    # Calibration adapts to what is kept, so that the coverage of the rest moves in many small steps
    # and little of it is linear, or of second order.
    orders = {"mean_acceleration": 2, "coverage": 3}
    if not parts:
        return dict.fromkeys(orders, math.nan)
    kept = np.concatenate([part.kept for part in parts])
    again = np.concatenate([[1 / part.cost, part.coverage] for part in parts], axis=1)
    share = float(kept.mean())
    return {
        name: math.sqrt(
            jackknife_variance(values, kept, share, order) + of_splits.var() / len(of_splits)
        )
        for (name, order), values, of_splits in zip(
            orders.items(), again, (acceleration, coverage), strict=True
        )
    }


def jackknife_variance(
    values: FloatArray, kept: NDArray[np.float64], share: float, order: int = 2
) -> float:
    r"""Return the variance over tables of a mean over all splits, from replicates of its table.

    The mean over all splits of a statistic of :math:`rn` of the :math:`n` groups is a U-statistic.
    Of the statistic's variance :math:`\sum_c V_c`, split by how many groups have to be looked at
    together, about :math:`r^c V_c` is left in that mean, and :math:`(1 - r^c) V_c` is seen between
    replicates of one table. The first part, linear in which groups are kept, follows from the
    covariances :math:`c_j` of the statistic with the presence of each group, less what
    :math:`B` replicates of variance :math:`V` give them by chance,

    .. math:: L = \frac{n - 1}{n} \Big( \frac{\sum_j c_j^2}{r (1 - r)} - \frac{n - 1}{B} V \Big)

    and the rest is counted as if it were of one order :math:`c`; 2 is the most that it can be:

    .. math:: \frac{r}{1 - r} L + \frac{r^c}{1 - r^c} (V - L)

    Where replicates are too few to tell, :math:`L = V`: the usual jackknife that deletes
    :math:`(1 - r)n` groups.

    References:
        Efron and Stein, The Jackknife Estimate of Variance, Annals of Statistics 1981; Shao and
        Wu, A General Theory for Jackknife Variance Estimation, Annals of Statistics 1989.

    Arguments:
        values: The statistic in each replicate (replicate,).
        kept: Which groups were kept in it (replicate, group).
        share: :math:`r`, the share of groups that are kept.
        order: :math:`c` of what is not linear.

    Returns:
        The variance, or NaN where there are too few replicates or groups to know it.

    Example:
        >>> kept = np.array([[0.0, 1, 1], [1, 0, 1], [1, 1, 0]])
        >>> kept = np.tile(kept, (1000, 1))
        >>> mean = kept @ [1.0, 2.0, 6.0] / 2  # of two of three numbers, whose variance is 7
        >>> round(jackknife_variance(mean, kept, share=2 / 3), 2)
        2.33
    """
    B, n = kept.shape
    if B < 2 or n < 2:
        return math.nan
    V = L = float(values.var(ddof=1))
    if math.sqrt(2 * n) / B < CLEAR:
        c = (values - values.mean()) @ (kept - kept.mean(axis=0)) / B
        explained = float(np.square(c).sum()) / (share * (1 - share))
        L = min(max((n - 1) / n * (explained - (n - 1) * V / B), 0.0), V)
    return share / (1 - share) * L + share**order / (1 - share**order) * (V - L)
