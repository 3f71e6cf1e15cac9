"""Own kinds of policies: one class and one registration."""

import pytest

import taskuq as tq
from raising import refused
from taskuq.policy import POLICIES, Goal, NestedPolicy, PolicySpec
from taskuq.policy._simulate import simulate
from taskuq.table._examples import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=20, samples=4), seed=1)
NEW = synthetic_outputs(SyntheticTable(volumes=2, samples=4), seed=2).outputs
UNITS = ("case", "whole-group")


class Mine(NestedPolicy):
    """The adaptive policy under a name that nothing in the package knows."""

    is_guaranteed = True
    stops_whole_groups = True

    def thresholds(self, statistics, calibrator):
        return calibrator.stopping_threshold(statistics)

    def statement(self, goal, guarantee):
        return f"Mine: {guarantee}"


class Halved(NestedPolicy):
    """Half of each round's own quantile: narrower, and without a guarantee."""

    is_guaranteed = False
    stops_whole_groups = False

    def thresholds(self, statistics, calibrator):
        return calibrator.quantiles(statistics.score) / 2

    def statement(self, goal, guarantee):
        return "Measured, not guaranteed."


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(POLICIES, "_known", dict(POLICIES._known))
    POLICIES.register("mine", Mine)
    POLICIES.register("halved", Halved)


def planned(policy, **options):
    options = {"alpha": 0.2, "max_width": 0.2, **options}
    return tq.plan(TABLE, policy=policy, **options)


def without(record, *names):
    return {key: value for key, value in record.items() if key not in names}


@pytest.mark.parametrize("unit", UNITS)
def test_registered_kind_plans_the_same_policy(unit):
    mine, adaptive = (planned(p, unit=unit).to_dict() for p in ("mine", "adaptive"))
    assert (mine["kind"], mine["sentence"][:5]) == ("mine", "Mine:")
    assert without(mine, "kind", "sentence") == without(adaptive, "kind", "sentence")


@pytest.mark.parametrize("unit", UNITS)
def test_registered_kind_simulates_the_same(unit):
    plans = [PolicySpec(p, 0.2, Goal(max_width=0.2), score="lwr") for p in ("mine", "adaptive")]
    mine, adaptive = simulate(TABLE, plans, splits=9, unit=unit)
    assert mine.policy == "mine"
    assert without(mine.to_dict(), "policy") == without(adaptive.to_dict(), "policy")


def test_registered_kind_survives_a_file(tmp_path):
    halved, paper = planned("halved"), planned("paper")
    read = tq.load_policy(halved.save(tmp_path / "policy.json"))
    assert read == halved
    assert read.thresholds == tuple(t / 2 for t in paper.thresholds)
    narrower = read.decide(0, NEW[:1]).interval.width < paper.decide(0, NEW[:1]).interval.width
    assert narrower.all()


def test_kind_may_refuse_whole_groups():
    assert not planned("halved").is_guaranteed
    with refused("option.conflict"):
        planned("halved", unit="whole-group")


def test_unknown_kind_is_refused():
    with refused("choice.unknown", "mine", "halved"):
        planned("hopeful")
