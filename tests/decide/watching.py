"""A simulation, and what it replayed."""

import numpy as np

from taskuq.decide import simulation


def watched(monkeypatch, table, spec, trials, is_compiled=False, **options):
    """Simulate, and return the result, the scans, how they were split, and the thresholds."""
    seen, original = [], simulation.replay
    with monkeypatch.context() as patch:
        patch.setattr(simulation, "compiled", lambda work: is_compiled)
        patch.setattr(simulation, "replay", lambda *a: seen.append(a) or original(*a))
        rng = np.random.default_rng(3)
        (found,) = simulation.simulate(table, [spec], trials=trials, rng=rng, **options)
    return found, *seen[0]
