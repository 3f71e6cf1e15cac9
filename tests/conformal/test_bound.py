"""Bounds travel as JSON, refuse what does not fit, and say what they promise."""

import json
from fractions import Fraction

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.conformal._joint import load_joint_bound
from taskuq.conformal._online import load_online_bound

RNG = np.random.default_rng(6)
TRUTH = RNG.random(120)
OUTPUTS = np.clip(TRUTH[:, None] + 0.1 * RNG.standard_normal((120, 6)), 0, 1)
GROUP = np.repeat([f"patient {i}" for i in range(40)], 3)

KINDS = {
    "plain": {},
    "range": {"task_range": (0, 1)},
    "half-open range": {"task_range": (0, np.inf)},
    "upper": {"side": "upper"},
    "each end": {"side": "each"},
    "each end of strata": {"side": "each", "strata": np.where(TRUTH > 0.5, "high", "low")},
    "each end under weights": {"side": "each", "weights": np.ones(120)},
    "groups": {"group": GROUP},
    "most cases of a group": {"group": GROUP, "cases": 0.5},
    "given the set": {"delta": 0.1},
    "groups given the set": {"group": GROUP, "delta": 0.3},
    "classes": {"label": np.arange(120) % 2},
    "strata": {"strata": np.where(TRUTH > 0.5, "high", "low")},
    "weights": {"weights": np.ones(120)},
    "too few": {"alpha": 0.001, "task_range": (0, 1)},
    "at an acceleration": {"acceleration": np.int64(8)},
}


@pytest.mark.parametrize("score", ["ar", "lwr", "cqr", "mlwr", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_read_back_is_the_same_bound(kind, score, tmp_path):
    options = {"alpha": 0.2, "score": score} | KINDS[kind]
    extra = {name: options[name] for name in ("strata", "weights") if name in options}
    bound = tq.calibrate(OUTPUTS, TRUTH, **options)
    again = tq.load_bound(bound.save(tmp_path / "bound.json"))

    assert again == bound
    assert str(again) == str(bound)
    for end in ("lower", "upper"):
        np.testing.assert_array_equal(
            getattr(again(OUTPUTS, **extra), end), getattr(bound(OUTPUTS, **extra), end)
        )


@pytest.mark.parametrize("alpha", [np.float32(0.1), np.float64(0.1), Fraction(1, 10)])
@pytest.mark.parametrize("score", ["lwr", "cqr"])
def test_any_number_may_be_alpha_and_still_be_saved(alpha, score, tmp_path):
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=alpha, score=score)

    assert bound.quantile == tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score=score).quantile
    assert tq.load_bound(bound.save(tmp_path / "bound.json")).alpha == 0.1


def test_the_file_is_plain_json_with_a_schema_and_the_promise(tmp_path):
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.001, task_range=(0, 1))
    record = json.loads(bound.save(tmp_path / "bound.json").read_text())

    assert record["schema"] == "taskuq.bound/1"
    assert record["sentence"] == bound.guarantee.statement
    assert record["threshold"]["quantile"] == "inf"


def test_a_bound_without_enough_cases_is_the_range_and_says_so():
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.001, task_range=(0, 1), score="lwr")
    interval = bound(OUTPUTS)

    assert (interval.lower == 0).all()
    assert (interval.upper == 1).all()
    assert "needs at least 999 calibration cases, got 120" in str(bound)


def test_one_case_gets_the_interval_it_has_among_others():
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1)

    assert bound(OUTPUTS[3]).upper == bound(OUTPUTS).upper[3]
    assert bound(OUTPUTS[3]).upper.shape == ()


def test_a_bound_on_rounds_reads_all_of_them(tmp_path):
    rounds = np.stack([np.clip(OUTPUTS + 0.1 * RNG.standard_normal(OUTPUTS.shape), 0, 1), OUTPUTS])
    bound = tq.calibrate(rounds, TRUTH, alpha=0.2, score="learned")
    again = tq.load_bound(bound.save(tmp_path / "bound.json"))

    assert (again(rounds).upper == bound(rounds).upper).all()
    with refused("samples.mismatch"):
        bound(OUTPUTS)


class Own:
    """A user's own score."""

    def score(self, outputs, targets):
        return np.abs(targets - outputs[:, 0])

    def interval(self, outputs, quantile):
        return tq.Interval(outputs[:, 0] - quantile, outputs[:, 0] + quantile)


def test_a_users_score_is_given_back_when_the_file_is_read(tmp_path):
    own = Own()
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score=own)
    path = bound.save(tmp_path / "bound.json")

    assert tq.load_bound(path, score=own)(OUTPUTS).upper[0] == bound(OUTPUTS).upper[0]
    with refused("option.missing"):
        tq.load_bound(path)


def test_a_users_score_works_jointly_and_online_from_a_file(tmp_path):
    own, both = Own(), np.stack([OUTPUTS, OUTPUTS], axis=2)
    joint = tq.calibrate_joint(both, np.stack([TRUTH, TRUTH], axis=1), alpha=0.1, score=own)
    online = tq.calibrate_online(OUTPUTS, TRUTH, alpha=0.1, score=own)

    assert load_joint_bound(joint.save(tmp_path / "j.json"), score=own) == joint
    assert load_online_bound(online.save(tmp_path / "o.json"), score=own) == online


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["a new case", "0.8", "120 calibration cases"], {}),
        (["a random case of a new group", "40 calibration groups"], {"group": GROUP}),
        (["every case of a new group"], {"group": GROUP, "cases": "all"}),
        (["at least 0.5 of the cases of a new group"], {"group": GROUP, "cases": 0.5}),
        (["for all but 0.1 of calibration sets"], {"delta": 0.1}),
        (["within each of the 2 calibrated classes"], {"label": np.arange(120) % 2}),
        (["within each stratum"], {"strata": np.arange(120) % 2}),
        (["under the shift that the weights describe"], {"weights": np.ones(120)}),
    ],
)
def test_the_promise_names_its_unit_and_condition(words, options):
    sentence = tq.calibrate(OUTPUTS, TRUTH, alpha=0.2, score="lwr", **options).guarantee.statement

    assert all(word in sentence for word in ["Guaranteed", *words])


def test_a_torch_tensor_is_as_good_as_an_array():
    torch = pytest.importorskip("torch")
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1)
    tensor = torch.tensor(OUTPUTS, requires_grad=True)

    assert tq.calibrate(tensor, torch.tensor(TRUTH), alpha=0.1) == bound
    half = torch.tensor(OUTPUTS).to(torch.bfloat16)
    assert (bound(half).upper == bound(half.float().numpy()).upper).all()
