"""Units: the weight allowed above a quantile says the same as the quantile itself."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from taskuq.conformal._units import CaseUnit, RandomCaseUnit, _GroupFractionUnit, as_unit, make_unit
from taskuq.errors import InputError

RNG = np.random.default_rng(3)
SCORES = RNG.integers(0, 30, 60).astype(float)
GROUP = RNG.permutation(np.repeat(np.arange(20), 3))
UNITS = (CaseUnit(), RandomCaseUnit(), _GroupFractionUnit("all"), _GroupFractionUnit(0.5))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
@pytest.mark.parametrize("delta", [None, 0.3])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.02])
def test_the_quantile_is_the_least_entry_with_no_more_above_than_allowed(unit, alpha, delta):
    entries = unit.entries(SCORES, unit.index(60, GROUP))
    allowed = unit.allowed(int(entries.unit.max()) + 1, alpha, delta)
    above = [entries.weight[entries.scores > q].sum() for q in np.sort(entries.scores)]
    good = np.sort(entries.scores)[np.array(above) <= allowed + 1e-9]
    if unit.bets(alpha, delta) is not None and allowed >= 0:
        # Here the allowance is a limit, and bets decide.
        assert unit.quantile(SCORES, GROUP, alpha, delta) >= good[0]
        return

    assert unit.quantile(SCORES, GROUP, alpha, delta) == (good[0] if allowed >= 0 else np.inf)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
@pytest.mark.parametrize("delta", [None, 0.1])
def test_as_many_units_as_needed_and_no_fewer_allow_a_finite_quantile(unit, delta):
    needed = unit.needed(0.1, delta)

    assert unit.allowed(needed, 0.1, delta) >= 0 > unit.allowed(needed - 1, 0.1, delta)


@pytest.mark.parametrize("unit", UNITS[1:], ids=lambda u: u.covered)
def test_losses_at_a_threshold_are_the_weight_of_entries_above_it(unit):
    entries = unit.entries(SCORES, GROUP)
    for q in range(30):
        missed = np.array([(SCORES[v == GROUP] > q).sum() for v in range(20)])
        assert unit.loss(missed, np.full(20, 3)).sum() == pytest.approx(
            entries.weight[entries.scores > q].sum(), abs=1e-9
        )


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
def test_weights_add_up_to_the_number_of_units(unit):
    index = unit.index(60, GROUP)

    assert unit.weights(index).sum() == pytest.approx(index.max() + 1, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("case", "random"),
        *product(["group", "whole-group"], ["random", "all", 0.9, Fraction(1, 2)]),
    ],
)
def test_a_unit_is_found_again_by_its_name_and_record(name, cases):
    unit = as_unit(name, cases, has_groups=True, whole=True)

    assert unit.name == name
    assert make_unit(unit.name, unit.record["cases"], whole=True) == unit
    assert unit.stops_together == (name == "whole-group")
    assert unit.counted == ("case" if name == "case" else "group")


@pytest.mark.parametrize("cases", ["all", 0.9])
@pytest.mark.parametrize("unit", ["case", None])
def test_one_new_case_has_no_share_of_cases(unit, cases):
    with pytest.raises(InputError, match="cases of a new group, but the unit is one case"):
        as_unit(unit, cases, has_groups=False)


def test_groups_are_the_default_where_they_are_given():
    assert as_unit(None, has_groups=True) == RandomCaseUnit()
    assert as_unit(None, has_groups=False) == CaseUnit()


@pytest.mark.parametrize("cases", [0, 1.5, "most", -0.1, "nan"])
def test_shares_outside_zero_and_one_are_refused(cases):
    with pytest.raises(InputError, match=r"'random', 'all' or a share in \(0, 1\]"):
        _GroupFractionUnit(cases)
