"""Random masks for training: any number of lines, any width of the centre, many cases at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.seeds import numbers_of_cases

RULES = ("inverse-distance", "uniform", "equidistant")
# Beyond every key that Gumbel noise of a float gives, and before the centre.
_AHEAD = 1e6


@dataclass(frozen=True)
class RandomMasks:
    r"""Masks with a fully measured centre and other lines by one of three rules, nested if asked.

    The number of lines is log-uniform between :math:`N / R_{\max}` and :math:`N / R_{\min}`, and a
    random share of the fewest is the centre. Lines outside the centre are drawn with weights
    :math:`1 / |\ell - N/2|`, with equal weights, or stand at equal distances behind a random
    offset; each case draws one of the rules. Later rounds keep the lines of earlier ones.

    All cases are drawn at once, on the generator's device, without waiting for it.

    Arguments:
        accelerations: The smallest and the largest :math:`R`.
        centre: The smallest and the largest share of a case's first lines that are the centre.
        rules: ``"inverse-distance"``, ``"uniform"``, ``"equidistant"``, or some of them.

    Example:
        >>> draw = RandomMasks(accelerations=(2, 8))
        >>> masks = draw(3, 64, torch.Generator().manual_seed(0), rounds=4)
        >>> masks.shape, bool((masks[:, 1:] >= masks[:, :-1]).all())
        (torch.Size([3, 4, 64]), True)
    """

    accelerations: tuple[float, float] = (2.0, 16.0)
    centre: tuple[float, float] = (0.2, 0.7)
    rules: tuple[str, ...] = RULES

    def __post_init__(self) -> None:
        (low, high), (narrow, wide) = self.accelerations, self.centre
        if not 1 <= low <= high or not 0 <= narrow <= wide <= 1:
            raise InputError(
                f"accelerations are {self.accelerations} and centre {self.centre}; give the "
                "smallest and the largest acceleration, at least 1, and shares between 0 and 1"
            )
        if not self.rules or set(self.rules) - set(RULES):
            raise InputError(f"rules are {list(self.rules)}; choose from {', '.join(RULES)}")

    def __call__(
        self, cases: int, width: int, generator: torch.Generator, *, rounds: int = 1
    ) -> Tensor:
        """Return masks, booleans (case, round, width); True is measured, the centre always is.

        Arguments:
            cases: How many cases.
            width: The number of k-space columns.
            generator: Where everything comes from.
            rounds: Nested masks for each case, fewest lines first.
        """

        def uniform(*shape: int) -> Tensor:
            return numbers_of_cases(torch.rand, shape, generator, device=generator.device)

        low, high = (math.log(R) for R in self.accelerations)
        lines = torch.round(width * torch.exp(-(low + (high - low) * uniform(cases, rounds))))
        lines = lines.long().clamp(1, width).sort(dim=1).values
        narrow, wide = self.centre
        share = narrow + (wide - narrow) * uniform(cases)
        centre = torch.round(share * lines[:, 0]).long().clamp_min(1)
        column = torch.arange(width, device=generator.device)
        # The lines of masks.center_lines.
        start = width // 2 - centre[:, None] // 2
        is_centre = (column >= start) & (column < start + centre[:, None])
        # The largest of log-weights with Gumbel noise are a draw without replacement.
        noise = -torch.log(-torch.log(uniform(cases, width)))
        distance = (column - width // 2).abs().clamp_min(1)
        spaced = _equidistant(is_centre, lines[:, :1] - centre[:, None], uniform(cases))
        by_rule = (noise - distance.log(), noise, torch.where(spaced, _AHEAD, noise))
        keys = torch.stack([by_rule[RULES.index(rule)] for rule in self.rules], dim=1)
        which = (len(self.rules) * uniform(cases)).long().clamp_max(len(self.rules) - 1)
        keys = keys.take_along_dim(which[:, None, None], dim=1)[:, 0]
        keys = torch.where(is_centre, math.inf, keys)
        rank = keys.argsort(dim=1, descending=True).argsort(dim=1)
        return rank[:, None] < lines[:, :, None]


def _equidistant(is_centre: Tensor, lines: Tensor, offset: Tensor) -> Tensor:
    """So many of the lines outside the centre (case, width), at equal distances behind an offset.

    Line i of m is taken where floor((i k + o) / m) steps up: k times, whatever the offset o < m.
    """
    left = (~is_centre).sum(1, keepdim=True)
    shifted = torch.minimum((offset[:, None] * left).long(), left - 1).clamp_min(0)
    index = (~is_centre).cumsum(1)
    after = torch.div(index * lines + shifted, left.clamp_min(1), rounding_mode="floor")
    before = torch.div((index - 1) * lines + shifted, left.clamp_min(1), rounding_mode="floor")
    return ~is_centre & (after > before)
