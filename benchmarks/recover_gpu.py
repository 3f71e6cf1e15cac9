"""Recovery networks on one GPU, in the published configuration: times, memory, precision.

Run from the root of the repository, on a machine with an NVIDIA GPU:

    PYTHONPATH=src python -m benchmarks.recover_gpu [flow] [varnet] [sampler] [step] [authors]

The last part times the code of the paper's authors, if TASKUQ_AUTHORS names a copy of their
repository (github.com/jwen307/TaskUQ) and its requirements are installed.

Weights are random, initialised as for training, but the couplings' last convolutions are random
instead of zero, so that every kernel does its full work. Times are medians of CUDA events.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from taskuq.data import ArrayDataset
from taskuq.measure import MRIMeasurement, fft2c, nested_masks, project_measured, rss
from taskuq.measure._coils import to_channels
from taskuq.measure._fourier import project_null_space
from taskuq.recover import FlowSampler, SamplerRecovery, VarNet, build
from taskuq.recover._cases import MaskedDataset
from taskuq.recover._compiled import CudaGraph, half_varnet, inference_varnet
from taskuq.recover._estimate import CrossFitDataset, CrossFitEstimates
from taskuq.recover.flow import ConditionalFlow, FlowConfig
from taskuq.recover.flow._train import PAPER, _FlowTraining
from taskuq.recover.sampler._train import PAPER as SAMPLER_PAPER
from taskuq.recover.sampler._train import VarNetEstimator, _SamplerTraining
from taskuq.training._fit import TrainerOptions, _fit

SIZE, COILS = 320, 8
# Slices, and samples of each, that the sampler draws in one call.
CASES = ((1, 32), (1, 2), (16, 32), (16, 2))


def report(what: str, took: str, memory: str = "", note: str = "") -> None:
    print(f"{what:58s} {took:>16s} {memory:>10s}  {note}".rstrip(), flush=True)


def milliseconds(work: Callable[[], object], repeats: int = 10, warm: int = 3) -> float:
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return median(times)


def peak_gib(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


class Classifier(nn.Module):
    """ResNet-50 on three equal channels with the published head; batch normalisation folded."""

    def __init__(self) -> None:
        super().__init__()
        from torch.nn.utils.fusion import fuse_conv_bn_eval
        from torchvision.models import resnet50

        self.backbone = resnet50(weights=None).eval()
        self.backbone.fc = nn.Identity()
        pairs = [("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3")]
        for module in list(self.backbone.modules()):
            for conv, norm in pairs:
                if isinstance(getattr(module, norm, None), nn.BatchNorm2d):
                    fused = fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm))
                    setattr(module, conv, fused)
                    setattr(module, norm, nn.Identity())
            if isinstance(getattr(module, "downsample", None), nn.Sequential):
                module.downsample = fuse_conv_bn_eval(*module.downsample)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.head = nn.Sequential(
            nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def features(self, x: Tensor) -> Tensor:
        """Return backbone features; in bfloat16, fuse bias and ReLU into the convolutions."""
        if x.dtype != torch.bfloat16:
            return self.backbone(x)
        net = self.backbone
        x = net.maxpool(_conv_relu(x, net.conv1))
        for block in (*net.layer1, *net.layer2, *net.layer3, *net.layer4):
            skip = block.downsample(x) if block.downsample is not None else x
            x = _conv_relu(_conv_relu(x, block.conv1), block.conv2)
            x = _conv_relu(x, block.conv3, skip)
        return net.avgpool(x).flatten(1)

    def forward(self, magnitude: Tensor) -> Tensor:
        """Map magnitude images (image, height, width) to probabilities (image,)."""
        low, high = magnitude.amin((1, 2), keepdim=True), magnitude.amax((1, 2), keepdim=True)
        unit = ((magnitude - low) / (high - low))[:, None].expand(-1, 3, -1, -1)
        dtype = self.head[0].weight.dtype
        x = ((unit - self.mean) / self.std).to(dtype).contiguous(memory_format=torch.channels_last)
        return torch.sigmoid(self.head(self.features(x)).float())[:, 0]


def _conv_relu(x: Tensor, conv: nn.Conv2d, add: Tensor | None = None) -> Tensor:
    shape = conv.stride, conv.padding, conv.dilation, conv.groups
    if add is None:
        return torch.cudnn_convolution_relu(x, conv.weight, conv.bias, *shape)
    return torch.cudnn_convolution_add_relu(x, conv.weight, add, 1.0, conv.bias, *shape)


def published_flow() -> ConditionalFlow:
    torch.manual_seed(0)
    flow = ConditionalFlow(FlowConfig(max_value=1e9)).cuda()
    generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        for layer in flow.layers:
            for step in layer.steps:
                step.coupling.subnet.third.weight.normal_(0, 0.001, generator=generator)
    return flow


def case(generator: torch.Generator, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return a smooth image with eight coils, its zero-filled image at R = 8, and the mask."""
    noise = torch.randn(batch, COILS, 20, 20, generator=generator, device="cuda")
    smooth = nn.functional.interpolate(noise, size=(SIZE, SIZE), mode="bicubic")
    x = torch.complex(smooth, smooth.roll(7, -1))
    x = x + 0.02 * torch.randn(x.shape, generator=generator, device="cuda")
    mask = torch.zeros(batch, SIZE, dtype=torch.bool, device="cuda")
    mask[:, ::12] = True
    mask[:, 152:168] = True
    return x, project_measured(x, mask), mask


def start(flow: ConditionalFlow, generator: torch.Generator) -> None:
    """Initialise the ActNorms from data, as training does."""
    x, y, mask = case(generator, batch=2)
    with torch.no_grad():
        conditions = flow.condition(to_channels(y))
        flow(to_channels(project_null_space(x, mask)), conditions, start=True)
    flow.eval()


def flow() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    net = published_flow()
    start(net, generator)
    _, y, mask = case(generator)
    plain_classifier = Classifier().cuda().eval()
    classifier = Classifier().eval()
    classifier.load_state_dict(plain_classifier.state_dict())
    classifier = classifier.to("cuda", torch.bfloat16).to(memory_format=torch.channels_last)

    precision(net, plain_classifier, y, mask)
    net.cpu()
    del plain_classifier
    gc.collect()  # recorded graphs of earlier sections hold memory until they are collected
    torch.cuda.empty_cache()
    sampler = FlowSampler(net, device="cuda", finish=lambda images: classifier(rss(images)))

    def slice_at(p: int) -> tuple[float, float]:
        outputs = sampler(y, mask, samples=p, seeds=[5]).images[0].float()
        mean, spread = outputs.mean(), outputs.std()
        lower, upper = (mean + torch.tensor([-1.0, 1.0], device="cuda") * 2.5 * spread).tolist()
        return lower, upper

    for p in (2, 32):
        peak = peak_gib(lambda p=p: slice_at(p))
        ms = milliseconds(lambda p=p: slice_at(p), 20, 3)
        what = f"flow, one slice with ResNet-50 and interval, p={p}"
        report(what, f"{ms:.2f} ms", f"{peak:.2f} GiB")
    _, many, masks = case(generator, batch=16)
    for p in (32, 2):
        ms = milliseconds(lambda p=p: sampler(many, masks, samples=p, seeds=list(range(16))), 3, 1)
        report(f"flow, 16 slices in one call, p={p}, per slice", f"{ms / 16:.2f} ms")


def precision(flow: ConditionalFlow, classifier: nn.Module, y: Tensor, mask: Tensor) -> None:
    """Print the error of bfloat16 in the task output, relative to the posterior spread."""
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        sampler = FlowSampler(flow, device="cuda", dtype=dtype, graphs=False, finish=rss)
        images = sampler(y, mask, samples=32, seeds=[5]).images[0]
        with torch.no_grad():
            results[dtype] = torch.cat([classifier(part) for part in images.split(8)])
        del sampler
    exact, rounded = results[torch.float32], results[torch.bfloat16]
    change, spread = (rounded - exact).abs().mean().item(), exact.std().item()
    what = "bf16: mean change of output / posterior spread"
    report(what, f"{change / spread:.4f}", "", f"spread {spread:.2e}")


def decibels(found: Tensor, expected: Tensor) -> float:
    """Return the ratio of the largest expected value to the root-mean-square error, in dB."""
    error = (found.double() - expected.double()).square().mean().sqrt()
    return 20 * math.log10(float(expected.abs().max() / error.clamp_min(1e-30)))


@torch.no_grad()
def varnet() -> None:
    """Time the variational network: float16 compiled, float16 uncompiled, and float32."""
    torch.manual_seed(0)
    net = VarNet().cuda().eval()
    _, y, mask = case(torch.Generator("cuda").manual_seed(0), batch=16)
    kspace, lines = fft2c(y), torch.full((16,), 16, device="cuda")
    exact = torch.cat([net(kspace[i, None], mask[i, None], lines[i, None]) for i in range(16)])
    compiled = CudaGraph(inference_varnet(net))
    eager = CudaGraph(half_varnet(net, torch.float16))
    for name, way in (("compiled", compiled), ("eager", eager), ("float32", CudaGraph(net))):
        for batch in (1, 16):
            inputs = kspace[:batch], mask[:batch], lines[:batch]
            error = decibels(way(*inputs), exact[:batch])
            ms = milliseconds(lambda way=way, inputs=inputs: way(*inputs), 10, 2)
            what = f"VarNet, {name} ({error:.0f} dB), batch {batch}, per slice"
            report(what, f"{ms / batch:.2f} ms")


@torch.no_grad()
def sampler() -> None:
    """Time the chain from measurements on the GPU to intervals: VarNet, sampler and ResNet-50."""
    torch.manual_seed(0)
    net = build("sampler", preset="paper").cuda().eval()
    nn.init.normal_(net.out.weight, std=0.1)
    recover = SamplerRecovery(net, VarNetEstimator(VarNet().cuda().eval()))
    classifier = Classifier().eval().to("cuda", torch.bfloat16)
    task = CudaGraph(classifier.to(memory_format=torch.channels_last))
    _, y, mask = case(torch.Generator("cuda").manual_seed(0), batch=16)
    scans = [MRIMeasurement(y[i], mask[i], 8.0) for i in range(16)]

    def intervals(count: int, p: int) -> list[float]:
        images = recover.batch(scans[:count], samples=p, seeds=list(range(count)))
        outputs = torch.cat([task(part) for part in images.flatten(0, 1).split(32)])
        outputs = outputs.float().view(count, p)
        return (outputs.mean(1) + 2.5 * outputs.std(1)).tolist()

    begun = time.perf_counter()
    intervals(1, 32)
    report("sampler, first call in this process", f"{time.perf_counter() - begun:.1f} s")
    for count, p in CASES:
        peak = peak_gib(lambda count=count, p=p: intervals(count, p))
        ms = milliseconds(lambda count=count, p=p: intervals(count, p), 10, 2) / count
        what = f"sampler, {count} slices to the interval, p={p}, per slice"
        report(what, f"{ms:.2f} ms", f"{peak:.2f} GiB")


@dataclass(frozen=True)
class Slices(Dataset[dict[str, Tensor]]):
    """In-memory coil images, all with the mask of R = 8, indexed by (epoch, index)."""

    images: Tensor
    mask: Tensor
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        return {"image": self.images[place[1] % len(self.images)].clone(), "mask": self.mask}


def step() -> None:
    """Time training steps, as ``taskuq train --dry-run`` does."""
    torch.manual_seed(0)
    images = torch.randn(64, COILS, SIZE, SIZE, dtype=torch.complex64)
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[::12], mask[SIZE // 2 - 8 : SIZE // 2 + 8] = True, True
    how = replace(PAPER, compile=True, precision="bf16-mixed", workers=8)
    slices = Slices(images[:16], mask, 10_000)
    recipe = _FlowTraining(training=how).recipe(None, TrainerOptions())
    few = replace(slices, count=2 * how.batch)
    took = _fit(recipe, slices, few, how, None, machine=TrainerOptions(), steps=14)
    report_step(f"training step of the flow, {how.batch} slices", took)
    data = ArrayDataset(images.numpy(), label=[0] * 64, group="image", normalise=False)
    masks = nested_masks(SIZE, (16.0, 8.0, 4.0, 2.0), seed=0)
    cases = CrossFitDataset(MaskedDataset(data, masks, seed=0), np.arange(64) % 2)
    honest = CrossFitEstimates([build("varnet", preset="paper") for _ in range(2)], None)
    how = replace(SAMPLER_PAPER, epochs=40, workers=8)
    scored = _SamplerTraining(training=how).sampler_recipe("sampler", honest, TrainerOptions())
    took = _fit(scored, cases, cases, how, None, machine=TrainerOptions(), steps=12)
    report_step(f"training step of the sampler, {how.batch} slices of 4 samples", took)


def report_step(what: str, took: dict[str, float]) -> None:
    peak = took["peak_gpu_bytes"] / 2**30
    report(what, f"{1e3 * took['step_s']:.1f} ms", f"{peak:.2f} GiB")


def authors(config: dict[str, Any] | None = None, device: str = "cuda") -> None:
    """Time the authors' flow, VarNet and training step, with the ResNet-50 of this benchmark."""
    folder = os.environ.get("TASKUQ_AUTHORS")
    if folder is None:
        report("authors' code", "", "", "set TASKUQ_AUTHORS to a copy of their repository")
        return
    sys.path.insert(0, folder)
    try:
        from models.networks.misc_nets.varnet import VarNet as TheirVarNet
        from models.pl_models.multiscale_unet_multicoil import MulticoilCNF
        from train.configs.config_cinn_unet_multicoil import Config
    except ImportError as error:
        report("authors' code", "", "", f"cannot be imported: {error}")
        return
    config = config or Config().config
    size = config["data_args"]["img_size"]
    torch.manual_seed(0)
    net, task = MulticoilCNF(config).to(device).eval(), Classifier().to(device).eval()
    image = torch.randn(8, 2 * COILS, size, size, device=device)
    mask = torch.zeros(1, size, 1, device=device)
    mask[:, ::12], mask[:, size // 2 - 8 : size // 2 + 8] = 1, 1
    scale = torch.ones(1, device=device)

    @torch.no_grad()
    def draw(p: int, chunk: int) -> Tensor:
        asked = {"mask": mask, "norm_val": scale, "split_num": chunk, "rss": True}
        images = net.reconstruct(image[:1], p, **asked)[0][:, 0]
        return torch.cat([task(part) for part in images.split(chunk)])

    for p, chunk in ((32, 4), (32, 16), (32, 32), (2, 2)):
        ms = milliseconds(lambda p=p, chunk=chunk: draw(p, chunk), 3, 1)
        report(f"authors' flow, one slice, p={p}, chunks of {chunk}", f"{ms:.1f} ms")
    theirs = TheirVarNet().to(device).eval()
    lines = mask.view(1, 1, 1, size, 1).bool()
    kspace = torch.randn(16, COILS, size, size, 2, device=device) * lines
    for batch in (1, 16):
        asked = kspace[:batch], lines.expand(batch, -1, -1, -1, -1), None
        with torch.no_grad():
            ms = milliseconds(lambda asked=asked: theirs(*asked), 5, 1)
        report(f"authors' VarNet, batch {batch}, per slice", f"{ms / batch:.1f} ms")
    optimiser = torch.optim.Adam(net.parameters(), 1e-4)

    def train() -> None:
        loss = net.get_nll(*net(image, image, rev=False))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()

    net.requires_grad_(True)
    what = f"authors' training step of the flow, {len(image)} slices"
    report(what, f"{milliseconds(train):.0f} ms")


def main() -> None:
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU", file=sys.stderr)
        return
    torch.backends.cudnn.benchmark = True
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    report("work", "time", "peak memory")
    parts = {"flow": flow, "varnet": varnet, "sampler": sampler, "step": step, "authors": authors}
    for name in [name for name in parts if name in sys.argv] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
