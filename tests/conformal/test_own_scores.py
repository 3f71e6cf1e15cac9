"""A score of your own, listed under a name, works wherever ours do."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq._io import write_json
from taskuq.cli.app import main
from taskuq.conformal.scores import SCORES, resolve_score, score_from_dict, score_to_dict
from taskuq.conformal.scores._paper import AR
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate
from taskuq.table._examples import SyntheticTable, synthetic_outputs

RNG = np.random.default_rng(8)
TRUTH = RNG.random(100)
OUTPUTS = TRUTH[:, None] + 0.1 * RNG.standard_normal((100, 5))
TABLE = synthetic_outputs(SyntheticTable(volumes=20, samples=5), seed=0)


class AroundTheMean:
    """AR written anew, with nothing but the two methods."""

    def score(self, outputs, targets):
        return AR().score(outputs, targets)

    def interval(self, outputs, quantile):
        return AR().interval(outputs, quantile)


@dataclass(frozen=True)
class Shifted(AroundTheMean):
    """AR that has a side, an error rate and something to learn."""

    side: str = "two"
    alpha: float = 0.5
    shift: float | None = None
    tuning_fraction = 0.2
    tuning_needs_targets = True

    @property
    def needs_tuning(self):
        return self.shift is None

    def fit(self, outputs, targets=None, *, range_=None, group=None):
        return replace(self, shift=float((targets - outputs.mean(axis=1)).mean()))

    def score(self, outputs, targets):
        return AR(self.side).score(outputs + self.shift, targets)

    def interval(self, outputs, quantile):
        return AR(self.side).interval(outputs + self.shift, quantile)


class Half(AroundTheMean):
    """A score that can be tuned and does not say how."""

    def fit(self, outputs, targets=None, *, range_=None, group=None):
        return self


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    more = {"mean": AroundTheMean, "shifted": Shifted, "half": Half}
    monkeypatch.setattr(SCORES, "_known", {**SCORES._known, **more})


def test_a_bound_by_name_is_that_of_the_same_score_of_ours(tmp_path):
    mine = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="mean")
    ours = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="ar")
    read = tq.load_bound(mine.save(tmp_path / "bound.json"))

    np.testing.assert_array_equal(read(OUTPUTS).upper, ours(OUTPUTS).upper)
    assert isinstance(read.score, AroundTheMean)
    assert str(mine).startswith("mean at alpha 0.1")


def test_an_evaluation_by_name_is_that_of_the_object_and_covers_as_ours_does():
    mine, same, ours = (
        tq.evaluate_exact(OUTPUTS, TRUTH, alpha=0.1, score=s)
        for s in ("mean", AroundTheMean(), "ar")
    )

    assert mine == same
    assert mine.score == "mean"
    assert mine.coverage == ours.coverage


def test_a_policy_by_name_is_that_of_the_object(tmp_path):
    options = {"alpha": 0.2, "max_width": 0.3, "policy": "adaptive"}
    mine = tq.plan(TABLE, score="mean", **options)
    read = tq.load_policy(mine.save(tmp_path / "policy.json"))

    assert read.thresholds == mine.thresholds
    assert mine.thresholds == tq.plan(TABLE, score=AroundTheMean(), **options).thresholds


def test_a_simulation_by_name_is_called_by_it():
    plan = PolicySpec("adaptive", 0.2, Goal(max_width=0.3), "mean")
    (result,) = simulate(TABLE, [plan], splits=3)

    assert result.score == "mean"


def test_the_command_line_takes_the_name(tmp_path, capsys):
    table, bound = TABLE.save(tmp_path / "table.npz"), tmp_path / "bound.json"
    main(["calibrate", str(table), "--acceleration", "8", "--score", "mean", "-o", str(bound)])
    capsys.readouterr()
    main(["evaluate", str(table), "--exact", "--score", "mean,ar", "--json", "-"])
    record = json.loads(capsys.readouterr().out)

    assert json.loads(bound.read_text())["score"] == {"name": "mean"}
    assert [r["score"] for r in record["results"][:2]] == ["mean", "ar"]


def test_a_score_is_given_the_error_rate_and_the_side_it_asks_for():
    assert resolve_score("shifted", 0.1, "upper") == Shifted("upper", 0.1)
    with refused("option.conflict"):
        resolve_score("mean", 0.1, "upper")


def test_what_a_score_learnt_travels_in_the_file(tmp_path):
    bound = tq.calibrate(OUTPUTS - 0.3, TRUTH, alpha=0.1, score="shifted")
    assert bound.provenance["tuning_cases"] > 0
    assert tq.load_bound(bound.save(tmp_path / "bound.json")) == bound
    assert bound.score.shift == pytest.approx(0.3, abs=0.1)


def test_a_score_that_says_half_of_what_learning_needs_is_refused():
    with refused("component.invalid"):
        tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="half")


def test_a_score_with_a_state_we_cannot_write_is_stored_by_its_class_only():
    mine = AroundTheMean()
    mine.state = object()

    assert score_to_dict(mine) == {"name": "custom", "class": "AroundTheMean"}
    assert score_from_dict(score_to_dict(mine), mine) is mine


def test_a_file_with_a_score_nobody_registered_says_where_to_name_it(tmp_path):
    path = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="lwr").save(tmp_path / "bound.json")
    write_json(path, json.loads(path.read_text().replace('"lwr"', '"elsewhere"')))

    with refused("choice.unknown", "elsewhere"):
        tq.load_bound(path)
