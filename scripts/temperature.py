"""How a flow's temperature at R = 16 changes what the task reads off its samples, on the atlas.

    python -m scripts.temperature [0.8 0.85 1]

On twelve patients of seed 2, whom neither the networks nor the stored tables have seen. Prints by
how much the classifier's mean output on samples is larger than on true images.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from taskuq.runs.run import open_run, read_run

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "atlas" / "table-flow.toml"
TEMPERATURES = (0.8, 0.85, 1.0)


def main(temperatures: Sequence[float] = ()) -> None:
    print("| temperature | outputs larger by | their deviation |")
    print("|---|---|---|")
    config = read_run(CONFIG)
    config = replace(config, data=replace(config.data, seed=2, patients=12))
    for temperature in temperatures or TEMPERATURES:
        run = open_run(replace(config, recover=replace(config.recover, temperature=temperature)))
        table = run.pipeline.run(
            run.images, accelerations=(16.0,), samples=config.samples, seed=config.seed
        )
        (outputs,) = table.outputs
        bias = (outputs.mean(axis=-1) - table.targets).mean()
        print(f"| {temperature:g} | {bias:.2f} | {outputs.std(axis=-1).mean():.2f} |", flush=True)


if __name__ == "__main__":
    main([float(given) for given in sys.argv[1:]])
