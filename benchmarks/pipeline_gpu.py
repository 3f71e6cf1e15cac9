"""The pipeline on one GPU, in the published configuration: does it keep the sampler busy?

Run from the root of the repository, on a machine with an NVIDIA GPU:

    PYTHONPATH=src python3 -m benchmarks.pipeline_gpu
    PYTHONPATH=src python3 -m benchmarks.pipeline_gpu --toy     # anywhere, in seconds

The pure rate is that of the sampler with the classifier as its last step, on measurements that
are on the GPU already. The pipeline starts from images on disk: it reads, measures, recovers,
classifies and writes the table. Both draw the same samples of the same cases at R = 16, 8, 4, 2.
Weights are random; see recover_gpu.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taskuq.measure.coils import rss
from taskuq.measure.masks import nested_masks
from taskuq.measure.mri import MultiCoilMRI
from taskuq.pipeline import Pipeline
from taskuq.pipeline.batches import batch_size
from taskuq.recover import FlowRecovery, SamplerRecovery, VarNetRecovery, build
from taskuq.recover.flow.sampler import Sampler
from taskuq.seeds import case_seed

RATES = (16.0, 8.0, 4.0, 2.0)


@dataclass(frozen=True)
class Slices:
    """Coil images in a file, read when they are asked for."""

    path: Path

    def __len__(self) -> int:
        return len(np.load(self.path, mmap_mode="r"))

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(np.load(self.path, mmap_mode="r")[index]))


@dataclass(frozen=True)
class Setting:
    """What is run: networks, images, and how many of everything."""

    device: str
    flow: Any
    classifier: Callable[[Tensor], Tensor]
    images: Slices
    size: int
    samples: int

    @property
    def scanner(self) -> MultiCoilMRI:
        """The scanner of the four rounds."""
        masks = nested_masks(self.size, RATES, rng=np.random.default_rng(0))
        return MultiCoilMRI(masks, RATES)


def write_slices(folder: Path, cases: int, coils: int, size: int) -> Slices:
    """Smooth images with noise, as large as fastMRI slices after coil compression."""
    generator = torch.Generator().manual_seed(0)
    images = np.lib.format.open_memmap(
        folder / "images.npy", "w+", np.complex64, (cases, coils, size, size)
    )
    for index in range(cases):
        noise = torch.randn(2, coils, size // 16, size // 16, generator=generator)
        smooth = torch.nn.functional.interpolate(noise, size=(size, size), mode="bicubic")
        images[index] = torch.complex(smooth[0], smooth[1]).numpy()
    images.flush()
    return Slices(folder / "images.npy")


def published(folder: Path, cases: int) -> Setting:
    from benchmarks.recover_gpu import COILS, SIZE, Classifier, published_flow, start

    torch.backends.cudnn.benchmark = True
    flow = published_flow()
    start(flow, torch.Generator("cuda").manual_seed(0))
    classifier = Classifier().eval().to("cuda", torch.bfloat16)
    classifier = classifier.to(memory_format=torch.channels_last)
    images = write_slices(folder, cases, COILS, SIZE)
    return Setting("cuda", flow.cpu(), classifier, images, SIZE, samples=32)


def toy(folder: Path, cases: int) -> Setting:
    from taskuq.task import build as build_task

    torch.manual_seed(0)
    flow, classifier = build("flow", preset="tiny"), build_task("classifier", preset="tiny").eval()
    return Setting("cpu", flow, classifier, write_slices(folder, cases, 1, 32), 32, samples=4)


def timed(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def pure_rate(setting: Setting, cases: int, samples: int, finish: Any) -> float:
    """Seconds per case and round of the sampler alone, on measurements that are there already."""
    sampler = Sampler(setting.flow, device=setting.device, finish=finish)
    batch, scanner = batch_of(setting, FlowRecovery, samples), setting.scanner
    images = torch.stack([setting.images[i] for i in range(cases)]).to(setting.device)

    def draw(R: float) -> None:
        scans = [scanner(image, R) for image in images]
        seeds = [case_seed(0, str(i), R) for i in range(cases)]
        y = torch.stack([scan.zero_filled for scan in scans])
        mask = torch.stack([scan.mask for scan in scans])
        times.append(
            timed(
                lambda: [
                    sampler(
                        y[k : k + batch], mask[k : k + batch], samples=samples,
                        seeds=seeds[k : k + batch],
                    ).images.float().cpu()
                    for k in range(0, cases, batch)
                ],
                setting.device,
            )
        )  # fmt: skip

    times: list[float] = []
    with torch.no_grad():
        draw(RATES[0])
        times.clear()
        for R in RATES:
            draw(R)
    return sum(times) / cases / len(RATES)


def batch_of(setting: Setting, recover: Any, samples: int) -> int:
    return batch_size(
        recover, setting.images[0], samples=samples, cases=len(setting.images),
        device=setting.device,
    )  # fmt: skip


def pipeline_rate(setting: Setting, recover: Any, samples: int) -> tuple[float, float]:
    """Seconds per case and round of the pipeline: of the first run and of one that is warm."""
    pipeline = Pipeline(setting.scanner, recover, setting.classifier, device=setting.device)

    def run() -> None:
        pipeline.run(setting.images, accelerations=RATES, samples=samples, seed=0, quiet=True)

    rounds = len(setting.images) * len(RATES)
    return timed(run, setting.device) / rounds, timed(run, setting.device) / rounds


def main() -> None:
    is_toy = "--toy" in sys.argv
    if not is_toy and not torch.cuda.is_available():
        print("no GPU here: this benchmark needs one, or --toy", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        setting = (toy if is_toy else published)(Path(folder), 16 if is_toy else 64)
        where = "cpu" if is_toy else torch.cuda.get_device_name()
        print(
            f"{where}, torch {torch.__version__}, {len(setting.images)} cases, {len(RATES)} rounds"
        )
        for samples in (setting.samples, 2):
            compare(setting, samples)
        varnet(setting, is_toy)
        sampler(setting, is_toy)


def compare(setting: Setting, samples: int) -> None:
    cases = len(setting.images)
    drawn = pure_rate(setting, cases, samples, rss)
    pure = pure_rate(setting, cases, samples, lambda images: setting.classifier(rss(images)))
    recover = FlowRecovery(setting.flow, device=setting.device)
    first, warm = pipeline_rate(setting, recover, samples)
    print(f"flow, p = {samples}, batches of {batch_of(setting, recover, samples)}, per slice:")
    print(f"  sampler alone                  {1e3 * drawn:8.2f} ms")
    print(f"  sampler with classifier        {1e3 * pure:8.2f} ms")
    print(f"  pipeline, first run            {1e3 * first:8.2f} ms")
    print(f"  pipeline, warm                 {1e3 * warm:8.2f} ms", flush=True)
    print(f"  share of the pure rate         {100 * pure / warm:8.1f} %", flush=True)


def varnet(setting: Setting, is_toy: bool) -> None:
    torch.manual_seed(0)
    net = build("varnet", preset="tiny" if is_toy else "paper").to(setting.device)
    first, warm = pipeline_rate(setting, VarNetRecovery(net), 1)
    print("variational network, per slice:")
    print(f"  pipeline, first run            {1e3 * first:8.2f} ms")
    print(f"  pipeline, warm                 {1e3 * warm:8.2f} ms", flush=True)


def sampler(setting: Setting, is_toy: bool) -> None:
    from taskuq.recover.sampler_training import VarNetEstimates

    torch.manual_seed(0)
    preset = "tiny" if is_toy else "paper"
    net, estimating = (
        build(kind, preset=preset).to(setting.device) for kind in ("sampler", "varnet")
    )
    for samples in (setting.samples, 2):
        recover = SamplerRecovery(net, VarNetEstimates(estimating))
        first, warm = pipeline_rate(setting, recover, samples)
        batch = batch_of(setting, recover, samples)
        print(
            f"sampler around the variational network, p = {samples}, batches of {batch}, per slice:"
        )
        print(f"  pipeline, first run            {1e3 * first:8.2f} ms")
        print(f"  pipeline, warm                 {1e3 * warm:8.2f} ms", flush=True)


if __name__ == "__main__":
    main()
