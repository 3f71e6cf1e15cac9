"""Bounds that are recalibrated online, from audits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import align_cases, as_real_array, as_task_range, require_in_range
from taskuq._display import Summary
from taskuq._io import number_from_json, number_to_json, range_to_json
from taskuq.conformal._bound import BaseBound, read_bound
from taskuq.conformal._calibrate import calibrate
from taskuq.conformal._family import Side, clipped, interval_family
from taskuq.conformal._quantiles import bound_text, coverage_rank, exact_alpha
from taskuq.conformal.scores import resolve_score, score_from_dict, score_name, score_to_dict
from taskuq.errors import InputError
from taskuq.interval import Interval, TaskRange
from taskuq.protocols import Score

SCHEMA = "taskuq.online-bound/1"


@dataclass(frozen=True, repr=False)
class OnlineBound(BaseBound):
    r"""Bound whose level is updated by audits, i.e. by cases whose target becomes known.

    Each :meth:`update` returns a new bound. After audit :math:`t`, with :math:`e_t = 1` if the
    interval missed the target and 0 otherwise,

    .. math:: \alpha_{t+1} = \alpha_t + \gamma (\alpha - e_t)

    so that over :math:`T` audits, for any outcomes,

    .. math:: \Big| \frac1T \sum_t e_t - \alpha \Big| \le
        \frac{\max(\alpha_1, 1 - \alpha_1) + \gamma}{T \gamma}

    This is a statement about the long run of audits, not about the next case. Choose audits at
    random: the scans that a policy does not stop early are harder than others, so updates from
    them alone are biased.

    References:
        Gibbs and Candès, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021.

    Args:
        score: Score that defines the intervals.
        scores: Calibration scores in ascending order.
        alpha: Target error rate :math:`\alpha`.
        level: Current level :math:`\alpha_t`.
        step_size: Step :math:`\gamma`.
        audits: Number of audits.
        miscovered: Number of audits in which the interval missed the target.
        samples: Number of posterior samples per case.
        task_range: Range to which intervals are clipped.

    Example:
        >>> truth = rng.random(300)
        >>> outputs = truth[:, None] + 0.05 * rng.standard_normal((300, 8))
        >>> bound = calibrate_online(outputs, truth, alpha=0.1, score="ar")
        >>> drifted = truth[:, None] + 0.25 * rng.standard_normal((300, 8))
        >>> for x, z in zip(drifted, truth):
        ...     bound = bound.update(x, z)
        >>> abs(bound.miscovered / bound.audits - 0.1) <= bound.largest_deviation
        True
    """

    score: Score
    scores: tuple[float, ...]
    alpha: float
    level: float
    step_size: float
    audits: int
    miscovered: int
    samples: int
    task_range: TaskRange = None

    @property
    def _parts(self) -> tuple[tuple[Score, float], ...]:
        return ((self.score, self.quantile),)

    @property
    def quantile(self) -> float:
        """Conformal quantile at the current level; infinite if the level is 0 or less."""
        if self.level <= 0:
            return float("inf")
        if self.level >= 1:
            return float("-inf")
        rank = coverage_rank(len(self.scores), self.level)
        return self.scores[rank - 1] if rank <= len(self.scores) else float("inf")

    @property
    def largest_deviation(self) -> float:
        """Guaranteed largest difference between alpha and the miss rate over all audits."""
        if self.audits == 0:
            return 1.0
        bound = (max(self.alpha, 1 - self.alpha) + self.step_size) / (self.audits * self.step_size)
        return min(1.0, bound)

    @property
    def statement(self) -> str:
        """Guarantee in one sentence."""
        if self.audits == 0:
            return "No audit yet: the guarantee on the miss rate starts with the first audit."
        return (
            f"Guaranteed in the long run: over {self.audits} audits the miss rate is within "
            f"{bound_text(self.largest_deviation, 4, is_upper=True)} of {self.alpha:g}, under any "
            "drift; there is no guarantee for the next case alone."
        )

    def _summary(self) -> Summary:
        title = f"{score_name(self.score)} at alpha {self.alpha:g}, updated by audits"
        numbers = {"level": self.level, "quantile": self.quantile, "audits": self.audits}
        return Summary(title, [(n, f"{v:.4g}") for n, v in numbers.items()], self.statement)

    def __call__(self, outputs: ArrayLike) -> Interval:
        """Return the intervals of new cases with outputs (case, sample) or (sample,)."""
        x = as_real_array(outputs, "outputs", ndim=(1, 2))
        single = x.ndim == 1
        x = x[None] if single else x
        if x.shape[1] != self.samples:
            message = f"the bound needs {self.samples} samples per case, got {x.shape[1]}"
            raise InputError(message, code="samples.mismatch")
        interval = interval_family(self.score, x).interval(self.quantile)
        if self.level >= 1:
            # Nothing, whatever the score: only misses bring the level down again.
            interval = Interval(np.full(len(x), np.inf), np.full(len(x), -np.inf))
        interval = clipped(interval, self.task_range)
        return interval[0] if single else interval

    def update(self, outputs: ArrayLike, target: float) -> OnlineBound:
        """Return the bound updated with the outputs (sample,) and the target of an audited case."""
        z = as_real_array(target, "target", ndim=(0,))
        require_in_range(z[None], self.task_range, "targets")
        missed = not bool(self(as_real_array(outputs, "outputs", ndim=(1,))).contains(float(z)))
        return replace(
            self,
            level=self.level + self.step_size * (self.alpha - missed),
            audits=self.audits + 1,
            miscovered=self.miscovered + missed,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "score": score_to_dict(self.score),
            "scores": [number_to_json(s) for s in self.scores],
            "alpha": self.alpha,
            "level": self.level,
            "step": self.step_size,
            "audits": self.audits,
            "misses": self.miscovered,
            "samples": self.samples,
            "task_range": range_to_json(self.task_range),
            "sentence": self.statement,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], score: Score | None = None) -> OnlineBound:
        """Return the bound stored as JSON values by :meth:`to_dict`."""
        return cls(
            score=score_from_dict(record["score"], score),
            scores=tuple(number_from_json(s) for s in record["scores"]),
            alpha=float(record["alpha"]),
            level=float(record["level"]),
            step_size=float(record["step"]),
            audits=int(record["audits"]),
            miscovered=int(record["misses"]),
            samples=int(record["samples"]),
            task_range=as_task_range(record["task_range"]),
        )


def calibrate_online(
    outputs: ArrayLike,
    targets: ArrayLike,
    *,
    alpha: float,
    step_size: float = 0.05,
    score: str | Score = "mlwr",
    side: Side = "two",
    task_range: TaskRange = None,
    seed: int | np.random.Generator | None = None,
) -> OnlineBound:
    r"""Calibrate a bound that audits update; see :class:`OnlineBound`.

    Args:
        outputs: Task outputs (case, sample).
        targets: Targets (case,).
        alpha: Target error rate.
        step_size: Step :math:`\gamma` of each update.
        score: Name or object of a score.
        side: 'two', 'upper' or 'lower'.
        task_range: Range to which intervals are clipped.
        seed: Integer or Generator for the random choice of cases held out to fit the score.
    """
    exact_alpha(step_size, "step_size")
    outputs, targets = align_cases({"outputs": outputs, "targets": targets}).values()
    x = as_real_array(outputs, "outputs", ndim=(2,))
    chosen = resolve_score(score, alpha, side)
    fixed = calibrate(x, targets, alpha=alpha, score=chosen, task_range=task_range, seed=seed)
    z = as_real_array(targets, "targets", ndim=(1,)).astype(float)
    values = np.sort(interval_family(fixed.score, x).score(z))
    return OnlineBound(
        score=fixed.score,
        scores=tuple(map(float, values)),
        alpha=fixed.alpha,
        level=fixed.alpha,
        step_size=float(step_size),
        audits=0,
        miscovered=0,
        samples=int(x.shape[1]),
        task_range=fixed.task_range,
    )


def load_online_bound(path: str | os.PathLike[str], *, score: Score | None = None) -> OnlineBound:
    """Read a bound that :meth:`OnlineBound.save` wrote; arguments as in :func:`load_bound`."""
    return read_bound(path, {SCHEMA: OnlineBound.from_dict}, score)
