"""What decides the numbers of the experiments; the defaults are the paper's values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from taskuq.calibration.rank import exact_level
from taskuq.errors import InputError


@dataclass(frozen=True)
class ClaimSettings:
    """Values shared by all experiments.

    Arguments:
        alpha: The error rate of interval lengths and coverage.
        samples: Numbers of posterior samples to compare, as far as the table has them.
        samples_acceleration: The acceleration at which they are compared.
        coverage_acceleration: The acceleration at which coverage is looked at.
        scores: The paper's scores; AR belongs to the point estimates where there are any.
        ours: Scores beside them.
        trials: Random splits, where splits are drawn.
        goals: Pairs of an error rate and a width to stop at; the paper's pair is the first.
        round_trials: Random splits in which stopping rules are replayed; a fifth of the trials
            where None.
        widths: Widths to stop at, for the trade-off between acceleration and width.
        test_groups: Groups to test on in the paper's own multi-round protocol.
        protocol_trials: How often such groups are drawn, a fiftieth of the trials where None;
            the paper draws them once.
        seed: Where all random splits come from.

    Example:
        >>> ClaimSettings().used("alpha", "seed")
        {'alpha': 0.05, 'seed': 0}
        >>> ClaimSettings(alpha=1.5)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: alpha ...
    """

    alpha: float = 0.05
    samples: tuple[int, ...] = (2, 4, 8, 16, 32)
    samples_acceleration: float = 16.0
    coverage_acceleration: float = 8.0
    scores: tuple[str, ...] = ("ar", "lwr", "cqr")
    ours: tuple[str, ...] = ("mlwr", "learned")
    trials: int = 10_000
    goals: tuple[tuple[float, float], ...] = (
        (0.01, 0.1), (0.05, 0.1), (0.05, 0.2), (0.1, 0.1), (0.1, 0.2),
    )  # fmt: skip
    round_trials: int | None = None
    widths: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2, 0.3)
    test_groups: int = 8
    protocol_trials: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for alpha in (self.alpha, *(alpha for alpha, _ in self.goals)):
            exact_level(alpha)
        if min(self.trials, self.replays, self.draws, self.test_groups) < 1:
            raise InputError("trials and test_groups must be at least 1; give larger numbers")
        if not self.goals or not self.samples or min(self.samples) < 1:
            raise InputError("goals and samples must not be empty; give at least one of each")

    @property
    def replays(self) -> int:
        """Random splits in which stopping rules are replayed."""
        return max(1, self.trials // 5) if self.round_trials is None else self.round_trials

    @property
    def draws(self) -> int:
        """How often the groups of the paper's own protocol are drawn."""
        return max(1, self.trials // 50) if self.protocol_trials is None else self.protocol_trials

    def used(self, *names: str) -> dict[str, Any]:
        """Return the named values, for a record that depends on them alone."""
        values = asdict(self)
        return {name: values[name] for name in names}
