"""The size of a conditional flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taskuq.errors import InputError


@dataclass(frozen=True)
class FlowConfig:
    """The size of a conditional flow; the defaults are the paper's (507 million parameters).

    Arguments:
        coils: The number of (virtual) coils; the flow has two real channels for each.
        inputs: Real channels of what the flow is told; two for each coil where 0. A flow around an
            estimate has 6.
        unet_width: Channels of the first level of the conditioning U-Net.
        unet_pools: How many times the conditioning U-Net halves the image.
        condition_channels: Channels of every condition.
        direct: Whether the conditions also read what the flow is told itself, past the U-Net, whose
            instance normalisation hides how strong signal and noise are. Off, as the paper has it.
        layers: Layers of the flow, each at half the size of the one before.
        steps: Steps in each layer; their couplings alternate between single pixels and 3×3
            neighbourhoods.
        noise: Standard deviation of the noise that fills the measured subspace in training. It
            gives the null-space target a density; data consistency removes it from every sample.
        null_noise: The same for the null space itself. It makes directions in which images hardly
            vary easier to learn, and widens the posterior by as much: keep it below the noise
            that the images carry. 0, as the paper has it, adds none.
        fill: What fills the measured subspace in training: ``"noise"`` of one size everywhere, or
            noise as large as the ``"residual"``, the rest that the flow has to draw, where it is
            and at the frequencies that it has. Couplings see a few pixels and cannot tell measured
            lines from others: where one size is asked for, they draw a mixture of both.
        turned: Whether the coils of each pixel are turned so that the first is the combined image
            (:class:`taskuq.recover.flow.turn.Turn`).
        passes: How often the U-Net says what is missing; what it says last is the mean that the
            flow draws around. It is trained for that before the flow is (``[pretrain]``) and then
            left alone. 0, as the paper has it: the flow learns the mean as it learns all else.
        normalise: Whether to divide each case by the 95 % quantile of its own zero-filled
            magnitudes; off where the data set has done so for whole volumes, as the paper does.
        limit: A sample with a value beyond this (in normalised units) is drawn again and counted.
        seed: Draws the rotations and the start of the weights.

    Example:
        >>> FlowConfig().size_multiple  # images must be divisible by this
        4
    """

    coils: int = 8
    inputs: int = 0
    unet_width: int = 256
    unet_pools: int = 4
    condition_channels: int = 64
    direct: bool = False
    layers: int = 2
    steps: int = 10
    noise: float = 0.05
    null_noise: float = 0.0
    fill: Literal["noise", "residual"] = "noise"
    turned: bool = False
    passes: int = 0
    normalise: bool = False
    limit: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("coils", "unet_width", "unet_pools", "condition_channels", "layers", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give a whole number above 0")
        if min(self.noise, self.null_noise) < 0 or self.limit <= 0:
            raise InputError(
                f"noise is {self.noise}, null_noise {self.null_noise} and limit {self.limit}; give "
                "noise of at least 0 and a positive limit"
            )
        if min(self.inputs, self.passes) < 0:
            raise InputError(
                f"inputs is {self.inputs} and passes {self.passes}; give numbers of at least 0"
            )
        whole = self.passes or self.turned or self.fill != "noise"
        if self.inputs and whole:
            raise InputError(
                f"inputs is {self.inputs}, of a flow around estimates, and fill, turned or passes "
                "are for flows of whole images; leave one of them out"
            )

    @property
    def size_multiple(self) -> int:
        """What height and width must be divisible by."""
        return int(2**self.layers)

    @property
    def channels(self) -> int:
        """Real channels of the image, two for each coil."""
        return 2 * self.coils

    @property
    def read(self) -> int:
        """Real channels of what the U-Net reads."""
        return 2 * self.channels if self.passes else self.inputs or self.channels

    @property
    def told(self) -> int:
        """Real channels of what the flow is told."""
        # With a mean: the U-Net's features, zero-filled and expected image, what the U-Net said
        # last, and the share of the lines that are measured.
        return self.unet_width + 3 * self.channels + 1 if self.passes else self.read
