"""Where the time goes on one GPU: the variational network, and a training step of the flow.

Run from the root of the repository, on a machine with an NVIDIA GPU; each part takes one to two
minutes:

    PYTHONPATH=src python3 -m benchmarks.speed_gpu varnet
    PYTHONPATH=src python3 -m benchmarks.speed_gpu step
    PYTHONPATH=src python3 -m benchmarks.speed_gpu compiled
    PYTHONPATH=src python3 -m benchmarks.speed_gpu step --toy     # anywhere, to see that it runs

Networks are of the published size with random weights. Times are medians of CUDA events.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from benchmarks.recover_gpu import COILS, SIZE, case, milliseconds
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from taskuq.measure.fourier import fft2c
from taskuq.recover.flow import FlowConfig
from taskuq.recover.flow_training import PAPER, PRESETS, flow_recipe
from taskuq.recover.folded_varnet import fold_varnet
from taskuq.recover.recorded import Recorded
from taskuq.recover.varnet import VarNet
from taskuq.training.config import TrainingConfig
from taskuq.training.order import EpochOrder
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
        str(d)[6:]: fold_varnet(net, device="cuda", dtype=d)
        for d in (torch.float32, torch.bfloat16, torch.float16)
    }
    ways: dict[str, Callable[..., Tensor]] = {"plain": net, **quick}
    for search in (False, True):
        torch.backends.cudnn.benchmark = search
        for name, way in ways.items():
            for batch in (1, 16):
                inputs = kspace[:batch], mask[:batch], lines[:batch]
                try:
                    replay = Recorded(way)
                    began = time.monotonic()
                    error = decibels(replay(*inputs), exact[:batch])
                    took = time.monotonic() - began
                    launched = milliseconds(lambda way=way, inputs=inputs: way(*inputs), 3, 1)
                    ms = milliseconds(lambda replay=replay, inputs=inputs: replay(*inputs), 10, 2)
                except Exception:
                    traceback.print_exc()
                    continue
                note = (
                    f"not recorded {launched / batch:.2f}; {error:.1f} dB; recorded in {took:.1f} s"
                )
                say(
                    f"{name}, cudnn.benchmark {search}, batch {batch}, per slice",
                    f"{ms / batch:.3f} ms",
                    note,
                )
                del replay
    for batch in (1, 16):
        inputs = kspace[:batch], mask[:batch], lines[:batch]
        say(f"kernels of the folded network in bfloat16, batch {batch}")
        replay = Recorded(quick["bfloat16"])
        replay(*inputs)
        table(lambda inputs=inputs, replay=replay: replay(*inputs), rows=30)


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
    how = replace(PAPER, precision="32-true" if toy else "bf16-mixed", workers=0 if toy else 8)
    coils = config.coils if toy else COILS
    images = torch.randn(16, coils, size, size, dtype=torch.complex64)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[::12], mask[size // 2 - 8 : size // 2 + 8] = True, True
    recipe = flow_recipe(config, compiled=not toy)
    return Trial(recipe, how, Slices(images, mask, 10_000), steps=4 if toy else 14)


def compile_steps(flow: nn.Module) -> None:
    """Compile the steps of a flow too, for training."""
    from taskuq.recover.flow.layer import Step

    compiled = torch.compile(Step.forward)

    def forward(step: Step, x: Tensor, condition: Tensor, start: bool = False) -> Any:
        quick = torch.is_grad_enabled() and not start
        return (compiled if quick else Step.forward)(step, x, condition, start)

    for layer in flow.layers:
        for step in layer.steps:
            step.forward = partial(forward, step)


def engine(
    trial: Trial, what: str, *, workers: int, pinned: bool, bar: bool, resident: bool
) -> None:
    """Steps of the training engine's own module in the trainer that it makes."""
    import pytorch_lightning as pl

    from taskuq.training.module import Training

    slices = trial.slices
    if resident:
        slices = replace(slices, images=slices.images.cuda(), mask=slices.mask.cuda())
    loader = DataLoader(
        slices,
        batch_size=trial.config.batch,
        sampler=EpochOrder(len(slices), 0),
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
    )
    clock = Clock()
    trainer = pl.Trainer(
        accelerator="auto",
        devices=1,
        max_steps=trial.steps,
        limit_val_batches=0,
        precision=trial.config.precision,
        use_distributed_sampler=False,
        callbacks=[clock.callback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=bar,
        enable_model_summary=False,
    )
    trainer.fit(Training(trial.recipe, trial.config), loader)
    say(f"engine, {what}", f"{clock.median():.1f} ms", clock.note())


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

    def callback(self) -> Any:
        """Marks the end of each step of a trainer."""
        from pytorch_lightning import Callback

        clock = self

        class Marks(Callback):
            def on_train_batch_end(self, *given: Any, **named: Any) -> None:
                clock.mark()

        return Marks()

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


@contextmanager
def searching(search: bool) -> Iterator[None]:
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, search
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


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
    for search in (False, True):
        with searching(search):
            clock = timed(step, trial.steps)
            say(f"by hand, cudnn.benchmark {search}", f"{clock.median():.1f} ms", clock.note())
    with searching(True):
        for name, kept in {
            "without clipping": {"clip": False},
            "without clipping and update": {"clip": False, "update": False},
            "forward alone": {"backward": False, "clip": False, "update": False},
        }.items():
            ms = timed(lambda kept=kept: step(**kept), 6).median()
            say(f"by hand, {name}", f"{ms:.1f} ms")
        flow = trial.recipe.network
        told = batch["image"].real.repeat(1, 2, 1, 1)[:, : flow.config.told].contiguous()

        def condition() -> None:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                conditions = flow.condition(told)
            sum(c.float().square().mean() for c in conditions).backward()
            flow.zero_grad(set_to_none=True)

        say("condition alone, forward and backward", f"{timed(condition, 6).median():.1f} ms")
        from taskuq.recover.flow_targets import flow_target

        generator = torch.Generator(device).manual_seed(0)
        made = lambda: flow_target(flow, batch["image"], batch["mask"], generator)  # noqa: E731
        say("targets alone", f"{timed(made, 6).median():.2f} ms")
        if device == "cuda":
            say("peak memory", f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
            table(step, by_cpu=True)


def compiled() -> None:
    """The step by hand with the flow's own steps compiled as well."""
    trial = published("--toy" in sys.argv)
    compile_steps(trial.recipe.network)
    work, _ = by_hand(trial, "cpu" if "--toy" in sys.argv else "cuda")
    with searching(True):
        clock = timed(work, trial.steps)
        say(
            "by hand, steps compiled, cudnn.benchmark True",
            f"{clock.median():.1f} ms",
            clock.note(),
        )
        if torch.cuda.is_available():
            say("peak memory", f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
            table(work, by_cpu=True)


def step() -> None:
    toy = "--toy" in sys.argv
    device = "cpu" if toy else "cuda"
    trial = published(toy)
    numbers = sum(p.numel() for p in trial.recipe.network.parameters())
    say(f"flow of {numbers:,} parameters, batch {trial.config.batch}")
    parts(trial, device)
    usual = {"workers": trial.config.workers, "pinned": False, "bar": True, "resident": False}
    ways = {"": {}, "pinned": {"pinned": True}, "without bar": {"bar": False}}
    ways["pinned, without bar"] = {"pinned": True, "bar": False}
    if not toy:
        ways["on the GPU, without bar"] = {"workers": 0, "bar": False, "resident": True}
    for search in (False, True):
        with searching(search):
            for what, changed in ways.items():
                if search or what in ("", "pinned, without bar"):
                    name = f"cudnn.benchmark {search}{', ' if what else ''}{what}"
                    engine(trial, name, **{**usual, **changed})


def main() -> None:
    sections = {"varnet": varnet, "step": step, "compiled": compiled}
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
