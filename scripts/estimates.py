"""Train the networks around whose estimates a sampler draws, and no further.

    python -m scripts.estimates configs/lgg/sampler.toml -o runs/lgg-sampler

``taskuq train sampler`` with the same file and folder trains what is missing of them, and then the
sampler. Where a GPU is lent for minutes, these are two jobs, each of which ends within a call.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main(config: Path, folder: Path) -> None:
    from taskuq.recover.sampler_training import SamplerTraining
    from taskuq.settings import read_settings
    from taskuq.training.fit import Machine

    settings, machine = read_settings(SamplerTraining, config), Machine(progress=False)
    cases = settings.prepare(machine)
    *_, paths = settings.stages(cases, folder, machine=machine, fresh=False, steps=None)
    for path in paths:
        print(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("-o", "--output", dest="folder", type=Path, required=True)
    main(**vars(parser.parse_args()))
