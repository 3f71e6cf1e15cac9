"""Radon transform and parallel-beam CT."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._config import Acceleration, NonNegative, Positive, Size, check_ranges
from taskuq._registry import Registry
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure._fourier import image_seed, require_seed, round_at
from taskuq.measure._masks import read_masks
from taskuq.table._terminology import Terminology


@dataclass(frozen=True)
class Radon:
    """Radon transform: line integrals of images along parallel rays."""

    size: int
    angles: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.size < 1 or not self.angles or not np.isfinite(self.angles).all():
            given = f"size is {self.size} with {len(self.angles)} angles"
            raise InputError(f"{given}; pass at least 1 finite angle", code="value.invalid")

    @property
    def detectors(self) -> int:
        """Number of detector bins, each as wide as a pixel."""
        return int(np.ceil(self.size * np.sqrt(2))) + 1

    def __call__(self, images: Tensor) -> Tensor:
        """Project images (..., size, size) to (..., view, detector)."""
        flat = images.reshape(-1, self.size**2)
        projections = _applied(flat, *_matrices(self, flat.dtype, flat.device))
        return projections.reshape(*images.shape[:-2], len(self.angles), self.detectors)

    def adjoint(self, projections: Tensor) -> Tensor:
        """Back-project (..., view, detector) to images (..., size, size)."""
        flat = projections.reshape(-1, len(self.angles) * self.detectors)
        images = _applied(flat, *reversed(_matrices(self, flat.dtype, flat.device)))
        return images.reshape(*projections.shape[:-2], self.size, self.size)


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, transpose: Tensor) -> Tensor:
        ctx.matrices = matrix, transpose
        product: Tensor = (matrix @ rows.to(matrix.dtype).T.contiguous()).T
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        matrix, transpose = ctx.matrices
        return _applied(gradients[0], transpose, matrix), None, None


def _applied(rows: Tensor, matrix: Tensor, transpose: Tensor) -> Tensor:
    # Autocast would round line integrals, sums of a hundred pixels, to 8 bits.
    with torch.autocast(rows.device.type, enabled=False):
        product: Tensor = _SparseMatmul.apply(rows, matrix, transpose)  # type: ignore[no-untyped-call]
    return product


@lru_cache(maxsize=12)
def _matrices(radon: Radon, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    from scipy.sparse import csr_array

    size, detectors, views = radon.size, radon.detectors, len(radon.angles)
    bins, weights = _footprints(radon)
    rows = bins + detectors * np.arange(views)[:, None, None]
    pixels = np.broadcast_to(np.arange(size**2)[:, None], rows.shape)
    hit = weights > 0
    matrix = csr_array((weights[hit], (rows[hit], pixels[hit])), shape=(views * detectors, size**2))
    dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return _as_tensor(matrix, dtype, device), _as_tensor(matrix.T.tocsr(), dtype, device)


def _as_tensor(matrix: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix.sort_indices()
    rows, columns = (torch.from_numpy(x.astype(np.int32)) for x in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(matrix.data).to(dtype)
    with warnings.catch_warnings():
        # torch calls all of its compressed matrices a beta.
        warnings.filterwarnings("ignore", category=UserWarning, message="Sparse ")
        compressed = torch.sparse_csr_tensor(rows, columns, values, size=matrix.shape)
    return compressed.to(device)


def _footprints(radon: Radon) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the detector bins that each pixel projects onto, and weights, (view, pixel, bin)."""
    axis = np.arange(radon.size) - (radon.size - 1) / 2
    y, x = np.meshgrid(-axis, axis, indexing="ij")
    theta = np.array(radon.angles)[:, None]
    places = x.ravel() * np.cos(theta) + y.ravel() * np.sin(theta) + (radon.detectors - 1) / 2
    sides = np.abs([np.cos(radon.angles), np.sin(radon.angles)])[..., None, None] / 2
    # A shadow without slopes, along an axis, has slopes that are too steep to matter.
    wide, narrow = sides.max(0), np.maximum(sides.min(0), 1e-6)
    # No shadow is longer than the diagonal of a pixel: three bins hold it.
    bins = np.rint(places)[..., None] + np.array([-1, 0, 1])

    def until(t: NDArray[np.float64]) -> NDArray[np.float64]:
        ends = [(wide + narrow, 1), (wide - narrow, -1), (narrow - wide, -1), (-wide - narrow, 1)]
        total = sum(sign * np.maximum(t + end, 0) ** 2 for end, sign in ends)
        return np.asarray(total / (8 * wide * narrow))

    edge = bins - places[..., None]
    weights = np.where(np.abs(edge) < 1.3, until(edge + 0.5) - until(edge - 0.5), 0)
    weights = np.where(weights > 1e-9, weights, 0)
    return np.clip(bins, 0, radon.detectors - 1).astype(np.int64), weights


@dataclass(frozen=True)
class DeepinvRadon:
    """Radon transform by ``deepinv.physics.Tomography``, which rotates the image."""

    size: int
    angles: tuple[float, ...]

    @property
    def detectors(self) -> int:
        return Radon(self.size, self.angles).detectors

    def __call__(self, images: Tensor) -> Tensor:
        physics = _physics(self, images.device)
        flat = images.reshape(-1, 1, self.size, self.size).float()
        theirs = physics.A(flat)[:, 0].mT  # (image, view, bin)
        bins, theta = theirs.shape[-1], torch.tensor(self.angles, device=images.device)
        # Their centre in our coordinates, and half a bin where the numbers of bins differ by one.
        off = bins // 2 - self.size // 2 + (self.size - bins) / 2
        moved = off * (theta.cos() - theta.sin())
        first = (bins - 1) / 2 - (self.detectors - 1) / 2  # our first bin, counted in theirs
        length = 2 * self.detectors
        frequency = torch.fft.rfftfreq(length, device=images.device)
        turn = torch.exp(2j * torch.pi * frequency * (first + moved)[:, None])
        ours = torch.fft.irfft(torch.fft.rfft(theirs, n=length) * turn, n=length)
        shape = (*images.shape[:-2], len(self.angles), self.detectors)
        projections: Tensor = ours[..., : self.detectors].reshape(shape).to(images.dtype)
        return projections


@lru_cache(maxsize=12)
def _physics(radon: DeepinvRadon, device: torch.device) -> Any:
    try:
        from deepinv.physics import Tomography
    except ImportError as error:
        text = f"deepinv is missing ({error}); install taskuq[deepinv]"
        raise InputError(text, code="dependency.missing") from None
    degrees = torch.tensor(np.rad2deg(radon.angles), dtype=torch.float32, device=device)
    return Tomography(degrees, radon.size, circle=False, normalize=False, device=device)


Window = Literal["ram-lak", "hann"]

# Landweber steps after which about a tenth of the gap to the measured views is left.
STEPS = 3
# Largest overlap of the lines of even views, weighted by their distance (9/8).
EVEN = 1.13


@dataclass(frozen=True, eq=False)
class Sinogram:
    """Measured views of one or several images, (..., view, detector)."""

    projections: Tensor
    angles: tuple[float, ...]
    size: int
    acceleration: float
    variance: float = 0.0

    @property
    def preview(self) -> Tensor:
        """Filtered back-projection."""
        return filtered_back_projection(self)


@dataclass(frozen=True, eq=False)
class SinogramBatch:
    projections: Tensor
    mask: Tensor
    radon: Radon
    share: Tensor
    variance: Tensor

    @property
    def arcs(self) -> Tensor:
        """Angular weight of each measured view, (case, view)."""
        return _view_weights(self.mask, self.radon.angles)

    def take(self, rows: Tensor) -> SinogramBatch:
        views = (self.projections[rows], self.mask[rows])
        return SinogramBatch(*views, self.radon, self.share[rows], self.variance[rows])


def stack_sinograms(scans: Sequence[Sinogram], device: torch.device | str = "cpu") -> SinogramBatch:
    """Stack the sinograms of images of equal size, over the union of their views."""
    for scan in scans:
        if not isinstance(scan, Sinogram) or scan.projections.ndim != 2:
            kind = type(scan).__name__
            raise InputError(f"{kind} is no sinogram of one image", code="component.invalid")
    sizes = {scan.size for scan in scans}
    if len(sizes) != 1:
        raise InputError(f"images have sizes {sorted(sizes)}; pass one size", code="shape.mismatch")
    angles = tuple(sorted({angle for scan in scans for angle in scan.angles}))
    radon = Radon(sizes.pop(), angles)
    mask = np.stack([np.isin(angles, scan.angles) for scan in scans])
    shape = (len(scans), len(angles), radon.detectors)
    projections = torch.zeros(shape, device=device)
    for row, scan in enumerate(scans):
        here = torch.as_tensor(np.searchsorted(angles, scan.angles), device=device)
        projections[row, here] = scan.projections.to(device, torch.float32)
    share = torch.tensor([1 / scan.acceleration for scan in scans], device=device)
    variance = torch.tensor([scan.variance for scan in scans], device=device)
    measured = torch.as_tensor(mask, device=device)
    return SinogramBatch(projections, measured, radon, share, variance)


def filtered_back_projection(views: SinogramBatch | Sinogram, window: Window = "ram-lak") -> Tensor:
    """Reconstruct images (..., size, size) by a ramp filter and back-projection."""
    if isinstance(views, Sinogram):
        radon = Radon(views.size, views.angles)
        every = torch.ones(1, len(radon.angles), dtype=torch.bool)
        weights = _view_weights(every, radon.angles)[0]
    else:
        radon, weights = views.radon, views.arcs
    p = views.projections
    # The ramp is sampled in space: sampling it in frequency would lose the mean.
    length = 2 * radon.detectors
    n = torch.fft.fftfreq(length, d=1 / length).round()
    odd = (n.abs() % 2) == 1
    ramp = torch.where(odd, -1 / (torch.pi * n).square().clamp(min=1.0), torch.zeros_like(n))
    ramp[0] = 0.25
    response = torch.fft.rfft(ramp).real
    if window == "hann":
        response = response * torch.cos(torch.pi * torch.fft.rfftfreq(length)).square()
    return radon.adjoint(_filtered(p, response.to(p)) * weights.to(p)[..., None])


def _view_weights(mask: Tensor, angles: Sequence[float]) -> Tensor:
    order = np.argsort(angles)
    ahead = torch.as_tensor(np.asarray(angles)[order], dtype=torch.float64, device=mask.device)
    here = mask[:, torch.as_tensor(order, device=mask.device)]
    nothing = torch.full_like(here[:, :1], torch.inf, dtype=torch.float64)
    # The nearest measured views before and after each, around the half turn at its ends.
    before = torch.cat([-nothing, torch.where(here, ahead, -torch.inf)[:, :-1]], 1).cummax(1)[0]
    after = torch.cat([torch.where(here, ahead, torch.inf)[:, 1:], nothing], 1)
    after = after.flip(1).cummin(1)[0].flip(1)
    first = torch.where(here, ahead, torch.inf).amin(1, keepdim=True)
    last = torch.where(here, ahead, -torch.inf).amax(1, keepdim=True)
    before = torch.where(before.isinf(), last - torch.pi, before)
    after = torch.where(after.isinf(), first + torch.pi, after)
    weights = torch.zeros_like(after)
    weights[:, order] = torch.where(here, (after - before) / 2, 0)
    return weights.float()


def landweber_update(images: Tensor, sinograms: SinogramBatch, *, steps: int = STEPS) -> Tensor:
    """Return images after preconditioned Landweber steps towards agreement with ``sinograms``."""
    radon, lead = sinograms.radon, (1,) * (images.ndim - 3)
    mask = sinograms.mask.to(images.dtype)
    count = mask.sum(1)
    response = _weights(radon, sinograms.arcs).view(len(mask), *lead, mask.shape[1], -1)
    known = sinograms.projections.to(images.dtype).view(len(mask), *lead, *mask.shape[1:], -1)
    kept, noise = mask.view(len(mask), *lead, -1, 1), sinograms.variance.view(-1, *lead, 1, 1)
    bins = (count * radon.detectors).view(-1, *lead, 1, 1)
    for _ in range(steps):
        gap = (known - radon(images)) * kept
        power = gap.square().sum((-2, -1), keepdim=True) / bins
        trust = (1 - noise / power.clamp_min(1e-30)).clamp_min(0)
        images = images + radon.adjoint(_filtered(gap * trust, response))
    return images


def _weights(radon: Radon, angles: Tensor) -> Tensor:
    """Return the inverse sampling density around each view, (case, view, frequency)."""
    frequency = _frequencies(radon, angles.device)
    weights = (frequency * angles[..., None]).clamp_max(1)
    # Views that crowd together overlap further out than the angles between crowds suggest.
    crowd = torch.einsum("cuf,uvf->cvf", weights, _overlaps(radon, angles.device))
    return weights / (crowd / EVEN).clamp_min(1) / radon.size


def _frequencies(radon: Radon, device: torch.device) -> Tensor:
    frequency: Tensor = torch.fft.rfftfreq(2 * radon.detectors, device=device) * radon.size
    # Nothing is slower than the image: its mean is in every view.
    return frequency.clamp_min(1 / np.pi)


@lru_cache(maxsize=12)
def _overlaps(radon: Radon, device: torch.device) -> Tensor:
    angles = torch.tensor(radon.angles, device=device)
    apart = (angles[:, None] - angles).abs() % torch.pi
    apart = torch.minimum(apart, torch.pi - apart)
    return (1 - apart[..., None] * _frequencies(radon, device)).clamp_min(0)


def _filtered(projections: Tensor, response: Tensor) -> Tensor:
    # Twice the length keeps the ends of the detector from wrapping into each other.
    detectors = projections.shape[-1]
    with torch.autocast(projections.device.type, enabled=False):
        spectrum = torch.fft.rfft(projections, n=2 * detectors)
        filtered: Tensor = torch.fft.irfft(spectrum * response, n=2 * detectors)
    return filtered[..., :detectors]


OPERATORS: Registry[Callable[[int, tuple[float, ...]], Callable[[Tensor], Tensor]]] = Registry(
    "Radon transform",
    {
        "taskuq": "taskuq.measure._tomography:Radon",
        "deepinv": "taskuq.measure._tomography:DeepinvRadon",
    },
)


def _nested_views(views: int, accelerations: Sequence[float]) -> list[NDArray[np.int64]]:
    """Return nested, sorted sets of view indices, each spread evenly over 180°."""
    counts = [round(views / R) for R in accelerations]
    if not counts or counts[0] < 1 or counts[-1] > views or counts != sorted(set(counts)):
        given = f"accelerations {list(accelerations)} take {counts} of {views} views"
        raise InputError(f"{given}; each must add a view", code="rounds.invalid")
    steps = [views // count for count in counts]
    whole = all(s * c == views for s, c in zip(steps, counts, strict=True))
    if whole and all(early % late == 0 for early, late in pairwise(steps)):
        return [np.arange(0, views, step) for step in steps]
    bits = max(1, (views - 1).bit_length())
    order = [int(f"{k:0{bits}b}"[::-1], 2) for k in range(2**bits)]
    order = [v for v in order if v < views]
    return [np.sort(np.array(order[:count])) for count in counts]


@dataclass(frozen=True)
class PhotonNoise:
    """Poisson noise of photon counts."""

    photons: NonNegative = 0.0
    attenuation: Positive = 6.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def rate(self, projections: Tensor, size: int) -> Tensor:
        return self.photons * torch.exp(-self.attenuation / size * projections)

    def read(self, counts: Tensor, size: int) -> Tensor:
        return -size / self.attenuation * torch.log(counts.clamp_min(1) / self.photons)

    def variance(self, projections: Tensor, size: int) -> Tensor:
        """Return the variance of measured line integrals to first order; 0 without noise."""
        if not self.photons:
            return torch.zeros_like(projections)
        return (size / self.attenuation) ** 2 / self.rate(projections, size).clamp_min(1)


@dataclass(frozen=True)
class ParallelBeamCT:
    """Parallel-beam CT system that acquires any set of views."""

    size: int
    views: int
    accelerations: tuple[float, ...]
    counts: PhotonNoise = PhotonNoise()
    seed: int | None = None
    operator: str = "taskuq"
    chosen: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        _nested_views(self.views, self.accelerations)
        OPERATORS[self.operator]
        require_seed(self.counts.photons, self.seed)

    def __call__(self, image: Tensor, acceleration: float) -> Sinogram:
        """Project images (..., size, size) at the views that are measured at an acceleration."""
        lines = np.isin(np.arange(self.views), self.views_at(acceleration))
        return self.measure_lines(image, acceleration, lines)

    @property
    def n_lines(self) -> int:
        return self.views

    def initial_lines(self, n: int) -> BoolArray:
        """Return a mask of n views, evenly spaced over 180°."""
        return np.isin(np.arange(self.views), np.arange(n) * self.views // n)

    def add_random_lines(
        self, lines: BoolArray, n: int, seed: int | np.random.Generator
    ) -> BoolArray:
        """Add n random views to a mask, preferably in wide gaps between measured views."""
        rng, mask = np.random.default_rng(seed), lines.copy()
        for _ in range(n):
            at = np.flatnonzero(mask)
            ahead = np.searchsorted(at, np.arange(self.views)) % len(at)
            gap = np.diff(at, append=at[0] + self.views)[ahead - 1]
            weight = np.where(mask, 0, gap.astype(float))
            mask[rng.choice(self.views, p=weight / weight.sum())] = True
        return mask

    def measure_lines(self, image: Tensor, acceleration: float, lines: BoolArray) -> Sinogram:
        """Project images (..., size, size) at the views that a boolean mask (view,) selects."""
        if image.ndim < 2 or image.shape[-2:] != (self.size, self.size) or image.is_complex():
            given = f"the image has shape {tuple(image.shape)} and type {image.dtype}"
            text = f"{given}; pass real (..., {self.size}, {self.size})"
            raise InputError(text, code="shape.mismatch")
        views = np.flatnonzero(lines)
        angles = view_angles(views, self.views)
        projections, variance = OPERATORS[self.operator](self.size, angles)(image), 0.0
        if self.counts.photons:
            assert self.seed is not None, "checked when the scanner is made"
            rates = self.counts.rate(projections, self.size).double().cpu().numpy()
            flat = image.reshape(-1, self.size, self.size)
            drawn = np.empty((len(flat), *rates.shape[-2:]))
            for row, one in enumerate(flat):
                # Counts depend on image and view, not on the other views.
                name = image_seed(one, self.seed)
                for k, view in enumerate(views):
                    rng = np.random.default_rng([name, int(view)])
                    drawn[row, k] = rng.poisson(rates.reshape(drawn.shape)[row, k])
            counted = torch.as_tensor(drawn).reshape(projections.shape).to(projections)
            projections = self.counts.read(counted, self.size)
            variance = float(self.counts.variance(projections, self.size).mean())
        return Sinogram(projections, angles, self.size, float(acceleration), variance)

    def views_at(self, acceleration: float) -> NDArray[np.int64]:
        """Return the indices of the views measured at an acceleration; all views at R = 1."""
        each = self.chosen or _nested_views(self.views, self.accelerations)
        rounds = [*map(np.array, each), np.arange(self.views)]
        return rounds[round_at(acceleration, [*self.accelerations, 1])]

    def line_values(self, images: Tensor, measurement: Sinogram) -> Tensor:
        """Return the projections of posterior samples, (view, sample, detector)."""
        angles = view_angles(np.arange(self.views), self.views)
        projections: Tensor = OPERATORS[self.operator](self.size, angles)(images)
        return projections.transpose(0, 1)


def view_angles(views: NDArray[np.int64], total: int) -> tuple[float, ...]:
    return tuple((np.asarray(views) * (np.pi / total)).tolist())


@dataclass(frozen=True)
class TomographyConfig:
    """Settings of [measure] for tomography: views of the rounds and photon noise."""

    #: Acceleration R of each round, which measures 1/R of the views.
    accelerations: tuple[Acceleration, ...] = (16.0, 8.0, 4.0, 2.0)
    views: Size = 192  #: Number of views of a full scan, evenly spaced over 180 degrees.
    photons: NonNegative = 0.0  #: Photons per detector bin without an object; 0 for no noise.
    attenuation: Positive = 6.0  #: Line integral along one full row of an image of ones.
    operator: str = "taskuq"  #: Implementation of the projector: "taskuq" or "deepinv".
    path: Path | None = None  #: File with an order of views, written by taskuq masks.
    terminology = Terminology(
        case="slice", group="scan", estimate="back-projected", measurement="view",
        reference="all views",
    )  # fmt: skip

    def __post_init__(self) -> None:
        _nested_views(self.views, self.accelerations)

    @property
    def round_names(self) -> tuple[str, ...]:
        chosen = _nested_views(self.views, self.accelerations)
        return tuple(f"{len(views)} view{'s' * (len(views) > 1)}" for views in chosen)

    @property
    def counts(self) -> PhotonNoise:
        return PhotonNoise(self.photons, self.attenuation)

    def masks(self, width: int) -> BoolArray:
        """Return the views of each round, booleans (round, view), for any image width."""
        if self.path is not None:
            return read_masks(self.path, self.accelerations, self.views)
        chosen = _nested_views(self.views, self.accelerations)
        return np.stack([np.isin(np.arange(self.views), views) for views in chosen])

    def scanner(self, width: int, *, noise: float, seed: int) -> ParallelBeamCT:
        if noise:
            raise InputError(f"noise is {noise}; set measure.photons", code="option.conflict")
        chosen = None
        if self.path is not None:
            chosen = tuple(tuple(np.flatnonzero(mask).tolist()) for mask in self.masks(width))
        return ParallelBeamCT(
            width, self.views, self.accelerations, self.counts, seed, self.operator, chosen
        )
