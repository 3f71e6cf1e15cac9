"""Which line to measure next: the one that is expected to leave the least variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray

# Lines whose bounds are looked at together.
TOGETHER = 8
# Reductions that differ by less, relative to the largest, are the same up to rounding.
TIES = 1e-9


class Expected(Protocol):
    """What is expected of lines that are not measured yet."""

    def left(self, lines: list[int]) -> float:
        """The mean over cases of the variance that these lines leave."""

    def greedy(
        self, count: int, measured: BoolArray, known: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """So many lines that are not measured yet, and by how much each reduces the variance.

        What ``known`` lines will tell is known already.
        """


@dataclass(frozen=True, eq=False)
class Spread:
    r"""What posterior samples say about lines, and about what they are measured for.

    The samples of a case stand for a normal posterior. With deviations :math:`\delta_j` of
    :math:`p` samples from their mean an image is :math:`\bar x + \sum_j w_j \delta_j /
    \sqrt{p - 1}` with standard normal :math:`w`. Line :math:`\ell`, measured with the noise
    :math:`\sigma^2` in each of its numbers, tells about :math:`w` by its Gram matrix, so that
    after lines :math:`S` the aim has the variance

    .. math:: V(S) = \operatorname{tr}\Big(
        \big(I + \textstyle\sum_{\ell \in S} K_\ell / \sigma^2\big)^{-1} T \Big), \qquad
        K_\ell = \frac{\langle A_\ell \delta_j, A_\ell \delta_k \rangle_{jk}}{p - 1}, \qquad
        T = \frac{(z_j z_k)_{jk}}{p - 1}

    where :math:`A_\ell` is what the scanner measures of the line and :math:`z_j` is the deviation
    of the task's (linear) output. This is the exact posterior variance where the image is normal
    with the covariance of the samples.

    Arguments:
        grams: :math:`K_\ell`, (case, line, sample, sample).
        aims: :math:`T`, (case, sample, sample).
        noise: :math:`\sigma^2`, (case,), above 0.

    Example:
        >>> spread = Spread(grams=np.eye(2)[None, None], aims=np.eye(2)[None], noise=np.ones(1))
        >>> spread.left([]), spread.left([0])
        (2.0, 1.0)
    """

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
        """Choose lines one after the other, each by the largest expected reduction.

        Equal reductions go to the lowest number. Where no line takes anything away, the line that
        varies most is next.

        Arguments:
            count: How many lines to choose.
            measured: Which lines are measured already, booleans (line,); they are not chosen.
            known: Lines that were chosen before among the same samples.

        Returns:
            The lines, and by how much each reduces the mean variance.
        """
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
        """The line of the largest reduction.

        V is convex in what is known, so that its slope bounds every reduction from above: lines
        are looked at in the order of their bounds, until no bound is larger than what was found.
        """
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
class FewNumbers:
    r"""The same where few numbers :math:`u_\ell` are looked at of each line: much less to compute.

    With :math:`K_\ell = u_\ell u_\ell^{\mathsf T}`, :math:`T = z z^{\mathsf T}` and what is
    known so far as :math:`P = (I + \sum_S K_\ell / \sigma^2)^{-1}`, a line reduces the variance by

    .. math:: V(S) - V(S \cup \ell) =
        z^{\mathsf T} P u_\ell \, (\sigma^2 I + u_\ell^{\mathsf T} P u_\ell)^{-1} \,
        u_\ell^{\mathsf T} P z

    Arguments:
        told: :math:`u_\ell`, deviations over :math:`\sqrt{p - 1}`, (case, line, sample, number).
        outputs: :math:`z`, deviations over :math:`\sqrt{p - 1}`, (case, sample, task).
        noise: :math:`\sigma^2`, (case,), above 0.

    Example:
        >>> told = np.array([[1.0, -1.0], [0.0, 0.0]])[None, :, :, None]
        >>> few = FewNumbers(told, outputs=np.array([[[1.0], [-1.0]]]), noise=np.full(1, 2.0))
        >>> few.left([]), few.left([0]), few.greedy(1, np.zeros(2, dtype=bool))[0]
        (2.0, 1.0, [0])
    """

    told: FloatArray
    outputs: FloatArray
    noise: FloatArray
    # What was known after the last choice, by its lines: the next one goes on from there.
    _last: dict[tuple[int, ...], _OneNumber | _SeveralNumbers] = field(
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
        """Choose lines one after the other, as :meth:`Spread.greedy` does."""
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

    def _follow(self, lines: Sequence[int]) -> _OneNumber | _SeveralNumbers:
        """What is known once these lines are measured, to be followed further."""
        kind = _OneNumber if self.told.shape[-1] == 1 else _SeveralNumbers
        followed = kind(self)
        for line in lines:
            followed.measure(line)
        return followed

    def _unknown(self, lines: Sequence[int]) -> FloatArray:
        """What these lines leave unknown."""
        return self._follow(lines).P


class _SeveralNumbers:
    """What is unknown, P, as lines are measured one after the other.

    It changes as it goes: a scan waits for a choice, and new arrays for each line would double it.
    """

    def __init__(self, few: FewNumbers) -> None:
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
        """Let a line be known."""
        u = self.told[:, line]
        Pu = self.P @ u
        inner = _with_noise(u.swapaxes(1, 2) @ Pu, self.noise)
        self.P = self.P - Pu @ np.linalg.solve(inner, Pu.swapaxes(1, 2))


class _OneNumber:
    r"""The same for one number of each line, where all that is asked follows by a few sums.

    With :math:`k_\ell = u_\ell^{\mathsf T} P u_m` and :math:`d = \sigma^2 + u_m^{\mathsf T} P u_m`
    a measured line :math:`m` takes :math:`k_\ell^2 / d` from :math:`u_\ell^{\mathsf T} P u_\ell`
    and :math:`k_\ell z^{\mathsf T} P u_m / d` from :math:`z^{\mathsf T} P u_\ell`.
    """

    def __init__(self, few: FewNumbers) -> None:
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
        """Let a line be known."""
        # For one case these sums take a fraction of the time of products of stacked matrices.
        Pu = np.einsum("cij,cj->ci", self.P, self.told[:, line])
        along = np.einsum("clj,cj->cl", self.told, Pu)
        d = self.noise + self.inner[:, line, None]
        self.P -= Pu[:, :, None] * (Pu / d)[:, None]
        self.cross -= (along / d)[..., None] * self.cross[:, line, None]
        self.inner -= np.square(along) / d


def _with_noise(inner: FloatArray, noise: FloatArray) -> FloatArray:
    return np.asarray(inner + noise[..., None, None] * np.eye(inner.shape[-1]))


def together(spreads: Sequence[Expected]) -> Expected:
    """Put what samples of several cases say together; cases count alike.

    Arguments:
        spreads: Of some cases each, all of one kind.
    """
    kind: Any = type(spreads[0])
    parts = {
        of.name: np.concatenate([getattr(one, of.name) for one in spreads])
        for of in fields(kind)
        if of.init
    }
    found: Expected = kind(**parts)
    return found


def _variance(known: FloatArray, aims: FloatArray) -> FloatArray:
    """The trace of the inverse of what is known, times the aim; leading axes stay."""
    solved = np.linalg.solve(known, np.broadcast_to(aims, known.shape))
    return np.asarray(np.trace(solved, axis1=-2, axis2=-1))


def ridge_noise(grams: FloatArray, measured: BoolArray, ridge: float) -> FloatArray:
    r"""Noise :math:`\sigma^2` of each case, by which few samples do not claim to know too much.

    .. math:: \sigma^2 = \rho\, \frac1p \sum_{\ell \notin S} \operatorname{tr} K_\ell

    A line has more numbers than there are samples, and without noise any single one would tell
    which mixture of the samples the image is. With :math:`\rho` it takes all lines together to
    bring the variance of a mixture down to the share :math:`\rho / (1 + \rho)`.

    Arguments:
        grams: Gram matrices (case, line, sample, sample).
        measured: Which lines are measured already, booleans (line,).
        ridge: :math:`\rho`, above 0.

    Example:
        >>> ridge_noise(np.ones((1, 4, 2, 2)), np.array([True, False, False, False]), 0.5)
        array([1.5])
    """
    free = grams[:, ~np.asarray(measured, dtype=bool)]
    total = np.trace(free, axis1=2, axis2=3).sum(axis=1) / grams.shape[-1]
    return _ridged(total, ridge)


def few_noise(told: FloatArray, measured: BoolArray, ridge: float) -> FloatArray:
    """The same noise where few numbers (case, line, sample, number) are looked at of each line.

    Arguments:
        told: Deviations over the root of one less than there are samples.
        measured: Which lines are measured already, booleans (line,).
        ridge: As above.
    """
    free = told[:, ~np.asarray(measured, dtype=bool)]
    return _ridged(np.square(free).sum(axis=(1, 2, 3)) / told.shape[2], ridge)


def _ridged(total: FloatArray, ridge: float) -> FloatArray:
    if not ridge > 0:
        raise InputError(f"the ridge is {ridge}; give a number above 0, e.g. 0.01")
    # Samples that agree everywhere tell nothing, whatever the noise.
    return np.asarray(ridge * np.where(total > 0, total, 1.0))
