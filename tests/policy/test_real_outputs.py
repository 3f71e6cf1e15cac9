"""Reference numbers on real fastMRI task outputs; splits are seeded, so the numbers repeat."""

from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate

FOLDER = Path(__file__).resolve().parents[2] / "../shared/data/fastmri_outputs"
TRIALS = 100

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs the real task outputs")


def judged(kind, **options):
    table = tq.TaskOutputs.load(FOLDER / "meniscus_tear.npz", task_range=(0.0, 1.0))
    spec, rng = PolicySpec(kind, 0.05, Goal(max_width=0.1), **options), np.random.default_rng(0)
    (found,) = simulate(table, [spec], splits=TRIALS, seed=rng, unit="case", tuning_repeats=10)
    return found


# Policy, options, and the acceleration it has to reach at least.
REFERENCES = [
    ("fixed-width", {"statistic": "spread"}, 13.5),
    ("fixed-width", {"statistic": "learned"}, 14.5),
    ("adaptive", {"score": "mlwr"}, 9.3),
]


@pytest.mark.parametrize(("kind", "options", "least"), REFERENCES)
def test_policies_reach_their_acceleration_and_coverage(kind, options, least):
    found = judged(kind, **options)
    assert found.mean_acceleration >= least
    # At least 0.95 on average over all splits; the slack is two standard errors.
    assert found.coverage >= 0.95 - 2 * found.sd["coverage"] / np.sqrt(TRIALS)


def test_acceleration_of_the_paper():
    assert judged("paper", score="cqr").mean_acceleration == pytest.approx(9.8, abs=0.1)
