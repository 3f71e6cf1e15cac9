"""What a sinogram says about an image: filtered back-projection, and agreement with its views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.radon import Radon

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
class Sinograms:
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
        return arcs(self.mask, self.radon.angles)

    def take(self, rows: Tensor) -> Sinograms:
        """Some of the cases."""
        parts = (self.projections[rows], self.mask[rows])
        return Sinograms(*parts, self.radon, self.share[rows], self.variance[rows])


def stacked(measurements: Sequence[Sinogram], device: torch.device | str = "cpu") -> Sinograms:
    """Put measurements of one size together, over all views that any of them has.

    Arguments:
        measurements: What :class:`taskuq.measure.tomography.ParallelBeamCT` gives for one image
            each.
        device: Where to.

    Example:
        >>> early = Sinogram(torch.ones(1, 13), (0.0,), 8, 2.0)
        >>> late = Sinogram(torch.ones(2, 13), (0.0, 1.5), 8, 1.0)
        >>> stacked([early, late]).mask
        tensor([[ True, False],
                [ True,  True]])
    """
    for scan in measurements:
        if not isinstance(scan, Sinogram) or scan.projections.ndim != 2:
            raise InputError(
                f"the measurement is a {type(scan).__name__}; give sinograms (view, detector) as "
                "taskuq.measure.tomography makes them"
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
    return Sinograms(
        projections,
        torch.as_tensor(mask, device=device),
        radon,
        torch.tensor([1 / scan.acceleration for scan in measurements], device=device),
        torch.tensor([scan.variance for scan in measurements], device=device),
    )


def filtered_back_projection(sinograms: Sinograms | Sinogram, window: Window = "ram-lak") -> Tensor:
    """The classical recovery (..., size, size): a ramp filter, then back-projection.

    Each view counts for the angle that it stands for.

    References:
        Kak and Slaney, Principles of Computerized Tomographic Imaging, 1988.

    Arguments:
        sinograms: The measurements.
        window: ``"ram-lak"`` leaves the ramp, ``"hann"`` fades high frequencies out.

    Example:
        >>> from taskuq.measure.tomography import ParallelBeamCT
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(2,))
        >>> image = torch.zeros(32, 32)
        >>> image[8:24, 8:24] = 1.0
        >>> recovery = filtered_back_projection(scanner(image, acceleration=1))
        >>> round(float(recovery[12:20, 12:20].mean()), 1)
        1.0
    """
    if isinstance(sinograms, Sinogram):
        radon = Radon(sinograms.size, sinograms.angles)
        weights = arcs(torch.ones(1, len(sinograms.angles), dtype=torch.bool), radon.angles)[0]
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


def arcs(mask: Tensor, angles: Sequence[float]) -> Tensor:
    r"""The angle that each measured view stands for: half of the way to its neighbours.

    .. math:: a_v = (\theta_{v+} - \theta_{v-}) / 2, \qquad \textstyle\sum_v a_v = \pi

    A view from behind sees what the one from the front does: behind the last view comes the first
    one. Evenly spread views all stand for the same angle.

    Arguments:
        mask: Which views are measured, booleans (case, view); at least one of each case.
        angles: The angle of each view, in radians, between 0 and half a turn.

    Example:
        >>> arcs(torch.tensor([[True, True, False, False]]), [0, np.pi / 4, np.pi / 2, 2.5])
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


def restored(images: Tensor, sinograms: Sinograms, *, steps: int = STEPS) -> Tensor:
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
        >>> from taskuq.measure.tomography import ParallelBeamCT
        >>> image = torch.zeros(32, 32)
        >>> image[8:24, 8:24] = 1.0
        >>> views = stacked([ParallelBeamCT(32, 64, accelerations=(8,))(image, acceleration=8)])
        >>> gaps = [(views.radon(restored(torch.zeros(1, 32, 32), views, steps=n))
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
