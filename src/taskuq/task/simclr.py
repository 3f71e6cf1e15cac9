"""Self-supervised pre-training: a backbone with a projection, and the contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from taskuq.errors import InputError
from taskuq.task.backbone import Backbone, BackboneConfig


@dataclass(frozen=True)
class ContrastiveConfig:
    """A contrastive network; the defaults are the paper's.

    Arguments:
        backbone: The part that the classifier starts from afterwards.
        hidden: Width of the layer between features and embedding.
        embedding: Numbers in an embedding.
        temperature: The temperature of the loss.

    Example:
        >>> ContrastiveConfig().temperature
        0.07
    """

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    hidden: int = 512
    embedding: int = 128
    temperature: float = 0.07

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.hidden < 1 or self.embedding < 1:
            raise InputError(
                f"temperature is {self.temperature}, hidden {self.hidden} and embedding "
                f"{self.embedding}; give positive numbers"
            )


class ContrastiveNetwork(nn.Module):
    """Images between 0 and 1 to embeddings.

    Arguments:
        config: Its layers.

    Example:
        >>> import torch
        >>> small = ContrastiveConfig(BackboneConfig("small", width=4), hidden=8, embedding=5)
        >>> ContrastiveNetwork(small)(torch.rand(2, 32, 32)).shape
        torch.Size([2, 5])
    """

    def __init__(self, config: ContrastiveConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config.backbone)
        self.projection = nn.Sequential(
            nn.Linear(self.backbone.features, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.embedding),
        )

    def forward(self, scaled: Tensor) -> Tensor:
        """Images (image, height, width) in [0, 1] to embeddings (image, feature)."""
        embeddings: Tensor = self.projection(self.backbone(scaled))
        return embeddings


# Embeddings shorter than this are not stretched to length 1: the gradient of doing so would leave
# the range of float16, and an embedding that short says nothing.
SHORTEST = 1e-3


def nt_xent(first: Tensor, second: Tensor, temperature: float, *, gather: bool = True) -> Tensor:
    r"""The normalised, temperature-scaled cross entropy of each view.

    .. math:: \ell_i = -\log \frac{\exp(\langle u_i, u_{p(i)} \rangle / \tau)}
                                  {\sum_{k \ne i} \exp(\langle u_i, u_k \rangle / \tau)}

    :math:`u_i` are the embeddings of all :math:`2N` views, scaled to length 1, :math:`p(i)` is the
    other view of the image of :math:`i`, and :math:`\tau` is the temperature. Everything is
    computed in float32, whatever comes in, and no exponential is formed that could overflow. In
    a distributed training the sum runs over the views of all processes, and so do gradients.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations,
        ICML 2020.

    Arguments:
        first: Embeddings of one view of each image, (image, feature).
        second: Embeddings of the other view.
        temperature: :math:`\tau`.
        gather: Whether to compare with the views of other processes, which must then call this
            with as many images as we do.

    Returns:
        The loss of each view of this process, (2 image,), the first views first.

    Example:
        >>> same = torch.eye(2)
        >>> nt_xent(same, same, temperature=1.0)  # log(1 + 2 / e), by hand
        tensor([0.5514, 0.5514, 0.5514, 0.5514])
    """
    own = torch.cat([first, second]).float()
    own = functional.normalize(own, eps=SHORTEST)
    everyone, rank = _gathered(own) if gather else (own, 0)
    with torch.autocast(own.device.type, enabled=False):
        similarity = own @ everyone.T / temperature
    count, images = len(own), len(first)
    here = torch.arange(count, device=own.device)
    itself = here + rank * count
    similarity = similarity.index_put((here, itself), own.new_tensor(-torch.inf))
    partner = (here + images) % count + rank * count
    return functional.cross_entropy(similarity, partner, reduction="none")


def _gathered(own: Tensor) -> tuple[Tensor, int]:
    """The rows of all processes, with gradients, and which block of them is our own."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return own, 0
    everyone: Tensor = _AllGather.apply(own)  # type: ignore[no-untyped-call]
    return everyone, distributed.get_rank()


class _AllGather(torch.autograd.Function):
    """Gather rows; the gradient of a row is the sum of what all processes have to say about it."""

    @staticmethod
    def forward(ctx: object, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient.chunk(distributed.get_world_size())[distributed.get_rank()]
