"""The bound on a mean loss that bets have to improve on: it looks at the sum alone."""

import math
from fractions import Fraction

import numpy as np
from scipy.special import bdtr, rel_entr


def hoeffding_bentkus(groups, alpha, delta):
    """The sum of losses that was allowed before, whatever the losses were."""
    total = np.arange(0, 1000 * groups + 1) / 1000
    mean = np.minimum(total / groups, alpha)
    hoeffding = np.exp(-groups * (rel_entr(mean, alpha) + rel_entr(1 - mean, 1 - alpha)))
    bentkus = math.e * bdtr(np.ceil(total), groups, alpha)
    good = np.nonzero((np.minimum(hoeffding, bentkus) <= delta) & (total / groups < alpha))[0]
    return Fraction(int(good[-1]), 1000) if good.size else Fraction(-1)
