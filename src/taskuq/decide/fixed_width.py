"""Fixed-width stopping: report a window that achieves the goal, as soon as that is safe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from taskuq.calibration.family import AnchoredFamily, Side, clipped
from taskuq.calibration.link import IDENTITY
from taskuq.calibration.rank import conformal_quantile, exact_level
from taskuq.calibration.scores import score_to_dict
from taskuq.calibration.scores.learned import Learned
from taskuq.calibration.scores.mlwr import MLWR
from taskuq.decide.goal import Goal, Goals
from taskuq.decide.kinds import PolicyKind, PolicyPlan, TaskPlan
from taskuq.decide.probable import ResidualLaw, fit_residual_law, probable_window
from taskuq.decide.rules import Examination, Examined, Record, Rule, Rules, examine, opening
from taskuq.decide.stopping import Calibrator, stopped_promise, stopping_score
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.protocols import Family, Score

# The share of units from which reports learn when and how far to shrink.
NARROWING_TUNING_SHARE = 0.3


@final
@dataclass(frozen=True)
class WindowRule(Rule):
    r"""Stop when a window that achieves the goal is safe enough, and report the window.

    The risk statistic of a case is the predicted error over the reach of the window,

    .. math:: h = R^\gamma \cdot \frac{u}{d}

    with the score's scale :math:`u` and the distance :math:`d` from its centre to the nearer end
    of the window. In terms of the threshold :math:`\lambda = -t` the case stops when
    :math:`h < t`. :math:`\gamma > 0` makes later rounds more tolerant, because going on costs
    more there.

    With ``residuals`` the window lies where the target most probably is
    (:func:`~taskuq.decide.probable.probable_window`). With the probability :math:`p` of a miss,

    .. math:: h = R^\gamma \Big/ \log\frac2p

    which far out, in a window around the centre under a logistic law, is :math:`R^\gamma u / d`.

    With ``narrowing`` the report shrinks as long as the threshold allows: at
    :math:`\lambda \le 1` it is the window within :math:`g^{-1}[m \pm \lambda B u]`, and the scan
    stops when :math:`h < t_0 / \max(\lambda, 1)`.

    Arguments:
        score: A score around a centre: MLWR for the statistic 'spread', Learned for 'learned'.
        goal: What the window has to achieve.
        task_range: The declared range, if any.
        weight: :math:`R^\gamma`.
        narrowing: :math:`t_0` and :math:`B`, where reports may be narrower than the window.
        residuals: The law of :math:`(g(z) - m) / u`, where windows lie by it.
    """

    name: ClassVar[str] = "window"
    scaling: ClassVar[int] = 1

    score: Score
    goal: Goal
    task_range: TaskRange
    weight: float
    narrowing: tuple[float, float] | None = None
    residuals: ResidualLaw | None = None

    def risk(self, family: Family) -> tuple[FloatArray, Interval, AnchoredFamily]:
        """Return the risk statistic, the windows and the families of cases."""
        if not isinstance(family, AnchoredFamily):
            raise InputError("a fixed-width policy needs the statistic 'spread' or 'learned'")
        place = window_place(self.score, self.task_range)
        if self.residuals is not None:
            window, p = probable_window(family, self.residuals, self.goal, place)
            with np.errstate(divide="ignore"):  # what cannot be missed has no risk
                certainty = np.log(2) - np.log(p)
            return self.weight / certainty, clipped(window, self.task_range), family
        window, reach = self.goal.window(family.high, family.link, place)
        steepness = np.divide(self.weight, reach, out=np.full(reach.shape, np.inf), where=reach > 0)
        return steepness * family.scale, clipped(window, self.task_range), family

    def examined(self, family: Family, cases: int) -> Examined:
        """Examine so many cases by their nested intervals."""
        h, window, family = self.risk(family)
        if self.narrowing is None:
            return Examined(family, window, np.full(h.shape, -np.inf), -h, window_from=-np.inf)
        t0, B = self.narrowing
        largest = np.divide(t0, h, out=np.full(h.shape, np.inf), where=h > 0)
        narrowed = replace(family, scale=B * family.scale)
        return Examined(
            family=narrowed,
            window=window,
            lowest=opening(narrowed, cases),
            largest=np.where(h < t0, largest, -np.inf),
            window_from=1.0,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        law, narrowing = self.residuals, self.narrowing
        return {
            "kind": self.name,
            "score": score_to_dict(self.score),
            # Versions that know no law of residuals miss the weight, and refuse the file.
            **({"weight": self.weight} if law is None else {}),
            "narrowing": narrowing and list(narrowing),
            **({"probable": {"weight": self.weight, **asdict(law)}} if law else {}),
        }

    @classmethod
    def from_dict(cls, record: Record, score: Score, goal: Goal, range_: TaskRange) -> WindowRule:
        """Read a rule back from its description."""
        narrowing, probable = record["narrowing"], record.get("probable")
        weight = record["weight"] if probable is None else probable["weight"]
        return cls(
            score, goal, range_, float(weight),
            None if narrowing is None else (float(narrowing[0]), float(narrowing[1])),
            None if probable is None else ResidualLaw(tuple(map(float, probable["quantiles"]))),
        )  # fmt: skip


def window_place(score: Score, task_range: TaskRange) -> TaskRange:
    """Return the range that windows are kept in: the declared one, or [0, 1] where it was seen.

    Example:
        >>> from taskuq.calibration.link import Link
        >>> window_place(MLWR(link=Link("logit")), None)
        (0.0, 1.0)
    """
    link = score.link if isinstance(score, MLWR | Learned) else IDENTITY
    return (link.low, link.high) if task_range is None and not link.is_identity else task_range


def spread_score(side: Side) -> MLWR:
    """Return the score behind the statistic 'spread': MLWR with half its usual floor."""
    return MLWR(side=side, floor=0.25)


# The score behind each risk statistic.
STATISTICS: dict[str, Callable[[Side], Score]] = {"spread": spread_score, "learned": Learned}


@final
class FixedWidth(PolicyKind):
    """Report a window that achieves the goal, and stop as soon as the risk of a miss is small."""

    options: ClassVar[tuple[str, ...]] = ("statistic", "budget", "lateness")
    rules: ClassVar[type[Rule]] = WindowRule
    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True
    promises_early: ClassVar[bool] = True

    def base(self, plan: TaskPlan) -> Score:
        """Return the score behind the risk statistic."""
        return STATISTICS[plan.statistic](plan.goal.side)

    def rule(self, plan: TaskPlan, score: Score, range_: TaskRange, acceleration: float) -> Rule:
        """Return a rule that is the more tolerant the later the round."""
        weight = float(acceleration**plan.lateness) if np.isfinite(acceleration) else 1.0
        return WindowRule(score, plan.goal, range_, weight)

    def tuning_share(self, plan: PolicyPlan) -> float:
        """Return what reports narrower than the window learn from."""
        return NARROWING_TUNING_SHARE if plan.budget < 1 else 0.0

    def learned(self, plan: PolicyPlan, rules: Rules, x: FloatArray, z: FloatArray) -> Rules:
        """Return rules whose reports shrink, where the budget leaves something for that.

        Otherwise windows of a learned score lie where its residuals on these cases say.
        """
        return narrowed(plan, rules, x, z) if plan.budget < 1 else placed(rules, x, z)

    def thresholds(self, seen: Examination, calibrator: Calibrator) -> FloatArray:
        """Return the threshold at which stopped reports keep the promise."""
        return calibrator.stopping(seen)

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        """Say what is promised at the stop."""
        return stopped_promise(goal, promise)


def window_law(score: Score, outputs: FloatArray, targets: FloatArray) -> ResidualLaw | None:
    """Return the law by which the windows of a score lie; None where they lie around its centre.

    Arguments:
        score: The score, tuned.
        outputs: Outputs of the tuning cases in all rounds so far (round, case, sample).
        targets: Their targets (case,).
    """
    # Near the ends of a range the centre is rarely the best place. Without a range it is as good,
    # and probabilities of a miss were seen to choose rounds worse.
    if not isinstance(score, Learned) or score.side != "two" or score.link.is_identity:
        return None
    family = score.family(outputs)
    return fit_residual_law((score.link(targets) - family.high) / family.scale)


def placed(rules: Rules, outputs: FloatArray, targets: FloatArray) -> Rules:
    """Let the windows of learned scores lie where targets most probably are, by tuning cases."""
    laws = [
        [
            window_law(rule.score, outputs[: k + 1, ..., t], targets[k, :, t])
            for t, rule in enumerate(of_round)
        ]
        for k, of_round in enumerate(rules)
    ]
    return tuple(
        tuple(replace(rule, residuals=law) for rule, law in zip(*both, strict=True))  # type: ignore[type-var]  # a WindowRule
        for both in zip(rules, laws, strict=True)
    )


def narrowed(plan: PolicyPlan, rules: Rules, outputs: FloatArray, targets: FloatArray) -> Rules:
    """Let reports shrink: choose when to stop, and on what scale to shrink, on tuning cases."""
    seen = examine(rules, outputs, targets)
    Lambda = stopping_score(seen.lowest, seen.largest, seen.score)
    level = float(exact_level(plan.alpha)) * plan.budget
    t0 = -conformal_quantile(Lambda, level)
    if t0 == np.inf:
        # Hardly any window misses, so every risk seen is small enough.
        risks = -seen.largest[np.isfinite(seen.largest)]
        t0 = 2 * float(risks.max(initial=0.0))
    t0 = t0 if np.isfinite(t0) and t0 > 0 else float(np.median(-seen.largest[-1]))
    t0 = t0 if np.isfinite(t0) and t0 > 0 else 1.0
    # Any scale is valid; a large residual over predicted error makes the useful range about [0, 1].
    residuals = [
        e.family.score(targets[k, :, t])
        for k, of_round in enumerate(seen.rounds)
        for t, e in enumerate(of_round)
    ]
    finite = np.concatenate([r[np.isfinite(r)] for r in residuals])
    B = 2 * float(np.quantile(finite, 1 - level)) if finite.size else 1.0
    B = B if B > 0 else 1.0
    return tuple(
        tuple(replace(rule, narrowing=(t0, B)) for rule in of_round)  # type: ignore[type-var]  # a WindowRule
        for of_round in rules
    )
