"""A small simulated scanner: k-space columns of an image, measured in nested rounds."""

from dataclasses import dataclass, field

import numpy as np

import taskuq as tq

SIZE = 16
ACCELERATIONS = (8.0, 4.0, 2.0)
# The columns each round adds, low frequencies first; the last entry is all the rest.
FREQUENCY = np.abs(np.fft.fftfreq(SIZE, 1 / SIZE))
ORDER = np.argsort(FREQUENCY, kind="stable")
ADDED = [ORDER[:2], ORDER[2:4], ORDER[4:8], ORDER[8:]]


def image(seed):
    """A bright spot of random strength in a texture of random strength."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    spot = np.exp(-((rows - 8) ** 2 + (columns - rng.uniform(6, 10)) ** 2) / 4)
    return rng.uniform(0, 1) * spot + rng.uniform(0, 1) ** 3 * rng.standard_normal((SIZE, SIZE))


@dataclass
class ToyScanner:
    """Measures columns of k-space and remembers which."""

    kspace: np.ndarray
    measured: list = field(default_factory=list)

    def measure(self, round):
        columns = ADDED[round]
        self.measured += columns.tolist()
        return {"columns": columns, "lines": self.kspace[:, columns]}

    def combine(self, pieces):
        filled, mask = np.zeros_like(self.kspace), np.zeros(SIZE, dtype=bool)
        for piece in pieces:
            filled[:, piece["columns"]] = piece["lines"]
            mask[piece["columns"]] = True
        return filled, mask


def scanner_of(seed):
    return ToyScanner(np.fft.fft2(image(seed), norm="ortho"))


def measure(image, acceleration):
    """All that is measured of an image up to a round, for a pipeline."""
    scanner = ToyScanner(np.fft.fft2(image, norm="ortho"))
    rounds = range(ACCELERATIONS.index(acceleration) + 1)
    return scanner.combine([scanner.measure(k) for k in rounds])


def recover(measurement, *, samples, seed):
    """Fill the columns that are missing with noise as strong as the measured high frequencies."""
    kspace, mask = measurement
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((samples, *kspace.shape, 2)) @ np.array([1, 1j])
    strength = np.abs(kspace[FREQUENCY > 4][:, mask]).mean() / np.sqrt(2)
    return np.fft.ifft2(np.where(mask, kspace, strength * noise), norm="ortho").real


def task(images):
    """How bright the middle is, as a soft output."""
    return 1 / (1 + np.exp(-4 * (images[..., 6:10, 6:10].mean(axis=(-2, -1)) - 0.3)))


def table(cases=60, samples=6):
    outputs = np.empty((3, cases, samples))
    for i in range(cases):
        scanner, pieces = scanner_of(i), []
        for k in range(3):
            pieces.append(scanner.measure(k))
            outputs[k, i] = task(recover(scanner.combine(pieces), samples=samples, seed=k))
    targets = np.array([task(image(i)) for i in range(cases)])
    return tq.TaskOutputs(outputs, targets, ACCELERATIONS, task_range=(0.0, 1.0))


def policy(max_width=0.2):
    return tq.plan(table(), alpha=0.1, max_width=max_width)


class PowerCutError(Exception):
    """The mains fail."""


def failing(scanner, at_round, when="before"):
    """Let the power fail before or after a round is measured."""
    measure = scanner.measure

    def cut(round):
        piece = measure(round) if when == "after" or round != at_round else None
        if round == at_round:
            raise PowerCutError
        return piece

    scanner.measure = cut
    return scanner


def seed_of(policy, *rounds):
    """The seed of an image whose scan takes one of these numbers of rounds."""
    return next(
        s for s in range(1000, 1400) if len(scan(scanner_of(s), policy=policy).rounds) in rounds
    )


def scan(scanner, **options):
    chosen = options.pop("policy", None) or policy()
    return tq.acquire(chosen, scanner, **{**STEPS, **options})


STEPS = {"recover": recover, "task": task, "samples": 6, "scan_id": "toy"}
