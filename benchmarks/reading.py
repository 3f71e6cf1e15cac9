"""Speed and memory of reading slices: raw fastMRI files and the cache of prepared slices.

Everything is read from the page cache (*warm*): a slower disk adds its time. Rates
of one process count its processor's seconds, those of several workers the clock's.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from taskuq.data import Atlas, FastMRIDataset, FastMRIPreprocessing
from taskuq.data._dataset import InMemoryDataset
from taskuq.data._fastmri import prepare_slices
from taskuq.measure import rss
from taskuq.task import load
from taskuq.training._weights import locate

SLICES, VOLUMES, PASSES = 8, 2, 10
SHAPE = (SLICES, 15, 640, 368)
# The atlas needs nilearn.
ATLAS = find_spec("nilearn") is not None


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write_volumes(folder)
        print("Slices per second, warm (15 coils, 640×368, to 8 virtual coils, 320×320)\n")
        for name, rate in _rates(folder):
            print(f"{name:<60}{rate:>10.1f}")
        print("\nHalf precision against raw files\n")
        for name, text in _differences(folder):
            print(f"{name:<60}{text:>10}")
        print(f"\nMemory for {SLICES * VOLUMES} slices beyond that of idle processes, MB (PSS)\n")
        print(f"{'':<40}{'1 process':>10}{'4 processes':>14}")
        for name, way in WAYS.items():
            one, four = (_memory(way, folder, count) for count in (1, 4))
            print(f"{name:<40}{one:>10.0f}{four:>14.0f}")
        size = sum(path.stat().st_size for path in _cache(folder, "half").rglob("*.coils.npy"))
        print(f"\nThe page cache holds {size / 1e6:.0f} MB of the cache, once for all processes.")


def _rates(folder: Path) -> Iterable[tuple[str, float]]:
    yield "raw files: h5py's read of k-space alone", _rate(_raw(folder))
    for precision in ("half", "single"):
        rate = _rate(
            prepare_slices(volume, FastMRIPreprocessing(), _cache(folder, precision), precision)  # type: ignore[arg-type]
            for volume in _data(folder).volumes
        )
        yield f"data prepare, {precision} precision (once)", SLICES * rate
    _rate(_data(folder, cache=folder / "coils"))  # finds the virtual coils, as the first epoch does
    sources = {
        "raw files": _data(folder, cache=folder / "coils"),
        "store, half": _data(folder, cache=_cache(folder, "half")),
        "store, single": _data(folder, cache=_cache(folder, "single")),
        "store, half, magnitude": _data(folder, cache=_cache(folder, "half"), combined=True),
    }
    for name, data in sources.items():
        passes = 1 if name == "raw files" else PASSES
        if passes > 1:
            _rate(data)  # verifies every slice, as the first epoch does
        yield name, _rate(chain.from_iterable(repeat(data, passes)))
    for name in ("raw files", "store, half", "store, half, magnitude"):
        loader = torch.utils.data.DataLoader(
            sources[name], batch_size=4, num_workers=2, persistent_workers=True
        )
        # The first pass starts the workers; the second is what a long training sees.
        _rate(loader)
        passes = 1 if name == "raw files" else PASSES
        batches = chain.from_iterable(repeat(loader, passes))
        yield f"{name}: loader, batches of 4, 2 workers", 4 * _rate(batches, time.perf_counter)
    if ATLAS:
        atlas = Atlas(patients=10, seed=0)
        yield "atlas, 8 coils, 128×128, drawn", _rate(atlas[i] for i in range(len(atlas)))


def _differences(folder: Path) -> Iterable[tuple[str, str]]:
    pairs = list(zip(_data(folder), _data(folder, cache=_cache(folder, "half")), strict=True))
    off = [float((a.image - b.image).norm() / a.image.norm()) for a, b in pairs]
    yield "relative error of coil images", f"{np.mean(off):.1e}"
    images = [(rss(a.image), rss(b.image)) for a, b in pairs]
    psnr = [float(20 * torch.log10(a.max() / (a - b).square().mean().sqrt())) for a, b in images]
    yield "PSNR of magnitude images, the least", f"{min(psnr):.1f} dB"
    if ATLAS:
        task = load(locate("classifier-atlas")).eval()
        coils = torch.stack([item.image for item in Atlas(patients=10, seed=5)])
        rounded = torch.view_as_complex(torch.view_as_real(coils).half().float())
        with torch.no_grad():
            moved = float((task(rss(coils)) - task(rss(rounded))).abs().max())
        yield "change of the atlas classifier's output, 80 slices, the most", f"{moved:.1e}"


def _copies(folder: Path) -> Any:
    return [item.image for item in _data(folder, cache=folder / "coils")]


def _shared(folder: Path) -> Any:
    kept = InMemoryDataset.of(_data(folder, cache=folder / "coils"))
    for item in kept.items:
        item.image.abs().sum()
    return kept


def _stored(folder: Path) -> Any:
    data = _data(folder, cache=_cache(folder, "half"))
    for item in data:
        item.image.abs().sum()
    return data, item


WAYS: dict[str, Callable[[Path], Any]] = {
    "raw files, each process its own copy": _copies,
    "raw files, in_memory": _shared,
    "store": _stored,
}


def _memory(way: Callable[[Path], Any], folder: Path, count: int) -> float:
    """Return the MB of all processes while they hold their data."""
    context = get_context("spawn")
    barrier, found = context.Barrier(count), context.SimpleQueue()
    work = partial(_measure, way, folder, barrier, found)
    processes = [context.Process(target=work) for _ in range(count)]
    for process in processes:
        process.start()
    total = sum(found.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def _measure(way: Callable[[Path], Any], folder: Path, barrier: Any, found: Any) -> None:
    # What torch sets aside when it first computes is no slice.
    _data(folder, cache=folder / "coils")[0].image.abs().sum()
    barrier.wait()
    before = _pss()
    barrier.wait()
    kept = way(folder)
    barrier.wait()
    found.put(_pss() - before)
    barrier.wait()
    del kept


def _pss() -> float:
    """Return the memory of this process in MB; a page shared by n processes counts 1/n."""
    # What was given back to the allocator and not yet to the machine is no slice either.
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def _data(folder: Path, **more: Any) -> FastMRIDataset:
    return FastMRIDataset(folder / "volumes", FastMRIPreprocessing(slices="all"), **more)


def _cache(folder: Path, precision: str) -> Path:
    return folder / precision


def _rate(items: Iterable[Any], clock: Callable[[], float] = time.process_time) -> float:
    start, count = clock(), 0
    for _ in items:
        count += 1
    return count / (clock() - start)


def _raw(folder: Path) -> Iterable[Any]:
    for path in sorted(folder.rglob("*.h5")):
        for index in range(SLICES):
            with h5py.File(path, "r") as file:
                yield file["kspace"][index]


def _write_volumes(folder: Path) -> None:
    """Write random k-space with a strong centre and few independent signals."""
    rng = np.random.default_rng(0)
    rows, columns = np.ogrid[-1:1:640j, -1:1:368j]
    envelope = (1 / (0.01 + np.hypot(rows, columns))).astype(np.float32)
    mixing = (0.7 ** np.arange(15)).astype(np.float32)[:, None, None]
    (folder / "volumes").mkdir()
    for number in range(VOLUMES):
        real, imaginary = rng.standard_normal((2, *SHAPE), dtype=np.float32)
        with h5py.File(folder / "volumes" / f"file{number}.h5", "w") as file:
            file["kspace"] = ((real + 1j * imaginary) * envelope * mixing).astype(np.complex64)
            file.attrs["acquisition"] = "CORPD_FBK"


if __name__ == "__main__":
    main()
