"""What only a GPU can show: compiled regions, CUDA graphs, and steps that never wait."""

import pytest
import torch

from taskuq.measure._fourier import _central_window, project_measured
from taskuq.measure._mri import MRIMeasurement
from taskuq.recover import build
from taskuq.recover._cases import CoilAugmentation, ScanRandomisation
from taskuq.recover._compiled import CudaGraph, accelerate, inference_varnet
from taskuq.recover._estimate import CrossFitEstimates
from taskuq.recover._varnet import VarNetConfig
from taskuq.recover._varnet_training import VarNetTraining
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig, _affine_in_parts
from taskuq.recover.flow._sample import FlowSampler
from taskuq.recover.flow._train import _FlowTraining
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import SamplerRecovery, counter_normal
from taskuq.recover.sampler._train import (
    ImageLossConfig,
    SamplerLoss,
    TaskLossConfig,
    VarNetEstimator,
)
from taskuq.task._backbone import BackboneConfig
from taskuq.task._classifier import Classifier, ClassifierConfig
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import seeded
from taskuq.training._fit import TrainerOptions

GPU = TrainerOptions(accelerator="gpu")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def float32_is_float32():
    """TF32 off, in convolutions and matrix products: float32 paths are compared as such."""
    parts = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [part.allow_tf32 for part in parts]
    for part in parts:
        part.allow_tf32 = False
    yield
    for part, value in zip(parts, before, strict=True):
        part.allow_tf32 = value


def random(*shape, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def distance(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("channels", [64, 128])
def test_affine_map_in_bfloat16_parts_is_exact_enough(channels):
    rows, bias = random(3000, channels), 3 * random(channels)
    matrix = torch.linalg.qr(random(channels, channels))[0]
    exact = torch.addmm(bias.double(), rows.double(), matrix.double())
    assert distance(_affine_in_parts(rows.chunk(2, dim=1), matrix, bias), exact) < 3e-5


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-3), (torch.float16, 2e-2)])
def test_compiled_varnet_is_the_varnet(dtype, limit):
    with seeded(0):
        net = build("varnet", preset="tiny").cuda().eval()
    mask = _central_window(torch.tensor([6, 9]), 50).cuda()
    kspace = torch.where(mask[:, None, None], torch.complex(*random(2, 2, 3, 45, 50)), 0)
    arguments = kspace, mask, torch.tensor([6, 9], device="cuda")
    quick = CudaGraph(inference_varnet(net, dtype))
    with torch.no_grad():
        expected = net(*arguments)
        assert distance(quick(*arguments), expected) < limit
        assert distance(quick(*arguments), expected) < limit  # replayed


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-3), (torch.bfloat16, 5e-2)])
def test_compiled_flow_is_the_flow(dtype, limit):
    with seeded(0):
        flow = ConditionalFlow(FlowConfig(coils=4, unet_width=8, unet_pools=2, steps_per_layer=4,
                                          condition_channels=8, max_value=1e9))  # fmt: skip
    quick, shapes = FlowSampler(flow, device="cuda", dtype=dtype).flow, flow.latent_shapes(32, 48)
    latents, inputs = [random(3, *shape) for shape in shapes], random(1, 8, 32, 48)
    with torch.no_grad():
        found = quick.inverse(latents, quick.encode(inputs)).cpu()
        expected = flow.eval().inverse([z.cpu() for z in latents], flow.encode(inputs.cpu()))
    assert distance(found, expected) < limit


def test_normal_numbers_are_those_of_a_cpu():
    seeds = torch.tensor([0, 5, 2**62 + 3, -7])
    found = counter_normal(seeds.cuda(), 1001).cpu()
    torch.testing.assert_close(found, counter_normal(seeds, 1001), rtol=1e-4, atol=1e-4)


def test_replayed_samples_are_drawn_samples():
    net = SamplerNet(SamplerConfig(width=8, decoder_channels=(16, 24, 32))).cuda().eval()
    torch.nn.init.normal_(net.out.weight, std=0.3)
    mask = _central_window(torch.tensor([8]), 48)[0]
    images = torch.complex(*(random(2, 3, 4, 32, 48)))
    scans = [MRIMeasurement(project_measured(image, mask), mask, 6.0) for image in images]
    estimating = VarNetEstimator(build("varnet", preset="tiny").cuda(), dtype=torch.float32)
    recover = SamplerRecovery(net, estimating, dtype=torch.float32)
    plain = SamplerRecovery(net, lambda given: estimating(given), dtype=torch.float32)
    expected = plain.batch(scans, samples=5, seeds=[1, 2, 3])  # without CUDA graphs
    assert expected.std(1).mean() > 1e-2 * expected.mean()
    for cases in (slice(0, 3), slice(1, 2)):  # recorded, and recorded anew
        for _ in range(2):
            found = recover.batch(scans[cases], samples=5, seeds=[1, 2, 3][cases])
            assert distance(found, expected[cases]) < 1e-2
    half = SamplerRecovery(net, estimating).batch(scans, samples=5, seeds=[1, 2, 3])
    assert distance(half, expected) < 5e-2


@pytest.mark.parametrize(
    ("kind", "shapes"), [("flow", 1), ("varnet", 1), ("any scan", 2), ("sampler", 1), ("task", 1)]
)
def test_replayed_steps_are_steps(kind, shapes, monkeypatch):
    """Equal loss, gradients and buffers at every step, with a smaller batch and an evaluation."""
    recorded, record = [], torch.cuda.make_graphed_callables
    monkeypatch.setattr(
        torch.cuda,
        "make_graphed_callables",
        lambda *given, **named: recorded.append(given) or record(*given, **named),
    )
    plain, quick = (_recipe(kind, replayed) for replayed in (False, True))
    plain.network.cuda().train()
    quick.network.cuda().train()
    optimiser = torch.optim.Adam(plain.network.parameters(), 1e-3)
    for step, cases in enumerate((4, 4, 3, 4, 4)):
        batch = _batch(kind, cases, torch.Generator("cuda").manual_seed(step))
        if step == 0 and plain.example_batch is not None:
            plain.example_batch(plain.network, batch, torch.Generator("cuda").manual_seed(step))
        quick.network.load_state_dict(plain.network.state_dict())
        if step == 3:
            expected = _validation(plain, batch, step)
            assert _validation(quick, batch, step) == pytest.approx(expected, rel=1e-5)
        expected, found = (_step(recipe, batch, step) for recipe in (plain, quick))
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
        assert distance(found[1], expected[1]) < 1e-3
        for ours, theirs in zip(quick.network.buffers(), plain.network.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        optimiser.step()
    assert len(recorded) == shapes


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("kind", ["sampler", "task"])
@pytest.mark.parametrize("replayed", [False, True])
def test_a_step_never_waits_for_the_gpu(kind, replayed):
    recipe = _recipe(kind, replayed)
    recipe.network.cuda().train()
    batches = [_batch(kind, 4, torch.Generator("cuda").manual_seed(k)) for k in range(3)]
    losses = []
    for step in range(6):
        torch.cuda.set_sync_debug_mode("error" if step > 2 else "default")
        try:
            with torch.autocast("cuda", torch.bfloat16):
                losses.append(_step(recipe, batches[step % 3], step % 3)[0])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    first, again = torch.stack(losses).view(2, 3)
    # Running means of scores have moved, weights have not.
    torch.testing.assert_close(again, first, rtol=0.2, atol=0.0)


def _recipe(kind, replayed):
    training = TrainingConfig(cuda_graphs=replayed)
    if kind == "flow":
        config = FlowConfig(coils=1, in_channels=6, unet_width=4, unet_pools=2,
                            condition_channels=4, layers=2, steps_per_layer=2)  # fmt: skip
        return _FlowTraining(config, training, estimate="varnet-atlas").recipe(None, GPU)
    if kind in ("sampler", "task"):
        with seeded(0):  # what is not trained is the same in both
            nets = [build("varnet", preset="tiny") for _ in range(2)]
            small = ClassifierConfig(backbone=BackboneConfig("small", width=8), hidden=(8,))
            task = Classifier(small).eval().requires_grad_(False)
        honest = CrossFitEstimates(nets, CoilAugmentation(), cuda_graphs=replayed)
        terms = (TaskLossConfig(), task) if kind == "task" else (None, None)
        config = SamplerConfig(width=8, decoder_channels=(8, 16))
        net = SamplerNet(config)
        forward = accelerate(net, net.forward, cuda_graphs=replayed)
        loss = SamplerLoss(honest, ImageLossConfig(), 3, *terms, forward)
        return Recipe("sampler", net, config, loss, loss.validate)
    scans = ScanRandomisation(coils=(3, 5)) if kind == "any scan" else None
    config = VarNetConfig(cascades=2, width=4, pools=2)
    return VarNetTraining(config, training, randomise=scans).recipe(None, GPU)


def _step(recipe, batch, step):
    net = recipe.network
    net.zero_grad()
    loss = recipe.loss(net, batch, torch.Generator("cuda").manual_seed(step))
    loss.backward()
    gradients = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
    return loss.detach(), torch.cat(gradients)


@torch.no_grad()
def _validation(recipe, batch, step):
    recipe.network.eval()
    generator = torch.Generator("cuda").manual_seed(step)
    loss = recipe.validate(recipe.network, batch, generator)["loss"].mean().item()
    recipe.network.train()
    return loss


def _batch(kind, cases, generator):
    def normal(*shape, dtype=torch.float32):
        return torch.randn(cases, *shape, generator=generator, device="cuda", dtype=dtype)

    if kind == "flow":
        return {"inputs": normal(6, 32, 32), "error": normal(2, 32, 32)}
    mask = torch.zeros(cases, 32, dtype=torch.bool, device="cuda")
    mask[:, 8:24] = True
    return {
        "image": normal(1 if kind == "any scan" else 4, 32, 32, dtype=torch.complex64),
        "mask": mask,
        "low_frequencies": torch.full((cases,), 16, device="cuda"),
        "data_range": torch.full((cases,), 3.0, device="cuda"),
        "network": (0, 1, 1, 1)[:cases],
        "progress": 0.9,
    }
