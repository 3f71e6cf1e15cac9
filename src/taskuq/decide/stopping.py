"""The one number per case that says at which thresholds a stopped policy would miss."""

from __future__ import annotations

import numpy as np

from taskuq.interval import FloatArray


def stopping_score(lowest: FloatArray, largest: FloatArray, score: FloatArray) -> FloatArray:
    r"""Return the supremum of the thresholds at which the policy stops with a miss.

    At threshold :math:`\lambda` the policy stops in the first round :math:`k` with
    :math:`\lambda \in [\ell_k, \lambda_k^*)` and misses there when :math:`s_k > \lambda`.
    Without lower limits (:math:`\ell_k = -\infty`) and with
    :math:`M_k = \max_{j \le k} \lambda_j^*` this is

    .. math:: \Lambda = \max\{\min(\lambda_k^*, s_k) : \lambda_k^* > M_{k-1},\; s_k > M_{k-1}\}

    or minus infinity where the policy misses at no threshold. A policy run at a threshold
    :math:`\hat\lambda` misses only if :math:`\Lambda > \hat\lambda`: so a conformal quantile of
    :math:`\Lambda` is a threshold that keeps the stopped report's promise.

    Arguments:
        lowest: :math:`\ell_k` (round, case).
        largest: :math:`\lambda_k^*` (round, case).
        score: :math:`s_k`, the smallest threshold at which the report contains the target.

    Example:
        >>> lowest = np.full((2, 3), -np.inf)
        >>> largest = np.array([[2.0, 1.0, 1.0], [5.0, 5.0, 5.0]])
        >>> score = np.array([[1.5, 0.5, 0.5], [1.0, 3.0, 0.5]])
        >>> stopping_score(lowest, largest, score)
        array([1.5, 3. , 0.5])
    """
    result = np.full(largest.shape[1], -np.inf)
    for k in range(len(largest)):
        top = np.minimum(largest[k], score[k])
        # Thresholds just below `top` may stop earlier; go down to where no earlier round stops.
        for _ in range(k):
            for j in range(k):
                taken = (lowest[j] < top) & (top <= largest[j])
                top = np.where(taken, lowest[j], top)
        result = np.where(top > lowest[k], np.maximum(result, top), result)
    return np.asarray(result)
