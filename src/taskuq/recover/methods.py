"""The networks as recovery methods: a measurement in, magnitude images out."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from taskuq.measure.coils import rss
from taskuq.measure.fourier import fft2c
from taskuq.measure.projections import broadcast_mask
from taskuq.recover.columns import central_lines
from taskuq.recover.flow.model import ConditionalFlow
from taskuq.recover.flow.sampler import Sampler
from taskuq.recover.recorded import Recorded
from taskuq.recover.scan import Scan, stacked
from taskuq.recover.varnet import VarNet


class VarNetRecovery:
    """A point estimate by a variational network.

    Arguments:
        net: The network, on the device where it shall run.

    Example:
        >>> import torch
        >>> from taskuq.measure.mri import Measurement
        >>> from taskuq.recover.varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2))
        >>> scan = Measurement(torch.ones(4, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> VarNetRecovery(net)(scan, samples=1, seed=0).shape
        torch.Size([1, 16, 16])
    """

    def __init__(self, net: VarNet) -> None:
        self.net = net.eval()
        self.device = next(net.parameters()).device
        self._recorded = Recorded(self.net)

    def __call__(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return the recovered magnitude image, (1, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements: Sequence[Scan], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return the recovered magnitude images of several cases, (case, 1, height, width)."""
        zero_filled, mask = stacked(measurements)
        lines = central_lines(mask.cpu()).to(self.device)
        kspace, mask = fft2c(zero_filled.to(self.device)), mask.to(self.device)
        kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
        return self._recorded(kspace, mask, lines)[:, None]

    def __reduce__(self) -> tuple[type[VarNetRecovery], tuple[VarNet]]:
        # Recorded GPU work cannot travel to another process; it is recorded there again.
        return VarNetRecovery, (self.net,)


class FlowRecovery:
    """Posterior samples by a conditional flow.

    Arguments:
        flow: The flow; it is not changed.
        device: Where to draw; by default where the flow is.
        dtype: The precision of the convolutions; bfloat16 on a GPU, float32 elsewhere.
        memory: Bytes that the samples of one chunk may take.
        temperature: Standard deviation of the latents; 1 draws from the posterior.

    Example:
        >>> import torch
        >>> from taskuq.measure.mri import Measurement
        >>> from taskuq.recover.flow import FlowConfig
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2))
        >>> scan = Measurement(torch.ones(1, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> recover = FlowRecovery(flow)
        >>> recover(scan, samples=3, seed=0).shape, recover.rejected
        (torch.Size([3, 16, 16]), 0)
    """

    def __init__(
        self,
        flow: ConditionalFlow,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory: float = 2.5 * 2**30,
        temperature: float = 1.0,
    ) -> None:
        self.sampler = Sampler(flow, device=device, dtype=dtype, memory=memory, finish=rss)
        self.temperature = temperature
        self.rejected = 0

    def __call__(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples, (sample, height, width); rejected draws are counted."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements: Sequence[Scan], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        zero_filled, mask = stacked(measurements)
        drawn = self.sampler(
            zero_filled, mask, samples=samples, seeds=seeds, temperature=self.temperature
        )
        self.rejected += int(drawn.rejected.sum())
        return drawn.images

    def __getstate__(self) -> dict[str, Any]:
        # Recorded GPU work cannot travel to another process; it is recorded there again.
        sampler = copy(self.sampler)
        sampler._recorded = {}
        return {**self.__dict__, "sampler": sampler}
