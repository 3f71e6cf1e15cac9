"""Recoveries from the views of computed tomography: an unrolled network, and samples around it."""

from taskuq.recover.tomography.network import UnrolledConfig, UnrolledNet

__all__ = ["UnrolledConfig", "UnrolledNet"]
