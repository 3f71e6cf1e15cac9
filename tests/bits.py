"""Whether two tensors are equal to the bit."""

import torch
from torch import Tensor


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold exactly the same numbers, NaN equal to NaN.

    Example:
        >>> import torch
        >>> same_bits(torch.tensor([1.0]), torch.tensor([1.0 + 1e-7]))
        False
    """
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(*(t.detach().cpu().reshape(-1).view(torch.uint8) for t in (first, second)))
