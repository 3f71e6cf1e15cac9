"""A small scanner with patients whose columns vary, and samples that need no network."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from taskuq.experiments._mask_learning import MaskLearningConfig, _MaskLearner
from taskuq.measure._masks import nested_masks
from taskuq.measure._mri import MultiCoilMRI, SimulatedMRIScanner
from taskuq.measure._tomography import ParallelBeamCT, Sinogram, view_angles
from taskuq.pipeline._local import as_cases

SIZE, RATES = 16, (8.0, 4.0, 2.0)


def patients(count: int = 3, seed: int = 0) -> list[torch.Tensor]:
    """Complex images of two coils."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 2, SIZE, SIZE)
    return list(1 + 0.2 * torch.randn(shape, dtype=torch.complex64, generator=generator))


def scanner() -> MultiCoilMRI:
    """Two coils, three rounds of random masks."""
    return MultiCoilMRI(nested_masks(SIZE, RATES, seed=0), RATES)


class AdaptiveMRIScanner(SimulatedMRIScanner):
    """Scanner that measures requested columns."""

    def __init__(self, image: torch.Tensor, rates: tuple[float, ...] = RATES) -> None:
        super().__init__(image, np.empty((0, image.shape[-1]), dtype=bool), rates)
        object.__setattr__(self, "requested", {})

    def request(self, round: int, lines: Any) -> None:
        self.requested[round] = np.asarray(lines)

    def measure(self, round: int) -> Any:
        return self.measure_columns(self.requested[round])


@dataclass
class AdaptiveCTScanner:
    """Scanner that measures requested views, without noise."""

    image: torch.Tensor
    scanner: ParallelBeamCT

    def request(self, round: int, lines: Any) -> None:
        self.views = np.sort(lines)

    def measure(self, round: int) -> Any:
        rate = [*self.scanner.accelerations, 1.0][round]
        chosen = np.isin(np.arange(self.scanner.views), self.views)
        scan = self.scanner.measure_lines(self.image, rate, chosen)
        return {"views": self.views, "projections": scan.projections.numpy()}

    def combine(self, pieces: Any) -> Sinogram:
        views = np.concatenate([piece["views"] for piece in pieces])
        projections = np.concatenate([piece["projections"] for piece in pieces])[np.argsort(views)]
        angles = view_angles(np.sort(views), self.scanner.views)
        rate = [*self.scanner.accelerations, 1.0][len(pieces) - 1]
        return Sinogram(torch.as_tensor(projections), angles, self.scanner.size, rate)


class Draws:
    """Zero-filled images with noise in the lines that were not measured; fails when told to.

    Arguments:
        fails_at: The number of the call that fails; none does where None.
    """

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls, self.fails_at = 0, fails_at

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> torch.Tensor:
        """Draw (sample, height, width)."""
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        generator = torch.Generator().manual_seed(seed % 2**31)
        noise = torch.randn(samples, SIZE, SIZE, dtype=torch.complex64, generator=generator)
        noise = torch.fft.fftshift(torch.fft.fft2(noise, norm="ortho"), dim=(-2, -1))
        falling = 1 / (1 + (torch.arange(SIZE) - SIZE // 2).abs())
        free = torch.fft.ifft2(
            torch.fft.ifftshift(noise * falling * ~measurement.mask, dim=(-2, -1)), norm="ortho"
        )
        return (measurement.preview + free.real).float()


class DrawsTogether(Draws):
    """The same samples, several cases at a time."""

    def batch(self, measurements: Any, *, samples: int, seeds: Any) -> torch.Tensor:
        pairs = zip(measurements, seeds, strict=True)
        return torch.stack([self(one, samples=samples, seed=seed) for one, seed in pairs])


def corner(images: Any) -> torch.Tensor:
    """A task with a gradient: how bright a corner is, bent a little."""
    seen = torch.as_tensor(images)[:, :5, :5].mean((1, 2))
    return torch.sigmoid(seen)


def learner(recover: Any, **settings: Any) -> _MaskLearner:
    """What learns an order from the toy's patients."""
    config = MaskLearningConfig(samples=6, cases=3, lines_per_step=2, **settings)
    object.__setattr__(config.measure, "accelerations", RATES)
    return _MaskLearner(config, scanner(), recover, corner, as_cases(patients()), "cpu")
