"""Adaptive lines by expected variance reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from taskuq._io import fingerprint
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.measure._fourier import round_at
from taskuq.protocols import LineMeasure

# Lines whose bounds are looked at together.
TOGETHER = 8
# Reductions that differ by less, relative to the largest, are the same up to rounding.
TIES = 1e-9


class ExpectedReduction(Protocol):
    """Expected variance reduction of unmeasured lines."""

    def left(self, lines: list[int]) -> float:
        """The mean over cases of the variance that these lines leave."""

    def greedy(
        self, count: int, measured: BoolArray, known: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """So many lines that are not measured yet, and by how much each reduces the variance."""


@dataclass(frozen=True, eq=False)
class _LineCovariance:
    """Covariance of lines and objective over posterior samples."""

    grams: FloatArray
    aims: FloatArray
    noise: FloatArray

    def __post_init__(self) -> None:
        cases, _, samples = self.grams.shape[:3]
        fits = self.grams.shape[2:] == (samples, samples)
        fits &= self.aims.shape == (cases, samples, samples) and self.noise.shape == (cases,)
        if not fits or not (self.noise > 0).all():
            raise InputError(
                f"Gram matrices have shape {self.grams.shape}, aims {self.aims.shape} and noise "
                f"{self.noise.shape}; give (case, line, sample, sample), (case, sample, sample) "
                "and (case,), and noise above 0"
            )

    def left(self, lines: list[int]) -> float:
        """The mean over cases of the variance that these lines leave, :math:`V(S)`."""
        return float(_variance(self._known(lines), self.aims).mean())

    def greedy(
        self, count: int, measured: BoolArray, known: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """Choose lines one after the other, each by the largest expected reduction."""
        free = [int(line) for line in np.flatnonzero(~np.asarray(measured, dtype=bool))]
        if not 0 <= count <= len(free):
            raise InputError(f"{count} lines are to be chosen, and {len(free)} are left")
        told = self._known(list(known))
        lines: list[int] = []
        gains: list[float] = []
        least = TIES * self.left([])
        while len(lines) < count:
            line, gain = self._best(told, free)
            if gain <= least:
                line = max(free, key=lambda one: (self._own(one), -one))
            lines.append(line)
            gains.append(max(gain, 0.0))
            free.remove(line)
            told = told + self._information([line])[:, 0]
        return lines, gains

    def _best(self, known: FloatArray, free: list[int]) -> tuple[int, float]:
        """The line of the largest reduction."""
        inverse = np.linalg.inv(known)
        slope = inverse @ self.aims @ inverse
        # Each case's share of the slope along each line.
        bounds = np.einsum("clij,cji,c->l", self.grams, slope, 1 / self.noise) / len(self.noise)
        order = sorted(free, key=lambda line: (-bounds[line], line))
        before = _variance(known, self.aims)
        found: dict[int, float] = {}
        for start in range(0, len(order), TOGETHER):
            some = order[start : start + TOGETHER]
            if found and bounds[some[0]] < (1 - TIES) * max(found.values()):
                break
            after = _variance(known[:, None] + self._information(some), self.aims[:, None])
            found |= dict(zip(some, (before[:, None] - after).mean(axis=0).tolist(), strict=True))
        largest = max(found.values())
        line = min(line for line, gain in found.items() if gain >= largest - TIES * abs(largest))
        return line, found[line]

    def _information(self, lines: list[int]) -> FloatArray:
        return np.asarray(self.grams[:, lines] / self.noise[:, None, None, None])

    def _known(self, lines: list[int]) -> FloatArray:
        samples = self.grams.shape[-1]
        return np.asarray(np.eye(samples) + self._information(lines).sum(axis=1))

    def _own(self, line: int) -> float:
        """The variance of a line itself."""
        return float(np.trace(self.grams[:, line], axis1=1, axis2=2).sum())


@dataclass(frozen=True, eq=False)
class _LowRankCovariance:
    """The same with few features per line."""

    told: FloatArray
    outputs: FloatArray
    noise: FloatArray
    # What was known after the last choice, by its lines: the next one goes on from there.
    _last: dict[tuple[int, ...], _ScalarUpdate | _VectorUpdate] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        cases, _, samples = self.told.shape[:3]
        fits = self.told.ndim == 4 and self.outputs.shape[:2] == (cases, samples)
        if not fits or self.noise.shape != (cases,) or not (self.noise > 0).all():
            raise InputError(
                f"lines have shape {self.told.shape}, outputs {self.outputs.shape} and noise "
                f"{self.noise.shape}; give (case, line, sample, number), (case, sample, task) and "
                "(case,), and noise above 0"
            )

    def left(self, lines: list[int]) -> float:
        """The mean over cases of the variance that these lines leave, :math:`V(S)`."""
        P = self._unknown(lines)
        return float(np.einsum("cjt,cjk,ckt->c", self.outputs, P, self.outputs).mean())

    def greedy(
        self, count: int, measured: BoolArray, known: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """Choose lines one after the other, as :meth:`_LineCovariance.greedy` does."""
        free = ~np.asarray(measured, dtype=bool)
        if not 0 <= count <= free.sum():
            raise InputError(f"{count} lines are to be chosen, and {free.sum()} are left")
        free, known_so_far = free.copy(), self._last.pop(tuple(known), None) or self._follow(known)
        own = np.square(self.told).sum(axis=(0, 2, 3))
        lines: list[int] = []
        gains: list[float] = []
        least = TIES * self.left([])
        while len(lines) < count:
            reductions = np.where(free, known_so_far.reductions(), -np.inf)
            gain = float(reductions.max())
            if not math.isfinite(gain):
                raise InputError("samples or task outputs are not finite; no line can be chosen")
            line = int((reductions >= gain - TIES * abs(gain)).argmax())
            if gain <= least:
                line = int(np.argmax(np.where(free, own, -np.inf)))
            lines.append(line)
            gains.append(max(gain, 0.0))
            free[line] = False
            known_so_far.measure(line)
        self._last.clear()
        self._last[(*known, *lines)] = known_so_far
        return lines, gains

    def _follow(self, lines: Sequence[int]) -> _ScalarUpdate | _VectorUpdate:
        kind = _ScalarUpdate if self.told.shape[-1] == 1 else _VectorUpdate
        followed = kind(self)
        for line in lines:
            followed.measure(line)
        return followed

    def _unknown(self, lines: Sequence[int]) -> FloatArray:
        return self._follow(lines).P


class _VectorUpdate:
    """Greedy posterior update, several features per line."""

    def __init__(self, few: _LowRankCovariance) -> None:
        cases, _, samples, _ = few.told.shape
        self.told, self.outputs, self.noise = few.told, few.outputs, few.noise
        self.P: FloatArray = np.tile(np.eye(samples), (cases, 1, 1))

    def reductions(self) -> FloatArray:
        """By how much each line reduces the mean variance, (line,)."""
        Pu = self.P[:, None] @ self.told
        cross = Pu.swapaxes(2, 3) @ self.outputs[:, None]
        inner = _with_noise(self.told.swapaxes(2, 3) @ Pu, self.noise[:, None])
        solved = np.linalg.solve(inner, cross)
        return np.asarray((solved * cross).sum(axis=(2, 3)).mean(axis=0))

    def measure(self, line: int) -> None:
        u = self.told[:, line]
        Pu = self.P @ u
        inner = _with_noise(u.swapaxes(1, 2) @ Pu, self.noise)
        self.P = self.P - Pu @ np.linalg.solve(inner, Pu.swapaxes(1, 2))


class _ScalarUpdate:
    """Greedy posterior update, one feature per line."""

    def __init__(self, few: _LowRankCovariance) -> None:
        cases, _, samples, _ = few.told.shape
        self.told, self.noise = np.ascontiguousarray(few.told[..., 0]), few.noise[:, None]
        self.P: FloatArray = np.tile(np.eye(samples), (cases, 1, 1))
        self.inner: FloatArray = np.square(self.told).sum(axis=2)
        self.cross: FloatArray = self.told @ few.outputs

    def reductions(self) -> FloatArray:
        """By how much each line reduces the mean variance, (line,)."""
        squares = np.einsum("clt,clt->cl", self.cross, self.cross)
        return np.asarray((squares / (self.inner + self.noise)).mean(axis=0))

    def measure(self, line: int) -> None:
        # For one case these sums take a fraction of the time of products of stacked matrices.
        Pu = np.einsum("cij,cj->ci", self.P, self.told[:, line])
        along = np.einsum("clj,cj->cl", self.told, Pu)
        d = self.noise + self.inner[:, line, None]
        self.P -= Pu[:, :, None] * (Pu / d)[:, None]
        self.cross -= (along / d)[..., None] * self.cross[:, line, None]
        self.inner -= np.square(along) / d


def _with_noise(inner: FloatArray, noise: FloatArray) -> FloatArray:
    return np.asarray(inner + noise[..., None, None] * np.eye(inner.shape[-1]))


def stack_cases(spreads: Sequence[ExpectedReduction]) -> ExpectedReduction:
    """Stack line covariances of several cases."""
    kind: Any = type(spreads[0])
    parts = {
        of.name: np.concatenate([getattr(one, of.name) for one in spreads])
        for of in fields(kind)
        if of.init
    }
    found: ExpectedReduction = kind(**parts)
    return found


def _variance(known: FloatArray, aims: FloatArray) -> FloatArray:
    """The trace of the inverse of what is known, times the aim; leading axes stay."""
    solved = np.linalg.solve(known, np.broadcast_to(aims, known.shape))
    return np.asarray(np.trace(solved, axis1=-2, axis2=-1))


def _regularisation_noise(grams: FloatArray, measured: BoolArray, ridge: float) -> FloatArray:
    """Return the noise variance that regularises few samples."""
    free = grams[:, ~np.asarray(measured, dtype=bool)]
    total = np.trace(free, axis1=2, axis2=3).sum(axis=1) / grams.shape[-1]
    return _ridged(total, ridge)


def _low_rank_noise(told: FloatArray, measured: BoolArray, ridge: float) -> FloatArray:
    """The same for few features per line."""
    free = told[:, ~np.asarray(measured, dtype=bool)]
    return _ridged(np.square(free).sum(axis=(1, 2, 3)) / told.shape[2], ridge)


def _ridged(total: FloatArray, ridge: float) -> FloatArray:
    if not ridge > 0:
        raise InputError(f"the ridge is {ridge}; give a number above 0, e.g. 0.01")
    # Samples that agree everywhere tell nothing, whatever the noise.
    return np.asarray(ridge * np.where(total > 0, total, 1.0))


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
    aim: Aim = "gradient",
    ridge: float = RIDGE,
) -> ExpectedReduction:
    """Compute line and objective covariance of one case."""
    images = torch.as_tensor(recoveries).detach()
    if len(images) < 2:
        raise InputError(
            f"{len(images)} sample is drawn, and lines are chosen by how samples differ; use a "
            "recovery that draws at least 2"
        )
    if aim == "outputs" and len(images) < 3:
        raise InputError(
            f"{len(images)} samples are looked at, and by outputs each is compared with the "
            "others; give at least 3"
        )
    if aim not in AIMS:
        raise InputError(f"the aim is {aim!r}; choose from {', '.join(AIMS)}")
    slopes = _mean_gradients(read, images) if aim == "gradient" else None
    with torch.no_grad():
        deviations = images - images.mean(0)
        held = torch.as_tensor(system.line_values(deviations, measurement))
        if aim == "variance":
            grams = _inner(held) / (len(images) - 1)
            kept = grams.double().cpu().numpy()[None]
            return _LineCovariance(
                kept, kept.sum(axis=1), _regularisation_noise(kept, measured, ridge)
            )
        if slopes is not None:
            z = deviations.flatten(1) @ slopes.flatten(1).T
            directions = torch.as_tensor(system.line_values(slopes, measurement))
        else:
            z = torch.as_tensor(read(images)).reshape(len(images), -1).to(deviations)
            z = z - z.mean(0)
            directions = torch.einsum("ljn,jt->ltn", held, z.to(held.dtype))
        numbers = (held @ directions.mH).real
        if slopes is None:
            numbers = _without_itself(numbers, held, z)
    root = (len(images) - 1) ** 0.5
    told, outputs = (one.double().cpu().numpy()[None] / root for one in (numbers, z))
    return _LowRankCovariance(told, outputs, _low_rank_noise(told, measured, ridge))


def _without_itself(told: Tensor, held: Tensor, z: Tensor) -> Tensor:
    share = len(z) / (len(z) - 1)
    own = held.abs().square().sum(2)
    found = told - share * own[..., None] * z
    return found * ((found * z).sum(1, keepdim=True) > 0)


def _inner(contents: Tensor) -> Tensor:
    """Real inner products between samples of each line, (line, sample, sample)."""
    rows = torch.view_as_real(contents).flatten(2) if contents.is_complex() else contents
    return rows @ rows.mT


def _mean_gradients(read: Callable[[Any], Any], images: Tensor) -> Tensor:
    """Return the mean over samples of the gradient of each of the task's outputs, (task, ...)."""
    with torch.enable_grad():
        leaf = images.clone().requires_grad_()
        outputs = read(leaf)
        if not isinstance(outputs, Tensor) or not outputs.requires_grad:
            raise InputError(
                "the task has no gradient, so that lines cannot be chosen by it; choose the aim "
                "'outputs'"
            )
        outputs = outputs.reshape(len(leaf), -1)
        slopes = [
            torch.autograd.grad(outputs[:, k].sum(), leaf, retain_graph=True)[0].mean(0)
            for k in range(outputs.shape[1])
        ]
    return torch.stack(slopes)


@dataclass(frozen=True)
class AdaptiveConfig:
    """Settings [adaptive] of per-case line selection."""

    aim: Aim = "gradient"
    ridge: float = RIDGE
    looks: int | None = None
    share: float = 1.0
    ahead: int | None = None

    def require_samples(self, samples: int) -> None:
        """Refuse fewer samples than lines are chosen by, or than are to be looked at."""
        if self.looks is not None and self.looks > samples:
            raise InputError(
                f"looks is {self.looks} of [choose], and {samples} samples are drawn; look at as "
                "many at most"
            )
        if samples < (needed := 3 if self.aim == "outputs" else 2):
            raise InputError(
                f"samples is {samples}, and lines are chosen by how samples differ; draw at least "
                f"{needed}"
            )

    def rule(
        self, system: Any, masks: BoolArray, accelerations: tuple[float, ...]
    ) -> AdaptiveLines:
        """The rule, for a system that measures lines of one's choice."""
        if not isinstance(system, LineMeasure):
            raise InputError("this imaging system does not measure lines of one's choice")
        return AdaptiveLines(
            system, masks, accelerations, self.aim, self.ridge, self.looks, self.share, self.ahead
        )


@dataclass(frozen=True, eq=False)
class AdaptiveLines:
    """Choose the lines that reduce the task's variance most."""

    system: LineMeasure
    masks: BoolArray
    accelerations: tuple[float, ...]
    aim: Aim = "gradient"
    ridge: float = RIDGE
    looks: int | None = None
    share: float = 1.0
    ahead: int | None = None

    def __post_init__(self) -> None:
        if self.ahead is not None and self.ahead < 0:
            raise InputError(f"ahead is {self.ahead}; give a number of rounds, at least 0")
        if not 0 <= self.share <= 1:
            raise InputError(f"share is {self.share}; give a number between 0 and 1")
        if not 0 < self.ridge < math.inf:
            raise InputError(f"the ridge is {self.ridge}; give a number above 0, e.g. 0.01")
        if self.looks is not None and self.looks < 2:
            raise InputError(f"looks is {self.looks}; look at 2 samples at least")
        if np.shape(self.masks) != (len(self.accelerations), self.system.n_lines):
            raise InputError(
                f"masks have shape {np.shape(self.masks)}; give one of {self.system.n_lines} lines "
                f"for each of the {len(self.accelerations)} rounds"
            )

    @property
    def fingerprint(self) -> str:
        """A text that is another one for another rule."""
        masks = np.ascontiguousarray(np.asarray(self.masks, dtype=bool))
        made_of = [self.aim, self.ridge, self.looks, list(masks.shape), masks.tobytes().hex()]
        # Rules that choose all lines, among all, are called as before there were others.
        made_of += [self.share] if self.share < 1 or self.ahead is not None else []
        made_of += [] if self.ahead is None else [self.ahead]
        return fingerprint(made_of)[:16]

    def __call__(self, image: Any, acceleration: float) -> Any:
        """Measure the first round, or everything; other rounds depend on samples."""
        k = round_at(acceleration, [*self.accelerations, 1])
        if k == 0:
            return self.measure_lines(image, acceleration, self.initial_lines())
        if k < len(self.accelerations):
            raise InputError(
                f"what is measured at R = {acceleration:g} depends on the samples of earlier "
                "rounds; run the rule by a Pipeline, or by acquire"
            )
        return self.measure_lines(image, acceleration, np.ones(self.system.n_lines, dtype=bool))

    def initial_lines(self) -> BoolArray:
        """The lines of the first round."""
        return np.array(self.masks[0], dtype=bool)

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray) -> Any:
        """Measure the given lines of an image."""
        return self.system.measure_lines(image, acceleration, lines)

    def next_lines(
        self, round: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray
    ) -> BoolArray:
        """The lines of the round after this one."""
        spread = line_covariance(
            self.system, measurement, recoveries[: self.looks], task, lines,
            aim=self.aim, ridge=self.ridge,
        )  # fmt: skip
        chosen, mask = np.array(lines, dtype=bool), self.masks[round + 1]
        count = int(mask.sum() - lines.sum())
        free = math.ceil(Fraction(str(self.share)) * count)
        more, _ = spread.greedy(free, chosen | ~self._worthwhile(round + 1))
        chosen[more] = True
        rest, _ = spread.greedy(count - free, chosen | ~mask, known=more)
        chosen[rest] = True
        return chosen

    def _worthwhile(self, round: int) -> BoolArray:
        """The lines among which those of a round are chosen."""
        if self.ahead is None:
            return np.ones(self.system.n_lines, dtype=bool)
        # Masks are nested: there are always as many that are free as the round has.
        return np.array(self.masks[min(round + self.ahead, len(self.masks) - 1)], dtype=bool)

    def fallback_lines(self, round: int, lines: BoolArray) -> BoolArray:
        """Lines of the next round by the masks: theirs that are free, then the lowest numbers."""
        chosen, count = np.array(lines, dtype=bool), int(self.masks[round + 1].sum())
        for more in (self.masks[round + 1] & ~chosen, ~chosen):
            chosen[np.flatnonzero(more & ~chosen)[: max(0, count - int(chosen.sum()))]] = True
        return chosen
