"""What Python says about a setting of the explorer: quantiles, intervals, decisions."""

import numpy as np

import taskuq as tq
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.scores import resolve_score
from taskuq.calibration.scores.learned import Learned
from taskuq.decide.fixed_width import WindowRule
from taskuq.decide.goal import Goal
from taskuq.decide.kinds import PolicyPlan
from taskuq.decide.planning import OneSet
from taskuq.decide.policy import Policy
from taskuq.decide.rules import FamilyRule, examine
from taskuq.runs.explorer import FEWEST_FOR_LEARNED, RULES, learning_cases, tuned_scores


class Truth:
    """The explorer's arrays, calibrated by the package itself.

    Scores that set cases aside are tuned once, at the run's own error rate; everything else is done
    again for each setting, by the functions that users call.
    """

    def __init__(self, explorer, alpha, unit, task_range):
        self.x = np.moveaxis(explorer.calibration_outputs, 1, 0)
        self.z = explorer.calibration_targets
        self.group = explorer.calibration_group
        self.shown = np.moveaxis(explorer.outputs, 1, 0)
        self.rates = tuple(map(float, explorer.accelerations))
        self.range = task_range
        self.bases = {}
        self.known = {}
        if len(self.z) >= FEWEST_FOR_LEARNED:
            base = Learned()
            aside = learning_cases(base, len(self.z), alpha, self.group, unit)
            tuned = tuned_scores(base, self.x, self.z, aside, task_range, self.group)
            self.bases["learned"] = (tuned, ~aside)

    def base(self, name, alpha):
        if name in self.bases:
            return self.bases[name]
        everyone = np.ones(len(self.z), dtype=bool)
        return [resolve_score(name, alpha)] * len(self.x), everyone

    def bounds(self, setting):
        """One bound for each round, calibrated by itself."""
        scores, kept = self.base(setting["score"], float(setting["alpha"]))
        by_group = setting["unit"] == "group"
        return [
            tq.calibrate(
                self.x[: k + 1, kept], self.z[kept], alpha=float(setting["alpha"]), score=score,
                group=self.group[kept] if by_group else None, task_range=self.range,
            )
            for k, score in enumerate(scores)
        ]  # fmt: skip

    def policy(self, setting):
        """The policy with its thresholds."""
        alpha, goal = float(setting["alpha"]), Goal(max_width=float(setting["tau"]))
        entry = RULES[setting["policy"]]
        statistic = {"spread": "spread", "learned-window": "learned"}.get(entry.get("statistic"))
        if (statistic or setting["score"]) in ("spread", "mlwr"):
            return self.planned(setting, entry["kind"])
        scores, kept = self.base(statistic or setting["score"], alpha)
        if statistic:
            rules = [WindowRule(s, goal, self.range, float(R**0.25))
                     for s, R in zip(scores, self.rates, strict=True)]  # fmt: skip
        else:
            rules = [FamilyRule(s, goal, self.range) for s in scores]
        by_group = setting["unit"] == "group"
        group = self.group[kept] if by_group else None
        promise = Guarantee(
            alpha=alpha, unit="group" if by_group else "case", n_cases=int(kept.sum()),
            n_groups=len(np.unique(group)) if by_group else None,
        )  # fmt: skip
        x, z = self.x[:, kept, :, None], np.tile(self.z[kept][None, :, None], (len(rules), 1, 1))
        rules = tuple((rule,) for rule in rules)
        spec = PolicyPlan(entry["kind"], alpha, goal, statistic=statistic or "spread")
        seen = examine(rules, x, z)
        index = promise.whom.index(seen.cases, group)
        thresholds = spec.thresholds(seen, OneSet(promise, promise.whom, index))
        return Policy(entry["kind"], goal, self.rates, rules, tuple(thresholds), promise,
                      self.x.shape[2], task_ranges=(self.range,))  # fmt: skip

    def planned(self, setting, kind):
        """The policy of a score that learns from all calibration cases, as users plan it."""
        table = tq.TaskOutputs(self.x, self.z, self.rates, group=self.group, task_range=self.range)
        return tq.plan(table, alpha=float(setting["alpha"]), max_width=float(setting["tau"]),
                       policy=kind, score="mlwr", unit=setting["unit"])  # fmt: skip

    def at(self, setting):
        """Everything the browser computes for one slice, round by round."""
        key = tuple(setting[n] for n in ("alpha", "tau", "score", "policy", "unit", "slice"))
        if key not in self.known:
            self.known[key] = self.rounds(setting)
        return self.known[key]

    def rounds(self, setting):
        policy, bounds = self.policy(setting), self.bounds(setting)
        slice_, rounds = setting["slice"], []
        for k, bound in enumerate(bounds):
            so_far = self.shown[: k + 1, slice_ : slice_ + 1]
            interval = bound(so_far if bound.rounds > 1 else so_far[-1])
            decision = policy.decide(round=k, outputs=so_far)
            rounds.append({
                "quantile": bound.quantile,
                "interval": [float(interval.lower[0]), float(interval.upper[0])],
                "threshold": policy.thresholds[k],
                "report": [float(decision.interval.lower[0]), float(decision.interval.upper[0])],
                "stops": bool(decision.stops[0]),
            })  # fmt: skip
        return rounds


def differences(told, truth):
    """Where the browser's rounds differ from Python's; numbers may by one part in a billion."""
    found = []
    for k, (mine, yours) in enumerate(zip(told, truth, strict=True)):
        if mine["stops"] is not yours["stops"]:
            found.append((k, "stops", mine["stops"], yours["stops"]))
        for name in ("quantile", "interval", "threshold", "report"):
            pairs = zip(np.atleast_1d(mine[name]), np.atleast_1d(yours[name]), strict=True)
            found += [(k, name, a, b) for a, b in pairs if not _same(float(a), float(b))]
    return found


def _same(a, b):
    return a == b or abs(a - b) <= 1e-9 * max(1.0, abs(b))
