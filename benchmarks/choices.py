"""Cost of choosing the next lines of a case, compared with drawing the samples it uses.

Both in one process, on the bundled networks: k-space of a head of the atlas, views of a chest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.decide import _median

from taskuq.data import ChestPhantom, open_all
from taskuq.data._atlas import AtlasData
from taskuq.measure import AdaptiveConfig, MaskConfig, TomographyConfig
from taskuq.pipeline._executor import Executor
from taskuq.recover import open_recovery
from taskuq.task import AirFraction
from taskuq.task._classifier_training import ClassifierMethod

SAMPLES, REPEATS = 32, 10
RATES = (16.0, 8.0, 4.0, 2.0)


def main() -> None:
    print(f"One case, {SAMPLES} samples; medians of {REPEATS}, in ms\n")
    print(f"{'':<26}{'aim':<12}{'R':>4}{'drawing':>10}{'choosing':>10}{'ratio':>8}")
    head = open_all(AtlasData(seed=1, patients=1, size=128, slices=1, coils=8))[0].image
    lesion = ClassifierMethod(Path("classifier-atlas")).open("cpu")
    flow = open_recovery("flow-atlas")
    for aim in ("gradient", "outputs", "variance"):
        _compare("atlas, flow", MaskConfig(RATES), head, flow, lesion, aim)
    chest = ChestPhantom(patients=1, seed=1, size=64)[0].image
    views = TomographyConfig(RATES, views=96, photons=1e5)
    for aim in ("outputs", "variance"):
        _compare(
            "chest, sampler", views, chest, open_recovery("ct-sampler-chest"), AirFraction(), aim
        )


def _compare(name: str, system: Any, image: Any, recover: Any, task: Any, aim: Any) -> None:
    masks = system.masks(image.shape[-1])
    rule = AdaptiveConfig(aim).rule(
        system.scanner(image.shape[-1], noise=0.0, seed=0), masks, RATES
    )
    for k, R in enumerate(RATES[:-1]):
        scan = rule.measure_lines(image, R, masks[k])
        drawn = recover(scan, samples=SAMPLES, seed=0)
        draw = _median(lambda: recover(scan, samples=SAMPLES, seed=0), REPEATS)  # noqa: B023  # called at once
        with torch.no_grad():
            cached = Executor(recover, task).cached_task(drawn)  # as in a scan
            choose = _median(lambda: rule.next_lines(k, scan, drawn, cached, masks[k]), REPEATS)  # noqa: B023  # called at once
        print(
            f"{name:<26}{aim:<12}{R:>4.0f}{1e3 * draw:>10.1f}{1e3 * choose:>10.1f}"
            f"{choose / draw:>8.2f}"
        )


if __name__ == "__main__":
    main()
