r"""The stored tables of the embedded experiment, drawn by any recoveries, and put into the package.

    taskuq data atlas-base -o base.npz                         # where nilearn is installed
    TASKUQ_ATLAS_BASE=base.npz python -m scripts.tables draw OUT \
        [sampler flow varnet other=FILE.safetensors ...] [--patients 270] [--device cuda]
    python -m scripts.tables install OUT [sampler flow varnet]

The first command draws 32 samples at R = 16, 8, 4, 2 for the 2160 slices of the 270 patients of
configs/atlas/samplers.toml, whom no network was trained on: for ``[recover.NAME]`` of that file,
and for trained networks that are named with a file. All but the flow compute in float32, as a CPU
does. OUT receives a folder for each with a table, pixels and cost, which ``python -m
scripts.samplers judge OUT`` reads. ``varnet`` is a point estimate, and gets a table alone. Task
networks of that file that are not there are left out, and said to be.

The second command writes the tables into the package, as atlas-NAME.npz, with the configuration of
configs/atlas/table-NAME.toml and fingerprints of the networks that are there; NAME=FOLDER takes
what was drawn under another name.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "atlas"
BEGIN = time.monotonic()


def say(line: str) -> None:
    print(f"[{time.monotonic() - BEGIN:4.0f} s] {line}", flush=True)


def draw(out: Path, names: Sequence[str], patients: int | None, device: str | None) -> None:
    import torch

    from taskuq.data.memory import InMemory
    from taskuq.runs.samplers.drawing import SamplersConfig
    from taskuq.runs.samplers.drawing import draw as draw_all
    from taskuq.settings import read_settings

    torch.backends.cudnn.allow_tf32 = False  # as on a CPU: no shortened products
    config: Any = read_settings(SamplersConfig, CONFIGS / "samplers.toml")
    chosen = [name.partition("=") for name in names]
    points = [name for name, _, file in chosen if not file and name not in config.recover]
    methods = {
        name: named(Path(file)) if file else config.recover[name]
        for name, _, file in chosen
        if name not in points
    }
    data = replace(config.data, patients=patients or config.data.patients)
    images = InMemory.of(data.open(), data.processes)
    say(f"{len(images)} slices of {data.patients} patients")
    for name in points:
        point_table(name, images, device).save(out / name / "lesion.npz")
        say(f"{out / name}")
    if methods:
        config = replace(config, data=data, recover=methods, task=trained(config.task))
        for path in draw_all(config, out, images=images, device=device):
            say(f"{path}")


def trained(tasks: dict[str, Any]) -> dict[str, Any]:
    """The task networks that are there: a second judge may not have been trained."""
    from taskuq.weights import locate

    found = {}
    for name, task in tasks.items():
        weights = getattr(task, "weights", None)
        if weights is None or locate(weights).exists():
            found[name] = task
        else:
            say(f"task {name} is left out: there is no {weights}")
    return found


def named(file: Path) -> Any:
    """The recovery of a file of weights, of whatever kind it is."""
    from taskuq.recover import RECOVERIES
    from taskuq.weights.files import read_card

    kind = read_card(file, RECOVERIES.networks())["kind"]
    return RECOVERIES[kind](weights=file, precision="float32")


def point_table(name: str, images: Any, device: str | None) -> Any:
    """The table of a point estimate, of configs/atlas/table-NAME.toml."""
    from taskuq.runs.run import open_run, read_run

    run = open_run(read_run(CONFIGS / f"table-{name}.toml"), device)
    return run.pipeline.run(
        images,
        accelerations=run.config.measure.accelerations,
        samples=run.config.samples,
        seed=run.config.seed,
        quiet=True,
    )


def install(out: Path, names: Sequence[str]) -> None:
    from taskuq.outputs import TaskOutputs
    from taskuq.runs.run import open_run, read_run
    from taskuq.runs.stored import FOLDER

    for name, _, drawn in (one.partition("=") for one in names):
        home = out / (drawn or name)
        point = home / "lesion.npz"
        table = TaskOutputs.load(point if point.exists() else home / "lesion")
        run = open_run(read_run(CONFIGS / f"table-{name}.toml"), "cpu")
        made = {**table.provenance, "configuration": run.configuration}
        path = replace(table, provenance=made).save(FOLDER / f"atlas-{name}.npz")
        say(f"{path}: {table}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for run in (draw, install):
        one = commands.add_parser(run.__name__)
        one.set_defaults(run=run)
        one.add_argument("out", type=Path)
        one.add_argument("names", nargs="*", default=["sampler", "flow", "varnet"])
        if run is draw:
            one.add_argument("--patients", type=int)
            one.add_argument("--device")
    given = vars(parser.parse_args())
    given.pop("run")(**given)


if __name__ == "__main__":
    main()
