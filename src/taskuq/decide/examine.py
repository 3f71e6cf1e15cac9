"""All cases of a table in the light of a policy's rules: the numbers every calibration needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taskuq.decide.rules import Examined, Rule
from taskuq.interval import FloatArray, Interval


@dataclass(frozen=True)
class Examination:
    """Cases over all rounds.

    Arguments:
        lowest: Thresholds below which a round does not stop a case (round, case).
        largest: Thresholds from which on it does not (round, case).
        score: The smallest threshold at which the report contains the target (round, case).
        rounds: What each task looked like in each round, rounds[round][task].
    """

    lowest: FloatArray
    largest: FloatArray
    score: FloatArray
    rounds: tuple[tuple[Examined, ...], ...]

    def report(self, round: int, threshold: float | FloatArray) -> Interval:
        """Return what would be reported in a round; (case,) or (case, task)."""
        reports = [e.report(threshold) for e in self.rounds[round]]
        if len(reports) == 1:
            return reports[0]
        return Interval(
            np.stack([r.lower for r in reports], axis=-1),
            np.stack([r.upper for r in reports], axis=-1),
        )


def examine(
    rules: Sequence[Sequence[Rule]], outputs: FloatArray, targets: FloatArray
) -> Examination:
    """Examine cases with rules for every round and task.

    Several tasks stop together: a case stops when all of them would, and is missed when one is.

    Arguments:
        rules: rules[round][task].
        outputs: (round, case, sample, task).
        targets: (round, case, task).
    """
    lowest, largest, scores, rounds = [], [], [], []
    for k, of_round in enumerate(rules):
        seen = tuple(rule.examine(outputs[: k + 1, ..., t]) for t, rule in enumerate(of_round))
        rounds.append(seen)
        lowest.append(np.max([e.lowest for e in seen], axis=0))
        largest.append(np.min([e.largest for e in seen], axis=0))
        scores.append(np.max([e.score(targets[k, :, t]) for t, e in enumerate(seen)], axis=0))
    return Examination(np.stack(lowest), np.stack(largest), np.stack(scores), tuple(rounds))
