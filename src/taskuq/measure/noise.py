"""Noise that belongs to an image: the same in every round, worker, batch and device."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor


def noise_for(image: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal noise that depends on a seed and on the bytes of one image.

    Rounds of a scan share the samples they share: noise that belongs to the image, not to the
    call, stays on a line that later rounds keep. An operator called twice gives the same answer.

    Arguments:
        image: The image; its bytes tell cases apart.
        shape: The shape of the noise.
        seed: The seed.

    Returns:
        A real tensor of the given shape, on the CPU.

    Example:
        >>> image = torch.ones(4, 4)
        >>> torch.equal(noise_for(image, (3,), seed=0), noise_for(image, (3,), seed=0))
        True
        >>> torch.equal(noise_for(image, (3,), seed=0), noise_for(2 * image, (3,), seed=0))
        False
    """
    name = zlib.crc32(image.detach().cpu().contiguous().numpy().tobytes())
    rng = np.random.default_rng([seed, name])
    return torch.as_tensor(rng.standard_normal(shape, dtype=np.float32))
