"""Policies as JSON for other languages, with test vectors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from taskuq._io import fingerprint, number_to_json, to_json_value
from taskuq.conformal._quantiles import exact_alpha
from taskuq.conformal.scores import score_name
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.conformal.scores._paper import AR, CQR, LWR
from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange
from taskuq.policy._policy import Policy
from taskuq.policy._rules import IntervalRule, StoppingRule, WindowRule, window_place

SCHEMA, VECTORS = "taskuq.decide/1", "taskuq.decide-vectors/1"
KINDS = ("fixed-width", "adaptive", "anytime", "paper")


def export_policy(policy: Policy) -> dict[str, Any]:
    policy.for_stratum(None)
    if policy.kind not in KINDS:
        raise InputError(f"policy {policy.kind!r} has no specification", code="choice.unknown")
    if policy.whole_group:
        raise InputError(
            "whole groups have no specification; plan with unit='group'", code="option.conflict"
        )
    return {
        "schema": SCHEMA,
        "policy": fingerprint(policy.to_dict()),
        "samples": policy.samples,
        "tasks": list(policy.task_names),
        "ranges": [_range(range_) for range_ in policy.task_ranges],
        "refuse_identical": policy.provenance.get("identical_samples") == 0 and policy.samples > 1,
        "thresholds": [number_to_json(t) for t in policy.thresholds],
        "rules": [
            [_rule(rule, range_) for rule, range_ in zip(rules, policy.task_ranges, strict=True)]
            for rules in policy._rules
        ],
    }


def _rule(rule: StoppingRule, range_: TaskRange) -> dict[str, Any]:
    assert isinstance(rule, WindowRule | IntervalRule)
    goal = rule.goal
    record = {"side": goal.side, "max_width": goal.max_width, "level": goal.level, **_score(rule)}
    if isinstance(rule, IntervalRule):
        return {"report": "interval", **record}
    if rule.narrowing is not None:
        raise InputError(
            "a budget below 1 has no specification; plan with budget=1", code="option.conflict"
        )
    place = _range(window_place(rule.score, range_))
    return {"report": "window", "weight": rule.weight, "place": place, **record}


def _score(rule: WindowRule | IntervalRule) -> dict[str, Any]:
    score, mean = rule.score, {"kind": "mean"}
    if isinstance(score, AR | LWR | CQR | MLWR) and score.side != rule.goal.side:
        raise InputError("score and goal have different sides; plan again", code="policy.mismatch")
    match score:
        case AR():
            return {"center": mean, "scale": {"kind": "one"}}
        case LWR():
            return {"center": mean, "scale": {"kind": "deviation", "less": 0}}
        case CQR():
            tail = float(exact_alpha(score.alpha)) / (2 if score.side == "two" else 1)
            quantiles = {"kind": "quantiles", "levels": [tail, 1 - tail]}
            return {"center": quantiles, "scale": {"kind": "one"}}
        case MLWR():
            center: dict[str, Any] = {"kind": "trimmed-mean"} if score.is_robust else mean
            shifted = {**center, "shift": score.shift} if score.shift else center
            return {"center": shifted, "scale": _regularised(score)}
    raise InputError(f"score {score_name(score)!r} has no specification", code="choice.unknown")


def _regularised(score: MLWR) -> dict[str, Any]:
    prior, link = score.prior, score.link
    if prior is None:
        # One sample has no spread: the width is the same for all.
        return {"kind": "deviation", "less": 1}
    _, slope, curve = prior.coefficients
    if curve:
        raise InputError(
            "a curved prior has no specification; plan again", code="component.invalid"
        )
    return {
        "kind": "moderated",
        "degrees": prior.degrees,
        "trend": float(prior.trend_at_zero),
        "least": prior.least,
        "slope": slope,
        "covariates": list(prior.covariate_range),
        "soft": None if link.is_identity else [link.low, link.high],
        "added": score.floor * prior.typical,
    }


def _range(range_: TaskRange) -> list[float | str] | None:
    return None if range_ is None else [number_to_json(end) for end in range_]


def export_test_vectors(policy: Policy, *, cases: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    vectors: list[dict[str, Any]] = []
    for k in range(len(policy.accelerations)):
        made = (_outputs(policy, k, rng) for _ in range(100 * cases))
        clear = (x for x in made if not _is_close(policy, k, x))
        for x in islice(clear, cases):
            decision = policy.decide(k, x if len(policy.task_names) > 1 else x[..., 0])
            ends = {"lower": decision.interval.lower, "upper": decision.interval.upper}
            listed = {name: np.atleast_1d(end).tolist() for name, end in ends.items()}
            vectors.append({"round": k, "outputs": x.tolist(), "stop": decision.stop, **listed})
    return {
        "schema": VECTORS,
        "seed": seed,
        "specification": export_policy(policy),
        "vectors": to_json_value([*vectors, *_refused(policy, vectors[0]["outputs"])]),
    }


def _outputs(policy: Policy, k: int, rng: np.random.Generator) -> FloatArray:
    """Draw synthetic outputs (round, sample, task) of one case for a test vector."""
    columns = []
    for t, range_ in enumerate(policy.task_ranges):
        goal = policy.goal.for_task(t)
        low, high = range_ or (-np.inf, np.inf)
        size = goal.max_width or abs(float(goal.level or 0.0)) or 1.0
        if np.isfinite([low, high]).all():
            middle = rng.choice([low, high, rng.uniform(low, high)], p=[0.1, 0.1, 0.8])
        else:
            middle = (goal.level or 0.0) + size * rng.standard_normal()
        spread = size * 10.0 ** rng.uniform(-4, 0.5)
        samples = middle + spread * rng.standard_normal((k + 1, policy.samples))
        samples[rng.random(k + 1) < 0.1] = middle
        # Few digits, for readers; the task's range may end between two of them.
        digits = 4 - int(np.floor(np.log10(size)))
        columns.append(np.clip(np.round(samples, digits), low, high))
    return np.stack(columns, axis=-1)


def _is_close(policy: Policy, k: int, x: FloatArray) -> bool:
    """Return True if a rounding error could change the decision for these outputs."""
    threshold = policy.thresholds[k]
    for t, rule in enumerate(policy._rules[k]):
        e = rule.examine(x[:, None, :, t])
        for end in (float(e.lowest[0]), float(e.largest[0])):
            is_tie = end == threshold and isinstance(rule.score, AR)
            finite = np.isfinite([end, threshold]).all() and not is_tie
            if finite and abs(end - threshold) <= 1e-9 * (1 + abs(threshold)):
                return True
    return False


def _refused(policy: Policy, outputs: Any) -> Iterator[dict[str, Any]]:
    x, range_ = np.asarray(outputs), policy.task_ranges[0]
    for wrong in (x[:, 1:], np.concatenate([x, x]), np.concatenate([x, x], axis=2)):
        yield {"round": 0, "outputs": wrong.tolist(), "refused": True}
    for k in (-1, len(policy.accelerations)):
        yield {"round": k, "outputs": x.tolist(), "refused": True}
    for value in ("nan", "inf", *([] if range_ is None else [range_[0] - 1.0])):
        spoilt = x.tolist()
        spoilt[0][0][0] = value
        yield {"round": 0, "outputs": spoilt, "refused": True}
