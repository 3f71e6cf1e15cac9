"""Exact enumeration of the law that all guarantees share: each unit in turn is the new one.

If the units are exchangeable, a miss has probability at most alpha. Given a finite population, each
unit is the new one with the same probability, and the others calibrate: the mean miss over the
choices of the new unit must be at most alpha, in fractions, for every population. Outputs and
targets go in through the public functions; intervals and decisions come out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations, product

import numpy as np

from laws.populations import Cases, Population, Unit, stretched

# (key, lost, of), e.g. (stratum, fraction of cases missed, fraction of cases).
Counted = Iterable[tuple[object, Fraction, Fraction]]
# Losses of a new unit, from its missed cases and from those with an informative interval (not the
# whole range) or an early stop.
Losses = Callable[[Unit, np.ndarray, np.ndarray], Counted]


@dataclass(frozen=True)
class Calibrated:
    """Examination of new units (missed cases, informed cases), and the cases set aside for it."""

    examine: Callable[[Unit], tuple[np.ndarray, np.ndarray]]
    aside: int

    def __call__(self, new: Unit) -> tuple[np.ndarray, np.ndarray]:
        return self.examine(new)


Trial = Callable[[Cases], Calibrated]


@dataclass
class Tally:
    """Losses by key, what could be lost, the units that had any of it, and informed cases."""

    lost: dict[object, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    of: dict[object, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    units: dict[object, int] = field(default_factory=lambda: defaultdict(int))
    informed: int = 0
    cases: int = 0

    def add(self, losses: Losses, new: Unit, missed: np.ndarray, informed: np.ndarray) -> None:
        """Add the losses of one choice of the new unit."""
        for key, lost, of in losses(new, missed, informed):
            self.lost[key] += lost
            self.of[key] += of
            self.units[key] += 1
        self.informed += int(informed.sum())
        self.cases += informed.size

    def broken(self, alpha: float, fewest: int = 1) -> dict[object, float]:
        """Return the miss rates above alpha, taken as it is printed."""
        level = Fraction(str(alpha))
        return {
            key: float(lost / self.of[key])
            for key, lost in self.lost.items()
            if lost > level * self.of[key] and self.units[key] >= fewest
        }


def a_random_case(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
    """A case drawn from the new unit; the case itself where cases are the units."""
    yield "all", Fraction(int(missed.sum()), len(missed)), Fraction(1)


def enough_cases(share: float | str) -> Losses:
    """At least a fraction of the cases of the new unit, all at once."""
    wanted = Fraction(1) if share == "all" else Fraction(str(share))

    def losses(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
        covered = Fraction(int((~missed).sum()), len(missed))
        yield "all", Fraction(int(covered < wanted)), Fraction(1)

    return losses


def given_its_stratum(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
    """A case drawn from the new unit, given the stratum that it falls in."""
    for stratum in np.unique(new.strata):
        inside = new.strata == stratum
        lost, of = int((missed & inside).sum()), int(inside.sum())
        yield int(stratum), Fraction(lost, len(missed)), Fraction(of, len(missed))


def a_case_of_the_stratum(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
    """A case drawn from those of a stratum in the new unit, if it has any."""
    for stratum in np.unique(new.strata):
        inside = new.strata == stratum
        yield int(stratum), Fraction(int(missed[inside].sum()), int(inside.sum())), Fraction(1)


def enough_cases_of_the_stratum(share: float | str) -> Losses:
    """At least a fraction of the cases of a stratum in the new unit, if it has any."""

    def losses(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
        for stratum in np.unique(new.strata):
            inside = new.strata == stratum
            ((_, lost, of),) = enough_cases(share)(new, missed[inside], informed[inside])
            yield int(stratum), lost, of

    return losses


def a_case_of_a_patient(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
    """A case drawn from a patient drawn from the new site; its strata are the patients."""
    shares = [lost for _, lost, _ in a_case_of_the_stratum(new, missed, informed)]
    yield "all", sum(shares, Fraction(0)) / len(shares), Fraction(1)


def as_likely_as_its_weight(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
    """The new case when, given all cases, each is the new one in proportion to its weight."""
    weight = Fraction(new.weight)
    yield "all", weight * int(missed.sum()), weight


def an_early_stop(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
    """A case drawn from the new unit, given that its scan stops before everything is measured."""
    yield "early", *(Fraction(int((x & informed).sum()), len(missed)) for x in (missed, informed))


def a_stop_in_each_round(new: Unit, missed: np.ndarray, informed: np.ndarray) -> Counted:
    """A case drawn from the new unit, given the round in which its scan stops early."""
    for k in np.unique(informed[informed > 0]):
        here = informed == k
        yield int(k), *(Fraction(int((x & here).sum()), len(missed)) for x in (missed, here))


def a_stop_of_each_class_in_each_round(
    new: Unit, missed: np.ndarray, informed: np.ndarray
) -> Counted:
    """A case drawn from the new unit, given its class and the round in which its scan stops."""
    for stratum in np.unique(new.strata):
        inside = new.strata == stratum
        for k, lost, of in a_stop_in_each_round(new, missed, np.where(inside, informed, 0)):
            yield (int(stratum), k), lost, of


def leave_one_out(population: Population, trial: Trial, losses: Losses) -> Tally:
    """Let each unit in turn be the new one; the order of the others must not matter."""
    tally = Tally()
    for v, new in enumerate(population.units):
        tally.add(losses, new, *trial(population.others(v))(new))
    return tally


def every_order(population: Population, trial: Trial, losses: Losses) -> Tally:
    """Let the units come in every order, the last one new: for units set aside by their place."""
    tally = Tally()
    for order in permutations(population.units):
        tally.add(losses, order[-1], *trial(Cases.of(order[:-1]))(order[-1]))
    return tally


def places_set_aside(units: tuple[Unit, ...], trial: Trial) -> list[int]:
    """Find at which places of a calibration table units are set aside.

    The unit at each place is given twice as many cases as the one before, so that the number of
    cases set aside identifies them.
    """
    sizes = [len(units[0]) * 2**place for place in range(len(units))]
    aside = trial(Cases.of(tuple(map(stretched, units, sizes)))).aside
    return [place for place, size in enumerate(sizes) if aside // size % 2]


def given_those_set_aside(population: Population, trial: Trial, losses: Losses) -> Tally:
    """Fix those set aside, and let each of the other units be the new one, for several choices.

    Given the units set aside, the others and the new one are exchangeable: the law holds for every
    choice of them by itself. They must be chosen by their places alone.
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
            calibrated = trial(Cases.of(tuple(order)))
            assert calibrated.aside == sum(map(len, aside)), "units are set aside by their contents"
            found = calibrated(new)
            tally.add(
                lambda *seen, s=start: (((s, k), a, b) for k, a, b in losses(*seen)), new, *found
            )
    return tally


def every_sample(
    kinds: Population, size: int, *, by_place: bool, aside: tuple[int, ...]
) -> list[tuple[Cases, int]]:
    """Return what can be drawn of independent units of the kinds, and how many sequences it is.

    All sequences are equally likely; where only the places set aside matter, or none, those that
    differ in the order of the others are one.
    """

    def ordered(drawn: tuple[int, ...]) -> tuple[int, ...]:
        if not aside:
            return drawn if by_place else tuple(sorted(drawn))
        rest = iter(sorted(kind for place, kind in enumerate(drawn) if place not in aside))
        return tuple(drawn[p] if p in aside else next(rest) for p in range(size))

    counts = Counter(map(ordered, product(range(len(kinds.units)), repeat=size)))
    return [(Cases.of(tuple(kinds.units[k] for k in drawn)), n) for drawn, n in counts.items()]


@dataclass(frozen=True)
class Outcome:
    """Losses above the level by key, and the fractions of informed cases and of used misses."""

    broken: dict[object, float]
    informed: float
    used: float


@dataclass(frozen=True)
class Law:
    """One guarantee, with the populations it is enumerated on and their error rates in turn.

    At least `fewest` units must have some of a stratum or class for the law to be about it.
    """

    name: str
    populations: int
    draw: Callable[[int], Population]
    trial: Callable[[Population, float], Trial]
    losses: Losses = a_random_case
    enumerate: Callable[[Population, Trial, Losses], Tally] = leave_one_out
    alphas: tuple[float, ...] = (0.2, 0.3, 0.34, 0.5)
    fewest: int = 1

    @property
    def by_place(self) -> bool:
        """Return True if the order of the calibration units matters."""
        return self.enumerate is not leave_one_out

    def judged(self, seed: int) -> Outcome:
        """Enumerate a population."""
        population, alpha = self.draw(seed), self.alphas[seed % len(self.alphas)]
        tally = self.enumerate(population, self.trial(population, alpha), self.losses)
        lost, of = sum(tally.lost.values()), sum(tally.of.values())
        used = float(lost / of) / alpha
        return Outcome(tally.broken(alpha, self.fewest), tally.informed / tally.cases, used)

    def depends_on_order(self, seed: int) -> bool:
        """Return True if another order of the calibration units changes an examination."""
        population, alpha = self.draw(seed), self.alphas[seed % len(self.alphas)]
        trial, (new, *others) = self.trial(population, alpha), population.units
        one, other = (trial(Cases.of(tuple(order)))(new) for order in (others, others[::-1]))
        return not np.array_equal(one, other)


@dataclass(frozen=True)
class GivenLaw:
    """A guarantee given the calibration set: all but delta of sets lose at most alpha.

    Units are independent: each is one of a few kinds, drawn alike. Every sample that can be drawn
    calibrates, and every kind is the new unit.

    Arguments:
        together: True if delta is for all strata together.
        seen: True if the law is about strata of the calibration set only.
        by_place: True if the order of a sample matters: units are set aside by their place, or
            groups are bet on one after another.
        aside: The only places that matter: those set aside.
    """

    name: str
    populations: int
    draw: Callable[[int], Population]
    trial: Callable[[Population, float, float], Trial]
    losses: Losses = a_random_case
    size: int = 5
    levels: tuple[tuple[float, float], ...] = ((0.5, 0.3), (0.5, 0.1), (0.3, 0.5))
    together: bool = False
    seen: bool = False
    by_place: bool = True
    aside: tuple[int, ...] = ()

    def judged(self, seed: int) -> Outcome:
        """Enumerate a population."""
        kinds, (alpha, delta) = self.draw(seed), self.levels[seed % len(self.levels)]
        unlucky: dict[object, int] = defaultdict(int)
        informed = cases = 0
        trial = self.trial(kinds, alpha, delta)
        for drawn, times in every_sample(
            kinds, self.size, by_place=self.by_place, aside=self.aside
        ):
            examine, tally = trial(drawn), Tally()
            for kind in kinds.units:
                tally.add(self.losses, kind, *examine(kind))
            broken = [
                k for k in tally.broken(alpha)
                if not self.seen or (k[0] if isinstance(k, tuple) else k) in drawn.strata
            ]  # fmt: skip
            for key in ["any"][: len(broken)] if self.together else broken:
                unlucky[key] += times
            informed, cases = informed + times * tally.informed, cases + times * tally.cases
        shares = {k: Fraction(n, len(kinds.units) ** self.size) for k, n in unlucky.items()}
        broken_by = {k: float(share) for k, share in shares.items() if share > Fraction(str(delta))}
        return Outcome(broken_by, informed / cases, float(max(shares.values(), default=0)) / delta)

    def depends_on_order(self, seed: int) -> bool:
        """Return True if another order of a sample of all kinds changes an examination."""
        kinds, (alpha, delta) = self.draw(seed), self.levels[seed % len(self.levels)]
        trial, drawn = self.trial(kinds, alpha, delta), (kinds.units * self.size)[: self.size]
        one, other = (trial(Cases.of(order)) for order in (drawn, drawn[::-1]))
        return not all(np.array_equal(one(kind), other(kind)) for kind in kinds.units)
