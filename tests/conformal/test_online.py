"""Online bounds: the miss rate stays near alpha for every sequence of audits."""

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.conformal._online import load_online_bound

OUTPUT = np.zeros(1)


def online(alpha=0.2, step=0.05, **options):
    return tq.calibrate_online(
        np.zeros((9, 1)), np.arange(1.0, 10.0), alpha=alpha, step_size=step, score="ar", **options
    )


def target_for(bound, miss):
    """A target that forces a miss or a hit; an interval of everything cannot be missed."""
    interval = bound(OUTPUT)
    if bool(interval.is_empty):
        return 0.0
    return float(interval.upper) + 1 if miss and np.isfinite(interval.upper) else 0.0


@pytest.mark.parametrize(("alpha", "step"), [(0.2, 0.05), (0.05, 0.5), (0.5, 0.9)])
def test_every_sequence_of_audits_stays_within_the_deviation(alpha, step):
    first = online(alpha, step)
    states = {(): first}
    for _ in range(9):
        states = {
            (*past, miss): bound.update(OUTPUT, target_for(bound, miss))
            for past, bound in states.items()
            for miss in (False, True)
        }
        worst = max(
            abs(b.miscovered / b.audits - alpha) - b.largest_deviation for b in states.values()
        )
        assert worst <= 1e-12


def test_a_miss_lowers_the_level_and_a_hit_raises_it():
    bound = online(alpha=0.2, step=0.1)
    missed, hit = (bound.update(OUTPUT, target_for(bound, miss)) for miss in (True, False))
    assert missed.level == pytest.approx(0.2 + 0.1 * (0.2 - 1))
    assert hit.level == pytest.approx(0.2 + 0.1 * 0.2)
    assert missed.quantile >= bound.quantile >= hit.quantile


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_points_of_a_one_sided_bound_obey_the_deviation_too(side):
    # Identical samples make a one-sided LWR interval independent of any quantile.
    bound = tq.calibrate_online(
        np.full((9, 2), 0.5), np.full(9, 0.5), alpha=0.2, step_size=0.5, score="lwr", side=side
    )
    for _ in range(60):
        bound = bound.update(np.full(2, 0.5), 0.5)
    assert abs(bound.miscovered / bound.audits - 0.2) <= bound.largest_deviation + 1e-12


def test_an_audited_target_outside_the_range_is_refused():
    bound = online(task_range=(0, 20))
    with refused("range.outside"):
        bound.update(OUTPUT, 21.0)


def test_online_bound_continues_from_its_file(tmp_path):
    bound = online().update(OUTPUT, 3.0).update(OUTPUT, 99.0)
    again = load_online_bound(bound.save(tmp_path / "online.json"))
    assert again == bound
    assert again.update(OUTPUT, 5.0) == bound.update(OUTPUT, 5.0)


def test_online_bound_prints_its_guarantee_and_no_scores():
    bound = online()
    title, *rows = str(bound).splitlines()[:4]
    assert title.startswith("ar at alpha 0.2")
    assert list(map(str.split, rows)) == [["level", "0.2"], ["quantile", "8"], ["audits", "0"]]
    assert " ".join(str(bound).split()).endswith(f"audits 0 {bound.statement}")
