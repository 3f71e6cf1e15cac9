"""A conditional normalising flow that draws from the posterior of an image."""

from taskuq.recover.flow.config import FlowConfig
from taskuq.recover.flow.model import ConditionalFlow, bits_per_dimension

__all__ = ["ConditionalFlow", "FlowConfig", "bits_per_dimension"]
