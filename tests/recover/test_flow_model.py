"""Flows: inversion, log-determinants, and the posterior of a Gaussian."""

import math
import shutil
from dataclasses import replace

import pytest
import torch
from torch.func import jacrev

from raising import refused
from taskuq.measure._coils import to_complex
from taskuq.measure._fourier import project_measured, project_null_space
from taskuq.recover._compiled import compile_on_first_call
from taskuq.recover.flow import _model as flows
from taskuq.recover.flow._train import _null_space_target

CHANNELS, CONDITION, SIDE = 4, 2, 4


def parts():
    generator = torch.Generator().manual_seed(5)
    return {
        "actnorm": flows._ActNorm(CHANNELS),
        "coupling-1": flows._Coupling(CHANNELS, CONDITION, kernel=1),
        "coupling-3": flows._Coupling(CHANNELS, CONDITION, kernel=3),
        "imap": flows._InvertibleAttention(CHANNELS),
        "step": flows.FlowStep(CHANNELS, CONDITION, kernel=3, generator=generator),
        "layer": flows.FlowLayer(CHANNELS, CONDITION, steps=2, generator=generator),
    }


@pytest.fixture(params=list(parts()))
def part(request, randomise):
    module = randomise(parts()[request.param].double())
    condition = torch.linspace(-1, 1, CONDITION * SIDE * SIDE, dtype=torch.float64)
    condition = condition.view(1, CONDITION, SIDE, SIDE)
    match module:
        case flows._ActNorm() | flows._InvertibleAttention():
            return module, getattr(module, "inverse", None)
        case flows._Coupling():
            encoded = module.subnet.encode(condition)
        case flows.FlowStep():
            encoded = module.coupling.subnet.encode(condition)
        case flows.FlowLayer():
            encoded = module.encode(condition)
    if isinstance(module, flows._Coupling):
        joined = lambda y: torch.cat(module.inverse(y, encoded), dim=1)  # noqa: E731
        return (lambda x: module(x, condition)), joined
    return (lambda x: module(x, condition)), (lambda y: module.inverse(y, encoded))


def test_inverse_undoes_forward(part, draw):
    forward, inverse = part
    if inverse is None:
        pytest.skip("an ActNorm is inverted together with a rotation, in steps and layers")
    x = draw(1, CHANNELS, SIDE, SIDE)
    assert (inverse(forward(x)[0]) - x).abs().max() < 1e-12


def test_log_determinant_is_that_of_the_jacobian(part, draw):
    forward, _ = part
    x = draw(1, CHANNELS, SIDE, SIDE)
    jacobian = jacrev(lambda x: forward(x)[0])(x).reshape(x.numel(), x.numel())
    assert torch.linalg.slogdet(jacobian)[1].item() == pytest.approx(forward(x)[1].item(), abs=1e-9)


AROUND_MEAN = {"rotate_coils": True, "mean_passes": 2, "fill": "residual", "normalise": True}


@pytest.mark.parametrize(
    ("side", "change"),
    [(8, {}), (12, {}), (8, AROUND_MEAN)],  # 12 gives an odd side at the last layer
)
def test_flow_inverts_with_the_log_determinant_of_the_jacobian(randomise, draw, side, change):
    config = flows.FlowConfig(
        coils=1, unet_width=4, unet_pools=1, condition_channels=2, steps_per_layer=2, **change
    )
    torch.manual_seed(1)  # of the initial weights
    flow = randomise(flows.ConditionalFlow(config).double()).eval()
    x, y = draw(1, 2, side, side), draw(1, config.condition_inputs, side, side)
    conditions = flow.condition(y)
    if change:
        assert conditions[-1].abs().max() > 0.05, "sizes must matter"
    latents, log_det = flow(x, conditions)
    assert (flow.inverse(latents, flow.encode(y)) - x).abs().max() < 1e-9
    flat = jacrev(lambda x: torch.cat([z.flatten() for z in flow(x, conditions)[0]]))(x)
    found = torch.linalg.slogdet(flat.reshape(x.numel(), x.numel()))[1]
    assert found.item() == pytest.approx(log_det.item(), abs=1e-8)


def test_published_parameter_counts():
    with torch.device("meta"):
        flow = flows.ConditionalFlow(flows.FlowConfig())
    count = {name: sum(p.numel() for p in m.parameters()) for name, m in flow.named_children()}
    steps = [step for layer in flow.layers for step in layer.steps]
    couplings = sum(p.numel() for step in steps for p in step.coupling.parameters())
    assert count["unet"] == 496_410_640
    assert count["conditioner"] == 652_416
    assert couplings == 9_943_680
    assert sum(count.values()) == pytest.approx(507_670_180, rel=0.002)
    assert sum(c * h * w for c, h, w in flow.latent_shapes(320, 320)) == 16 * 320 * 320


def test_attention_is_the_mean_of_the_full_map(draw):
    full, bias, r = draw(6, 6), draw(6), draw(1)[0]
    attend, x = flows._InvertibleAttention(6).double(), draw(2, 6, 4, 4)
    with torch.no_grad():
        attend.filter.copy_(full.mean(0))
        attend.offset.copy_(bias.mean() + r)
    masked = torch.where(flows._stripes(x), x, 0)
    mean = (torch.einsum("oc,bchw->bohw", full, masked) + bias.view(-1, 1, 1)).mean(1, True)
    expected = x * torch.where(
        flows._stripes(x), attend.gates().view(-1, 1, 1), torch.sigmoid(mean + r) + 1e-5
    )
    assert (attend(x)[0] - expected).abs().max() < 1e-12


def test_actnorm_is_initialised_by_data(small_flow, draw):
    x, y = 3 + 5 * draw(4, 4, 16, 16), draw(4, 4, 16, 16)
    flow = small_flow.double()
    flow(x, flow.condition(y), start=True)
    out, _ = flow.layers[0].norm(flows.squeeze(x))
    assert out.mean((0, 2, 3)).abs().max() < 1e-9
    assert (out.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-9
    assert bool(flow.started)
    with refused("shape.mismatch"):  # odd sides inside
        flow.condition(draw(1, 4, 18, 16))


CONFIG = flows.FlowConfig(
    coils=1, unet_width=2, unet_pools=1, condition_channels=8, layers=1, steps_per_layer=4,
    max_value=1e3,
)  # fmt: skip
# x given y is Gaussian at each pixel: mean GAIN @ y, covariance ROOT @ ROOT.T.
GAIN = torch.tensor([[0.8, -0.3], [0.0, 0.5]])
ROOT = torch.tensor([[0.6, 0.0], [0.4, 0.2]])


def draw_pairs(count, generator):
    y = torch.randn(count, 2, 4, 4, generator=generator)
    noise = torch.randn(count, 2, 4, 4, generator=generator)
    mix = torch.einsum
    return mix("ij,bjhw->bihw", GAIN, y) + mix("ij,bjhw->bihw", ROOT, noise), y


@pytest.fixture(scope="module")
def trained():
    flow, generator = flows.ConditionalFlow(CONFIG), torch.Generator().manual_seed(0)
    # The condition is given as it is, so that only the flow itself is under test.
    parameters = list(flow.layers.parameters())
    optimiser = torch.optim.Adam(parameters, lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 350)
    for step in range(350):
        x, y = draw_pairs(64, generator)
        loss = flows.bits_per_dimension(*flow(x, [flows.squeeze(y)], start=step == 0)).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
    return flow


def draw_posterior(flow, y, count):
    generator = torch.Generator().manual_seed(1)
    z = [torch.randn(count, *shape, generator=generator) for shape in flow.latent_shapes(4, 4)]
    with torch.no_grad():
        encoded = [flow.layers[0].encode(flows.squeeze(y))]
        return flow.inverse(z, flows.FlowCondition(encoded, None))


def test_mean_and_covariance_are_those_of_the_posterior(trained):
    flow = trained
    _, y = draw_pairs(1, torch.Generator().manual_seed(7))
    samples = draw_posterior(flow, y, 4000)
    mean = torch.einsum("ij,bjhw->bihw", GAIN, y)[0]
    assert (samples.mean(0) - mean).abs().mean() < 0.06
    centred = (samples - samples.mean(0)).flatten(1)
    found = centred.T @ centred / len(samples)
    expected = torch.kron(ROOT @ ROOT.T, torch.eye(16))
    assert (found - expected).norm() / expected.norm() < 0.15


def test_likelihood_is_the_entropy_of_the_posterior(trained):
    flow = trained
    x, y = draw_pairs(2000, torch.Generator().manual_seed(8))
    with torch.no_grad():
        bits = flows.bits_per_dimension(*flow(x, [flows.squeeze(y)])).mean().item()
    # Bits per real number: half of log2 det(2 pi e S) for the two numbers of a pixel.
    log_det = torch.logdet(2 * torch.pi * torch.e * ROOT @ ROOT.T).item()
    entropy = log_det / 4 / math.log(2)
    # No density has fewer bits on average than the truth; sampling error is below 0.01.
    assert entropy - 0.01 < bits < entropy + 0.05


def test_training_noise_fills_its_subspaces():
    x = torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(0)) + 0j
    mask = torch.arange(64)[None] % 4 == 0
    for noise, null_noise in ((0.5, 0.0), (0.0, 0.25)):
        config = replace(CONFIG, coils=2, measured_noise=noise, null_noise=null_noise)
        flow = flows.ConditionalFlow(config)
        batch = {"image": x, "mask": mask}
        y, target = _null_space_target(flow, batch, torch.Generator().manual_seed(1))
        added = to_complex(target) - project_null_space(x, mask)
        assert torch.allclose(to_complex(y), project_measured(x, mask), atol=1e-6)
        # A projection on a quarter of the lines keeps a quarter of the energy of white noise.
        energies = [
            part(added, mask).abs().square().mean().item()
            for part in (project_measured, project_null_space)
        ]
        assert energies == pytest.approx([noise**2 / 2, null_noise**2 * 3 / 2], rel=0.05, abs=1e-9)


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_split_keeps_the_low_part():
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    high, low = compile_on_first_call(flows._split)(x)
    assert (high.double() + low.double() - x).norm() < 1e-5 * x.norm()
