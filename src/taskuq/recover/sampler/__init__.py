"""Posterior samples in one evaluation of a network that is trained by proper scores."""

from __future__ import annotations

from taskuq.recover.sampler._network import SamplerConfig, SamplerNet

__all__ = ["SamplerConfig", "SamplerNet"]
