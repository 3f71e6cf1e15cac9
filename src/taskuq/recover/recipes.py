"""How the recovery networks are trained: their losses and their starts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from taskuq.measure.coils import rss, to_channels
from taskuq.measure.fourier import fft2c
from taskuq.measure.projections import broadcast_mask, keep_measured, null_space
from taskuq.recover.flow import ConditionalFlow, FlowConfig, bits_per_dimension
from taskuq.recover.flow.sampler import case_scale
from taskuq.recover.metrics import ssim
from taskuq.recover.recorded import Replayed
from taskuq.recover.varnet import VarNet, VarNetConfig
from taskuq.training.recipe import Batch, Recipe


def flow_recipe(config: FlowConfig, *, compiled: bool = False) -> Recipe:
    r"""Train a flow by maximum likelihood of what the measurement cannot see.

    .. math:: \min\; -\log p\big((I - A) x + \sigma A \epsilon \mid A x\big), \qquad
              \epsilon \sim \mathcal N(0, I)

    :math:`A` keeps the measured lines. The target :math:`(I - A) x` lies in a subspace and has no
    density of its own; noise of size :math:`\sigma` in the complement, and only there, gives it
    one and leaves the posterior as it is, because data consistency replaces that part of every
    sample.

    Arguments:
        config: The size of the flow.
        compiled: Whether to compile the conditioning networks.

    Returns:
        What :func:`taskuq.training.fit.fit` trains; judged by bits per dimension.

    Example:
        >>> small = FlowConfig(coils=1, unet_width=4, unet_pools=2, condition_channels=4, steps=2)
        >>> flow_recipe(small).monitor
        'loss'
    """
    flow = ConditionalFlow(config)
    if torch.cuda.is_available():
        # Convolutions of this size run on tensor cores, which read channels last.
        flow.unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        flow.conditioner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compiled:
        _compile(flow)
    return Recipe(
        kind="flow",
        network=flow,
        config=config,
        loss=lambda net, batch, generator: _flow_bits(net, batch, generator).mean(),
        validate=lambda net, batch, generator: {"loss": _flow_bits(net, batch, generator)},
        first_batch=_start,
    )


def around_recipe(config: FlowConfig, *, replayed: bool = False) -> Recipe:
    r"""Train a flow by maximum likelihood of the error of an estimate.

    .. math:: \min\; -\log p\big(r + \sigma \epsilon \mid \hat x, y\big), \qquad
              \epsilon \sim \mathcal N(0, I)

    :math:`r` is the combined error of the estimate :math:`\hat x`
    (:meth:`taskuq.recover.estimate.Estimate.error`), :math:`y` the zero-filled image,
    :math:`\sigma` the configuration's ``null_noise``.

    Arguments:
        config: The size of the flow: ``coils=1, inputs=6``.
        replayed: Whether to record a step on the GPU and replay it.

    Returns:
        What :func:`taskuq.training.fit.fit` trains; judged by bits per dimension.

    Example:
        >>> around_recipe(FlowConfig(coils=1, inputs=6, unet_width=4, unet_pools=2)).kind
        'flow'
    """
    flow = ConditionalFlow(config)
    bits = partial(_bits, flow)
    step = Replayed(flow, bits) if replayed else bits  # of this flow: it is the one trained
    return Recipe(
        kind="flow",
        network=flow,
        config=config,
        loss=lambda net, batch, generator: step(*_around(net, batch, generator)).mean(),
        validate=lambda net, batch, generator: {
            "loss": _bits(cast(ConditionalFlow, net), *_around(net, batch, generator))
        },
        first_batch=lambda net, batch, generator: _begin(net, *_around(net, batch, generator)),
    )


def varnet_recipe(config: VarNetConfig, *, replayed: bool = False) -> Recipe:
    """Train a variational network to the structural similarity of magnitude images.

    Arguments:
        config: The size of the network.
        replayed: Whether to record a step on the GPU and replay it.

    Returns:
        What :func:`taskuq.training.fit.fit` trains; judged by 1 - SSIM.

    Example:
        >>> varnet_recipe(VarNetConfig(cascades=1, width=2)).kind
        'varnet'
    """
    net = VarNet(config)
    dissimilarity = partial(_dissimilarity, net)
    step = Replayed(net, dissimilarity) if replayed else dissimilarity  # of this network
    return Recipe(
        kind="varnet",
        network=net,
        config=config,
        loss=lambda net, batch, generator: step(*_seen(batch)).mean(),
        validate=lambda net, batch, generator: {
            "loss": _dissimilarity(cast(VarNet, net), *_seen(batch))
        },
    )


def flow_target(
    images: Tensor, mask: Tensor, config: FlowConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What the flow is given and what it learns, as real channels.

    Arguments:
        images: True coil images, complex (case, coil, height, width).
        mask: Booleans (case, width); True is measured.
        config: The flow's configuration: normalisation and noise.
        generator: Draws the noise.

    Returns:
        Zero-filled images, and null-space images with noise in their complement.

    Example:
        >>> import torch
        >>> x, mask = torch.ones(1, 2, 8, 8) + 0j, torch.ones(1, 8, dtype=torch.bool)
        >>> y, target = flow_target(x, mask, FlowConfig(noise=0.0), torch.Generator())
        >>> target.abs().max().item()  # everything is measured: nothing is left to learn
        0.0
    """
    measured = keep_measured(images, mask)
    if config.normalise:
        scale = case_scale(measured).view(-1, 1, 1, 1)
        images, measured = images / scale, measured / scale
    pairs = torch.randn(
        (*images.shape, 2), generator=generator, device=images.device, dtype=images.real.dtype
    )
    noise = torch.view_as_complex(pairs)
    seen = keep_measured(noise, mask)
    target = null_space(images, mask) + config.noise * seen + config.null_noise * (noise - seen)
    return to_channels(measured), to_channels(target)


def _compile(flow: ConditionalFlow) -> None:
    # The conditioning networks are nine tenths of the arithmetic. The steps of the flow are left
    # alone: each of their shapes would be compiled again for training, validation and precision.
    with warnings.catch_warnings():
        # torch's compiler imports a part of torch that is deprecated.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        flow.condition = torch.compile(flow.condition)  # type: ignore[method-assign]


def _flow_bits(net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
    flow = cast(ConditionalFlow, net)
    return _bits(flow, *flow_target(batch["image"], batch["mask"], flow.config, generator))


def _around(net: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    config, error = cast(ConditionalFlow, net).config, batch["error"]
    noise = torch.randn(error.shape, generator=generator, device=error.device, dtype=error.dtype)
    return batch["inputs"], error + config.null_noise * noise


def _bits(flow: ConditionalFlow, told: Tensor, target: Tensor) -> Tensor:
    latents, log_det = flow(target, flow.condition(told))
    return bits_per_dimension(cast(Sequence[Tensor], latents), log_det)


def _start(net: nn.Module, batch: Batch, generator: torch.Generator) -> None:
    config = cast(ConditionalFlow, net).config
    _begin(net, *flow_target(batch["image"], batch["mask"], config, generator))


def _begin(net: nn.Module, told: Tensor, target: Tensor) -> None:
    flow = cast(ConditionalFlow, net)
    if bool(flow.started):
        return
    with torch.no_grad():
        flow(target, flow.condition(told), start=True)


def _dissimilarity(
    net: VarNet, image: Tensor, mask: Tensor, lines: Tensor, data_range: Tensor
) -> Tensor:
    kspace = fft2c(image)
    kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
    return 1 - ssim(net(kspace, mask, lines), rss(image), data_range)


def _seen(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch["image"], batch["mask"], batch["low_frequencies"], batch["data_range"]
