"""Reference numbers on real fastMRI task outputs; splits are seeded, so the numbers repeat."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate

FOLDER = Path(__file__).resolve().parents[2] / "../shared/data/fastmri_outputs"
TRIALS = 200
WIDTH = Goal(max_width=0.1)

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs the real task outputs")


@cache
def table(name="meniscus_tear", samples=32):
    loaded = tq.TaskOutputs.load(FOLDER / f"{name}.npz", task_range=(0.0, 1.0))
    return loaded.select(samples=samples)


def judged(kind, alpha, *, unit="case", samples=32, tunings=10, splits=TRIALS, **options):
    spec = PolicySpec(kind, alpha, WIDTH, **options)
    rng = np.random.default_rng(0)
    (found,) = simulate(
        table(samples=samples), [spec], splits=splits, seed=rng, unit=unit, tuning_repeats=tunings
    )
    return found


# Policy, options, alpha, unit, and the acceleration it has to reach at least.
REFERENCES = [
    ("fixed-width", {"statistic": "spread"}, 0.05, "case", 13.5),
    ("fixed-width", {"statistic": "learned"}, 0.05, "case", 14.5),
    ("fixed-width", {"statistic": "spread"}, 0.01, "case", 7.4),
    ("fixed-width", {"statistic": "learned"}, 0.01, "case", 8.4),
    ("adaptive", {"score": "mlwr"}, 0.05, "case", 9.3),
    ("fixed-width", {"statistic": "learned", "budget": 0.5}, 0.05, "case", 12.0),
    ("fixed-width", {"statistic": "spread"}, 0.05, "group", 12.0),
]


@pytest.mark.parametrize(("kind", "options", "alpha", "unit", "least"), REFERENCES)
def test_policies_reach_their_acceleration_and_coverage(kind, options, alpha, unit, least):
    found = judged(kind, alpha, unit=unit, **options)
    assert found.mean_acceleration >= least
    # Above 1 - alpha on average over all splits; the slack is two standard errors.
    assert found.coverage >= 1 - alpha - 2 * found.sd["coverage"] / np.sqrt(TRIALS)


def test_two_phases_give_narrower_reports():
    # What is learned varies between tuning folds, so many of them are averaged over.
    found = judged("fixed-width", 0.05, statistic="learned", budget=0.48, tunings=60, splits=600)
    assert found.mean_acceleration >= 11.9
    assert found.width <= 0.068


@pytest.mark.parametrize(("score", "about"), [("lwr", 8.1), ("cqr", 9.8)])
def test_acceleration_of_the_paper(score, about):
    assert judged("paper", 0.05, score=score).mean_acceleration == pytest.approx(about, abs=0.1)


@pytest.mark.parametrize("statistic", ["spread", "learned"])
def test_window_covers_with_two_samples(statistic):
    ours = judged("fixed-width", 0.01, samples=2, statistic=statistic)
    paper = judged("paper", 0.01, samples=2, score="lwr")
    assert ours.coverage >= 0.99 - 3 * ours.sd["coverage"] / np.sqrt(TRIALS)
    assert paper.coverage < 0.98
    assert ours.mean_acceleration > paper.mean_acceleration


COMMANDS = {
    "joint effusion": ["joint_effusion", "--range", "0,1", "--max-width", "0.1"],
    "psnr at least": ["quality_psnr", "--at-least", "30", "--score", "mlwr"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_commands_run_on_the_other_tables(arguments, tmp_path):
    name, *rest = arguments
    out = tmp_path / "out.json"
    main(["simulate", str(FOLDER / f"{name}.npz"), *rest, "--unit", "case", "--splits",
          "60", "--json", str(out), "--figures", str(tmp_path / "figures")])  # fmt: skip
    results = json.loads(out.read_text())["results"]
    guaranteed = [r for r in results if r["guaranteed"]]
    assert len(guaranteed) >= 4
    # Above 1 - alpha on average over all splits; the slack is three standard errors.
    assert all(r["coverage"] >= 0.95 - 3 * r["sd"]["coverage"] / 60**0.5 for r in guaranteed)
    assert max(r["mean_acceleration"] for r in guaranteed) > 1
    assert len(list((tmp_path / "figures").glob("*.svg"))) == 3


def test_early_reports_of_the_paper_are_missed():
    assert 1 - judged("paper", 0.01, samples=2, score="lwr").coverage_early > 0.08
