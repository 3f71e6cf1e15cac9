"""Which stored simulation is of a policy: as it is, with its own promise and nobody else's."""

from __future__ import annotations

from taskuq.calibration.scores import score_name
from taskuq.decide.kinds import POLICIES
from taskuq.decide.policy import Policy
from taskuq.report.contents import Contents, slug
from taskuq.report.records import SIMULATE, Record


def simulated(policy: Policy, contents: Contents) -> Record | None:
    """Return what a policy did in a stored simulation; None where it was not simulated as it is.

    As it is means with its kind, score or statistic, budget, error rate, goal, unit, rounds and
    number of samples. Of several such simulations the one with the most splits counts.

    Arguments:
        policy: The policy that promises.
        contents: The run, its simulations gathered.
    """
    guarantee, options = policy.guarantee, POLICIES[policy.kind].options
    by_score, by_statistic = "score" in options, "statistic" in options
    alike = {
        "policy": policy.kind,
        "score": score_name(policy.rules[0][0].score) if by_score else "-",
        "statistic": policy.provenance.get("statistic") if by_statistic else None,
        "budget": policy.provenance.get("budget", 1.0),
        "alpha": policy.alpha,
        "unit": "whole-group" if policy.whole_group else guarantee.unit,
        "coverage_of": guarantee.whom.who,
        "given": guarantee.given,
        "samples": policy.samples,
    }
    rates = [*policy.accelerations, 1.0]
    found = []
    for stored in contents.folder.of(SIMULATE):
        rows = contents.simulations.get(slug(stored.path.removesuffix(".json")), [])
        inputs = stored.record.get("inputs") or {}
        if (
            stored.record["goal"] == policy.goal.to_dict()
            and inputs.get("delta") == guarantee.delta
        ):
            found += [row for row in rows if all(row.get(k) == v for k, v in alike.items())]
    found = [row for row in found if [s["acceleration"] for s in row["stops"]] == rates]
    return max(found, key=lambda row: int(row["trials"]), default=None)
