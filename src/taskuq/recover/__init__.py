"""From a measurement to recoveries: zero-filled, a variational network, a conditional flow.

``build`` makes a network by name, ``load`` reads a trained one, and ``ZeroFilled``,
``VarNetRecovery`` and ``FlowRecovery`` are recovery methods as the pipeline calls them.
"""

from taskuq.recover.catalog import build, load, load_public_varnet
from taskuq.recover.columns import central_lines
from taskuq.recover.flow import ConditionalFlow, FlowConfig
from taskuq.recover.flow.sampler import Sampler, Samples
from taskuq.recover.methods import FlowRecovery, VarNetRecovery
from taskuq.recover.varnet import VarNet, VarNetConfig
from taskuq.recover.zero_filled import ZeroFilled

__all__ = [
    "ConditionalFlow",
    "FlowConfig",
    "FlowRecovery",
    "Sampler",
    "Samples",
    "VarNet",
    "VarNetConfig",
    "VarNetRecovery",
    "ZeroFilled",
    "build",
    "central_lines",
    "load",
    "load_public_varnet",
]
