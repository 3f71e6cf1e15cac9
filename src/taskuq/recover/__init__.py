"""Recovery methods: zero-filled, variational network, flow and one-step sampler.

``build`` makes a network by name and ``load`` reads a trained one. ``ZeroFilled``,
``VarNetRecovery``, ``FlowRecovery`` and ``SamplerRecovery`` are recovery methods for the pipeline.
"""

from __future__ import annotations

from taskuq.measure._fourier import central_lines
from taskuq.recover._cases import RecoveryTraining
from taskuq.recover._methods import RECOVERIES, ZeroFilled, open_recovery
from taskuq.recover._tomography import FilteredBackProjection
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.recover._varnet_training import VarNetRecovery, load_public_varnet
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.recover.flow._sample import FlowSampler, FlowSamples
from taskuq.recover.flow._train import FlowRecovery
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import SamplerRecovery

build, load = RECOVERIES.build, RECOVERIES.load

__all__ = [
    "RECOVERIES",
    "ConditionalFlow",
    "FilteredBackProjection",
    "FlowConfig",
    "FlowRecovery",
    "FlowSampler",
    "FlowSamples",
    "RecoveryTraining",
    "SamplerConfig",
    "SamplerNet",
    "SamplerRecovery",
    "VarNet",
    "VarNetConfig",
    "VarNetRecovery",
    "ZeroFilled",
    "build",
    "central_lines",
    "load",
    "load_public_varnet",
    "open_recovery",
]
