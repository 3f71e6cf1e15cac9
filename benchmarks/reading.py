"""How fast slices reach a network: the fastMRI reader against h5py's raw read, and the atlas."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from taskuq.data.atlas import Atlas
from taskuq.data.fastmri import FastMRI
from taskuq.data.preparation import Preparation
from taskuq.measure.masks import nested_masks
from taskuq.measure.projections import keep_measured

SLICES, VOLUMES = 12, 2
SHAPE = (SLICES, 15, 640, 368)


def main() -> None:
    torch.set_num_threads(1)
    print("Reading: slices per second (15 coils, 640×368, to 8 virtual coils, 320×320)\n")
    print(f"{'what':<52}{'slices/s':>10}")
    with tempfile.TemporaryDirectory() as folder:
        _write_volumes(Path(folder))
        for name, rate in _rates(Path(folder)):
            print(f"{name:<52}{rate:>10.1f}")
    atlas = Atlas(patients=10, seed=0)
    rate = _rate(atlas[i] for i in range(len(atlas)))
    print(f"{'atlas, 8 coils, 128×128, drawn, 1 process':<52}{rate:>10.1f}")
    print("\nThe raw read comes from the page cache: no reader can be faster on this machine.")


def _rates(folder: Path) -> Iterable[tuple[str, float]]:
    yield "h5py raw read of k-space", _rate(_raw(folder))
    data = FastMRI(folder, Preparation(slices="all"), cache=folder / "cache")
    start = time.perf_counter()
    for number in range(VOLUMES):
        data.virtual_coils(number)
    yield "prepare (once per volume, then cached)", len(data) / (time.perf_counter() - start)
    mask = torch.as_tensor(nested_masks(320, (16, 8), rng=np.random.default_rng(0))[1])
    yield "read, transform, crop, compress", _rate(data[i] for i in range(len(data)))
    yield "the same and masked", _rate(keep_measured(data[i].image, mask) for i in range(len(data)))
    for workers in (1, 2):
        loader = torch.utils.data.DataLoader(
            data, batch_size=4, num_workers=workers, persistent_workers=True
        )
        # The first pass starts the workers; the second is what a long training sees.
        _rate(loader)
        yield f"DataLoader, batches of 4, {workers} worker(s)", 4 * _rate(loader)


def _rate(items: Iterable[Any]) -> float:
    start, count = time.perf_counter(), 0
    for _ in items:
        count += 1
    return count / (time.perf_counter() - start)


def _raw(folder: Path) -> Iterable[Any]:
    for path in sorted(folder.glob("*.h5")):
        for index in range(SLICES):
            with h5py.File(path, "r") as file:
                yield file["kspace"][index]


def _write_volumes(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(VOLUMES):
        real, imaginary = rng.standard_normal((2, *SHAPE), dtype=np.float32)
        with h5py.File(folder / f"file{number}.h5", "w") as file:
            file["kspace"] = real + 1j * imaginary
            file.attrs["acquisition"] = "CORPD_FBK"


if __name__ == "__main__":
    main()
