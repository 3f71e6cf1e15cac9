"""Adaptive choice of lines by expected variance reduction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from taskuq._config import Count, Natural, Positive, Unit, check_ranges
from taskuq._io import fingerprint
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.measure._fourier import round_at
from taskuq.protocols import LineMeasure

# Lines whose bounds are evaluated in one batch.
TOGETHER = 8
# Reductions that differ by less, relative to the largest, are the same up to rounding.
TIES = 1e-9


class LineCovariance(ABC):
    """Covariance between line measurements and the objective, estimated from posterior samples."""

    @abstractmethod
    def _given(self, lines: Sequence[int]) -> _GramPosterior | _ScalarPosterior: ...

    @property
    @abstractmethod
    def _line_variance(self) -> FloatArray: ...

    def left(self, lines: Sequence[int]) -> float:
        """Return the objective's variance given the lines, averaged over cases."""
        return float(self._given(lines).variance().mean())

    def greedy(
        self, count: int, measured: BoolArray, known: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """Choose lines one by one to reduce the variance most; return lines and reductions."""
        free = ~np.asarray(measured, dtype=bool)
        if not 0 <= count <= free.sum():
            text = f"count is {count}, and {free.sum()} lines are left"
            raise InputError(text, code="value.invalid")
        posterior, own = self._given(known), self._line_variance
        lines, gains, least = list[int](), list[float](), TIES * self.left(())
        while len(lines) < count:
            line, gain = posterior.best(free)
            if not math.isfinite(gain):
                raise InputError("samples or outputs are not finite", code="value.nonfinite")
            if gain <= least:  # no line reduces the variance: the one that varies most
                line = int(np.argmax(np.where(free, own, -np.inf)))
            lines.append(line)
            gains.append(max(gain, 0.0))
            free[line] = False
            posterior.measure(line)
        return lines, gains


@dataclass(frozen=True, eq=False)
class _GramCovariance(LineCovariance):
    grams: FloatArray  # (case, line, sample, sample)
    aims: FloatArray  # (case, sample, sample)
    noise: FloatArray  # (case,)

    def _given(self, lines: Sequence[int]) -> _GramPosterior:
        return _GramPosterior(self, lines)

    @property
    def _line_variance(self) -> FloatArray:
        return np.asarray(np.trace(self.grams, axis1=2, axis2=3).sum(axis=0))

    def information(self, lines: Sequence[int]) -> FloatArray:
        return np.asarray(self.grams[:, list(lines)] / self.noise[:, None, None, None])


class _GramPosterior:
    def __init__(self, covariance: _GramCovariance, lines: Sequence[int]) -> None:
        self.of = covariance
        samples = covariance.grams.shape[-1]
        self.precision = np.eye(samples) + covariance.information(lines).sum(axis=1)

    def best(self, free: BoolArray) -> tuple[int, float]:
        of, inverse = self.of, np.linalg.inv(self.precision)
        slope = inverse @ of.aims @ inverse
        bounds = np.einsum("clij,cji,c->l", of.grams, slope, 1 / of.noise) / len(of.noise)
        order = sorted(np.flatnonzero(free).tolist(), key=lambda line: (-bounds[line], line))
        before, gains = self.variance(), dict[int, float]()
        for start in range(0, len(order), TOGETHER):
            some = order[start : start + TOGETHER]
            if gains and bounds[some[0]] < (1 - TIES) * max(gains.values()):
                break
            after = _variance(self.precision[:, None] + of.information(some), of.aims[:, None])
            gains |= dict(zip(some, (before[:, None] - after).mean(axis=0).tolist(), strict=True))
        largest = max(gains.values())
        line = min(line for line, gain in gains.items() if gain >= largest - TIES * abs(largest))
        return line, gains[line]

    def measure(self, line: int) -> None:
        self.precision = self.precision + self.of.information([line])[:, 0]

    def variance(self) -> FloatArray:
        return _variance(self.precision, self.of.aims)


def _variance(precision: FloatArray, aims: FloatArray) -> FloatArray:
    solved = np.linalg.solve(precision, np.broadcast_to(aims, precision.shape))
    return np.asarray(np.trace(solved, axis1=-2, axis2=-1))


@dataclass(frozen=True, eq=False)
class _ScalarCovariance(LineCovariance):
    """Line covariance with one real value per line and sample: Gram matrices have rank 1."""

    values: FloatArray  # (case, line, sample)
    outputs: FloatArray  # (case, sample, task)
    noise: FloatArray  # (case,)

    def _given(self, lines: Sequence[int]) -> _ScalarPosterior:
        return _ScalarPosterior(self, lines)

    @property
    def _line_variance(self) -> FloatArray:
        return np.asarray(np.square(self.values).sum(axis=(0, 2)))


class _ScalarPosterior:
    def __init__(self, covariance: _ScalarCovariance, lines: Sequence[int]) -> None:
        cases, _, samples = covariance.values.shape
        self.outputs, self.noise = covariance.outputs, covariance.noise[:, None]
        self.values = np.ascontiguousarray(covariance.values)
        self.P: FloatArray = np.tile(np.eye(samples), (cases, 1, 1))
        self.inner: FloatArray = np.square(self.values).sum(axis=2)
        self.cross: FloatArray = self.values @ covariance.outputs
        for line in lines:
            self.measure(line)

    def best(self, free: BoolArray) -> tuple[int, float]:
        squares = np.einsum("clt,clt->cl", self.cross, self.cross)
        each = (squares / (self.inner + self.noise)).mean(axis=0)
        reductions = np.where(free, each, -np.inf)
        gain = float(reductions.max())
        return int((reductions >= gain - TIES * abs(gain)).argmax()), gain

    def measure(self, line: int) -> None:
        # For one case these sums take a fraction of the time of products of stacked matrices.
        Pu = np.einsum("cij,cj->ci", self.P, self.values[:, line])
        along = np.einsum("clj,cj->cl", self.values, Pu)
        d = self.noise + self.inner[:, line, None]
        self.P -= Pu[:, :, None] * (Pu / d)[:, None]
        self.cross -= (along / d)[..., None] * self.cross[:, line, None]
        self.inner -= np.square(along) / d

    def variance(self) -> FloatArray:
        return np.asarray(np.einsum("cjt,cjk,ckt->c", self.outputs, self.P, self.outputs))


def stack_cases(covariances: Sequence[LineCovariance]) -> LineCovariance:
    kind: Any = type(covariances[0])
    each = (np.concatenate([getattr(c, f.name) for c in covariances]) for f in fields(kind))
    stacked: LineCovariance = kind(*each)
    return stacked


# What lines are measured for: the task by its gradient, by its outputs, or the image itself.
Aim = Literal["gradient", "outputs", "variance"]
AIMS: tuple[Aim, ...] = get_args(Aim)
RIDGE = 0.01


def line_covariance(
    system: LineMeasure,
    measurement: Any,
    recoveries: Any,
    read: Callable[[Any], Any],
    measured: BoolArray,
    *,
    objective: Aim = "gradient",
    regularisation: float = RIDGE,
) -> LineCovariance:
    images = torch.as_tensor(recoveries).detach()
    if objective not in AIMS:
        text = f"objective is {objective!r}; choose from {', '.join(AIMS)}"
        raise InputError(text, code="choice.unknown")
    _require_samples(len(images), objective)
    slopes = _mean_gradients(read, images) if objective == "gradient" else None
    with torch.no_grad():
        deviations = images - images.mean(0)
        held = torch.as_tensor(system.line_values(deviations, measurement))
        if objective == "variance":
            rows = torch.view_as_real(held).flatten(2) if held.is_complex() else held
            grams = (rows @ rows.mT / (len(images) - 1)).double().cpu().numpy()[None]
            return _gram_covariance(grams, grams.sum(axis=1), measured, regularisation)
        if slopes is not None:
            z = deviations.flatten(1) @ slopes.flatten(1).T
            directions = torch.as_tensor(system.line_values(slopes, measurement))
        else:
            z = torch.as_tensor(read(images)).reshape(len(images), -1).to(deviations)
            z = z - z.mean(0)
            directions = torch.einsum("ljn,jt->ltn", held, z.to(held.dtype))
        projected = (held @ directions.mH).real
        if slopes is None:
            projected = _leave_one_out(projected, held, z)
    root = (len(images) - 1) ** 0.5
    values, outputs = (one.double().cpu().numpy()[None] / root for one in (projected, z))
    if values.shape[-1] > 1:
        grams, aims = values @ values.swapaxes(2, 3), outputs @ outputs.swapaxes(1, 2)
        return _gram_covariance(grams, aims, measured, regularisation)
    values = values[..., 0]
    free = values[:, ~np.asarray(measured, dtype=bool)]
    total = np.square(free).sum(axis=(1, 2)) / values.shape[2]
    return _ScalarCovariance(values, outputs, _noise_variance(total, regularisation))


def _gram_covariance(
    grams: FloatArray, aims: FloatArray, measured: BoolArray, regularisation: float
) -> _GramCovariance:
    free = grams[:, ~np.asarray(measured, dtype=bool)]
    total = np.trace(free, axis1=2, axis2=3).sum(axis=1) / grams.shape[-1]
    return _GramCovariance(grams, aims, _noise_variance(total, regularisation))


def _noise_variance(total: FloatArray, regularisation: float) -> FloatArray:
    if not 0 < regularisation < math.inf:
        text = f"regularisation is {regularisation}; set a number above 0"
        raise InputError(text, code="value.invalid")
    # Samples that agree everywhere carry no information, whatever the noise.
    return np.asarray(regularisation * np.where(total > 0, total, 1.0))


def _require_samples(samples: int, objective: Aim) -> None:
    # By outputs each sample is compared with the others.
    if samples < (needed := 3 if objective == "outputs" else 2):
        text = f"samples is {samples}; choosing lines takes at least {needed}"
        raise InputError(text, code="samples.mismatch")


def _leave_one_out(values: Tensor, held: Tensor, z: Tensor) -> Tensor:
    """Return leave-one-out projections of samples, or zeros if not positively correlated with z."""
    scale = len(z) / (len(z) - 1)
    own = held.abs().square().sum(2)
    others = values - scale * own[..., None] * z
    return others * ((others * z).sum(1, keepdim=True) > 0)


def _mean_gradients(read: Callable[[Any], Any], images: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = images.clone().requires_grad_()
        outputs = read(leaf)
        if not isinstance(outputs, Tensor) or not outputs.requires_grad:
            text = "the task has no gradient; use objective 'outputs'"
            raise InputError(text, code="component.invalid")
        outputs = outputs.reshape(len(leaf), -1)
        slopes = [
            torch.autograd.grad(outputs[:, k].sum(), leaf, retain_graph=True)[0].mean(0)
            for k in range(outputs.shape[1])
        ]
    return torch.stack(slopes)


@dataclass(frozen=True)
class AdaptiveConfig:
    """Settings of [adaptive]: choice of lines for each case from its posterior samples."""

    #: Reduce the variance of the image ("variance") or of the task, by "gradient" or by "outputs".
    objective: Aim = "gradient"
    regularisation: Positive = RIDGE  #: Noise variance relative to the variance of the samples.
    selection_samples: Count | None = None  #: Number of samples used to choose lines; default: all.
    #: Fraction of a round's new lines chosen among all lines; the rest come from the round's mask.
    adaptive_fraction: Unit = 1.0
    #: Choose the lines of a round only from the mask this many rounds later; default: all lines.
    lookahead: Natural | None = None

    def require_samples(self, samples: int) -> None:
        if self.selection_samples is not None and self.selection_samples > samples:
            text = f"selection_samples is {self.selection_samples} of {samples} samples; set fewer"
            raise InputError(text, code="samples.mismatch")
        _require_samples(samples, self.objective)

    def rule(self, system: Any, masks: BoolArray, rates: tuple[float, ...]) -> AdaptiveLines:
        return AdaptiveLines(require_line_measure(system), masks, rates, **asdict(self))


def require_line_measure(system: Any) -> LineMeasure:
    if not isinstance(system, LineMeasure):
        raise InputError(
            "the system is not a taskuq.protocols.LineMeasure", code="component.invalid"
        )
    return system


@dataclass(frozen=True, eq=False)
class AdaptiveLines:
    """Rule that chooses the lines expected to reduce the variance of the task most.

    Args:
        system: Imaging system.
        masks: Booleans (round, line) that set the lines of the first round and the number of lines
            in every round.
        accelerations: R of each round, decreasing.
        objective: Variance to reduce: of the task, by its ``"gradient"`` or its ``"outputs"``, or
            of the image (``"variance"``).
        regularisation: Noise variance relative to the variance of samples.
        selection_samples: Number of samples used to choose lines; default: all.
        adaptive_fraction: Fraction of a round's new lines chosen among all lines; the rest come
            from the round's mask.
        lookahead: Choose the lines of a round only from the mask this many rounds later.
    """

    system: LineMeasure
    masks: BoolArray
    accelerations: tuple[float, ...]
    objective: Aim = "gradient"
    regularisation: Positive = RIDGE
    selection_samples: Count | None = None
    adaptive_fraction: Unit = 1.0
    lookahead: Natural | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.selection_samples is not None:
            _require_samples(self.selection_samples, self.objective)
        if np.shape(self.masks) != (len(self.accelerations), self.system.n_lines):
            shape = (len(self.accelerations), self.system.n_lines)
            text = f"masks have shape {np.shape(self.masks)}; pass {shape}"
            raise InputError(text, code="shape.mismatch")

    @property
    def fingerprint(self) -> str:
        masks = np.ascontiguousarray(np.asarray(self.masks, dtype=bool))
        chosen = [self.objective, self.regularisation, self.selection_samples]
        content = [*chosen, list(masks.shape), masks.tobytes().hex()]
        # Defaults are left out, so that digests of older rules stay.
        if self.lookahead is not None:
            content += [self.adaptive_fraction, self.lookahead]
        elif self.adaptive_fraction < 1:
            content.append(self.adaptive_fraction)
        return fingerprint(content)[:16]

    def __call__(self, image: Any, acceleration: float) -> Any:
        """Measure the first round or the full scan; other rounds need samples to choose lines."""
        k = round_at(acceleration, [*self.accelerations, 1])
        if k == 0:
            return self.measure_lines(image, acceleration, self.initial_lines())
        if k < len(self.accelerations):
            text = f"lines at R = {acceleration:g} need samples; use acquire"
            raise InputError(text, code="option.conflict")
        return self.measure_lines(image, acceleration, np.ones(self.system.n_lines, dtype=bool))

    def initial_lines(self) -> BoolArray:
        return np.array(self.masks[0], dtype=bool)

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray) -> Any:
        return self.system.measure_lines(image, acceleration, lines)

    def next_lines(
        self, round: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray
    ) -> BoolArray:
        """Return the mask of all lines measured up to and including the next round."""
        covariance = line_covariance(
            self.system, measurement, recoveries[: self.selection_samples], task, lines,
            objective=self.objective, regularisation=self.regularisation,
        )  # fmt: skip
        chosen, mask = np.array(lines, dtype=bool), self.masks[round + 1]
        count = int(mask.sum() - lines.sum())
        free = math.ceil(Fraction(str(self.adaptive_fraction)) * count)
        candidates = np.ones_like(chosen)
        if self.lookahead is not None:
            # Masks are nested: there are always as many that are free as the round has.
            candidates = self.masks[min(round + 1 + self.lookahead, len(self.masks) - 1)]
        more, _ = covariance.greedy(free, chosen | ~candidates)
        chosen[more] = True
        if count > free:
            remainder, _ = covariance.greedy(count - free, chosen | ~mask, known=more)
            chosen[remainder] = True
        return chosen

    def fallback_lines(self, round: int, lines: BoolArray) -> BoolArray:
        """Return the mask of lines up to and including the next round, chosen without samples."""
        chosen, count = np.array(lines, dtype=bool), int(self.masks[round + 1].sum())
        for more in (self.masks[round + 1] & ~chosen, ~chosen):
            chosen[np.flatnonzero(more & ~chosen)[: max(0, count - int(chosen.sum()))]] = True
        return chosen
