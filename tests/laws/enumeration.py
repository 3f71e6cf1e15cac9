"""The law that all promises share, by exact enumeration: each unit in turn is the new one.

A promise says: if the units are exchangeable, what it calls a miss has probability at most alpha.
Draw the units of a finite population in random order. Given the population, each unit is the new
one with the same probability, and the others are the calibration set; so the promise holds only if
the mean miss over the choices of the new unit is at most alpha, in fractions, for every population.
Nothing here knows how anything is computed: outputs and targets go in through the public functions,
and intervals and decisions come out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations, product

import numpy as np

from laws.populations import Cases, Population, Unit, stretched

# What of a miss counts: (key, lost, of), e.g. (stratum, share of cases missed, share of cases).
Counted = Iterable[tuple[object, Fraction, Fraction]]
# Says, of a new unit, which of its cases were missed and which were told anything (an interval that
# is not everything, or an early stop), what counts.
Whom = Callable[[Unit, np.ndarray, np.ndarray], Counted]
# Looks at a new unit: which of its cases are missed, and which are told anything.
Look = Callable[[Unit], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Looking:
    """What was calibrated: it looks at new units, and says how many cases it set aside."""

    look: Look
    aside: int

    def __call__(self, new: Unit) -> tuple[np.ndarray, np.ndarray]:
        """Look at a new unit."""
        return self.look(new)


# Calibrates on some cases; what comes out looks at new units.
Trial = Callable[[Cases], Looking]


@dataclass
class Tally:
    """What was lost of what, for each thing promised; and how much was said at all.

    Arguments:
        lost: By key: the sum of misses.
        of: By key: the sum of what could be missed.
        units: By key: how many units had any of it.
        told: Cases that got an interval which is not everything.
        cases: Cases that were asked about.
    """

    lost: dict[object, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    of: dict[object, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    units: dict[object, int] = field(default_factory=lambda: defaultdict(int))
    told: int = 0
    cases: int = 0

    def add(self, whom: Whom, new: Unit, missed: np.ndarray, told: np.ndarray) -> None:
        """Add what one choice of the new unit lost."""
        for key, lost, of in whom(new, missed, told):
            self.lost[key] += lost
            self.of[key] += of
            self.units[key] += 1
        self.told += int(told.sum())
        self.cases += told.size

    def broken(self, alpha: float, fewest: int = 1) -> dict[object, float]:
        """Return by how much each promise is missed, for those that are, as printed alpha reads."""
        level = Fraction(str(alpha))
        return {
            key: float(lost / self.of[key])
            for key, lost in self.lost.items()
            if lost > level * self.of[key] and self.units[key] >= fewest
        }


def a_random_case(new: Unit, missed: np.ndarray, told: np.ndarray) -> Counted:
    """A case drawn from the new unit; the case itself where cases are the units."""
    yield "all", Fraction(int(missed.sum()), len(missed)), Fraction(1)


def enough_cases(share: float | str) -> Whom:
    """At least a share of the cases of the new unit, all at once."""
    wanted = Fraction(1) if share == "all" else Fraction(str(share))

    def whom(new: Unit, missed: np.ndarray, told: np.ndarray) -> Counted:
        covered = Fraction(int((~missed).sum()), len(missed))
        yield "all", Fraction(int(covered < wanted)), Fraction(1)

    return whom


def given_its_stratum(new: Unit, missed: np.ndarray, told: np.ndarray) -> Counted:
    """A case drawn from the new unit, given the stratum that it falls in."""
    for stratum in np.unique(new.strata):
        inside = new.strata == stratum
        lost, of = int((missed & inside).sum()), int(inside.sum())
        yield int(stratum), Fraction(lost, len(missed)), Fraction(of, len(missed))


def a_case_of_the_stratum(new: Unit, missed: np.ndarray, told: np.ndarray) -> Counted:
    """A case drawn from those of a stratum in the new unit, if it has any."""
    for stratum in np.unique(new.strata):
        inside = new.strata == stratum
        yield int(stratum), Fraction(int(missed[inside].sum()), int(inside.sum())), Fraction(1)


def enough_cases_of_the_stratum(share: float | str) -> Whom:
    """At least a share of the cases of a stratum in the new unit, if it has any."""

    def whom(new: Unit, missed: np.ndarray, told: np.ndarray) -> Counted:
        for stratum in np.unique(new.strata):
            inside = new.strata == stratum
            ((_, lost, of),) = enough_cases(share)(new, missed[inside], told[inside])
            yield int(stratum), lost, of

    return whom


def as_likely_as_its_weight(new: Unit, missed: np.ndarray, told: np.ndarray) -> Counted:
    """The new case when, given all cases, each is the new one in proportion to its weight."""
    weight = Fraction(new.weight)
    yield "all", weight * int(missed.sum()), weight


def an_early_stop(new: Unit, missed: np.ndarray, told: np.ndarray) -> Counted:
    """A case drawn from the new unit, given that its scan stops before everything is measured."""
    yield "early", *(Fraction(int((some & told).sum()), len(told)) for some in (missed, told))


def leave_one_out(population: Population, trial: Trial, whom: Whom) -> Tally:
    """Let each unit in turn be the new one; the order of the others must not matter."""
    tally = Tally()
    for v, new in enumerate(population.units):
        tally.add(whom, new, *trial(population.others(v))(new))
    return tally


def every_order(population: Population, trial: Trial, whom: Whom) -> Tally:
    """Let the units come in every order, the last one new: for what sets units aside by place."""
    tally = Tally()
    for order in permutations(population.units):
        tally.add(whom, order[-1], *trial(Cases.of(order[:-1]))(order[-1]))
    return tally


def places_set_aside(units: tuple[Unit, ...], trial: Trial) -> list[int]:
    """Find at which places of a calibration table units are set aside.

    The unit at each place is given twice as many cases as the one before, so that the number of
    cases set aside says whose they are.
    """
    sizes = [len(units[0]) * 2**place for place in range(len(units))]
    aside = trial(Cases.of(tuple(map(stretched, units, sizes)))).aside
    return [place for place, size in enumerate(sizes) if aside // size % 2]


def given_those_set_aside(population: Population, trial: Trial, whom: Whom) -> Tally:
    """Fix those set aside, and let each of the other units be the new one, for several choices.

    Given the units set aside, the others and the new one are exchangeable: the promise holds for
    every choice of them by itself. They must be chosen by their places alone.
    """
    tally, units = Tally(), population.units
    places = places_set_aside(units[1:], trial)
    assert places, "nothing is set aside"
    for start in range(0, len(units), 2):
        aside = [units[(start + k) % len(units)] for k in range(len(places))]
        rest = [units[(start + k) % len(units)] for k in range(len(places), len(units))]
        for new in rest:
            held, others = iter(aside), iter([unit for unit in rest if unit is not new])
            order = [next(held if v in places else others) for v in range(len(units) - 1)]
            looking = trial(Cases.of(tuple(order)))
            assert looking.aside == sum(map(len, aside)), "what is set aside follows what it holds"
            found = looking(new)
            tally.add(
                lambda *seen, s=start: (((s, k), a, b) for k, a, b in whom(*seen)), new, *found
            )
    return tally


def every_sample(kinds: Population, size: int, *, by_place: bool) -> list[tuple[Cases, int]]:
    """Return what can be drawn of independent units of the kinds, and how many sequences it is.

    All sequences are equally likely; where places mean nothing, those of the same units are one.
    """
    numbers = range(len(kinds.units))
    sequences = product(numbers, repeat=size)
    counts = Counter(drawn if by_place else tuple(sorted(drawn)) for drawn in sequences)
    return [(Cases.of(tuple(kinds.units[k] for k in drawn)), n) for drawn, n in counts.items()]


@dataclass(frozen=True)
class Judged:
    """What came of a promise on one population.

    Arguments:
        broken: What was lost more often than promised, and how often; empty where nothing was.
        told: The share of cases that were told anything.
        used: The share used of the misses (or of the unlucky sets) that are allowed.
    """

    broken: dict[object, float]
    told: float
    used: float


@dataclass(frozen=True)
class Promise:
    """One promise, with the populations it is tried on.

    Arguments:
        name: What is promised, in a few words.
        populations: How many populations it is tried on, their seeds counted from 0.
        draw: Draws a population from its seed.
        trial: Makes the trial for a population and an error rate.
        whom: What counts as lost.
        enumerate: Which choices of the new unit and the others are gone through.
        alphas: Error rates, one for each population in turn.
        fewest: How many units must have some of a stratum or class for the promise to be about it.
    """

    name: str
    populations: int
    draw: Callable[[int], Population]
    trial: Callable[[Population, float], Trial]
    whom: Whom = a_random_case
    enumerate: Callable[[Population, Trial, Whom], Tally] = leave_one_out
    alphas: tuple[float, ...] = (0.2, 0.3, 0.34, 0.5)
    fewest: int = 1

    @property
    def by_place(self) -> bool:
        """Whether the order of the calibration units matters."""
        return self.enumerate is not leave_one_out

    def judged(self, seed: int) -> Judged:
        """Try it on a population."""
        population, alpha = self.draw(seed), self.alphas[seed % len(self.alphas)]
        tally = self.enumerate(population, self.trial(population, alpha), self.whom)
        lost, of = sum(tally.lost.values()), sum(tally.of.values())
        used = float(lost / of) / alpha
        return Judged(tally.broken(alpha, self.fewest), tally.told / tally.cases, used)

    def heeds_order(self, seed: int) -> bool:
        """Whether another order of the calibration units changes anything about a new one."""
        population, alpha = self.draw(seed), self.alphas[seed % len(self.alphas)]
        trial, (new, *others) = self.trial(population, alpha), population.units
        one, other = (trial(Cases.of(tuple(order)))(new) for order in (others, others[::-1]))
        return not (np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1]))


@dataclass(frozen=True)
class GivenPromise:
    """A promise given the calibration set: all but a share delta of sets lose at most alpha.

    Units are independent here: each is one of a few kinds, drawn alike. Every sample that can be
    drawn is calibrated on, and every kind is the new unit.

    Arguments:
        name: What is promised, in a few words.
        populations: How many populations of kinds it is tried on.
        draw: Draws the kinds from their seed.
        trial: Makes the trial for a population, an error rate and delta.
        whom: What counts as lost.
        size: How many units calibrate.
        levels: Error rates with their delta, one pair for each population in turn.
        together: Whether delta is for all strata together, or for each.
        seen: Whether strata are promised anything only where some case of them calibrated.
        by_place: Whether the order of a sample matters: because units are set aside by their place,
            or groups are bet on one after another.
    """

    name: str
    populations: int
    draw: Callable[[int], Population]
    trial: Callable[[Population, float, float], Trial]
    whom: Whom = a_random_case
    size: int = 5
    levels: tuple[tuple[float, float], ...] = ((0.5, 0.3), (0.5, 0.1), (0.3, 0.5))
    together: bool = False
    seen: bool = False
    by_place: bool = True

    def judged(self, seed: int) -> Judged:
        """Try it on a population."""
        kinds, (alpha, delta) = self.draw(seed), self.levels[seed % len(self.levels)]
        unlucky: dict[object, int] = defaultdict(int)
        told = cases = 0
        trial = self.trial(kinds, alpha, delta)
        for drawn, times in every_sample(kinds, self.size, by_place=self.by_place):
            look, tally = trial(drawn), Tally()
            for kind in kinds.units:
                tally.add(self.whom, kind, *look(kind))
            broken = [k for k in tally.broken(alpha) if not self.seen or k in drawn.strata]
            for key in ["any"][: len(broken)] if self.together else broken:
                unlucky[key] += times
            told, cases = told + times * tally.told, cases + times * tally.cases
        shares = {k: Fraction(n, len(kinds.units) ** self.size) for k, n in unlucky.items()}
        broken_by = {k: float(share) for k, share in shares.items() if share > Fraction(str(delta))}
        return Judged(broken_by, told / cases, float(max(shares.values(), default=0)) / delta)

    def heeds_order(self, seed: int) -> bool:
        """Whether another order of a sample that has all kinds changes anything about a new one."""
        kinds, (alpha, delta) = self.draw(seed), self.levels[seed % len(self.levels)]
        trial, drawn = self.trial(kinds, alpha, delta), (kinds.units * self.size)[: self.size]
        one, other = (trial(Cases.of(order)) for order in (drawn, drawn[::-1]))
        return not all(np.array_equal(one(kind), other(kind)) for kind in kinds.units)
