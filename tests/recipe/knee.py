"""A small fastMRI of the exact layout, and the shipped recipe followed on it."""

import os
import tomllib
from contextlib import redirect_stderr
from pathlib import Path

from taskuq.commands.app import main
from taskuq.settings import toml_text

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "configs/fastmri-knee"

NOTES = "file,slice,study_level,x,y,width,height,label\n"
# Just larger than the crop, with just enough coils: the files stay small.
SIZE = {"coils": 9, "height": 328, "width": 324, "recon": 320}
SMALL = {"epochs": 1, "batch": 4, "workers": 0}
TASK = {"kind": "small", "width": 4, "blocks": [1, 1]}
# Sizes, and what a machine without a GPU cannot do. Everything else is as shipped.
CHANGES = {
    "varnet": {
        "network": {"cascades": 1, "width": 1, "pools": 1, "sensitivity_width": 1,
                    "sensitivity_pools": 1},
        "training": SMALL,
    },
    "flow": {
        "network": {"unet_width": 2, "unet_pools": 1, "condition_channels": 4, "steps": 1},
        "training": SMALL | {"precision": "32-true", "compile": False},
    },
    "simclr": {
        "network": {"hidden": 8, "embedding": 4, "backbone": TASK},
        "training": SMALL | {"precision": "32-true"},
        "start": {"imagenet": None},  # a small backbone has no ImageNet weights
    },
    "classifier": {
        "network": {"hidden": [8], "backbone": TASK},
        "training": SMALL | {"precision": "32-true"},
        "attack": {"steps": 5},
    },
    "run-flow": {"samples": 2},
    "run-varnet": {},
    "quality": {"samples": 2, "volumes": 1, "features": None},
}  # fmt: skip

LABELS = "--labels data/knee.csv --files data/knee_file_list.csv"
RUN = "runs/fastmri-knee"
FEW = "--trials 20 --alpha 0.3"
STOP = f"--score lwr,cqr --statistic spread --max-width 0.1 {FEW}"
CLAIMS = (
    f"--samples {RUN}/table --point {RUN}-ar/table --quality {RUN}/quality.json "
    f"--classifier {RUN}-classifier/quality.json --data configs/fastmri-knee/flow.toml"
)
COMMANDS = f"""
taskuq data check data/knee_multicoil_val {LABELS} --json {RUN}/data-check.json
taskuq data prepare data/knee_multicoil_train --cache cache/knee
taskuq data prepare data/knee_multicoil_val --cache cache/knee --precision single
taskuq train varnet configs/fastmri-knee/varnet.toml --accelerator cpu --no-progress
taskuq train flow configs/fastmri-knee/flow.toml --accelerator cpu --no-progress
taskuq train simclr configs/fastmri-knee/simclr.toml --accelerator cpu --no-progress
taskuq train classifier configs/fastmri-knee/classifier.toml --accelerator cpu --no-progress
taskuq run configs/fastmri-knee/run-flow.toml -o {RUN}/table --device cpu
taskuq run configs/fastmri-knee/run-varnet.toml -o {RUN}-ar/table --device cpu
taskuq quality configs/fastmri-knee/quality.toml -o {RUN}/quality.json
taskuq evaluate {RUN}/table --score lwr,cqr,mlwr {FEW} --unit case --json {RUN}/evaluate.json
taskuq evaluate {RUN}-ar/table --score ar {FEW} --json {RUN}/evaluate-ar.json
taskuq simulate {RUN}/table {STOP} --json {RUN}/simulate.json
taskuq calibrate {RUN}/table --acceleration 8 --alpha 0.3 --score lwr -o {RUN}/bound-R8.json
taskuq plan {RUN}/table --alpha 0.3 --max-width 0.1 -o {RUN}/policy.json
taskuq experiment all {CLAIMS} {FEW} -o {RUN}
taskuq report {RUN}
"""


def changed(shipped, changes):
    """A shipped configuration with some sizes changed; None takes a setting out."""
    table = dict(shipped)
    for key, value in changes.items():
        if isinstance(value, dict):
            table[key] = changed(shipped[key], value)
        elif value is None:
            del table[key]
        else:
            table[key] = value
    return table


def write_data(folder):
    """Training and validation volumes, some that must be skipped, and what annotators saw."""
    from volumes import write_volume

    rows, names = [], []
    for part, count, slices in (("train", 3, 2), ("val", 6, 2)):
        for k in range(count):
            name = f"file100{int(part == 'val')}{k:03d}"
            path = folder / f"knee_multicoil_{part}" / f"{name}.h5"
            write_volume(path, slices=slices, seed=len(names), **SIZE)
            names.append(name)
            # In every training volume and every other validation volume the first slice is torn.
            if part == "train" or k % 2 == 0:
                rows.append(f"{name},0,No,100,100,20,10,Meniscus Tear")
    val = folder / "knee_multicoil_val"
    write_volume(val / "file1002000.h5", slices=1, acquisition="CORPDFS_FBK", **SIZE)
    write_volume(val / "file1002001.h5", slices=2, **SIZE)  # nobody looked at it
    (folder / "knee.csv").write_text(NOTES + "\n".join(rows) + "\n")
    (folder / "knee_file_list.csv").write_text("\n".join(names) + "\n")


def follow(folder):
    """Do what docs/fastmri.md says, command by command, in a folder; what is said is kept."""
    write_data(folder / "data")
    configs = folder / "configs/fastmri-knee"
    configs.mkdir(parents=True)
    for name, changes in CHANGES.items():
        shipped = tomllib.loads((SHIPPED / f"{name}.toml").read_text())
        (configs / f"{name}.toml").write_text(toml_text(changed(shipped, changes)))
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (folder / "said.txt").open("w") as said, redirect_stderr(said):
            for command in COMMANDS.strip().splitlines():
                main(command.removeprefix("taskuq ").split())
    finally:
        os.chdir(before)
