"""From a measurement to recoveries: zero-filled, a variational network, a flow, a sampler.

``build`` makes a network by name, ``load`` reads a trained one, and ``ZeroFilled``,
``VarNetRecovery``, ``FlowRecovery`` and ``SamplerRecovery`` are recovery methods as the pipeline
calls them.
"""

from taskuq.recover.columns import central_lines
from taskuq.recover.flow import ConditionalFlow, FlowConfig
from taskuq.recover.flow.sampler import Sampler, Samples
from taskuq.recover.flow_training import FlowRecovery
from taskuq.recover.methods import RECOVERIES, ZeroFilled, open_recovery
from taskuq.recover.sampler import SamplerConfig, SamplerNet
from taskuq.recover.sampler.recovery import SamplerRecovery
from taskuq.recover.varnet import VarNet, VarNetConfig
from taskuq.recover.varnet_training import VarNetRecovery, load_public_varnet

build, load = RECOVERIES.build, RECOVERIES.load

__all__ = [
    "RECOVERIES",
    "ConditionalFlow",
    "FlowConfig",
    "FlowRecovery",
    "Sampler",
    "SamplerConfig",
    "SamplerNet",
    "SamplerRecovery",
    "Samples",
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
