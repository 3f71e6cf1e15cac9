"""Plans: choice among policies, caveats, and exact outputs."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.conformal._calibrate import tuning_count
from taskuq.conformal._units import choose_units, table_contents
from taskuq.policy import _plan as planning
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec, parse_policy
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs

ALPHA, WIDTH = 0.25, 1.0
POLICIES = [
    *({"kind": "adaptive", "score": score} for score in ("ar", "lwr", "cqr")),
    *({"kind": "fixed-width", "round_tolerance": g} for g in (-4, -2, -1, -0.5, 0.0, 0.5, 1, 4)),
]


def population(seed, cases=16):
    """Uninformative outputs: a choice among policies finds chance."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=cases)
    outputs = truth[:, None] + rng.normal(0, 1, (3, cases, 1)) * rng.exponential(size=(3, cases, 1))
    spread = rng.exponential(size=(3, cases, 1)) * rng.normal(0, 1, (3, cases, 4))
    return TaskOutputs(outputs + spread, truth, accelerations=[8, 4, 2])


def missed(policy, table, case):
    for k in range(table.rounds):
        decision = policy.decide(round=k, outputs=table.outputs[: k + 1, case])
        if decision.stop:
            return not bool(decision.interval.contains(table.targets[case]))
    return False


def without(table, case):
    return table.select(cases=np.delete(np.arange(table.cases), case))


@pytest.fixture
def remember_costs(monkeypatch):
    """Compare policies on the same cases once, not again for each new case."""
    cost, known = planning._cost, {}

    def remembered(plan, setup, make):
        key = repr(plan), setup.table.targets.tobytes()
        if key not in known:
            known[key] = cost(plan, setup, make)
        return known[key]

    monkeypatch.setattr(planning, "_cost", remembered)


def miss_of_chosen(table, held_out, named=POLICIES):
    """The exact fraction of the other cases, each the new one once, whose report misses."""
    rest, bad = [i for i in range(table.cases) if i not in held_out], 0
    for new in rest:
        # One case fewer: the positions after the new one move up.
        chosen = [i - (i > new) for i in held_out]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "choose_units", lambda index, *_, c=chosen: np.isin(index, c))
            policy = tq.plan(without(table, new), alpha=ALPHA, max_width=WIDTH, choose=named)
        assert policy.provenance["chosen"]["units"] == len(held_out)
        assert len(policy.provenance["chosen"]["mean_acceleration"]) == len(named)
        bad += missed(policy, table, new)
    return Fraction(bad, len(rest))


@pytest.mark.usefixtures("remember_costs")
@pytest.mark.parametrize("seed", range(3))
def test_policy_chosen_on_other_cases_keeps_its_guarantee(seed):
    table, rng = population(seed), np.random.default_rng(seed)
    every = list(combinations(range(16), 4))
    # The guarantee holds for each choice of the cases set aside, so each is a law of its own.
    for number in rng.choice(len(every), 1, replace=False):
        assert miss_of_chosen(table, every[number]) <= Fraction(1, 4)


@pytest.mark.usefixtures("remember_costs")
def test_choice_by_calibration_cases_is_found(monkeypatch):
    honest = planning._choose_policy

    def peeking(named, asked, setup, make, rng):
        _, held_out, record = honest(named, asked, setup, make, rng)
        rest = setup.select(~held_out)
        specs = [parse_policy(one, asked) for one in named]
        best = max(specs, key=lambda p: make(p, rest).certificate["mean_acceleration"])
        return best, held_out, record

    monkeypatch.setattr(planning, "_choose_policy", peeking)
    aside = (0, 4, 8, 10)
    assert miss_of_chosen(population(1), aside) > Fraction(1, 4)


TABLE = synthetic_outputs(SyntheticTable(volumes=40, samples=8), seed=0)
ASKED = {"alpha": 0.1, "max_width": 0.2}
NAMES = ["fixed-width:spread", "fixed-width:learned", "adaptive:mlwr"]


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_chosen_policy_stores_its_candidates(unit, tmp_path):
    made = tq.plan(TABLE, unit=unit, choose=NAMES, **ASKED)
    chosen = made.provenance["chosen"]
    units = 40 if made.guarantee._unit.is_group else TABLE.cases
    assert chosen["units"] == tuning_count(units, 0.3, 0.1)
    assert list(chosen["mean_acceleration"]) == NAMES
    assert chosen["policy"] == max(NAMES, key=chosen["mean_acceleration"].get)
    assert made.statement.endswith(chosen["sentence"])
    assert made.guarantee.n_cases + made.provenance["tuning_cases"] == TABLE.cases - chosen["cases"]
    assert tq.load_policy(made.save(tmp_path / "policy.json")).statement == made.statement


def test_chosen_policy_is_planned_on_the_other_cases():
    made = tq.plan(TABLE, unit="case", choose=NAMES[:1], **ASKED)
    take = tuning_count(TABLE.cases, 0.3, 0.1)
    aside = choose_units(np.arange(TABLE.cases), take, None, table_contents(TABLE))
    alone = tq.plan(TABLE.select(cases=~aside), unit="case", **ASKED)
    assert made.thresholds == alone.thresholds
    assert made.guarantee == alone.guarantee


@pytest.mark.parametrize(
    "name", [*NAMES, "fixed-width:learned:budget=0.5:round_tolerance=1", "paper:cqr", "anytime:ar"]
)
def test_plan_is_parsed_from_its_name(name):
    assert parse_policy(name, PolicySpec("paper", 0.1, Goal(max_width=0.1))).name == name


@pytest.mark.parametrize(
    ("choose", "code"),
    [
        ([], "option.missing"),
        (["fixed-width:colour=red"], "choice.unknown"),
        (["nothing"], "choice.unknown"),
        ([3], "choice.unknown"),
        (3, "choice.unknown"),
        ([{"kind": ["adaptive"]}], "choice.unknown"),
        ([{"kind": "adaptive", "colour": "red"}], "choice.unknown"),
        (["fixed-width:budget=much"], "dtype.invalid"),
        ([{"kind": "adaptive", "alpha": 0.5}], "choice.unknown"),
        (["adaptive:budget=0.5"], "choice.unknown"),
        (["anytime:round_tolerance=7"], "choice.unknown"),
        (["adaptive:lwr", "paper:cqr"], "option.conflict"),
        ([PolicySpec("paper", 0.2, Goal(max_width=0.1))], "option.conflict"),
    ],
)
def test_invalid_candidates_are_refused(choose, code):
    with refused(code):
        tq.plan(TABLE, choose=choose, **ASKED)


def test_too_few_units_to_choose_on_are_refused():
    with refused("units.few"):
        tq.plan(TABLE.select(cases=[0, 1, 2]), unit="case", choose=NAMES, **ASKED)


RNG = np.random.default_rng(2)
TRUTH = RNG.uniform(0.3, 0.7, 200)
# Every report of a width of 0.5 contains the target.
SURE = TRUTH[None, :, None] + 0.001 * RNG.standard_normal((2, 200, 4))
# The samples of every fourth case agree, and are wrong.
AGREED = TRUTH[None, :, None] + 0.1 * RNG.standard_normal((2, 200, 4))
AGREED[:, ::4] = AGREED[:, ::4, :1]


def table(outputs, cases=200, **more):
    return tq.TaskOutputs(
        outputs=outputs[:, :cases], targets=TRUTH[:cases], accelerations=np.array([8.0, 4.0]),
        **{name: value[:cases] for name, value in more.items()},
    )  # fmt: skip


def planned(outputs, cases=200, *, policy="fixed-width", group=None, **asked):
    more = {} if group is None else {"group": group}
    asked |= {} if policy == "fixed-width" else {"score": "lwr"}
    return tq.plan(table(outputs, cases, **more), alpha=0.1, max_width=0.5, policy=policy, **asked)


def test_score_that_the_policy_does_not_use_is_refused():
    with refused("option.unused"):
        tq.plan(table(SURE), alpha=0.1, max_width=0.5, score="lwr")


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_minus_infinity_stops_in_the_first_round(unit):
    policy = planned(SURE, group=np.arange(200) // 2, unit=unit)
    assert set(policy.thresholds) == {-np.inf}
    assert policy.decide(0, SURE[:1, :2]).stop
    assert policy.warning in " ".join(str(policy).split())
    assert policy.guarantee.caveat is None


def test_too_few_units_give_a_caveat():
    policy = planned(SURE, cases=5)
    assert "got 5" in policy.guarantee.caveat
    assert policy.guarantee.caveat in policy.decide(0, SURE[:1, 0]).reason
    assert str(policy).index("got 5") < str(policy).index("Guaranteed")


@pytest.mark.parametrize("policy", ["adaptive", "anytime", "paper"])
def test_scores_without_a_threshold_give_a_caveat(policy):
    made = planned(AGREED, policy=policy)
    assert set(made.thresholds) == {np.inf}
    assert "at every threshold" in made.guarantee.caveat


def test_threshold_at_which_nothing_stops_warns():
    blurred = TRUTH[None, :, None] + 3 * RNG.standard_normal((2, 200, 4))
    policy = planned(blurred, policy="anytime")
    assert np.isfinite(policy.thresholds).all()
    assert "200 calibration cases" in policy.warning


def exact_table():
    truth = np.linspace(0.1, 0.9, 60)
    outputs = np.broadcast_to(truth[None, :, None], (2, 60, 4))
    return tq.TaskOutputs(outputs, truth, (4, 2), group=np.arange(60) // 3, task_range=(0, 1))


@pytest.mark.parametrize("score", ["lwr", "cqr", "mlwr"])
@pytest.mark.parametrize(("kind", "unit"), [("adaptive", "group"), ("anytime", "case")])
def test_exact_outputs_stop_at_once(kind, score, unit):
    policy = tq.plan(exact_table(), alpha=0.2, max_width=0.1, policy=kind, score=score, unit=unit)
    decision = policy.decide(0, [0.5, 0.5, 0.5, 0.5])
    assert decision.stop
    assert decision.interval.contains(0.5)


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
@pytest.mark.parametrize("budget", [1.0, 0.5])
def test_exact_outputs_stop_at_once_with_windows(budget, unit):
    policy = tq.plan(exact_table(), alpha=0.2, max_width=0.1, budget=budget, unit=unit)
    assert policy.decide(0, np.full((1, 3, 4), 0.5)).stop


LEVELS = {"alpha": 0.2, "at_most": 0.5, "policy": "adaptive", "unit": "case"}
EARLY = {"alpha": 0.2, "max_width": 0.1, "delta": 0.15, "given": "early"}


@pytest.mark.parametrize(
    ("options", "is_stated"),
    [(LEVELS, True), ({**LEVELS, "delta": 0.1, "given": "early"}, False), (EARLY, False)],
)
def test_statement_of_a_level_excludes_early_reports(options, is_stated):
    text = tq.plan(exact_table(), **options).statement
    assert ("among those that stop early, a larger fraction of reports" in text) == is_stated


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_groups_of_one_case_double_delta_among_early_stops(unit):
    text = tq.plan(exact_table(), unit=unit, **EARLY).statement
    assert "for all but a fraction 0.15 of calibration sets" in text
    doubled = "exist, this holds for all but a fraction 0.3 of calibration sets." in text
    assert doubled == (unit == "whole-group")


def test_whole_group_never_stops_with_an_empty_report():
    # Nearly every group has a case that is too uncertain, so hardly any group ever stops.
    rng = np.random.default_rng(1)
    truth = rng.random(90)
    spread = np.where(np.arange(90) % 3 == 0, 0.3, 0.001)
    spread[:3] = 0.001
    outputs = truth[:, None] + spread[:, None] * rng.standard_normal((1, 90, 4))
    table = tq.TaskOutputs(outputs, truth, (4,), group=np.arange(90) // 3)
    policy = tq.plan(table, alpha=0.3, max_width=0.1, budget=0.5, unit="whole-group")
    decision = policy.decide(0, outputs[:, :3])
    assert not (decision.stops & decision.interval.is_empty).any()
