"""Rounds that are chosen for each case: the next lines follow from the samples drawn so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.fingerprints import fingerprint
from taskuq.interval import BoolArray
from taskuq.measure.rounds import round_at
from taskuq.measure.samples import RIDGE, Aim, spread_of
from taskuq.protocols import LineMeasure


@dataclass(frozen=True)
class Choosing:
    """The table ``[choose]`` of a run whose rounds are chosen for each case.

    Arguments:
        aim: What lines are measured for: ``"gradient"``, ``"outputs"`` or ``"variance"``.
        ridge: How much noise stands for what few samples do not know.
        looks: At how many samples to look; at all where it says nothing.
        share: Which share of a round's lines is chosen for the case; the others are the masks'.
        ahead: Lines are chosen among those that the masks have so many rounds later; among all
            where it says nothing.
    """

    aim: Aim = "gradient"
    ridge: float = RIDGE
    looks: int | None = None
    share: float = 1.0
    ahead: int | None = None

    def require_samples(self, samples: int) -> None:
        """Refuse fewer samples than lines are chosen by, or than are to be looked at."""
        if self.looks is not None and self.looks > samples:
            raise InputError(
                f"looks is {self.looks} of [choose], and {samples} samples are drawn; look at as "
                "many at most"
            )
        if samples < (needed := 3 if self.aim == "outputs" else 2):
            raise InputError(
                f"samples is {samples}, and lines are chosen by how samples differ; draw at least "
                f"{needed}"
            )

    def rule(
        self, system: Any, masks: BoolArray, accelerations: tuple[float, ...]
    ) -> AdaptiveLines:
        """The rule, for a system that measures lines of one's choice.

        Arguments:
            system: Who measures.
            masks: Nested masks (round, line).
            accelerations: R of each round.
        """
        if not isinstance(system, LineMeasure):
            raise InputError("this imaging system does not measure lines of one's choice")
        return AdaptiveLines(
            system, masks, accelerations, self.aim, self.ridge, self.looks, self.share, self.ahead
        )


@dataclass(frozen=True, eq=False)
class AdaptiveLines:
    r"""A rule that measures what settles the task of this case soonest.

    The first round is the same for everybody. Each later one adds, greedily, the lines with the
    largest expected reduction of the task's variance among this case's samples
    (:class:`taskuq.measure.greedy.Spread`), as many as fixed masks would have:

    .. math:: M_{k+1} = M_k \cup r(y_k, \hat x_k)

    The same case, seed and rule always give the same lines. Nothing of other cases is looked at,
    so that the rule is a part of :math:`h` and promises stand, where it is frozen before
    calibration.

    Arguments:
        system: Who measures.
        masks: Nested masks (round, line): the first is measured, the others say how many lines
            later rounds have, and which to measure where a scan cannot choose.
        accelerations: R of each round, decreasing.
        aim: What lines are measured for.
        ridge: How much noise stands for what few samples do not know.
        looks: At how many samples to look, the first of those drawn; at all of them where None.
            The time that a choice takes grows with their square.
        share: Which share of the lines that a round adds is chosen among all; the others are chosen
            among those of the masks, because few samples do not doubt all that they should.
        ahead: Lines are chosen among those that the masks have so many rounds after the next one,
            or in the last; among all lines where None. Masks that were learned then say which lines
            are worth measuring, and samples which of them come first.

    Example:
        >>> import torch
        >>> from taskuq.measure.masks import nested_masks
        >>> from taskuq.measure.mri import MultiCoilMRI
        >>> masks = nested_masks(16, (8, 4), rng=rng)
        >>> rule = AdaptiveLines(MultiCoilMRI(masks, (8, 4)), masks, (8, 4))
        >>> scan = rule.take(torch.ones(1, 16, 16) + 0j, 8, rule.first())
        >>> drawn = torch.rand(4, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> lines = rule.choose(0, scan, drawn, lambda x: x[:, 3].mean(1), rule.first())
        >>> int(lines.sum()), bool((lines >= rule.first()).all())
        (4, True)
    """

    system: LineMeasure
    masks: BoolArray
    accelerations: tuple[float, ...]
    aim: Aim = "gradient"
    ridge: float = RIDGE
    looks: int | None = None
    share: float = 1.0
    ahead: int | None = None

    def __post_init__(self) -> None:
        if self.ahead is not None and self.ahead < 0:
            raise InputError(f"ahead is {self.ahead}; give a number of rounds, at least 0")
        if not 0 <= self.share <= 1:
            raise InputError(f"share is {self.share}; give a number between 0 and 1")
        if not 0 < self.ridge < math.inf:
            raise InputError(f"the ridge is {self.ridge}; give a number above 0, e.g. 0.01")
        if self.looks is not None and self.looks < 2:
            raise InputError(f"looks is {self.looks}; look at 2 samples at least")
        if np.shape(self.masks) != (len(self.accelerations), self.system.lines):
            raise InputError(
                f"masks have shape {np.shape(self.masks)}; give one of {self.system.lines} lines "
                f"for each of the {len(self.accelerations)} rounds"
            )

    @property
    def fingerprint(self) -> str:
        """A text that is another one for another rule."""
        masks = np.ascontiguousarray(np.asarray(self.masks, dtype=bool))
        made_of = [self.aim, self.ridge, self.looks, list(masks.shape), masks.tobytes().hex()]
        # Rules that choose all lines, among all, are called as before there were others.
        made_of += [self.share] if self.share < 1 or self.ahead is not None else []
        made_of += [] if self.ahead is None else [self.ahead]
        return fingerprint(made_of)[:16]

    def __call__(self, image: Any, acceleration: float) -> Any:
        """Measure the first round, or everything; other rounds depend on samples."""
        k = round_at(acceleration, [*self.accelerations, 1])
        if k == 0:
            return self.take(image, acceleration, self.first())
        if k < len(self.accelerations):
            raise InputError(
                f"what is measured at R = {acceleration:g} depends on the samples of earlier "
                "rounds; run the rule by a Pipeline, or by acquire"
            )
        return self.take(image, acceleration, np.ones(self.system.lines, dtype=bool))

    def first(self) -> BoolArray:
        """The lines of the first round."""
        return np.array(self.masks[0], dtype=bool)

    def take(self, image: Any, acceleration: float, lines: BoolArray) -> Any:
        """Measure the given lines of an image."""
        return self.system.take(image, acceleration, lines)

    def choose(
        self, round: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray
    ) -> BoolArray:
        """The lines of the round after this one."""
        spread = spread_of(
            self.system, measurement, recoveries[: self.looks], task, lines,
            aim=self.aim, ridge=self.ridge,
        )  # fmt: skip
        chosen, mask = np.array(lines, dtype=bool), self.masks[round + 1]
        count = int(mask.sum() - lines.sum())
        free = math.ceil(Fraction(str(self.share)) * count)
        more, _ = spread.greedy(free, chosen | ~self._worthwhile(round + 1))
        chosen[more] = True
        rest, _ = spread.greedy(count - free, chosen | ~mask, known=more)
        chosen[rest] = True
        return chosen

    def _worthwhile(self, round: int) -> BoolArray:
        """The lines among which those of a round are chosen."""
        if self.ahead is None:
            return np.ones(self.system.lines, dtype=bool)
        # Masks are nested: there are always as many that are free as the round has.
        return np.array(self.masks[min(round + self.ahead, len(self.masks) - 1)], dtype=bool)

    def otherwise(self, round: int, lines: BoolArray) -> BoolArray:
        """Lines of the next round by the masks: theirs that are free, then the lowest numbers."""
        chosen, count = np.array(lines, dtype=bool), int(self.masks[round + 1].sum())
        for more in (self.masks[round + 1] & ~chosen, ~chosen):
            chosen[np.flatnonzero(more & ~chosen)[: max(0, count - int(chosen.sum()))]] = True
        return chosen
