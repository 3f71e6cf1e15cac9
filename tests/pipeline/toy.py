"""A small imaging system on NumPy arrays: columns of a noisy image, and a random completion."""

import os
import time

import numpy as np

# With this on their path other processes find this module, and the package that is tested.
PATH = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))

ACCELERATIONS = (8.0, 4.0, 2.0)
RUN = {"accelerations": ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}


def same(a, b):
    """Return True if two tables hold the same cases with the same numbers."""
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("outputs", "targets", "case"))


def images(n=30, size=16):
    return np.random.default_rng(0).random((n, size, size))


def measure(image, acceleration):
    kept = image.copy()
    kept[..., int(image.shape[-1] // acceleration) :] = np.nan
    return kept


def recover(measurement, *, samples, seed):
    rng = np.random.default_rng(seed)
    missing = np.isnan(measurement)
    drawn = np.repeat(measurement[None], samples, axis=0)
    drawn[:, missing] = rng.random((samples, int(missing.sum())))
    return drawn


def task(recoveries):
    return recoveries.reshape(len(recoveries), -1).mean(axis=1)


def two_tasks(recoveries):
    flat = recoveries.reshape(len(recoveries), -1)
    return np.stack([flat.mean(axis=1), flat.max(axis=1)], axis=1)


def slow_recover(measurement, *, samples, seed):
    time.sleep(0.01)
    return recover(measurement, samples=samples, seed=seed)


def sum_of_many(measurement, *, samples, seed):
    """A recovery with the last bits of a long sum, whose order follows the number of threads."""
    import torch

    numbers = torch.randn(2**18, generator=torch.Generator().manual_seed(seed % 2**63))
    drawn = recover(measurement, samples=samples, seed=seed)
    return drawn + float(numbers.sum()) * 1e4 % 1
