"""Where the time goes on one GPU: variational network, sampler, a training step of the flow.

Run from the root of the repository, on a machine with an NVIDIA GPU; each part takes one to two
minutes:

    PYTHONPATH=src python3 -m benchmarks.speed_gpu varnet
    PYTHONPATH=src python3 -m benchmarks.speed_gpu chain
    PYTHONPATH=src python3 -m benchmarks.speed_gpu step
    PYTHONPATH=src python3 -m benchmarks.speed_gpu sampler
    PYTHONPATH=src python3 -m benchmarks.speed_gpu step --toy     # anywhere, to see that it runs

Networks are of the published size with random weights. Times are medians of CUDA events.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from benchmarks.recover_gpu import COILS, SIZE, case, milliseconds
from torch import Tensor, nn
from torch.utils.data import Dataset

from taskuq.measure.fourier import fft2c
from taskuq.recover.flow import FlowConfig
from taskuq.recover.flow_training import PAPER, PRESETS, flow_recipe
from taskuq.recover.folded_varnet import fold_varnet
from taskuq.recover.recorded import Recorded
from taskuq.recover.varnet import VarNet
from taskuq.training.config import TrainingConfig
from taskuq.training.recipe import Batch, Recipe

BEGAN = time.monotonic()


def say(what: str, value: str = "", note: str = "") -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f}] {what:62s} {value:>14s}  {note}", flush=True)


def table(work: Callable[[], object], *, by_cpu: bool = False, rows: int = 25) -> None:
    """Print what a profiler sees of one call."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CUDA, *([ProfilerActivity.CPU] if by_cpu else [])]
    with profile(activities=activities) as seen:
        work()
        torch.cuda.synchronize()
    averages = seen.key_averages()
    print(averages.table(sort_by="cuda_time_total", row_limit=rows, max_name_column_width=70))
    kernels = [event for event in seen.events() if str(event.device_type).endswith("CUDA")]
    busy = sum(event.time_range.elapsed_us() for event in kernels)
    say("kernels, and the time they take", f"{len(kernels)}, {busy / 1e3:.2f} ms")
    if by_cpu:
        print(averages.table(sort_by="self_cpu_time_total", row_limit=rows))


# The variational network


def decibels(found: Tensor, expected: Tensor) -> float:
    """The peak over the root mean square of the difference, in dB."""
    error = (found.double() - expected.double()).square().mean().sqrt()
    return 20 * math.log10(float(expected.abs().max() / error.clamp_min(1e-30)))


@torch.no_grad()
def varnet() -> None:
    torch.manual_seed(0)
    net = VarNet().cuda().eval()
    _, y, mask = case(torch.Generator("cuda").manual_seed(0), batch=16)
    kspace, lines = fft2c(y), torch.full((16,), 16, device="cuda")
    torch.backends.cudnn.allow_tf32 = False
    exact = torch.cat([net(kspace[i, None], mask[i, None], lines[i, None]) for i in range(16)])
    folded = fold_varnet(net, device="cuda", dtype=torch.float32)
    say(
        "folded, float32 without TF32, beside the network",
        f"{decibels(folded(kspace, mask, lines), exact):.1f} dB",
    )
    torch.backends.cudnn.allow_tf32 = True
    quick = {
        str(d)[6:]: fold_varnet(net, device="cuda", dtype=d) for d in (torch.float32, torch.float16)
    }
    for name, way in quick.items():
        for batch in (1, 16):
            inputs = kspace[:batch], mask[:batch], lines[:batch]
            replay = Recorded(way)
            error = decibels(replay(*inputs), exact[:batch])
            ms = milliseconds(lambda replay=replay, inputs=inputs: replay(*inputs), 10, 2)
            say(
                f"folded, {name}, batch {batch}, per slice",
                f"{ms / batch:.3f} ms",
                f"{error:.1f} dB",
            )
            if name == "float16":
                table(lambda replay=replay, inputs=inputs: replay(*inputs), rows=40)
    replay = Recorded(net)
    for batch in (1, 16):
        inputs = kspace[:batch], mask[:batch], lines[:batch]
        ms = milliseconds(lambda replay=replay, inputs=inputs: replay(*inputs), 5, 1)
        say(f"the network itself, batch {batch}, per slice", f"{ms / batch:.3f} ms")


# From the measurement to the interval


@torch.no_grad()
def chain() -> None:
    """Variational network, sampler, ResNet-50 and interval, on measurements that are there."""
    from benchmarks.recover_gpu import Classifier

    from taskuq.measure.mri import Measurement
    from taskuq.recover import build
    from taskuq.recover.sampler.recovery import SamplerRecovery, drawn
    from taskuq.recover.sampler_training import VarNetEstimates

    torch.manual_seed(0)
    net = build("sampler", preset="paper").cuda().eval()
    torch.nn.init.normal_(net.out.weight, std=0.1)
    estimating = VarNetEstimates(VarNet().cuda().eval())
    classifier = Classifier().eval().to("cuda", torch.bfloat16)
    task = Recorded(classifier.to(memory_format=torch.channels_last))
    _, y, mask = case(torch.Generator("cuda").manual_seed(0), batch=16)
    scans = [Measurement(y[i], mask[i], 8.0) for i in range(16)]
    recover = SamplerRecovery(net, estimating)
    exact = drawn(net, estimating(scans[:1]), samples=4, seeds=[5])
    found = recover.batch(scans[:1], samples=4, seeds=[5])
    spread = exact.std(1).mean()
    away = (found - exact).square().mean().sqrt()
    say("bfloat16 away from float32, of the spread", f"{float(away / spread):.4f}")

    def intervals(count: int, p: int) -> list[float]:
        images = recover.batch(scans[:count], samples=p, seeds=list(range(count)))
        outputs = torch.cat([task(part) for part in images.flatten(0, 1).split(32)])
        outputs = outputs.float().view(count, p)
        return (outputs.mean(1) + 2.5 * outputs.std(1)).tolist()

    for count, p in ((1, 32), (1, 2), (16, 32), (16, 2)):
        began = time.monotonic()
        intervals(count, p)
        took = time.monotonic() - began
        ms = milliseconds(lambda count=count, p=p: intervals(count, p), 10, 2) / count
        drawing = milliseconds(
            lambda count=count, p=p: recover.batch(
                scans[:count], samples=p, seeds=list(range(count))
            ),
            5,
            1,
        )
        memory = torch.cuda.max_memory_allocated() / 2**30
        say(
            f"{count} slices, p = {p}: to the interval, per slice",
            f"{ms:.2f} ms",
            f"samples alone {drawing / count:.2f} ms; first {took:.1f} s; {memory:.1f} GiB",
        )
        replayed = recover._replayed
        assert replayed is not None
        assert replayed._recording is not None
        (know, _), (draw, _) = replayed._recording.steps
        say("  estimates and what is known", f"{milliseconds(know.replay, 5, 1) / count:.2f} ms")
        say("  one chunk of samples", f"{milliseconds(draw.replay, 5, 1):.2f} ms")
        if p == 32:
            table(draw.replay, rows=20)
            table(know.replay, rows=25)
    magnitude = torch.rand(32, SIZE, SIZE, device="cuda")
    say("ResNet-50, 32 images", f"{milliseconds(lambda: task(magnitude)):.2f} ms")


# A training step of the flow


@dataclass(frozen=True)
class Slices(Dataset[dict[str, Tensor]]):
    """Coil images in memory, by (epoch, index), with the mask of R = 8."""

    images: Tensor
    mask: Tensor
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        return {"image": self.images[place[1] % len(self.images)].clone(), "mask": self.mask}


@dataclass(frozen=True)
class Trial:
    """One way to train a few steps."""

    recipe: Recipe
    config: TrainingConfig
    slices: Slices
    steps: int

    def batch(self, device: str) -> Batch:
        """One batch, on a device."""
        items = [self.slices[0, i] for i in range(self.config.batch)]
        return {key: torch.stack([item[key] for item in items]).to(device) for key in items[0]}


def published(toy: bool) -> Trial:
    """The flow of configs/fastmri-knee/flow.toml."""
    torch.manual_seed(0)
    size, config = (32, PRESETS["tiny"]) if toy else (SIZE, FlowConfig(noise=0.05))
    how = replace(
        PAPER,
        compile=not toy,
        precision="32-true" if toy else "bf16-mixed",
        workers=0 if toy else 8,
    )
    coils = config.coils if toy else COILS
    images = torch.randn(16, coils, size, size, dtype=torch.complex64)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[::12], mask[size // 2 - 8 : size // 2 + 8] = True, True
    recipe = flow_recipe(config, compiled=not toy)
    return Trial(recipe, how, Slices(images, mask, 10_000), steps=4 if toy else 14)


def engine(trial: Trial, steps: int) -> None:
    """Steps as ``taskuq train --dry-run`` takes them."""
    from taskuq.training.fit import foresee

    validation = replace(trial.slices, count=2 * trial.config.batch)
    took = foresee(trial.recipe, trial.slices, validation, trial.config, steps=steps)
    say(
        "as taskuq train takes it",
        f"{1e3 * took['step_s']:.1f} ms",
        f"first {took['first_step_s']:.0f} s, waits {took['wait_share']:.1%}, validation "
        f"{1e3 * took['validation_step_s']:.0f} ms, {took['peak_gpu_bytes'] / 2**30:.1f} GiB",
    )


class Clock:
    """When steps end, on the GPU where there is one, without waiting for it."""

    def __init__(self) -> None:
        self.marks: list[Any] = []
        self.host: list[float] = []

    def mark(self) -> None:
        """A step ends."""
        self.host.append(time.perf_counter())
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)

    def steps(self) -> list[float]:
        """Milliseconds of each step."""
        if not self.marks:
            return [1e3 * (b - a) for a, b in pairwise(self.host)]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(self.marks)]

    def median(self) -> float:
        """Of all but the first steps."""
        return median(self.steps()[3:] or self.steps())

    def note(self) -> str:
        """What the first steps took, and the host alone."""
        host = median([1e3 * (b - a) for a, b in pairwise(self.host)][3:] or [0.0])
        return f"first steps {', '.join(f'{x:.0f}' for x in self.steps()[:3])} ms; host {host:.1f}"


def by_hand(trial: Trial, device: str) -> tuple[Callable[..., None], Any]:
    """A step as a plain loop would take it, with parts that can be left out."""
    flow = trial.recipe.network.to(device).train()
    weights = [p for p in flow.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(weights, lr=1e-5, weight_decay=1e-7, fused=device == "cuda")
    batch = trial.batch(device)
    generator = torch.Generator(device).manual_seed(0)
    mixed = trial.config.precision == "bf16-mixed"

    def step(backward: bool = True, clip: bool = True, update: bool = True) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=mixed):
            loss = trial.recipe.loss(flow, batch, generator)
        if backward:
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(weights, 1.0)
        if update:
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step, batch


def timed(work: Callable[[], object], count: int) -> Clock:
    clock = Clock()
    clock.mark()
    for _ in range(count):
        work()
        clock.mark()
    return clock


def parts(trial: Trial, device: str) -> None:
    """The step by hand, with parts left out, and the parts alone."""
    step, batch = by_hand(trial, device)
    clock = timed(step, trial.steps)
    say("by hand", f"{clock.median():.1f} ms", clock.note())
    for name, kept in {
        "without clipping and update": {"clip": False, "update": False},
        "forward alone": {"backward": False, "clip": False, "update": False},
    }.items():
        say(f"by hand, {name}", f"{timed(lambda kept=kept: step(**kept), 6).median():.1f} ms")
    flow = trial.recipe.network
    told = batch["image"].real.repeat(1, 2, 1, 1)[:, : flow.config.told].contiguous()

    def condition() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            conditions = flow.condition(told)
        sum(c.float().square().mean() for c in conditions).backward()
        flow.zero_grad(set_to_none=True)

    say("condition alone, forward and backward", f"{timed(condition, 6).median():.1f} ms")
    if device == "cuda":
        say("peak memory", f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
        table(step, by_cpu=True)


def step() -> None:
    toy = "--toy" in sys.argv
    trial = published(toy)
    numbers = sum(p.numel() for p in trial.recipe.network.parameters())
    say(f"flow of {numbers:,} parameters, batch {trial.config.batch}")
    engine(trial, trial.steps)
    parts(trial, "cpu" if toy else "cuda")
    engine(trial, trial.steps)


def sampler() -> None:
    """A training step of the sampler of configs/fastmri-knee/sampler.toml, without task terms."""
    import numpy as np

    from taskuq.data.arrays import ArrayDataset
    from taskuq.measure.masks import nested_masks
    from taskuq.recover import build
    from taskuq.recover.cases import MeasuredCases
    from taskuq.recover.folds import FoldedCases, HonestEstimates, collate
    from taskuq.recover.sampler.learning import Scored, sampler_recipe
    from taskuq.recover.sampler_training import PAPER as HOW
    from taskuq.recover.sampler_training import PRESETS as SIZES
    from taskuq.runs.rehearse import TRAINING_SLICES
    from taskuq.training.fit import foresee

    toy = "--toy" in sys.argv
    size, preset, coils = (32, "tiny", 2) if toy else (SIZE, "paper", COILS)
    torch.manual_seed(0)
    images = torch.randn(64, coils, size, size, dtype=torch.complex64).numpy()
    data = ArrayDataset(images, label=[0] * 64, group="each", normalise=False)
    masks = nested_masks(size, (16.0, 8.0, 4.0, 2.0), rng=np.random.default_rng(0))
    cases = FoldedCases(MeasuredCases(data, masks, seed=0), np.arange(64) % 2)
    honest = HonestEstimates([build("varnet", preset=preset) for _ in range(2)], None)
    recipe = replace(sampler_recipe(SIZES[preset], Scored(), honest), collate=collate)
    how = replace(HOW, epochs=40, workers=0 if toy else 8)
    how = replace(how, precision="32-true") if toy else how
    took = foresee(recipe, cases, cases, how, steps=4 if toy else 12)
    say(
        f"sampler of {took['parameters']:,} parameters, step of {how.batch} cases",
        f"{1e3 * took['step_s']:.1f} ms",
        f"first {took['first_step_s']:.0f} s, {took['peak_gpu_bytes'] / 2**30:.1f} GiB; waits "
        f"{took['wait_share']:.0%}",
    )
    steps = how.epochs * -(-TRAINING_SLICES // how.batch)
    say(f"{how.epochs} epochs of the paper's slices", f"{steps * took['step_s'] / 3600:.1f} h",
        f"{steps} steps")  # fmt: skip


def main() -> None:
    sections = {"varnet": varnet, "chain": chain, "step": step, "sampler": sampler}
    if not torch.cuda.is_available() and "--toy" not in sys.argv:
        print("no GPU here: this benchmark needs one, or --toy", file=sys.stderr)
        return
    if torch.cuda.is_available():
        print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for name in [name for name in sections if name in sys.argv] or list(sections):
        try:
            sections[name]()
        except Exception:
            traceback.print_exc()


if __name__ == "__main__":
    main()
