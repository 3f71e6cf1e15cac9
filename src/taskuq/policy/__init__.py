"""Policies that stop scans early and guarantee the coverage of the reported intervals."""

from taskuq.policy._goal import Goal
from taskuq.policy._kinds import POLICIES, NestedPolicy, PolicyKind, PolicySpec
from taskuq.policy._plan import plan
from taskuq.policy._policy import Decision, Policy, load_policy
from taskuq.policy._simulate import Simulation, simulate

__all__ = [
    "POLICIES",
    "Decision",
    "Goal",
    "NestedPolicy",
    "Policy",
    "PolicyKind",
    "PolicySpec",
    "Simulation",
    "load_policy",
    "plan",
    "simulate",
]
