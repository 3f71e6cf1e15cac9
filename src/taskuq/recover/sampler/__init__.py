"""Posterior samples in one evaluation of a network that is trained by proper scores."""

from taskuq.recover.sampler.config import SamplerConfig
from taskuq.recover.sampler.network import SamplerNet

__all__ = ["SamplerConfig", "SamplerNet"]
