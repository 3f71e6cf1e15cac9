"""Multi-round policies with a guarantee for the interval that is reported at the stop."""

from taskuq.decide.acquisition import acquire
from taskuq.decide.kinds import POLICIES, PolicyPlan
from taskuq.decide.monitor import Monitor
from taskuq.decide.planning import plan
from taskuq.decide.policy import Decision, Policy, load_policy
from taskuq.decide.scan import Acquisition, GroupAcquisition
from taskuq.decide.scan_state import load_acquisition
from taskuq.decide.simulation import Simulation, simulate

__all__ = [
    "POLICIES",
    "Acquisition",
    "Decision",
    "GroupAcquisition",
    "Monitor",
    "Policy",
    "PolicyPlan",
    "Simulation",
    "acquire",
    "load_acquisition",
    "load_policy",
    "plan",
    "simulate",
]
