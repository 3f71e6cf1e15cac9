"""Conditional normalising flow that samples the posterior of an image."""

from __future__ import annotations

from taskuq.recover.flow._model import ConditionalFlow, FlowConfig, bits_per_dimension

__all__ = ["ConditionalFlow", "FlowConfig", "bits_per_dimension"]
