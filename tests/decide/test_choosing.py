"""A policy chosen on units of its own keeps its promise; one chosen on its calibration set not."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.conformal._calibrate import tuning_count
from taskuq.conformal._units import choose_units
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.errors import InputError
from taskuq.policy import _plan as choosing
from taskuq.policy import _plan as planning
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._plan import _parse_policy, _policy_name
from taskuq.report._report import write_report
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs

ALPHA, WIDTH = 0.25, 1.0
# Eleven policies, as the referee had.
POLICIES = [
    *({"kind": "adaptive", "score": score} for score in ("ar", "lwr", "cqr")),
    *({"kind": "fixed-width", "round_tolerance": g} for g in (-4, -2, -1, -0.5, 0.0, 0.5, 1, 4)),
]


def population(seed, cases=16):
    """Cases whose outputs say little, so that a choice among policies finds chance."""
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


def best_on_the_calibration_set(table):
    plans = [
        _parse_policy(p, PolicySpec("adaptive", ALPHA, Goal(max_width=WIDTH))) for p in POLICIES
    ]
    made = [
        tq.plan(
            table, alpha=ALPHA, max_width=WIDTH, policy=p.kind, score=p.score, round_tolerance=p.round_tolerance
        )
        for p in plans
    ]
    return max(made, key=lambda policy: policy.certificate["mean_acceleration"])


class Chosen:
    """Sets aside the cases it was told to, by their positions."""

    def __init__(self, first):
        self.first = list(first)

    def permutation(self, n):
        return np.array(self.first + [i for i in range(n) if i not in self.first])


@pytest.fixture(autouse=True)
def remember_costs(monkeypatch):
    """Compare policies on the same cases once, not again for each new case."""
    cost, known = choosing._cost, {}

    def remembered(plan, table, unit, make):
        key = repr(plan), table.targets.tobytes()
        if key not in known:
            known[key] = cost(plan, table, unit, make)
        return known[key]

    monkeypatch.setattr(choosing, "_cost", remembered)


def miss_of_chosen(table, aside, named=POLICIES):
    """The share of the other cases, each the new one once, whose report misses; exactly."""
    rest, bad = [i for i in range(table.cases) if i not in aside], 0
    for new in rest:
        # One case fewer: the positions behind the new one move up.
        rng = Chosen(i - (i > new) for i in aside)
        policy = tq.plan(without(table, new), alpha=ALPHA, max_width=WIDTH, choose=named, rng=rng)
        assert policy.provenance["chosen"]["units"] == len(aside)
        assert len(policy.provenance["chosen"]["mean_acceleration"]) == len(named)
        bad += missed(policy, table, new)
    return Fraction(bad, len(rest))


@pytest.mark.parametrize("seed", range(10))
def test_the_policy_chosen_on_other_cases_keeps_its_promise(seed):
    table, rng = population(seed), np.random.default_rng(seed)
    every = list(combinations(range(16), 4))
    # The promise holds for each choice of the cases set aside, so each is a law of its own.
    for number in rng.choice(len(every), 3, replace=False):
        assert miss_of_chosen(table, every[number]) <= Fraction(1, 4)


def test_the_policy_chosen_on_its_calibration_set_breaks_it():
    broken = 0
    for seed in range(6):
        table = population(seed)
        chosen = [best_on_the_calibration_set(without(table, i)) for i in range(16)]
        broken += sum(missed(p, table, i) for i, p in enumerate(chosen)) > 4

    assert broken >= 2


def test_a_choice_that_looks_at_the_calibration_cases_is_caught(monkeypatch):
    honest = choosing._choose_policy

    def peeking(named, asked, table, unit, make, rng):
        found = honest(named, asked, table, unit, make, rng)
        rest = table.select(cases=~found.aside)
        plans = [_parse_policy(one, asked) for one in named]
        best = max(plans, key=lambda p: make(p, rest).certificate["mean_acceleration"])
        return replace(found, best=best)

    monkeypatch.setattr(planning, "_choose_policy", peeking)
    aside = (0, 4, 8, 10)

    assert max(miss_of_chosen(population(seed), aside) for seed in range(8)) > Fraction(1, 4)


TABLE = synthetic_outputs(SyntheticTable(volumes=40), seed=0)
ASKED = {"alpha": 0.1, "max_width": 0.2}
NAMES = ["fixed-width:spread", "fixed-width:learned", "adaptive:mlwr"]


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_a_chosen_policy_says_what_it_was_chosen_among_and_on_what(unit, tmp_path):
    made = tq.plan(TABLE, unit=unit, choose=NAMES, **ASKED)
    chosen = made.provenance["chosen"]
    units = 40 if made.guarantee.whom.is_group else TABLE.cases

    assert chosen["units"] == tuning_count(units, 0.3, 0.1)
    assert list(chosen["mean_acceleration"]) == NAMES
    assert chosen["policy"] == max(NAMES, key=chosen["mean_acceleration"].get)
    assert made.sentence.endswith(chosen["sentence"])
    assert f"{', '.join(NAMES)} on {chosen['units']} other" in made.sentence
    assert made.guarantee.n_cases + made.provenance["tuning_cases"] == TABLE.cases - chosen["cases"]
    assert tq.load_policy(made.save(tmp_path / "policy.json")).sentence == made.sentence


def test_sizes_of_groups_do_not_move_what_is_set_aside():
    # Sizes are tied to how hard a group is; only the number of groups may count.
    group = np.repeat(np.arange(40), np.arange(1, 41))
    rng = np.random.default_rng(0)
    truth = rng.normal(size=len(group))
    outputs = truth[None, :, None] + group[None, :, None] * rng.normal(size=(2, len(group), 4)) / 40
    table = TaskOutputs(outputs, truth, accelerations=[4, 2], group=group)
    made = tq.plan(table, choose=["adaptive:lwr", "adaptive:ar"], **ASKED)

    assert made.provenance["chosen"]["units"] == tuning_count(40, 0.3, 0.1)


def test_the_chosen_policy_is_planned_on_the_other_cases_alone():
    made = tq.plan(TABLE, unit="case", choose=NAMES[:1], **ASKED)
    aside = choose_units(np.arange(TABLE.cases), tuning_count(TABLE.cases, 0.3, 0.1), None)
    alone = tq.plan(TABLE.select(cases=~aside), unit="case", **ASKED)

    assert made.thresholds == alone.thresholds
    assert made.guarantee == alone.guarantee


def test_choosing_goes_with_promises_given_the_calibration_set():
    made = tq.plan(TABLE, unit="case", choose=NAMES[:2], delta=0.1, given="early", **ASKED)

    assert made.guarantee.given == "early"
    assert "scan stops before everything is measured" in made.sentence
    assert "was chosen among" in made.sentence


@pytest.mark.parametrize(
    "name", [*NAMES, "fixed-width:learned:budget=0.5:round_tolerance=1", "paper:cqr", "anytime:ar"]
)
def test_a_plan_is_found_again_by_its_name(name):
    assert _policy_name(_parse_policy(name, PolicySpec("paper", 0.1, Goal(max_width=0.1)))) == name


@pytest.mark.parametrize(
    ("choose", "sentence"),
    [
        ([], "choose names no policy"),
        (
            ["fixed-width:colour=red"],
            "a fixed-width policy is named by statistic, budget, round_tolerance",
        ),
        (["nothing"], "nothing"),
        ([3], "a policy is named by a text such as 'adaptive:mlwr', got 3"),
        (3, "a policy is named by a text such as 'adaptive:mlwr', got 3"),
        ([{"kind": ["adaptive"]}], "unknown policy"),
        ([{"kind": "adaptive", "colour": "red"}], "got 'colour'"),
        (["fixed-width:budget=much"], "budget must be a number, got 'much'"),
        ([{"kind": "adaptive", "alpha": 0.5}], "got 'alpha'"),
        ([PolicySpec("paper", 0.2, Goal(max_width=0.1))], "the alpha and the goal asked for"),
    ],
)
def test_what_cannot_be_chosen_among_is_refused(choose, sentence):
    with pytest.raises(InputError, match=sentence):
        tq.plan(TABLE, choose=choose, **ASKED)


def test_every_policy_is_listed_though_two_share_a_name():
    twins = [
        PolicySpec("adaptive", 0.1, Goal(max_width=0.2), score=score) for score in (MLWR(),) * 2
    ]
    made = tq.plan(TABLE, unit="case", choose=twins, **ASKED)

    assert list(made.provenance["chosen"]["mean_acceleration"]) == [
        "adaptive:mlwr",
        "adaptive:mlwr'",
    ]


def test_too_few_units_to_choose_on_are_refused():
    with pytest.raises(InputError, match="choosing needs at least 2 cases"):
        tq.plan(TABLE.select(cases=[0, 1, 2]), unit="case", choose=NAMES, **ASKED)


def test_the_command_line_chooses_and_simulate_says_what_choosing_costs(tmp_path, capsys):
    TABLE.save(tmp_path / "table.npz")
    asked = f"{tmp_path}/table.npz --alpha 0.1 --max-width 0.2 --unit case"
    main(f"plan {asked} --choose {','.join(NAMES)} -o {tmp_path}/policy.json".split())
    said = " ".join(capsys.readouterr().err.split())
    record = f"--json {tmp_path}/simulate.json"
    main(f"simulate {asked} --policy adaptive --score lwr,ar --splits 5 {record}".split())
    warned = " ".join(capsys.readouterr().err.split())

    assert tq.load_policy(tmp_path / "policy.json").provenance["chosen"]["sentence"] in said
    assert "has no promise left" in warned
    assert "plan --choose" in warned
    assert "no promise left" in write_report(tmp_path).read_text()


def test_a_policy_without_a_promise_cannot_be_chosen():
    table = synthetic_outputs(SyntheticTable(volumes=10), seed=0)
    with pytest.raises(InputError, match="promises nothing"):
        tq.plan(table, alpha=0.1, max_width=0.2, choose=["adaptive:lwr", "paper:cqr"])


@pytest.mark.parametrize("named", ["adaptive:budget=0.5", "anytime:round_tolerance=7", 3])
def test_what_a_policy_would_not_read_is_refused(named):
    with pytest.raises(InputError, match="is named by"):
        _parse_policy(named, PolicySpec("fixed-width", 0.1, Goal(max_width=0.1)))
