"""The working folder of a rehearsal, laid out as docs/fastmri.md says: made, or linked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from taskuq.data.annotations import COLUMNS, read_annotations, read_file_list
from taskuq.data.made_fastmri import FINDING, Layout, make_fastmri
from taskuq.data.preparation import Preparation
from taskuq.disk import make_folder
from taskuq.errors import InputError, MachineError
from taskuq.files import read_json, whole_file, write_json
from taskuq.runs.rehearsal import toy
from taskuq.runs.rehearsal.recipe import CONFIGS, Line
from taskuq.settings import read_toml, toml_text

SCHEMA = "taskuq.rehearsal-data/1"
# Splits of the judged cases leave the learned score ten to learn from.
JUDGED = 54
FEWEST, MOST = 4, 10
# Enough for slices with a lesion and slices without.
SLICES = 6
# best, last, and a state of weights and Adam's two moments.
COPIES = 5
PARTS = ("train", "val")
TABLES = ("knee.csv", "knee_file_list.csv")
RESNET, VGG = "resnet50_imagenet1k_v2.pth", "vgg16.safetensors"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What is rehearsed.

    Arguments:
        configs: The folder of configurations.
        steps: Steps of each training.
        volumes: Training volumes, and validation volumes.
        data: The user's own files, laid out as ``data`` of the document; None makes some.
        toy: Whether sizes are small enough for a machine without a GPU.
    """

    configs: Path
    steps: int = 3
    volumes: int = 5
    data: Path | None = None
    toy: bool = False

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise InputError(
                f"{self.steps} steps are asked for; the first compiles, so take at least 2"
            )
        if not FEWEST <= self.volumes <= MOST:
            raise InputError(f"{self.volumes} volumes are asked for; take {FEWEST} to {MOST}")

    @property
    def layout(self) -> Layout:
        """The sizes of volumes that are made."""
        return toy.LAYOUT if self.toy else Layout()

    def as_record(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        data = None if self.data is None else str(self.data.resolve())
        return {**asdict(self), "configs": str(self.configs), "data": data}


@dataclass(frozen=True)
class WorkFolder:
    """Where the commands run.

    Arguments:
        path: The folder.
        settings: What is rehearsed.
        lines: The commands.
    """

    path: Path
    settings: Settings
    lines: tuple[Line, ...]

    def require_configs(self) -> None:
        """Refuse a folder that lacks a configuration which a command follows."""
        wanted = {line.config.name for line in self.lines if line.config is not None}
        missing = sorted(name for name in wanted if not (self.settings.configs / name).is_file())
        if missing:
            raise InputError(
                f"{self.settings.configs} lacks {', '.join(missing)}; give the folder "
                "configs/fastmri-knee or a copy of it"
            )

    def copy_configs(self) -> None:
        """Copy the configurations, at toy size where that is asked for."""
        for source in sorted(self.settings.configs.glob("*.toml")):
            text = source.read_text(encoding="utf-8")
            if self.settings.toy:
                text = toml_text(toy.made_small(source.stem, read_toml(source)))
            with whole_file(self.path / CONFIGS / source.name) as partial:
                partial.write_text(text, encoding="utf-8")

    @cached_property
    def trainings(self) -> dict[str, dict[str, Any]]:
        """The configuration of each training by the kind of its network."""
        return {
            line.words[1]: read_toml(self.path / line.config)
            for line in self.lines
            if line.verb == "train" and line.config is not None
        }

    @property
    def slices(self) -> tuple[int, int]:
        """How many slices a training volume and a validation volume have."""
        batches = [int(table["training"]["batch"]) for table in self.trainings.values()]
        learned = self.settings.volumes - 1  # one decides which weights are best
        training = next(
            count
            for count in range(SLICES, 10**6)
            if all(_are_whole(learned * count, batch, self.settings.steps) for batch in batches)
        )
        rule = Preparation()
        validation = next(
            count
            for count in range(1, 10**6)
            if self.settings.volumes * len(rule.chosen_slices(count)) >= JUDGED
        )
        return training, validation

    @property
    def bytes(self) -> int:
        """About how much disk the rehearsal takes: volumes, weights with their state, the rest."""
        each, count = self.settings.layout.slice_bytes, self.settings.volumes
        volumes = 0 if self.settings.data else each * (count * sum(self.slices) + 2)
        imagenet = 0 if self.settings.toy else 700_000_000
        # What is prepared of a slice is smaller than the slice.
        prepared = each * count * sum(self.slices) // 2
        return volumes + prepared + imagenet + 4 * COPIES * sum(self.parameters.values()) + 10**8

    @cached_property
    def parameters(self) -> dict[str, int]:
        """The parameters of each network."""
        import torch

        from taskuq.settings import from_table
        from taskuq.training.networks import NETWORKS

        counts = {}
        for kind, table in self.trainings.items():
            network = NETWORKS[kind]
            with torch.device("meta"):
                made = network.make(from_table(network.config, table["network"], "network"))
            counts[kind] = sum(weight.numel() for weight in made.parameters())
        return counts

    def require_space(self) -> None:
        """Refuse a disk that is too small."""
        free = shutil.disk_usage(self.path).free
        if free < self.bytes:
            raise MachineError(
                f"a rehearsal takes {self.bytes / 1e9:.3g} GB and {free / 1e9:.3g} GB are free at "
                f"{self.path}; free some, give another -o, or take fewer --volumes"
            )

    def lay_out(self, tell: Tell) -> None:
        """Make or link the data, unless they are there already.

        Arguments:
            tell: Called with what is done, and with everything that had to be made up.
        """
        wanted = {"schema": SCHEMA, "slices": list(self.slices), **self.settings.as_record()}
        marker = self.path / "data.json"
        if marker.exists():
            there = read_json(marker, SCHEMA)
            changed = [key for key in wanted if there.get(key) != wanted[key] and key != "configs"]
            if changed:
                names = ", ".join(
                    f"{key} {there.get(key)} there, {wanted[key]} here" for key in changed
                )
                raise InputError(
                    f"{self.path.parent} holds a rehearsal of other settings ({names}); give "
                    "another -o, or --fresh to begin again"
                )
            tell("Volumes and tables are there from before and are kept.")
            return
        data = self.path / "data"
        if self.settings.data is None:
            self._make(data, tell)
        else:
            self._link(data, self.settings.data, tell)
        if not self.settings.toy:
            make_imagenet(data, tell)
        write_json(marker, wanted)

    def _make(self, data: Path, tell: Tell) -> None:
        training, validation = self.slices
        count = self.settings.volumes
        tell(
            f"Making {count} training volumes of {training} slices and {count} validation volumes "
            f"of {validation}, in fastMRI's layout, from the atlas."
        )
        workers = min(os.cpu_count() or 1, 2 * count)
        make_fastmri(
            data, training=(count, training), validation=(count, validation),
            layout=self.settings.layout, workers=1 if self.settings.toy else workers,
        )  # fmt: skip

    def _link(self, data: Path, source: Path, tell: Tell) -> None:
        """Link a few of the user's volumes and his tables; his folder is only read."""
        names: dict[str, int] = {}
        batch = max(int(table["training"]["batch"]) for table in self.trainings.values())
        # Nine tenths are trained on; each step takes a batch of its own.
        wanted = {"train": self.settings.steps * batch / 0.85, "val": JUDGED / 0.6}
        for part in PARTS:
            folder, slices = f"knee_multicoil_{part}", 0
            for k, (path, count) in enumerate(_usable(source / folder, source)):
                if k >= self.settings.volumes and slices >= wanted[part]:
                    break
                _link_to(path, data / folder / path.name)
                names[path.stem], slices = count, slices + count
            if slices == 0:
                raise InputError(
                    f"{source / folder} has no volume that could be used; run 'taskuq data check "
                    f"{source / folder}'"
                )
            tell(f"Linked {slices} slices of {source / folder}.")
        for name in (*TABLES, RESNET, VGG):
            if (source / name).exists():
                _link_to(source / name, data / name)
        if not all((source / name).exists() for name in TABLES):
            tell(f"{source} lacks {' or '.join(TABLES)}: annotations are made up.")
            _make_up(data, names)


def _are_whole(slices: int, batch: int, steps: int) -> bool:
    """Whether every step of a trial sees a whole batch, so that it takes what a step takes."""
    return slices >= batch and (slices % batch == 0 or slices // batch >= steps)


def _usable(folder: Path, source: Path) -> Iterator[tuple[Path, int]]:
    """Volumes that are used, those with a tear first, and how many slices each has."""
    from taskuq.data.volume import open_volume

    if not folder.is_dir():
        raise InputError(f"{folder} does not exist; lay the data out as docs/fastmri.md says")
    files = sorted(folder.rglob("*.h5"))
    torn: set[str] = set()
    if all((source / name).exists() for name in TABLES):
        listed = read_file_list(source / TABLES[1])
        files = [path for path in files if path.stem in listed]
        torn = read_annotations(source / TABLES[0]).positive_volumes(FINDING)
    for path in sorted(files, key=lambda path: path.stem not in torn):
        try:
            volume = open_volume(path)
        except InputError:
            continue
        if Preparation().refusal(volume) is None:
            yield path, volume.slices


def _link_to(source: Path, link: Path) -> None:
    make_folder(link.parent)
    link.unlink(missing_ok=True)
    link.symlink_to(source.resolve())


def _make_up(data: Path, names: dict[str, int]) -> None:
    """Annotations for volumes that have none: every third slice is torn."""
    rows = [
        f"{name},{index},No,100,100,20,10,{FINDING}"
        for name, slices in names.items()
        for index in range(0, slices, 3)
    ]
    for name, lines in zip(TABLES, ([",".join(COLUMNS), *rows], list(names)), strict=True):
        (data / name).unlink(missing_ok=True)
        with whole_file(data / name) as partial:
            partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_imagenet(data: Path, tell: Tell) -> None:
    """Write the two files of ImageNet weights where they are missing, filled at random.

    Arguments:
        data: The folder.
        tell: Called with what had to be made.
    """
    import torch
    from safetensors.torch import save_file

    from taskuq.recover.vgg import VGG16
    from taskuq.task.resnet50 import FEATURES, resnet50

    missing = [name for name in (RESNET, VGG) if not (data / name).exists()]
    if not missing:
        return
    tell(f"Making {' and '.join(missing)} of torchvision's layout with random weights.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if RESNET in missing:
            last = torch.nn.Linear(FEATURES, 1000)
            head = {f"fc.{name}": value for name, value in last.state_dict().items()}
            torch.save({**resnet50().state_dict(), **head}, data / RESNET)
        if VGG in missing:
            save_file(VGG16().state_dict(), data / VGG)
