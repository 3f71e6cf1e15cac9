"""Radon transform and parallel-beam CT."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._registry import Registry
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure._fourier import image_seed, require_seed, round_at
from taskuq.measure._masks import read_masks
from taskuq.table._terminology import Terminology


@dataclass(frozen=True)
class Radon:
    r"""Line integrals of images along parallel rays.

    .. math:: (A x)_{\theta, s} = \sum_{u} x_u \int_{s - 1/2}^{s + 1/2}
        \tau_\theta\big(t - \langle u, (\cos\theta, \sin\theta) \rangle\big)\, dt

    Pixels are squares: the shadow :math:`\tau_\theta` of one is a trapezoid of area 1, and each
    bin of the detector gets what falls into it, so that no mass is lost and even areas stay even.
    The detector is as long as the image's diagonal. The matrix is made once for each size and set
    of views, and kept.

    Arguments:
        size: Rows and columns of the image.
        angles: Angles :math:`\theta`, in radians.
        footprint: ``"strip"`` as above; ``"hat"`` shares a pixel between the two bins nearest to
            its centre, as is often done: diagonal views of even areas then have ripples, which
            filtered back-projection makes louder.

    Example:
        >>> image = torch.zeros(8, 8)
        >>> image[2, 5] = 3.0
        >>> Radon(8, (0.0, np.pi / 2))(image).sum(-1)
        tensor([3., 3.])
    """

    size: int
    angles: tuple[float, ...]
    footprint: Literal["strip", "hat"] = "strip"

    def __post_init__(self) -> None:
        if self.size < 1 or not self.angles or not np.isfinite(self.angles).all():
            raise InputError(
                f"the size is {self.size} and there are {len(self.angles)} angles; give a size of "
                "at least 1 and at least one finite angle"
            )

    @property
    def detectors(self) -> int:
        """Bins of the detector, each as wide as a pixel."""
        return int(np.ceil(self.size * np.sqrt(2))) + 1

    def __call__(self, images: Tensor) -> Tensor:
        """Images (..., size, size) to projections (..., view, detector)."""
        flat = images.reshape(-1, self.size**2)
        projections = _applied(flat, *self._matrices(flat))
        return projections.reshape(*images.shape[:-2], len(self.angles), self.detectors)

    def adjoint(self, projections: Tensor) -> Tensor:
        """Smear projections (..., view, detector) back over images (..., size, size)."""
        flat = projections.reshape(-1, len(self.angles) * self.detectors)
        images = _applied(flat, *reversed(self._matrices(flat)))
        return images.reshape(*projections.shape[:-2], self.size, self.size)

    def _matrices(self, like: Tensor) -> tuple[Tensor, Tensor]:
        precision = torch.float64 if like.dtype == torch.float64 else torch.float32
        return _matrices(self, precision, like.device)


def hat_radon(size: int, angles: tuple[float, ...]) -> Radon:
    """The transform with the coarser footprint.

    Arguments:
        size: Rows and columns of the image.
        angles: In radians.

    Example:
        >>> hat_radon(8, (0.0,)).footprint
        'hat'
    """
    return Radon(size, angles, "hat")


class _SparseMatmul(torch.autograd.Function):
    """Rows times the transpose of a sparse matrix, differentiable by its own transpose."""

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
    """The matrix and its transpose, compressed rows, where images are."""
    from scipy.sparse import csr_array

    size, detectors, views = radon.size, radon.detectors, len(radon.angles)
    bins, shares = _FOOTPRINTS[radon.footprint](radon)
    rows = bins + detectors * np.arange(views)[:, None, None]
    pixels = np.broadcast_to(np.arange(size**2)[:, None], rows.shape)
    seen = shares > 0
    where = rows[seen], pixels[seen]
    matrix = csr_array((shares[seen], where), shape=(views * detectors, size**2))
    return _as_tensor(matrix, dtype, device), _as_tensor(matrix.T.tocsr(), dtype, device)


def _as_tensor(matrix: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix.sort_indices()
    rows, columns = (
        torch.from_numpy(part.astype(np.int32)) for part in (matrix.indptr, matrix.indices)
    )
    values = torch.from_numpy(matrix.data).to(dtype)
    with warnings.catch_warnings():
        # torch calls all of its compressed matrices a beta.
        warnings.filterwarnings("ignore", category=UserWarning, message="Sparse ")
        compressed = torch.sparse_csr_tensor(rows, columns, values, size=matrix.shape)
    return compressed.to(device)


# Bins (view, pixel, bin) that a pixel may fall into, and its share in each.
Shares = tuple[NDArray[np.int64], NDArray[np.float64]]


def _places(radon: Radon) -> NDArray[np.float64]:
    """Where the centre of each pixel falls, in bins, (view, pixel)."""
    axis = np.arange(radon.size) - (radon.size - 1) / 2
    y, x = np.meshgrid(-axis, axis, indexing="ij")
    theta = np.array(radon.angles)[:, None]
    centre = (radon.detectors - 1) / 2
    return np.asarray(x.ravel() * np.cos(theta) + y.ravel() * np.sin(theta) + centre)


def _hat(radon: Radon) -> Shares:
    places = _places(radon)
    lower = np.clip(np.floor(places), 0, radon.detectors - 2)
    upper = places - lower
    return np.stack([lower, lower + 1], -1).astype(np.int64), np.stack([1 - upper, upper], -1)


def _strip(radon: Radon) -> Shares:
    places = _places(radon)
    sides = np.abs([np.cos(radon.angles), np.sin(radon.angles)])[..., None, None] / 2
    # A shadow without slopes, along an axis, has slopes that are too steep to matter.
    wide, narrow = sides.max(0), np.maximum(sides.min(0), 1e-6)
    # No shadow is longer than the diagonal of a pixel: three bins hold it.
    bins = np.rint(places)[..., None] + np.array([-1, 0, 1])

    def until(t: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of a shadow on the left of a place."""
        ends = [(wide + narrow, 1), (wide - narrow, -1), (narrow - wide, -1), (-wide - narrow, 1)]
        total = sum(sign * np.maximum(t + end, 0) ** 2 for end, sign in ends)
        return np.asarray(total / (8 * wide * narrow))

    edge = bins - places[..., None]
    shares = np.where(np.abs(edge) < 1.3, until(edge + 0.5) - until(edge - 0.5), 0)
    # What rounding leaves of nothing.
    shares = np.where(shares > 1e-9, shares, 0)
    return np.clip(bins, 0, radon.detectors - 1).astype(np.int64), shares


_FOOTPRINTS = {"strip": _strip, "hat": _hat}


@dataclass(frozen=True)
class DeepinvRadon:
    r"""Line integrals of images by ``deepinv.physics.Tomography``, which turns the image.

    Its detector has another number of bins, and where the image is padded by an odd number of
    pixels it turns about a place half a pixel off the centre. Both are undone by shifting each
    view by the phase of its Fourier transform, which keeps all of its frequencies.

    Arguments:
        size: Rows and columns of the image.
        angles: In radians.

    Example:
        >>> DeepinvRadon(8, (0.0,)).detectors == Radon(8, (0.0,)).detectors
        True
    """

    size: int
    angles: tuple[float, ...]

    @property
    def detectors(self) -> int:
        """Bins of the detector, as many as ours has."""
        return Radon(self.size, self.angles).detectors

    def __call__(self, images: Tensor) -> Tensor:
        """Images (..., size, size) to projections (..., view, detector)."""
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
        kept: Tensor = ours[..., : self.detectors].reshape(shape).to(images.dtype)
        return kept


@lru_cache(maxsize=12)
def _physics(radon: DeepinvRadon, device: torch.device) -> Any:
    try:
        from deepinv.physics import Tomography
    except ImportError as error:
        raise InputError(
            f"deepinv cannot be imported ({error}); install taskuq[deepinv], or leave "
            "measure.operator"
        ) from None
    degrees = torch.tensor(np.rad2deg(radon.angles), dtype=torch.float32, device=device)
    return Tomography(degrees, radon.size, circle=False, normalize=False, device=device)


Window = Literal["ram-lak", "hann"]

# After so many steps about a tenth of the gap to the measured views is left.
STEPS = 3

# Lines of even views, weighed by their distance, overlap by at most so much (9/8).
EVEN = 1.13


@dataclass(frozen=True, eq=False)
class Sinogram:
    """What a CT scanner has collected so far.

    Attributes:
        projections: Line integrals (..., view, detector).
        angles: The angle of each view, in radians.
        size: Rows and columns of the image.
        acceleration: R.
        variance: The mean variance of a line integral, known from the counts; 0 without noise.
    """

    projections: Tensor
    angles: tuple[float, ...]
    size: int
    acceleration: float
    variance: float = 0.0

    @property
    def picture(self) -> Tensor:
        """The filtered back-projection."""
        return filtered_back_projection(self)


@dataclass(frozen=True, eq=False)
class SinogramBatch:
    """Measured views of several cases, which need not be the same views.

    Attributes:
        projections: Line integrals, 0 where not measured, (case, view, detector).
        mask: Which views each case has, booleans (case, view).
        radon: The operator of all views.
        share: How much of a full scan was measured, (case,).
        variance: The mean variance of a line integral of each case, (case,).
    """

    projections: Tensor
    mask: Tensor
    radon: Radon
    share: Tensor
    variance: Tensor

    @property
    def arcs(self) -> Tensor:
        """The angle that each measured view stands for, (case, view): see :func:`arcs`."""
        return _view_weights(self.mask, self.radon.angles)

    def take(self, rows: Tensor) -> SinogramBatch:
        """Some of the cases."""
        parts = (self.projections[rows], self.mask[rows])
        return SinogramBatch(*parts, self.radon, self.share[rows], self.variance[rows])


def stack_sinograms(
    measurements: Sequence[Sinogram], device: torch.device | str = "cpu"
) -> SinogramBatch:
    """Put measurements of one size together, over all views that any of them has.

    Arguments:
        measurements: What :class:`taskuq.measure._tomography.ParallelBeamCT` gives for one image
            each.
        device: Where to.

    Example:
        >>> early = Sinogram(torch.ones(1, 13), (0.0,), 8, 2.0)
        >>> late = Sinogram(torch.ones(2, 13), (0.0, 1.5), 8, 1.0)
        >>> stack_sinograms([early, late]).mask
        tensor([[ True, False],
                [ True,  True]])
    """
    for scan in measurements:
        if not isinstance(scan, Sinogram) or scan.projections.ndim != 2:
            raise InputError(
                f"the measurement is a {type(scan).__name__}; give sinograms (view, detector) as "
                "taskuq.measure._tomography makes them"
            )
    sizes = {scan.size for scan in measurements}
    if len(sizes) != 1:
        raise InputError(f"images have sizes {sorted(sizes)}; give measurements of one size")
    angles = tuple(sorted({angle for scan in measurements for angle in scan.angles}))
    radon = Radon(sizes.pop(), angles)
    mask = np.stack([np.isin(angles, scan.angles) for scan in measurements])
    shape = (len(measurements), len(angles), radon.detectors)
    projections = torch.zeros(shape, device=device)
    for row, scan in enumerate(measurements):
        here = torch.as_tensor(np.searchsorted(angles, scan.angles), device=device)
        projections[row, here] = scan.projections.to(device, torch.float32)
    return SinogramBatch(
        projections,
        torch.as_tensor(mask, device=device),
        radon,
        torch.tensor([1 / scan.acceleration for scan in measurements], device=device),
        torch.tensor([scan.variance for scan in measurements], device=device),
    )


def filtered_back_projection(
    sinograms: SinogramBatch | Sinogram, window: Window = "ram-lak"
) -> Tensor:
    """The classical recovery (..., size, size): a ramp filter, then back-projection.

    Each view counts for the angle that it stands for.

    References:
        Kak and Slaney, Principles of Computerized Tomographic Imaging, 1988.

    Arguments:
        sinograms: The measurements.
        window: ``"ram-lak"`` leaves the ramp, ``"hann"`` fades high frequencies out.

    Example:
        >>> from taskuq.measure._tomography import ParallelBeamCT
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(2,))
        >>> image = torch.zeros(32, 32)
        >>> image[8:24, 8:24] = 1.0
        >>> recovery = filtered_back_projection(scanner(image, acceleration=1))
        >>> round(float(recovery[12:20, 12:20].mean()), 1)
        1.0
    """
    if isinstance(sinograms, Sinogram):
        radon = Radon(sinograms.size, sinograms.angles)
        weights = _view_weights(
            torch.ones(1, len(sinograms.angles), dtype=torch.bool), radon.angles
        )[0]
    else:
        radon, weights = sinograms.radon, sinograms.arcs
    p = sinograms.projections
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
    r"""The angle that each measured view stands for: half of the way to its neighbours.

    .. math:: a_v = (\theta_{v+} - \theta_{v-}) / 2, \qquad \textstyle\sum_v a_v = \pi

    A view from behind sees what the one from the front does: behind the last view comes the first
    one. Evenly spread views all stand for the same angle.

    Arguments:
        mask: Which views are measured, booleans (case, view); at least one of each case.
        angles: The angle of each view, in radians, between 0 and half a turn.

    Example:
        >>> _view_weights(torch.tensor([[True, True, False, False]]), [0, np.pi / 4, np.pi / 2, 2.5])
        tensor([[1.5708, 1.5708, 0.0000, 0.0000]])
    """
    order = np.argsort(angles)
    ahead = torch.as_tensor(np.asarray(angles)[order], dtype=torch.float64, device=mask.device)
    here = mask[:, torch.as_tensor(order, device=mask.device)]
    nothing = torch.full_like(here[:, :1], torch.inf, dtype=torch.float64)
    # The nearest measured view before each, and behind it; around the turn where there is none.
    before = torch.cat([-nothing, torch.where(here, ahead, -torch.inf)[:, :-1]], 1).cummax(1)[0]
    behind = torch.cat([torch.where(here, ahead, torch.inf)[:, 1:], nothing], 1)
    behind = behind.flip(1).cummin(1)[0].flip(1)
    first = torch.where(here, ahead, torch.inf).amin(1, keepdim=True)
    last = torch.where(here, ahead, -torch.inf).amax(1, keepdim=True)
    before = torch.where(before.isinf(), last - torch.pi, before)
    behind = torch.where(behind.isinf(), first + torch.pi, behind)
    found = torch.zeros_like(behind)
    found[:, order] = torch.where(here, (behind - before) / 2, 0)
    return found.float()


def landweber_update(images: Tensor, sinograms: SinogramBatch, *, steps: int = STEPS) -> Tensor:
    r"""Bring images towards the measured views, and change nothing else about them.

    .. math:: x \leftarrow x + A^{\mathsf T} P\, t\, (y - A x), \qquad
        P_v(\kappa) = \frac1N \min(1, a_v \kappa), \qquad
        t = \max\Big(0, 1 - \frac{\sigma^2}{\operatorname{mean}\,(y - A x)^2}\Big)

    Views are lines through the centre of frequency space, about one frequency wide: near the
    centre they overlap, further out each stands alone. :math:`P` divides by how often a frequency
    :math:`\kappa` was measured (in cycles across the :math:`N` pixels of a side; :math:`a_v` is the
    angle that view :math:`v` stands for, see :func:`arcs`, and views that crowd together count for
    less), so that few steps suffice, and every step lies in the range of :math:`A^{\mathsf T}`:
    what the views cannot see is left alone. With noise of variance :math:`\sigma^2` an image that
    is as far from the views as the noise is not moved; without noise :math:`t = 1`.

    Arguments:
        images: (case, ..., size, size).
        sinograms: The measured views.
        steps: How many steps.

    Example:
        >>> from taskuq.measure._tomography import ParallelBeamCT
        >>> image = torch.zeros(32, 32)
        >>> image[8:24, 8:24] = 1.0
        >>> views = stack_sinograms([ParallelBeamCT(32, 64, accelerations=(8,))(image, acceleration=8)])
        >>> gaps = [(views.radon(landweber_update(torch.zeros(1, 32, 32), views, steps=n))
        ...          - views.projections).norm().item() for n in (0, 3)]
        >>> gaps[1] < 0.1 * gaps[0]
        True
    """
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
    """One over how often each frequency was measured around each view, (case, view, frequency)."""
    frequency = _frequencies(radon, angles.device)
    weights = (frequency * angles[..., None]).clamp_max(1)
    # Views that crowd together overlap further out than the angles between crowds would say.
    crowd = torch.einsum("cuf,uvf->cvf", weights, _overlaps(radon, angles.device))
    return weights / (crowd / EVEN).clamp_min(1) / radon.size


def _frequencies(radon: Radon, device: torch.device) -> Tensor:
    frequency: Tensor = torch.fft.rfftfreq(2 * radon.detectors, device=device) * radon.size
    # Nothing is slower than the image: its mean is in every view.
    return frequency.clamp_min(1 / np.pi)


@lru_cache(maxsize=12)
def _overlaps(radon: Radon, device: torch.device) -> Tensor:
    """How much of one view's line another's covers at each frequency, (view, view, frequency)."""
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


# What takes a size and angles and gives what takes images (..., size, size) to line integrals (...,
# view, detector), a pixel apart and about the centre.
OPERATORS: Registry[Callable[[int, tuple[float, ...]], Callable[[Tensor], Tensor]]] = Registry(
    "Radon transform",
    {
        "taskuq": "taskuq.measure._tomography:Radon",
        "hat": "taskuq.measure._tomography:hat_radon",
        "deepinv": "taskuq.measure._tomography:DeepinvRadon",
    },
)


def _nested_views(views: int, accelerations: Sequence[float]) -> list[NDArray[np.int64]]:
    """Sorted sets of views, each spread evenly over the half turn and part of the next.

    Each round adds views between those measured. Where the number of views halves from round to
    round and the first is a whole step apart, all rounds are evenly spread; otherwise views are
    taken in the order of van der Corput, each new one into the widest gap.

    Arguments:
        views: The number of views of a full scan.
        accelerations: R, decreasing; round k has views / R views.

    Example:
        >>> [list(map(int, chosen)) for chosen in _nested_views(16, (8, 4))]
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
class _PhotonNoise:
    r"""The noise of counted photons.

    .. math:: n \sim \operatorname{Poisson}\big(n_0\, e^{-c p}\big), \qquad
        \hat p = -\frac1c \ln \frac{\max(n, 1)}{n_0}, \qquad c = \frac aN

    :math:`p` is a line integral in units of pixels, :math:`N` the number of pixels of a side. To
    first order :math:`\hat p` has the variance :math:`1 / (c^2 n)`.

    Arguments:
        photons: Photons :math:`n_0` that reach a detector bin without a patient; 0 counts exactly.
        attenuation: The exponent :math:`a` of a ray along a whole side of an image of ones.

    Example:
        >>> _PhotonNoise(photons=1e4).variance(torch.zeros(2), size=6)
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
    and :math:`\epsilon` what counting photons leaves (:class:`_PhotonNoise`). A view keeps its counts in
    later rounds.

    Arguments:
        size: Rows and columns of the image.
        views: Views of a full scan, evenly over half a turn.
        accelerations: R of each round, decreasing.
        counts: The noise; without it line integrals are exact.
        seed: Together with the image it decides the counts; required where there is noise.
        operator: Who projects: ``"taskuq"`` (:class:`taskuq.measure._tomography.Radon`), ``"hat"`` (the
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
    counts: _PhotonNoise = _PhotonNoise()
    seed: int | None = None
    operator: str = "taskuq"
    chosen: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        _nested_views(self.views, self.accelerations)
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
        each = self.chosen or _nested_views(self.views, self.accelerations)
        rounds = [*map(np.array, each), np.arange(self.views)]
        return rounds[round_at(acceleration, [*self.accelerations, 1])]

    def contents(self, images: Tensor, measurement: Sinogram) -> Tensor:
        """What views hold of images (sample, size, size): line integrals (view, sample, bin)."""
        angles = view_angles(np.arange(self.views), self.views)
        projections: Tensor = OPERATORS[self.operator](self.size, angles)(images)
        return projections.transpose(0, 1)

    def _counted(self, images: Tensor, projections: Tensor, views: NDArray[np.int64]) -> Tensor:
        """_PhotonNoise of the chosen views, each drawn from a seed of its image and view."""
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
class _SimulatedCTScanner:
    """Scans an image that is already known, as a real scanner would scan a patient.

    Every round gives only the views it adds; no view is taken twice, and after all rounds the rest
    of a full scan follows.

    Arguments:
        image: Attenuation, real (height, width).
        scanner: The scanner.

    Example:
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(16, 8))
        >>> patient = _SimulatedCTScanner(torch.ones(32, 32), scanner)
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
class _AdaptiveCTScanner:
    """Takes views of an image that is already known, those that it is asked for.

    Arguments:
        image: Attenuation, real (height, width).
        scanner: The scanner.

    Example:
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(16, 8))
        >>> patient = _AdaptiveCTScanner(torch.ones(32, 32), scanner)
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
        return _SimulatedCTScanner(self.image, self.scanner).combine(pieces)


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
        _nested_views(self.views, self.accelerations)

    @property
    def words(self) -> Terminology:
        """What cases, groups, pictures and measurements are called."""
        return Terminology(
            case="slice", group="scan", estimate="back-projected", measurement="view",
            truth="all views",
        )  # fmt: skip

    @property
    def round_names(self) -> tuple[str, ...]:
        """How many views each round has, in words."""
        chosen = _nested_views(self.views, self.accelerations)
        return tuple(f"{len(views)} view{'s' * (len(views) > 1)}" for views in chosen)

    @property
    def counts(self) -> _PhotonNoise:
        """The noise."""
        return _PhotonNoise(self.photons, self.attenuation)

    def masks(self, width: int) -> BoolArray:
        """The views of each round, booleans (round, view), whatever the width of images."""
        if self.file is not None:
            return read_masks(self.file, self.accelerations, self.views)
        chosen = _nested_views(self.views, self.accelerations)
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
