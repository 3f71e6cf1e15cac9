"""A simulation, and what it replayed."""

import numpy as np

from taskuq.policy import _simulate as simulation


def watched(monkeypatch, table, spec, trials, is_compiled=False, **options):
    """Simulate, and return the result, the scans, how they were split, and the thresholds."""
    seen, original = [], simulation.simulate_splits
    with monkeypatch.context() as patch:
        patch.setattr(simulation, "use_numba", lambda work: is_compiled)
        patch.setattr(simulation, "simulate_splits", lambda *a: seen.append(a) or original(*a))
        rng = np.random.default_rng(3)
        (found,) = simulation.simulate(table, [spec], trials=trials, rng=rng, **options)
    return found, *seen[0]
