"""Bounds: JSON round trips, damaged files, accepted inputs."""

import json
from fractions import Fraction

import numpy as np
import pytest

import taskuq as tq
from own_score import OwnScore
from raising import refused, refuses
from taskuq._io import with_checksum
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


@pytest.mark.parametrize("score", ["cqr", "mlwr", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_bound_survives_a_file(kind, score, tmp_path):
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
def test_alpha_of_any_number_type_is_saved(alpha, score, tmp_path):
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=alpha, score=score)
    assert bound.quantile == tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score=score).quantile
    assert tq.load_bound(bound.save(tmp_path / "bound.json")).alpha == 0.1


def test_file_is_json_with_schema_and_guarantee(tmp_path):
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.001, task_range=(0, 1))
    record = json.loads(bound.save(tmp_path / "bound.json").read_text())
    assert record["schema"] == "taskuq.bound/1"
    assert record["sentence"] == bound.guarantee.statement
    assert record["threshold"]["quantile"] == "inf"


def test_interval_does_not_depend_on_other_cases():
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1)
    assert bound(OUTPUTS[3]).upper == bound(OUTPUTS).upper[3]
    assert bound(OUTPUTS[3]).upper.shape == ()


def test_bound_on_rounds_reads_all_of_them(tmp_path):
    rounds = np.stack([np.clip(OUTPUTS + 0.1 * RNG.standard_normal(OUTPUTS.shape), 0, 1), OUTPUTS])
    bound = tq.calibrate(rounds, TRUTH, alpha=0.2, score="learned")
    again = tq.load_bound(bound.save(tmp_path / "bound.json"))
    assert (again(rounds).upper == bound(rounds).upper).all()
    with refused("samples.mismatch"):
        bound(OUTPUTS)


def test_file_of_own_score_needs_the_score(tmp_path):
    own = OwnScore()
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score=own)
    path = bound.save(tmp_path / "bound.json")
    assert tq.load_bound(path, score=own)(OUTPUTS).upper[0] == bound(OUTPUTS).upper[0]
    with refused("option.missing"):
        tq.load_bound(path)


def test_torch_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1)
    tensor = torch.tensor(OUTPUTS, requires_grad=True)
    assert tq.calibrate(tensor, torch.tensor(TRUTH), alpha=0.1) == bound
    half = torch.tensor(OUTPUTS).to(torch.bfloat16)
    assert (bound(half).upper == bound(half.float().numpy()).upper).all()


RNG_DAMAGED_BOUNDS = np.random.default_rng(5)
X, Z = RNG_DAMAGED_BOUNDS.random((1, 5, 3)).astype(np.float32), RNG_DAMAGED_BOUNDS.random(5)


WRONG = ("file.format", "range.invalid", "choice.unknown", "file.damaged", "shape.mismatch")


X2, Z2 = np.stack([X[0], X[0]], axis=2), np.stack([Z, Z], axis=1)
BOUNDS = {
    "bound": (lambda: tq.calibrate(X[0], Z, alpha=0.4, score="mlwr"), tq.load_bound),
    "strata": (lambda: tq.calibrate(X[0], Z, alpha=0.4, strata=[0, 1, 0, 1, 0]), tq.load_bound),
    "weights": (lambda: tq.calibrate(X[0], Z, alpha=0.4, weights=np.ones(5)), tq.load_bound),
    "joint": (lambda: tq.calibrate_joint(X2, Z2, alpha=0.4), load_joint_bound),
    "online": (lambda: tq.calibrate_online(X[0], Z, alpha=0.4), load_online_bound),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOUNDS)
def test_bound_with_a_damaged_part_is_refused(kind, tmp_path):
    make, load = BOUNDS[kind]
    path = make().save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    # Descriptive fields may hold anything.
    used = set(record) - {
        "sentence", "provenance", "acceleration", "method", "alpha", "sha256",
    }  # fmt: skip
    for name in used - {"schema"}:
        for value in ("abc", [[]], {"name": "abc"}, -7.5):
            path.write_text(json.dumps(with_checksum(record | {name: value})))
            if not (
                name in ("level", "step", "audits", "misses", "samples", "rounds") and value == -7.5
            ):
                refuses(load, path, *WRONG)
        path.write_text(json.dumps(with_checksum({k: v for k, v in record.items() if k != name})))
        refuses(load, path, *WRONG)


@pytest.mark.parametrize("kind", BOUNDS)
def test_bound_of_another_schema_is_refused(kind, tmp_path):
    make, load = BOUNDS[kind]
    path = make().save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"schema": record["schema"][:-1] + "2"}))
    refuses(load, path, "file.schema")
    path.write_text(json.dumps(record | {"schema": "taskuq.outputs/1"}))
    refuses(load, path, "file.schema")
    path.write_text(json.dumps(record)[:-20])
    refuses(load, path, "file.format")


@pytest.mark.parametrize("part", ["typical_spreads", "location"])
@pytest.mark.parametrize("value", [[[]], ["a"], {"coefficients": [1]}, 3])
def test_damaged_learned_score_is_refused(part, value, tmp_path):
    x, z = RNG_DAMAGED_BOUNDS.random((60, 3)), RNG_DAMAGED_BOUNDS.random(60)
    path = tq.calibrate(x, z, alpha=0.2, score="learned").save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    record["score"]["fit"][part] = value
    path.write_text(json.dumps(with_checksum(record)))
    refuses(tq.load_bound, path, "config.type", "config.missing")
