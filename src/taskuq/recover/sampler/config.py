"""The size of a sampler."""

from __future__ import annotations

from dataclasses import dataclass

from taskuq.errors import InputError


@dataclass(frozen=True)
class SamplerConfig:
    """The size of a sampler: a large part that runs once for a case, a light one for each sample.

    The default is the preset ``paper``, for 320×320.

    Arguments:
        inputs: Channels that the network is told of an estimate: images of ``outputs`` channels,
            the estimate first.
        outputs: Channels of a residual: 2 for a complex image, 1 for a real one.
        width: Channels of the first level of the part that knows no noise. They double with each
            halving of the image.
        widest: How many times the width there is at most.
        drawn: Channels of the part that draws, for each level, the finest first.
        noise: Noise maps at each level; tensor cores want a multiple of 8.
        numbers: Noise numbers for the whole image.
        scale: A residual of this size, in units of the estimate's scale, is an output of 1.

    Example:
        >>> SamplerConfig().levels, SamplerConfig().widths
        (5, (48, 96, 192, 288, 288))
    """

    inputs: int = 6
    outputs: int = 2
    width: int = 48
    widest: int = 6
    drawn: tuple[int, ...] = (32, 48, 64, 96, 128)
    noise: int = 8
    numbers: int = 32
    scale: float = 0.3

    def __post_init__(self) -> None:
        sizes = (self.inputs, self.outputs, self.width, self.widest, *self.drawn, self.noise)
        if not self.drawn or min(sizes) < 1 or self.numbers < 0 or self.scale <= 0:
            raise InputError(
                f"the sampler has {self.inputs} inputs, {self.outputs} outputs, width "
                f"{self.width}, drawn {list(self.drawn)}, noise {self.noise}, numbers "
                f"{self.numbers} and scale {self.scale}; give positive numbers"
            )

        if self.inputs % self.outputs:
            raise InputError(
                f"the sampler has {self.inputs} inputs and {self.outputs} outputs; inputs are "
                "whole images of as many channels as outputs"
            )

    @property
    def levels(self) -> int:
        """How many sizes of the image there are, the image itself included."""
        return len(self.drawn)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of the part that knows no noise, for each level, the finest first."""
        return tuple(self.width * min(2**level, self.widest) for level in range(self.levels))

    @property
    def size_multiple(self) -> int:
        """Sides are filled up to a multiple of this."""
        return int(2 ** (self.levels - 1))
