"""Policies: the same decisions after a round trip, and one clear sentence for every mistake."""

from math import inf

import numpy as np
import pytest

import taskuq as tq
from taskuq._io import write_json
from taskuq.conformal.scores._paper import AR
from taskuq.errors import InputError
from taskuq.table._examples import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=24, samples=8), seed=3)
NEW = synthetic_outputs(SyntheticTable(volumes=4, samples=8), seed=4).outputs


class OwnScore:
    """Distance from the mean."""

    def score(self, outputs, targets):
        return np.abs(targets - outputs.mean(axis=1))

    def interval(self, outputs, quantile):
        mean = outputs.mean(axis=1)
        return tq.Interval(mean - quantile, mean + quantile)


def two_tasks(table):
    outputs = np.stack([table.outputs, 1 - table.outputs**2], axis=-1)
    targets = np.stack([table.targets, 1 - table.targets**2], axis=-1)
    return tq.TaskOutputs(outputs, targets, table.accelerations, group=table.group)


PLANS = {
    "paper lwr": {"policy": "paper", "score": "lwr"},
    "fixed-width spread": {},
    "fixed-width learned": {"statistic": "learned"},
    "two-phase spread": {"budget": 0.5},
    "two-phase learned": {"budget": 0.5, "statistic": "learned"},
    "adaptive ar": {"policy": "adaptive", "score": "ar"},
    "adaptive lwr": {"policy": "adaptive", "score": "lwr"},
    "adaptive cqr": {"policy": "adaptive", "score": "cqr"},
    "adaptive mlwr": {"policy": "adaptive"},
    "adaptive learned": {"policy": "adaptive", "score": "learned"},
    "adaptive own": {"policy": "adaptive", "score": OwnScore()},
    "anytime mlwr": {"policy": "anytime"},
    "by group": {"unit": "group"},
    "all of a group": {"unit": "group", "cases": "all"},
    "most of a group": {"unit": "group", "cases": 0.8},
    "whole group": {"unit": "whole-group"},
    "whole group adaptive": {"unit": "whole-group", "policy": "adaptive"},
    "given the set": {"delta": 0.2},
    "lower bound": {"side": "lower"},
    "upper bound": {"side": "upper", "policy": "adaptive"},
    "at least": {"max_width": None, "at_least": 0.02},
    "at most": {"max_width": None, "at_most": 0.9, "policy": "adaptive"},
    "too few for this": {"alpha": 0.001},
}


def planned(options, table=TABLE):
    return tq.plan(table, **{"alpha": 0.1, "max_width": 0.2, "unit": "case", **options})


def decisions(policy, outputs):
    return [policy.decide(k, outputs[: k + 1]) for k in range(len(outputs))]


def same(one, other):
    return (
        (one.stops == other.stops).all()
        and one.stop == other.stop
        and one.reason == other.reason
        and one.interval.lower.tobytes() == other.interval.lower.tobytes()
        and one.interval.upper.tobytes() == other.interval.upper.tobytes()
    )


@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_a_stored_policy_decides_as_the_planned_one(options, tmp_path):
    policy = planned(options)
    own = OwnScore() if isinstance(options.get("score"), OwnScore) else None

    again = tq.load_policy(policy.save(tmp_path / "policy.json"), score=own)

    pairs = zip(decisions(policy, NEW), decisions(again, NEW), strict=True)
    assert all(same(*pair) for pair in pairs)
    assert again.to_dict() == policy.to_dict()


def test_a_stored_policy_of_two_tasks_decides_the_same(tmp_path):
    policy = planned({"max_width": 0.4}, two_tasks(TABLE))
    new = np.stack([NEW, 1 - NEW**2], axis=-1)

    again = tq.load_policy(policy.save(tmp_path / "policy.json"))

    assert all(same(*p) for p in zip(decisions(policy, new), decisions(again, new), strict=True))
    assert policy.decide(0, new[:1]).interval.lower.shape == (NEW.shape[1], 2)


@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_every_stop_achieves_the_goal(options):
    policy = planned(options)
    for k, decision in enumerate(decisions(policy, NEW)):
        interval = decision.interval[decision.stops]
        if policy.goal.level is not None:
            low, high = interval.lower, interval.upper
            good = low >= policy.goal.level if policy.goal.side == "lower" else high <= 0.9
        elif policy.goal.side == "two":
            good = interval.width <= 0.2 + 1e-12
        else:
            mean = NEW[k].mean(axis=1, dtype=float)[decision.stops]
            end = interval.lower if policy.goal.side == "lower" else interval.upper
            good = np.abs(end - mean) <= 0.2 + 1e-12
        assert good.all()


@pytest.mark.parametrize("name", [n for n in PLANS if n != "too few for this"])
def test_these_policies_stop_somebody(name):
    # Two cases at a time: a whole group of ninety rarely stops as one, and a group of one never.
    policy = planned(PLANS[name])

    assert any(d.stops.any() for i in range(10) for d in decisions(policy, NEW[:, i : i + 2]))


def test_too_few_cases_never_stop_and_say_why():
    policy = planned(PLANS["too few for this"])

    assert set(policy.thresholds) == {inf}
    assert not any(decision.stops.any() for decision in decisions(policy, NEW))
    assert "needs at least 999" in policy.decide(0, NEW[:1, 0]).reason


def test_one_case_is_decided_as_among_many():
    policy = planned({})
    together = policy.decide(1, NEW[:2])
    for i in range(5):
        alone = policy.decide(1, NEW[:2, i])
        assert alone.stop == together.stops[i]
        assert float(alone.interval.lower) == together.interval.lower[i]


def test_a_case_in_its_first_round_needs_no_round_axis():
    policy = planned({})

    assert same(policy.decide(0, NEW[0, 0]), policy.decide(0, NEW[:1, 0]))


def test_when_everything_is_measured_the_interval_is_the_value():
    decision = planned({}).decide(4, None, value=0.37)

    assert (decision.stop, decision.acceleration) == (True, 1.0)
    assert float(decision.interval.lower) == float(decision.interval.upper) == 0.37


def bad(position, value):
    outputs = NEW[:2, 0].copy()
    outputs[position] = value
    return outputs


MISTAKES = {
    "a round too many": (1, NEW[:3, 0]),
    "a round missing": (2, NEW[:2, 0]),
    "only the last round": (1, NEW[1:2, 0]),
    "fewer samples": (1, NEW[:2, 0, :7]),
    "more samples": (1, np.tile(NEW[:2, 0], 2)),
    "NaN": (1, bad((1, 3), np.nan)),
    "infinity": (1, bad((0, 0), np.inf)),
    "no cases": (1, NEW[:2, :0]),
    "a negative round": (-1, NEW[:1, 0]),
    "a round that does not exist": (5, NEW[:, 0]),
    "half a round": (0.5, NEW[:1, 0]),
    "text": (0, "soon"),
    "nothing": (0, None),
    "complex numbers": (0, NEW[:1, 0] * 1j),
    "the value missing at R = 1": (4, NEW[:, 0]),
    "outside the declared range": (0, NEW[:1, 0] + 2),
}


@pytest.mark.parametrize(("round_", "outputs"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("name", ["fixed-width spread", "adaptive mlwr", "whole group"])
def test_a_mistake_is_one_sentence_and_never_a_stop(name, round_, outputs):
    is_case = name != "whole group" or np.ndim(outputs) != 2
    with pytest.raises(InputError) as refused:
        planned(PLANS[name]).decide(round_, outputs if is_case else np.stack([outputs] * 2, axis=1))
    assert "\n" not in str(refused.value)
    assert "all cases of a group" not in str(refused.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, "high", [[[0.1]]]])
def test_a_value_that_is_no_number_is_refused(value):
    with pytest.raises(InputError):
        planned({}).decide(4, None, value=value)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.0},
        {"alpha": 1.5},
        {"max_width": None},
        {"max_width": -0.1},
        {"policy": "hopeful"},
        {"statistic": "mean"},
        {"budget": 0.0},
        {"budget": 1.1},
        {"unit": "patient"},
        {"score": "nll", "policy": "adaptive"},
        {"round_tolerance": float("nan")},
        {"round_tolerance": inf},
        {"delta": 2.0},
        {"cases": 1.5, "unit": "group"},
        {"at_least": 0.1},
        {"max_width": None, "at_least": 0.1, "at_most": 0.9},
        {"unit": "whole-group", "policy": "anytime"},
        {"unit": "whole-group", "policy": "adaptive", "score": "cqr"},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_one_sentence(options):
    with pytest.raises(InputError) as refused:
        planned(options)
    assert "\n" not in str(refused.value)


def shorter(record, key):
    return {**record, key: record[key][:-1]}


DAMAGES = {
    "a threshold missing": lambda r: shorter(r, "thresholds"),
    "a round of rules missing": lambda r: shorter(r, "rules"),
    "an acceleration missing": lambda r: shorter(r, "accelerations"),
    "a task name missing": lambda r: {**r, "task_names": []},
    "no goal": lambda r: {k: v for k, v in r.items() if k != "goal"},
    "a goal of another kind": lambda r: {**r, "goal": {"max_height": 1}},
    "an unknown kind": lambda r: {**r, "kind": "hopeful"},
    "a threshold that is no number": lambda r: {**r, "thresholds": ["nan"] * 4},
    "a newer version": lambda r: {**r, "schema": "taskuq.policy/9"},
    "something else": lambda r: {"schema": "taskuq.bound/1"},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_policy_is_refused_when_it_is_read(damage, tmp_path):
    path = tmp_path / "policy.json"
    write_json(path, damage(planned({}).to_dict()))

    with pytest.raises(InputError) as refused:
        tq.load_policy(path)
    assert "\n" not in str(refused.value)


def test_a_policy_made_with_your_own_score_asks_for_it_back(tmp_path):
    path = planned(PLANS["adaptive own"]).save(tmp_path / "policy.json")

    with pytest.raises(InputError, match="OwnScore"):
        tq.load_policy(path)
    with pytest.raises(InputError, match="OwnScore"):
        tq.load_policy(path, score=AR())


def test_only_the_paper_is_measured_and_everybody_else_guaranteed():
    sentences = {name: planned(options).sentence for name, options in PLANS.items()}

    paper = sentences.pop("paper lwr")
    assert paper.startswith("Measured, not guaranteed")
    assert all(s.startswith("Guaranteed") for s in sentences.values())
