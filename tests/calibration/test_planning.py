"""Planning: the size found is good, and the one below it is not."""

from math import inf

import numpy as np
import pytest
from scipy.stats import beta, betabinom

import taskuq as tq
from taskuq.conformal._quantiles import CoverageLaw, coverage_rank

# (alpha, epsilon, delta, two-sided size, one-sided size): worked out apart from this code.
TABLE = [
    (0.01, 0.01, 0.05, 313, 313),
    (0.05, 0.01, 0.1, 1270, 801),
    (0.05, 0.02, 0.05, 442, 360),
    (0.05, 0.03, 0.01, 362, 361),
    (0.1, 0.02, 0.1, 602, 380),
    (0.1, 0.03, 0.05, 374, 290),
]
# Its sixteen decimals times n leave 64 bits.
MANY_DIGITS = (1 / 3, 0.02, 0.05)


@pytest.mark.parametrize(("alpha", "epsilon", "delta", "two_sided", "one_sided"), TABLE)
def test_sizes_agree_with_the_planning_table(alpha, epsilon, delta, two_sided, one_sided):
    assert tq.calibration_size(alpha, epsilon, delta) == two_sided
    assert tq.calibration_size(alpha, epsilon, delta, two_sided=False) == one_sided


def _chance_of_deviation(n, alpha, epsilon, two_sided):
    k = coverage_rank(n, alpha)
    if k > n:
        return inf
    law = beta(k, n + 1 - k)
    return law.cdf(1 - alpha - epsilon) + (law.sf(1 - alpha + epsilon) if two_sided else 0)


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(("alpha", "epsilon", "delta"), [*(row[:3] for row in TABLE), MANY_DIGITS])
def test_the_size_keeps_its_definition_and_one_less_does_not(alpha, epsilon, delta, two_sided):
    n = tq.calibration_size(alpha, epsilon, delta, two_sided=two_sided)
    later = [_chance_of_deviation(m, alpha, epsilon, two_sided) for m in range(n, n + 400)]

    assert max(later) <= delta
    assert _chance_of_deviation(n - 1, alpha, epsilon, two_sided) > delta


def test_groups_multiply_the_size_by_the_design_effect():
    alone = tq.calibration_size(0.1, 0.02, 0.1)

    assert tq.calibration_size(0.1, 0.02, 0.1, group_size=1, icc=0.5) == alone
    assert tq.calibration_size(0.1, 0.02, 0.1, group_size=11, icc=0.1) == 2 * alone


@pytest.mark.parametrize(
    ("epsilon", "options"),
    [
        (0, {}),
        (1, {}),
        (float("nan"), {}),
        (1e-7, {}),
        (0.02, {"icc": 2}),
        (0.02, {"group_size": inf}),
    ],
)
def test_plans_that_make_no_sense_are_refused(epsilon, options):
    with pytest.raises(tq.InputError):
        tq.calibration_size(0.05, epsilon, 0.05, **options)


@pytest.mark.parametrize(("n", "rank", "m"), [(9, 9, 4), (19, 10, 7), (1531, 1456, 657)])
def test_the_law_of_coverage_is_beta_binomial(n, rank, m):
    law, known = CoverageLaw(n, rank, m), betabinom(m, rank, n + 1 - rank)

    np.testing.assert_allclose(law.pmf, known.pmf(np.arange(m + 1)), rtol=1e-8, atol=1e-15)
    assert law.mean == pytest.approx(known.mean() / m, rel=1e-12)
    assert law.sd == pytest.approx(known.std() / m, rel=1e-9)


def test_without_a_finite_quantile_everything_is_covered():
    law = CoverageLaw(5, 6, 3)

    assert (law.mean, law.sd, law.pmf.tolist()) == (1.0, 0.0, [0, 0, 0, 1])
