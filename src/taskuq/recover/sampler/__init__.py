"""One-step posterior sampler: a network trained with proper scoring rules."""

from __future__ import annotations

from taskuq.recover.sampler._network import SamplerConfig, SamplerNet

__all__ = ["SamplerConfig", "SamplerNet"]
