"""Measured lines may depend on the patient, and must not depend on the calibration patients.

Patients are signals of a few numbers ("lines"), of which one decides the task. Line 0 is measured
first; a rule chooses the next one from what was measured, round by round.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import pytest

from laws.enumeration import Tally, a_random_case
from laws.populations import Cases, Population, Unit
from laws.trials import RATES, bound, stopped
from taskuq.pipeline._executor import CaseExecutor, Executor

LINES, ALPHAS = 16, (0.2, 0.3, 0.34, 0.5)
# Given the image, the lines so far: which is next.
Rule = Callable[[np.ndarray, list[int]], int]
TRIALS = {
    **{score: partial(bound, score=score) for score in ("ar", "lwr", "mlwr")},
    "fixed-width": partial(stopped, by="case", policy="fixed-width", max_width=1.0),
    "anytime": partial(stopped, by="case", policy="anytime", score="ar", max_width=1.0),
}


def patients(seed: int, count: int = 7) -> list[np.ndarray]:
    """Signals in which one line, another in each, is large."""
    rng = np.random.default_rng([23, seed])
    images = rng.normal(0, 0.03, (count, LINES))
    images[np.arange(count), rng.integers(1, LINES, count)] += rng.uniform(0.5, 2, count)
    return list(images)


def recover(measured: dict[int, float], *, samples: int, seed: int) -> np.ndarray:
    """Draw the lines that were not measured."""
    images = np.random.default_rng(seed).normal(0.03, 0.03, (samples, LINES))
    images[:, list(measured)] = list(measured.values())
    return images


def scanned(image: np.ndarray, rule: Rule, name: str) -> Unit:
    """Scan a patient by a rule, through the pipeline."""

    def measure(image: np.ndarray, acceleration: float) -> dict[int, float]:
        lines = [0]
        while len(lines) < 2 + RATES.index(acceleration):
            lines.append(rule(image, lines))
        return {line: float(image[line]) for line in lines}

    executor = Executor(recover, lambda images: images.sum(axis=1), 0)
    (found,) = CaseExecutor(measure, executor, RATES, 3).run([image], [name])
    assert not isinstance(found, Exception)
    return Unit(found.outputs[:, None], found.targets[None], np.zeros(1, dtype=int), 1.0)


def hostile(image: np.ndarray, lines: list[int]) -> int:
    """Leave the deciding line to the last, half of the time, from the whole image."""
    left = [line for line in range(LINES) if line not in lines]
    mean = np.where(np.isin(np.arange(LINES), lines), image, 0.03)
    wrong = [abs(mean.sum() - mean[line] + image[line] - image.sum()) for line in left]
    return left[int((np.argmax if image[0] > 0 else np.argmin)(wrong))]


def nearest(known: Sequence[np.ndarray]) -> Rule:
    """Learn: next is the line that settled the task of the known patient who looks most alike."""

    def rule(image: np.ndarray, lines: list[int]) -> int:
        alike = min(known, key=lambda one: float(np.abs(one[lines] - image[lines]).sum()))
        left = [line for line in range(LINES) if line not in lines]
        return max(left, key=lambda line: abs(float(alike[line])))

    return rule


FROZEN = {"hostile": hostile, "learned before": nearest(patients(1000, 20))}


@cache
def scans(seed: int, rule: str) -> tuple[Unit, ...]:
    """All patients, scanned by a frozen rule."""
    return tuple(scanned(x, FROZEN[rule], str(k)) for k, x in enumerate(patients(seed)))


def misses(seed: int, trial: str, frozen: str | None = None) -> tuple[Tally, float]:
    """Let each patient in turn be the new one; without a frozen rule, the others teach it."""
    images, alpha, tally = patients(seed), ALPHAS[seed % len(ALPHAS)], Tally()
    for new in range(len(images)):
        if frozen is None:
            rule = nearest(images[:new] + images[new + 1 :])
            units = tuple(scanned(image, rule, str(k)) for k, image in enumerate(images))
        else:
            units = scans(seed, frozen)
        others = Cases.of(units[:new] + units[new + 1 :])
        calibrated = TRIALS[trial](Population(units, None), alpha)(others)
        tally.add(a_random_case, units[new], *calibrated(units[new]))
    return tally, alpha


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("rule", FROZEN)
def test_frozen_rule_keeps_the_guarantee(rule, trial):
    for seed in range(5):
        tally, alpha = misses(seed, trial, rule)
        assert not tally.broken(alpha), seed


def test_intervals_are_informative():
    found = [misses(seed, "ar", "hostile")[0] for seed in range(4)]
    assert sum(one.informed for one in found) > 0.9 * sum(one.cases for one in found)


@pytest.mark.parametrize("trial", ["ar", "mlwr"])
def test_rule_learned_on_calibration_patients_breaks_the_guarantee(trial):
    assert all(tally.broken(alpha) for tally, alpha in (misses(seed, trial) for seed in range(2)))
