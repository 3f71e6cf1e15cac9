"""Quantiles, intervals and decisions of a setting of the explorer, computed by the package."""

from dataclasses import replace

import numpy as np

import taskuq as tq
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal.scores import resolve_score
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec, window_distribution
from taskuq.policy._rules import IntervalRule, WindowRule, stopping_statistics
from taskuq.policy._stopping import Calibrator
from taskuq.report._explorer import FEWEST_FOR_LEARNED, RULES, _learning_cases, _tuned_scores


class Truth:
    """The explorer's arrays, calibrated by the package itself.

    Scores that set cases aside are tuned once, at the run's own error rate; everything else is done
    again for each setting, by the functions that users call.
    """

    def __init__(self, explorer, alpha, unit, task_range):
        several = explorer.outputs.ndim == 4
        # (round, case, sample, task) and (case, task), with one task too.
        x, shown = (np.moveaxis(v, 1, 0) for v in (explorer.calibration_outputs, explorer.outputs))
        self.x, self.shown = (v if several else v[..., None] for v in (x, shown))
        z = explorer.calibration_targets
        self.z = z if several else z[:, None]
        self.group, self.label = explorer.calibration_group, explorer.calibration_label
        self.rates = tuple(map(float, explorer.accelerations))
        self.tasks = self.x.shape[3]
        own = [explorer.for_task(t).task_range for t in range(self.tasks)]
        self.ranges = [task_range if one is None else one for one in own]
        self.bases = {}
        self.known = {}
        if len(self.z) >= FEWEST_FOR_LEARNED:
            base = LearnedScore()
            aside = _learning_cases(base, explorer, alpha, unit)
            tuned = [
                _tuned_scores(base, self.x[..., t], self.z[:, t], aside, self.ranges[t], self.group)
                for t in range(self.tasks)
            ]
            self.bases["learned"] = (tuned, ~aside)

    def base(self, name, alpha):
        """The scores of each task and round, and the cases they did not learn from."""
        if name in self.bases:
            return self.bases[name]
        everyone = np.ones(len(self.z), dtype=bool)
        return [[resolve_score(name, alpha)] * len(self.x)] * self.tasks, everyone

    def bounds(self, setting):
        """One bound for each round of the shown task, calibrated by itself."""
        scores, kept = self.base(setting["score"], float(setting["alpha"]))
        by_group, t = setting["unit"] == "group", setting.get("task", 0)
        is_by_class = setting["within"] == "class"
        return [
            tq.calibrate(
                self.x[..., t][: k + 1, kept], self.z[kept, t], alpha=float(setting["alpha"]),
                score=score, group=self.group[kept] if by_group else None,
                label=self.label[kept] if is_by_class else None, task_range=self.ranges[t],
            )
            for k, score in enumerate(scores[t])
        ]  # fmt: skip

    def widths(self, setting):
        return [float(text) for text in setting["tau"].split(",")]

    def table(self):
        """The calibration cases as users have them."""
        x, z = (self.x, self.z) if self.tasks > 1 else (self.x[..., 0], self.z[:, 0])
        return tq.TaskOutputs(x, z, self.rates, group=self.group, label=self.label,
                              task_ranges=self.ranges)  # fmt: skip

    def policy(self, setting):
        alpha, widths = float(setting["alpha"]), self.widths(setting)
        entry = RULES[setting["policy"]]
        statistic = {"spread": "spread", "learned-window": "learned"}.get(entry.get("statistic"))
        if (statistic or setting["score"]) in ("spread", "mlwr"):
            return self.planned(setting, entry["kind"])
        scores, kept = self.base(statistic or setting["score"], alpha)

        def rule(k, t):
            goal, range_ = Goal(max_width=widths[t]), self.ranges[t]
            if statistic:
                law = window_distribution(
                    scores[t][k], self.x[: k + 1, ..., t][:, ~kept], self.z[~kept, t]
                )
                return WindowRule(
                    scores[t][k], goal, range_, float(self.rates[k] ** 0.25), None, law
                )
            return IntervalRule(scores[t][k], goal, range_)

        rules = tuple(tuple(rule(k, t) for t in range(self.tasks)) for k in range(len(self.rates)))
        by_group = setting["unit"] == "group"
        group = self.group[kept] if by_group else None
        guarantee = Guarantee(
            alpha=alpha, unit="group" if by_group else "case", n_cases=int(kept.sum()),
            n_groups=len(np.unique(group)) if by_group else None, tasks=self.tasks,
            **self.conditions(setting),
        )  # fmt: skip
        x, z = self.x[:, kept], np.tile(self.z[kept][None], (len(rules), 1, 1))
        goal = Goal(max_width=widths[0])
        spec = PolicySpec(entry["kind"], alpha, goal, statistic=statistic or "spread")
        seen = stopping_statistics(rules, x, z)
        index = guarantee._unit.index(seen.cases, group)
        calibrator = Calibrator(guarantee, guarantee._unit, index)
        within = self.label[kept] if setting["within"] == "class" else None
        thresholds = spec.thresholds(seen, calibrator, within=within)
        return replace(
            self.planned(setting | {"policy": "paper"}, "paper"), kind=entry["kind"],
            _rules=rules, thresholds=tuple(map(float, thresholds)), guarantee=guarantee,
        )  # fmt: skip

    def planned(self, setting, kind):
        """The policy of a score that learns from all calibration cases, as users plan it."""
        score = None if kind == "fixed-width" else "mlwr"
        return tq.plan(self.table(), alpha=float(setting["alpha"]),
                       max_width=self.widths(setting), policy=kind, score=score,
                       unit=setting["unit"],
                       label="label" if setting["within"] == "class" else None)  # fmt: skip

    def conditions(self, setting):
        if setting["within"] == "all":
            return {}
        by_group = setting["unit"] == "group"
        return {"condition": "each class", "condition_on": "case" if by_group else None,
                "strata": len(np.unique(self.label))}  # fmt: skip

    def at(self, setting):
        """Everything the browser computes for one slice, round by round."""
        names = ("alpha", "tau", "score", "policy", "unit", "within", "slice")
        key = (*(setting[name] for name in names), setting.get("task", 0))
        if key not in self.known:
            self.known[key] = self.rounds(setting)
        return self.known[key]

    def rounds(self, setting):
        policy, bounds = self.policy(setting), self.bounds(setting)
        slice_, task, rounds = setting["slice"], setting.get("task", 0), []
        for k, bound in enumerate(bounds):
            so_far = self.shown[: k + 1, slice_ : slice_ + 1]
            mine = so_far[..., task]
            interval = bound(mine if bound.rounds > 1 else mine[-1])
            decision = policy.decide(round=k, outputs=so_far if self.tasks > 1 else mine)
            report = [
                float(np.reshape(end, (-1, self.tasks))[0, task])
                for end in (decision.interval.lower, decision.interval.upper)
            ]
            rounds.append({
                "quantile": bound.quantile,
                "interval": [float(interval.lower[0]), float(interval.upper[0])],
                "threshold": policy.thresholds[k],
                "report": report,
                "stops": bool(decision.stops[0]),
            })  # fmt: skip
        return rounds


def differences(found_rounds, truth):
    """Where the browser's rounds differ from Python's; numbers may by one part in a billion."""
    found = []
    for k, (mine, yours) in enumerate(zip(found_rounds, truth, strict=True)):
        if mine["stops"] is not yours["stops"]:
            found.append((k, "stops", mine["stops"], yours["stops"]))
        for name in ("quantile", "interval", "threshold", "report"):
            pairs = zip(np.atleast_1d(mine[name]), np.atleast_1d(yours[name]), strict=True)
            found += [(k, name, a, b) for a, b in pairs if not _same(float(a), float(b))]
    return found


def _same(a, b):
    return a == b or abs(a - b) <= 1e-9 * max(1.0, abs(b))
