"""The sampler's rival: flow matching of the same error, in several evaluations of a network."""

from taskuq.recover.matching.network import MatchingConfig, MatchingNet

__all__ = ["MatchingConfig", "MatchingNet"]
