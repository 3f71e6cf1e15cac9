"""Bounds that are damaged or forged are refused."""

import json

import numpy as np
import pytest

import taskuq as tq
from taskuq._io import with_checksum
from taskuq.conformal._joint import load_joint_bound
from taskuq.conformal._online import load_online_bound

RNG = np.random.default_rng(5)
X, Z = RNG.random((1, 5, 3)).astype(np.float32), RNG.random(5)


def refuses(load, path, code=None):
    with pytest.raises(tq.InputError) as refusal:
        load(path)
    message = str(refusal.value)
    assert "\n" not in message
    assert len(message.replace(str(path), "")) < 300
    assert code in (None, refusal.value.code), message


X2, Z2 = np.stack([X[0], X[0]], axis=2), np.stack([Z, Z], axis=1)
BOUNDS = {
    "bound": (lambda: tq.calibrate(X[0], Z, alpha=0.4, score="mlwr"), tq.load_bound),
    "strata": (lambda: tq.calibrate(X[0], Z, alpha=0.4, strata=[0, 1, 0, 1, 0]), tq.load_bound),
    "weights": (lambda: tq.calibrate(X[0], Z, alpha=0.4, weights=np.ones(5)), tq.load_bound),
    "joint": (lambda: tq.calibrate_joint(X2, Z2, alpha=0.4), load_joint_bound),
    "online": (lambda: tq.calibrate_online(X[0], Z, alpha=0.4), load_online_bound),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_bound_with_a_part_missing_or_of_another_kind_is_refused(kind, tmp_path):
    make, load = BOUNDS[kind]
    path = make().save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    # What is only remembered may be anything.
    used = set(record) - {
        "sentence", "provenance", "acceleration", "method", "alpha", "sha256",
    }  # fmt: skip
    for name in used - {"schema"}:
        for value in ("abc", [[]], {"name": "abc"}, -7.5):
            path.write_text(json.dumps(with_checksum(record | {name: value})))
            if not (
                name in ("level", "step", "audits", "misses", "samples", "rounds") and value == -7.5
            ):
                refuses(load, path)
        path.write_text(json.dumps(with_checksum({k: v for k, v in record.items() if k != name})))
        refuses(load, path)


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_bound_from_a_newer_version_or_another_kind_is_refused(kind, tmp_path):
    make, load = BOUNDS[kind]
    path = make().save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"schema": record["schema"][:-1] + "2"}))
    refuses(load, path, "file.schema")
    path.write_text(json.dumps(record | {"schema": "taskuq.outputs/1"}))
    refuses(load, path, "file.schema")
    path.write_text(json.dumps(record)[:-20])
    refuses(load, path)


@pytest.mark.parametrize("part", ["typical_spreads", "typical_moves", "location", "scale", "prior"])
@pytest.mark.parametrize("value", [[[]], ["a"], {"coefficients": [1]}, 3])
def test_a_learned_score_whose_parts_do_not_fit_is_refused(part, value, tmp_path):
    x, z = RNG.random((60, 3)), RNG.random(60)
    path = tq.calibrate(x, z, alpha=0.2, score="learned").save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    record["score"]["fit"][part] = value
    path.write_text(json.dumps(with_checksum(record)))

    refuses(tq.load_bound, path)
