"""Noise that belongs to an image: the same in every round, worker, batch and device."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.seeds import numbers_of_cases


def require_seed(noise: float, seed: int | None) -> None:
    """Refuse a noise level below 0, and noise that nothing decides.

    Arguments:
        noise: A standard deviation.
        seed: Together with an image it decides the noise.
    """
    if noise < 0 or (noise > 0 and seed is None):
        raise InputError(
            f"noise is {noise} and seed {seed}; give a noise level of at least 0, and a seed with "
            "it"
        )


def noise_for(image: Tensor, shape: tuple[int, ...], seed: int | None) -> Tensor:
    """Standard normal noise, on the CPU, that depends on a seed and on the bytes of one image.

    Rounds of a scan share the samples they share: noise that belongs to the image, not to the
    call, stays on a line that later rounds keep. An operator called twice gives the same answer.

    Arguments:
        image: The image; its bytes tell cases apart.
        shape: The shape of the noise.
        seed: The seed.

    Example:
        >>> image = torch.ones(4, 4)
        >>> torch.equal(noise_for(image, (3,), seed=0), noise_for(image, (3,), seed=0))
        True
        >>> torch.equal(noise_for(image, (3,), seed=0), noise_for(2 * image, (3,), seed=0))
        False
    """
    assert seed is not None, "checked when the operator is made"
    rng = np.random.default_rng(image_seed(image, seed))
    return torch.as_tensor(rng.standard_normal(shape, dtype=np.float32))


def image_seed(image: Tensor, seed: int) -> int:
    """A seed below 2**63 for one image: another image or another seed gives another number.

    Arguments:
        image: The image; its bytes tell cases apart.
        seed: The seed.

    Example:
        >>> image_seed(torch.ones(2), seed=0) == image_seed(torch.ones(2), seed=1)
        False
    """
    name = zlib.crc32(image.detach().cpu().contiguous().numpy().tobytes())
    return int(np.random.SeedSequence([seed, name]).generate_state(1, np.uint64)[0] >> 1)


def complex_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Complex white noise like some images, its real and imaginary parts of unit variance.

    Arguments:
        images: Complex images; their shape, precision and device are the noise's.
        generator: Where it comes from, on that device.

    Example:
        >>> complex_noise(torch.zeros(2, 3) + 0j, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """
    shape, dtype = (*images.shape, 2), images.real.dtype
    pairs = numbers_of_cases(torch.randn, shape, generator, device=images.device, dtype=dtype)
    return torch.view_as_complex(pairs)
