"""Real task outputs of the fastMRI knee validation set, where they are at hand."""

from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from hoeffding_bentkus import hoeffding_bentkus
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.conformal._units import _hierarchical_quantile, group_index, quantile_of_mean_loss
from taskuq.conformal.scores._paper import LWR

FOLDER = Path(__file__).resolve().parents[2] / "../shared/data/fastmri_outputs"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the fastMRI outputs are not here")
ACCELERATIONS = (16, 8, 4, 2)

# Mean width over all splits by case at alpha 0.05, order statistic, no clipping; published with
# the data and worked out apart from this code.
REFERENCE = {
    16: {"ar": ".12519", "lwr": ".09926", "cqr": ".10759"},
    8: {"ar": ".07746", "lwr": ".05622", "cqr": ".06048"},
    4: {"ar": ".04579", "lwr": ".03616", "cqr": ".03550"},
    2: {"ar": ".03320", "lwr": ".02647", "cqr": ".02668"},
}


@pytest.fixture(scope="module")
def tear():
    return tq.TaskOutputs.load(FOLDER / "meniscus_tear.npz")


def judged(table, acceleration, score, samples=32, alpha=0.05, **options):
    k = table.round_index(acceleration)
    outputs = (
        table.outputs[: k + 1, :, :samples] if score == "learned" else table.outputs[k, :, :samples]
    )
    return tq.evaluate_exact(outputs, table.targets_at(k), alpha=alpha, score=score, **options)


@pytest.mark.parametrize("score", ["ar", "lwr", "cqr"])
@pytest.mark.parametrize("acceleration", ACCELERATIONS)
def test_exact_means_agree_with_the_reference(tear, acceleration, score):
    exact = judged(tear, acceleration, score)
    assert f"{exact.width.mean:.5f}"[1:] == REFERENCE[acceleration][score]
    assert f"{exact.coverage.mean:.5f}" == "0.95039"
    assert (exact.n_calibration, exact.n_test) == (1531, 657)


@pytest.mark.parametrize("task_range", [None, (0, 1)])
def test_learned_intervals_are_shorter_than_those_of_the_paper(tear, task_range):
    ratios = []
    for R in ACCELERATIONS:
        width = {
            score: judged(tear, R, score, task_range=task_range).width.mean
            for score in ("lwr", "cqr", "learned")
        }
        ratios.append(width["learned"] / min(width["lwr"], width["cqr"]))
    assert np.mean(ratios) <= 0.9


@pytest.mark.parametrize("task_range", [None, (0, 1)])
@pytest.mark.parametrize("samples", [2, 32])
def test_default_is_not_longer_than_the_scores_of_the_paper(tear, samples, task_range):
    for R in ACCELERATIONS:
        lwr, cqr, ours = (
            judged(tear, R, score, samples, task_range=task_range).width.mean
            for score in ("lwr", "cqr", "mlwr")
        )
        assert ours <= 1.05 * min(lwr, cqr)


@pytest.mark.parametrize("task", ["meniscus_tear", "joint_effusion"])
def test_two_quantiles_shorten_intervals(task):
    table = tq.TaskOutputs.load(FOLDER / f"{task}.npz", task_range=(0, 1))
    asked = EvaluationGrid(("lwr",), splits=300, unit="case", side="each")
    results = evaluate_table(table, asked).results
    assert np.mean([r.width.mean / r.width_single_quantile.mean for r in results]) < 0.98
    assert all(abs(r.coverage.mean - 0.95) < 0.005 for r in results)


@pytest.mark.parametrize("acceleration", [8, 2])
@pytest.mark.parametrize(("groups", "alpha", "least"), [(22, 0.2, 0), (70, 0.05, 0), (70, 0.1, 2)])
def test_group_bounds_given_the_set_use_delta(tear, acceleration, groups, alpha, least):
    k = tear.round_index(acceleration)
    scores = LWR().score(tear.outputs[k].astype(float), tear.targets_at(k))
    number, volumes = np.unique(tear.group, return_inverse=True)[1], len(np.unique(tear.group))
    weight, rng = 1 / np.bincount(number)[number], np.random.default_rng(0)
    allowed, unlucky = hoeffding_bentkus(groups, alpha, 0.1), 0
    for _ in range(100):
        chosen = np.isin(number, rng.permutation(volumes)[:groups])
        index, sizes = group_index(number[chosen])
        q = _hierarchical_quantile(scores[chosen], index, alpha, 0.1)
        assert q <= quantile_of_mean_loss(scores[chosen], sizes[index], allowed)
        unlucky += (weight * (scores > q))[~chosen].sum() > alpha * (volumes - groups)
    assert least <= unlucky <= 10
