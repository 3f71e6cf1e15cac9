"""Parallel-beam CT as a Measure: an image to its projections, at nested sets of views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.kinds import Kinds
from taskuq.measure.mask_files import read_masks
from taskuq.measure.noise import image_seed, require_seed
from taskuq.measure.rounds import round_at
from taskuq.measure.sinograms import Sinogram
from taskuq.words import Words

# What takes a size and angles and gives what takes images (..., size, size) to line integrals (...,
# view, detector), a pixel apart and about the centre.
OPERATORS: Kinds[Callable[[int, tuple[float, ...]], Callable[[Tensor], Tensor]]] = Kinds(
    "Radon transform",
    {
        "taskuq": "taskuq.measure.radon:Radon",
        "hat": "taskuq.measure.radon:hat_radon",
        "deepinv": "taskuq.measure.deepinv_radon:DeepinvRadon",
    },
)


def nested_views(views: int, accelerations: Sequence[float]) -> list[NDArray[np.int64]]:
    """Sorted sets of views, each spread evenly over the half turn and part of the next.

    Each round adds views between those measured. Where the number of views halves from round to
    round and the first is a whole step apart, all rounds are evenly spread; otherwise views are
    taken in the order of van der Corput, each new one into the widest gap.

    Arguments:
        views: The number of views of a full scan.
        accelerations: R, decreasing; round k has views / R views.

    Example:
        >>> [list(map(int, chosen)) for chosen in nested_views(16, (8, 4))]
        [[0, 8], [0, 4, 8, 12]]
    """
    counts = [round(views / R) for R in accelerations]
    if not counts or counts[0] < 1 or counts[-1] > views or counts != sorted(set(counts)):
        raise InputError(
            f"accelerations {list(accelerations)} of {views} views take {counts} views; give "
            "decreasing accelerations that each add a view"
        )
    steps = [views // count for count in counts]
    if all(s * c == views for s, c in zip(steps, counts, strict=True)) and all(
        early % late == 0 for early, late in pairwise(steps)
    ):
        return [np.arange(0, views, step) for step in steps]
    bits = max(1, (views - 1).bit_length())
    order = [int(f"{k:0{bits}b}"[::-1], 2) for k in range(2**bits)]
    order = [v for v in order if v < views]
    return [np.sort(np.array(order[:count])) for count in counts]


@dataclass(frozen=True)
class Counts:
    r"""The noise of counted photons.

    .. math:: n \sim \operatorname{Poisson}\big(n_0\, e^{-c p}\big), \qquad
        \hat p = -\frac1c \ln \frac{\max(n, 1)}{n_0}, \qquad c = \frac aN

    :math:`p` is a line integral in units of pixels, :math:`N` the number of pixels of a side. To
    first order :math:`\hat p` has the variance :math:`1 / (c^2 n)`.

    Arguments:
        photons: Photons :math:`n_0` that reach a detector bin without a patient; 0 counts exactly.
        attenuation: The exponent :math:`a` of a ray along a whole side of an image of ones.

    Example:
        >>> Counts(photons=1e4).variance(torch.zeros(2), size=6)
        tensor([1.0000e-04, 1.0000e-04])
    """

    photons: float = 0.0
    attenuation: float = 6.0

    def __post_init__(self) -> None:
        if self.photons < 0 or self.attenuation <= 0:
            raise InputError(
                f"photons are {self.photons} and attenuation is {self.attenuation}; give at least "
                "0 photons, and an attenuation above 0"
            )

    def rate(self, projections: Tensor, size: int) -> Tensor:
        """Expected counts."""
        return self.photons * torch.exp(-self.attenuation / size * projections)

    def read(self, counts: Tensor, size: int) -> Tensor:
        """Line integrals of counts."""
        return -size / self.attenuation * torch.log(counts.clamp_min(1) / self.photons)

    def variance(self, projections: Tensor, size: int) -> Tensor:
        """The variance of measured line integrals, to first order; 0 without noise."""
        if not self.photons:
            return torch.zeros_like(projections)
        return (size / self.attenuation) ** 2 / self.rate(projections, size).clamp_min(1)


@dataclass(frozen=True)
class ParallelBeamCT:
    r"""A CT scanner that takes views one after another.

    .. math:: y = A x + \epsilon

    :math:`A` is the Radon transform at the views of a round,
    and :math:`\epsilon` what counting photons leaves (:class:`Counts`). A view keeps its counts in
    later rounds.

    Arguments:
        size: Rows and columns of the image.
        views: Views of a full scan, evenly over half a turn.
        accelerations: R of each round, decreasing.
        counts: The noise; without it line integrals are exact.
        seed: Together with the image it decides the counts; required where there is noise.
        operator: Who projects: ``"taskuq"`` (:class:`taskuq.measure.radon.Radon`), ``"hat"`` (the
            same with the coarser footprint), ``"deepinv"``, or one of your own.
        chosen: The numbers of the views of each round, nested; evenly spread where None.

    Example:
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(16, 8))
        >>> scanner(torch.ones(32, 32), acceleration=8).projections.shape
        torch.Size([8, 47])
    """

    size: int
    views: int
    accelerations: tuple[float, ...]
    counts: Counts = Counts()
    seed: int | None = None
    operator: str = "taskuq"
    chosen: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        nested_views(self.views, self.accelerations)
        OPERATORS[self.operator]
        require_seed(self.counts.photons, self.seed)

    def __call__(self, image: Tensor, acceleration: float) -> Sinogram:
        """Measure images (..., size, size)."""
        return self.take(
            image, acceleration, np.isin(np.arange(self.views), self.views_at(acceleration))
        )

    @property
    def lines(self) -> int:
        """The number of views of a full scan."""
        return self.views

    def begin(self, count: int) -> BoolArray:
        """So many views, evenly over the half turn."""
        return np.isin(np.arange(self.views), np.arange(count) * self.views // count)

    def more(self, lines: BoolArray, count: int, rng: np.random.Generator) -> BoolArray:
        """These views and so many others, each more likely the wider the gap that it is in."""
        found = lines.copy()
        for _ in range(count):
            at = np.flatnonzero(found)
            # The half turn closes: behind the last view comes the first.
            ahead = np.searchsorted(at, np.arange(self.views)) % len(at)
            gap = np.diff(at, append=at[0] + self.views)[ahead - 1]
            weight = np.where(found, 0, gap.astype(float))
            found[rng.choice(self.views, p=weight / weight.sum())] = True
        return found

    def take(self, image: Tensor, acceleration: float, lines: BoolArray) -> Sinogram:
        """Measure the given views, booleans (view,), of images (..., size, size)."""
        if image.ndim < 2 or image.shape[-2:] != (self.size, self.size) or image.is_complex():
            raise InputError(
                f"the image has shape {tuple(image.shape)} and type {image.dtype}; give real "
                f"images (..., {self.size}, {self.size})"
            )
        views = np.flatnonzero(lines)
        angles = view_angles(views, self.views)
        projections, variance = OPERATORS[self.operator](self.size, angles)(image), 0.0
        if self.counts.photons:
            counted = self._counted(image, projections, views)
            projections = self.counts.read(counted, self.size)
            variance = float(self.counts.variance(projections, self.size).mean())
        return Sinogram(projections, angles, self.size, float(acceleration), variance)

    def views_at(self, acceleration: float) -> NDArray[np.int64]:
        """The numbers of the views of one acceleration; all of them at R = 1."""
        each = self.chosen or nested_views(self.views, self.accelerations)
        rounds = [*map(np.array, each), np.arange(self.views)]
        return rounds[round_at(acceleration, [*self.accelerations, 1])]

    def contents(self, images: Tensor, measurement: Sinogram) -> Tensor:
        """What views hold of images (sample, size, size): line integrals (view, sample, bin)."""
        angles = view_angles(np.arange(self.views), self.views)
        projections: Tensor = OPERATORS[self.operator](self.size, angles)(images)
        return projections.transpose(0, 1)

    def _counted(self, images: Tensor, projections: Tensor, views: NDArray[np.int64]) -> Tensor:
        """Counts of the chosen views, each drawn from a seed of its image and view."""
        assert self.seed is not None, "checked when the scanner is made"
        rates = self.counts.rate(projections, self.size).double().cpu().numpy()
        flat = images.reshape(-1, self.size, self.size)
        drawn = np.empty((len(flat), *rates.shape[-2:]))
        for row, image in enumerate(flat):
            name = image_seed(image, self.seed)
            for k, view in enumerate(views):
                rng = np.random.default_rng([name, int(view)])
                drawn[row, k] = rng.poisson(rates.reshape(drawn.shape)[row, k])
        return torch.as_tensor(drawn).reshape(projections.shape).to(projections)


@dataclass(frozen=True, eq=False)
class SimulatedCT:
    """Scans an image that is already known, as a real scanner would scan a patient.

    Every round gives only the views it adds; no view is taken twice, and after all rounds the rest
    of a full scan follows.

    Arguments:
        image: Attenuation, real (height, width).
        scanner: The scanner.

    Example:
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(16, 8))
        >>> patient = SimulatedCT(torch.ones(32, 32), scanner)
        >>> pieces = [patient.measure(0), patient.measure(1)]
        >>> [len(piece["views"]) for piece in pieces], len(patient.combine(pieces).angles)
        ([4, 4], 8)
    """

    image: Tensor
    scanner: ParallelBeamCT

    def measure(self, round: int) -> dict[str, NDArray[np.generic]]:
        """Take the views that a round adds: their numbers, and line integrals (view, detector)."""
        rates = [*self.scanner.accelerations, 1.0]
        if not 0 <= round < len(rates):
            raise InputError(f"round {round} is asked for; there are {len(rates) - 1} and a last")
        views = self.scanner.views_at(rates[round])
        before = self.scanner.views_at(rates[round - 1]) if round else views[:0]
        scan = self.scanner(self.image, rates[round])
        new = ~np.isin(views, before)
        return {"views": views[new], "projections": scan.projections[torch.as_tensor(new)].numpy()}

    def combine(self, pieces: Sequence[dict[str, NDArray[np.generic]]]) -> Sinogram:
        """Join the pieces of all rounds so far into one measurement."""
        views = np.concatenate([np.asarray(piece["views"], dtype=np.int64) for piece in pieces])
        order = np.argsort(views)
        read = np.concatenate([piece["projections"] for piece in pieces])[order]
        projections, size = torch.as_tensor(read), self.scanner.size
        variance = float(self.scanner.counts.variance(projections, size).mean())
        rate = [*self.scanner.accelerations, 1.0][len(pieces) - 1]
        angles = view_angles(views[order], self.scanner.views)
        return Sinogram(projections, angles, size, float(rate), variance)


@dataclass(eq=False)
class AskedCT:
    """Takes views of an image that is already known, those that it is asked for.

    Arguments:
        image: Attenuation, real (height, width).
        scanner: The scanner.

    Example:
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(16, 8))
        >>> patient = AskedCT(torch.ones(32, 32), scanner)
        >>> patient.want(0, np.array([5, 9]))
        >>> len(patient.combine([patient.measure(0)]).angles)
        2
    """

    image: Tensor
    scanner: ParallelBeamCT
    wanted: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    def want(self, round: int, lines: NDArray[np.int64]) -> None:
        """Be told which views a round adds."""
        self.wanted[round] = np.asarray(lines)

    def measure(self, round: int) -> dict[str, NDArray[np.generic]]:
        """Take the views that a round adds: their numbers, and line integrals (view, detector)."""
        if round not in self.wanted:
            raise InputError(f"round {round} is to be measured, and nobody has said which views")
        views = np.sort(self.wanted[round])
        rate = [*self.scanner.accelerations, 1.0][round]
        scan = self.scanner.take(self.image, rate, np.isin(np.arange(self.scanner.views), views))
        return {"views": views, "projections": scan.projections.numpy()}

    def combine(self, pieces: Sequence[dict[str, NDArray[np.generic]]]) -> Sinogram:
        """Join the pieces of all rounds so far into one measurement."""
        return SimulatedCT(self.image, self.scanner).combine(pieces)


def view_angles(views: NDArray[np.int64], total: int) -> tuple[float, ...]:
    """The angles of some views of a full scan, in radians.

    Arguments:
        views: Their numbers.
        total: How many a full scan has, over half a turn.

    Example:
        >>> view_angles(np.array([0, 1]), 2)[1] == np.pi / 2
        True
    """
    return tuple((np.asarray(views) * (np.pi / total)).tolist())


@dataclass(frozen=True)
class TomographyConfig:
    """The table ``[measure]`` of computed tomography: the views of the rounds, and their counts.

    Arguments:
        accelerations: R of the rounds, decreasing; round k has views / R views.
        views: Views of a full scan, evenly over half a turn.
        photons: Photons that reach a detector bin without a patient; 0 counts exactly.
        attenuation: The exponent of a ray along a whole side of an image of ones.
        operator: Who projects in a run: ``"taskuq"``, ``"hat"`` or ``"deepinv"``. Recoveries take
            each for ours; ours and deepinv's differ by a hundredth.
        file: What ``taskuq masks`` wrote, e.g. an order of views that was learned; its views are
            taken instead of evenly spread ones.

    Example:
        >>> TomographyConfig().round_names
        ('12 views', '24 views', '48 views', '96 views')
    """

    accelerations: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0)
    views: int = 192
    photons: float = 0.0
    attenuation: float = 6.0
    operator: str = "taskuq"
    file: Path | None = None

    def __post_init__(self) -> None:
        nested_views(self.views, self.accelerations)

    @property
    def words(self) -> Words:
        """What cases, groups, pictures and measurements are called."""
        return Words(
            case="slice", group="scan", estimate="back-projected", measurement="view",
            truth="all views",
        )  # fmt: skip

    @property
    def round_names(self) -> tuple[str, ...]:
        """How many views each round has, in words."""
        chosen = nested_views(self.views, self.accelerations)
        return tuple(f"{len(views)} view{'s' * (len(views) > 1)}" for views in chosen)

    @property
    def counts(self) -> Counts:
        """The noise."""
        return Counts(self.photons, self.attenuation)

    def masks(self, width: int) -> BoolArray:
        """The views of each round, booleans (round, view), whatever the width of images."""
        if self.file is not None:
            return read_masks(self.file, self.accelerations, self.views)
        chosen = nested_views(self.views, self.accelerations)
        return np.stack([np.isin(np.arange(self.views), views) for views in chosen])

    def scanner(self, width: int, *, noise: float, seed: int) -> ParallelBeamCT:
        """The scanner of images of a width."""
        if noise:
            raise InputError(
                f"noise is {noise}; the noise of tomography is that of counts: give "
                "measure.photons instead"
            )
        chosen = None
        if self.file is not None:
            chosen = tuple(tuple(np.flatnonzero(mask).tolist()) for mask in self.masks(width))
        return ParallelBeamCT(
            width, self.views, self.accelerations, self.counts, seed, self.operator, chosen
        )
