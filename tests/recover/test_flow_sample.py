from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from raising import refused
from taskuq._seeds import mix_seeds
from taskuq.data._arrays import ArrayDataset
from taskuq.data._dataset import Subset
from taskuq.data._readers import simulate_coil_dataset
from taskuq.measure._fourier import project_measured
from taskuq.measure._mri import MultiCoilMRI
from taskuq.recover._cases import MaskedDataset
from taskuq.recover._estimate import (
    BATCH,
    EstimateDataset,
    case_scale,
    noise_scale_of,
    varnet_estimate,
)
from taskuq.recover._methods import open_recovery
from taskuq.recover.flow import _sample as around
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.recover.flow._sample import (
    FlowSampler,
    ResidualFlowSampler,
    _FlowGraph,
    split_latents,
    temperature_at,
)
from taskuq.training._determinism import seeded
from taskuq.training._weights import save_weights


@pytest.fixture
def measurement(draw):
    x = torch.complex(draw(2, 2, 16, 24), draw(2, 2, 16, 24)).to(torch.complex64)
    mask = torch.arange(24) % torch.tensor([[3], [5]]) == 0
    return project_measured(x, mask), mask


@pytest.mark.parametrize("side", [16, 20, 26])  # also odd sides inside the U-Net and the flow
def test_samples_of_a_case_share_its_condition(small_flow, randomise, draw, side):
    if side == 26:
        small_flow = randomise(ConditionalFlow(replace(small_flow.config, layers=1))).eval()
    flow, samples = small_flow.double(), 3
    y = draw(2, 4, side, side)
    x = draw(2 * samples, 4, side, side)
    with torch.no_grad():
        conditions = flow.condition(y.repeat_interleave(samples, 0))
        latents, _ = flow(x, conditions)
        found = flow.inverse(latents, flow.encode(y))
    assert (found - x).abs().max() < 1e-11 * x.abs().max()


def test_flow_samples_do_not_depend_on_the_batch(small_flow, measurement):
    y, mask = measurement
    both = FlowSampler(small_flow)(y, mask, samples=5, seeds=[1, 2]).images
    # 1 byte of memory: every sample is a chunk of its own.
    alone = FlowSampler(small_flow, memory=1)(y[1:], mask[1:], samples=2, seeds=[2]).images
    assert (both[1, :2] - alone[0]).abs().max() < 1e-4 * both.abs().max()
    assert (both[0, 0] - both[0, 1]).abs().max() > 1e-2 * both.abs().max()


def test_samples_beyond_the_limit_are_rejected(small_flow, measurement):
    y, mask = measurement
    free = FlowSampler(small_flow)(y, mask, samples=20, seeds=[1, 2])
    largest = [_largest(small_flow, y, mask, seed) for seed in (1, 2)]
    limit = torch.cat(largest).sort().values[19:21].mean().item()
    small_flow.config = replace(small_flow.config, max_value=limit)
    kept = FlowSampler(small_flow)(y, mask, samples=20, seeds=[1, 2])
    assert free.rejected.tolist() == [0, 0]
    over = [int((sizes > limit).sum()) for sizes in largest]
    assert all(count >= first for count, first in zip(kept.rejected.tolist(), over, strict=True))
    assert sum(over) == 20  # half of the first draws are beyond the median
    same = torch.stack(largest) <= limit
    assert torch.equal(kept.images[same], free.images[same])


def _largest(flow, y, mask, seed):
    case = seed - 1
    recording = _FlowGraph(FlowSampler(flow), 1, 20, *y.shape[-2:])
    recording.encode(y[case : case + 1], torch.ones(1), mask[case : case + 1])
    recording.decode([mix_seeds(seed, j, 0) for j in range(20)], 1.0)
    latents = split_latents(recording.latents, recording.shapes)
    x = recording.sampler.flow.inverse(latents, recording.condition)
    return x.abs().flatten(1).amax(1).detach()


def test_normalising_flow_is_equivariant_to_scale(small_flow, measurement):
    y, mask = measurement
    small_flow.config = replace(small_flow.config, normalise=True)
    once = FlowSampler(small_flow)(y, mask, samples=2, seeds=[1, 2]).images
    thousand = FlowSampler(small_flow)(1000 * y, mask, samples=2, seeds=[1, 2]).images
    assert (thousand / 1000 - once).abs().max() < 1e-4 * once.abs().max()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda y, m: (y.real, m, [1, 2]), "shape.axes"),
        (lambda y, m: (y[..., :18], m[:, :18], [1, 2]), "shape.mismatch"),
        (lambda y, m: (y, m[:1], [1, 2]), "shape.mismatch"),
        (lambda y, m: (y, m, [1]), "shape.mismatch"),
        (lambda y, m: (y * float("nan"), m, [1, 2]), "value.nonfinite"),
    ],
)
def test_bad_input_is_refused(small_flow, measurement, change, code):
    y, mask, seeds = change(*measurement)
    with refused(code):
        FlowSampler(small_flow)(y, mask, samples=1, seeds=seeds)
    with torch.no_grad():
        small_flow.layers[0].norm.bias.fill_(float("nan"))
    with refused("value.nonfinite"):
        FlowSampler(small_flow)(*measurement, samples=2, seeds=[1, 2])


SIZE = 16
MASKS = abs(np.arange(SIZE) - 7.5) < [[2], [4]]
SMALL = FlowConfig(
    coils=1, in_channels=6, unet_width=4, unet_pools=2, condition_channels=4, layers=2,
    steps_per_layer=2,
)  # fmt: skip


@pytest.fixture
def net(varnet):
    return varnet


@pytest.fixture
def flow() -> ConditionalFlow:
    with seeded(2):
        flow = ConditionalFlow(SMALL).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in flow.layers:
            for step in layer.steps:  # a new coupling is the identity: give it something to do
                step.coupling.subnet.third.weight.normal_(0, 0.05, generator=generator)
    return flow


@pytest.fixture
def images() -> Subset:
    pictures = np.random.default_rng(0).random((6, SIZE, SIZE)) + 0.5
    data = ArrayDataset(pictures, label=[0] * 6, group=[0, 0, 1, 1, 2, 2])
    return simulate_coil_dataset(data, 4, seed=0)


def scans(images: Subset, acceleration: float) -> list:
    scanner = MultiCoilMRI(MASKS, (4, 2))
    return [scanner(images[k].image, acceleration) for k in range(len(images))]


@pytest.fixture
def keep_coils(monkeypatch):
    monkeypatch.setattr(around, "rss", lambda images: images)


@pytest.mark.parametrize("acceleration", [4, 2])
def test_samples_agree_with_the_measurement(net, flow, images, acceleration, keep_coils):
    scan = scans(images, acceleration)[0]
    drawn = ResidualFlowSampler(flow, net)(scan, samples=5, seed=0)
    kept = project_measured(drawn, scan.mask.expand(5, -1))
    assert (kept - scan.zero_filled).abs().max() < 1e-5
    assert drawn.std(0).max() > 1e-3  # and differ elsewhere


def test_sample_depends_on_case_seed_and_number_only(net, flow, images):
    recover, both = ResidualFlowSampler(flow, net), scans(images, 4)[:3]
    alone = [recover(scan, samples=4, seed=7 + k) for k, scan in enumerate(both)]
    together = recover.batch(both, samples=70, seeds=[7, 8, 9])
    for k in range(3):
        assert torch.allclose(together[k, :4], alone[k], atol=1e-5)
    assert not torch.allclose(together[0, 0], together[0, 69])
    assert not torch.allclose(recover(both[0], samples=4, seed=8), alone[0], atol=1e-3)


def test_residual_flow_is_equivariant_to_scale(net, flow, images):
    scan = scans(images, 4)[0]
    louder = replace(scan, zero_filled=10 * scan.zero_filled)
    recover = ResidualFlowSampler(flow, net)
    quiet, loud = (recover(s, samples=3, seed=0) for s in (scan, louder))
    assert torch.allclose(loud, 10 * quiet, rtol=1e-3, atol=1e-3)


def test_estimate_and_error_give_the_truth(net, images):
    # With one coil the combination loses nothing.
    coil = simulate_coil_dataset(images.source, 1, seed=0)
    truth = coil[0].image[None]
    mask = torch.as_tensor(MASKS[:1])
    found = varnet_estimate(net, project_measured(truth, mask), mask)
    error = torch.complex(*found.error(truth)[0])
    assert torch.allclose(found.coil_images(error[None, None])[0], truth, atol=1e-5)


def test_flow_inputs_are_invariant_to_phase(net, images):
    truth, mask = images[0].image[None], torch.as_tensor(MASKS[:1])
    turn = torch.polar(torch.tensor(1.0), torch.tensor(2.1))
    plain, turned = (
        varnet_estimate(net, project_measured(x, mask), mask) for x in (truth, turn * truth)
    )
    assert turned.phase.abs().sub(1).abs().max() < 1e-5
    # The network itself hardly depends on the phase: what is left is its own change.
    off = (turned.image - turn * plain.image).abs().max()
    assert (turned.inputs() - plain.inputs()).abs().max() < 10 * off + 1e-4
    exact = plain._replace(image=turn * plain.image, phase=turn * plain.phase)
    assert torch.allclose(exact.error(turn * truth), plain.error(truth), atol=1e-5)


def test_spread_does_not_depend_on_the_number_of_lines(net, images, keep_coils):
    with seeded(2):
        flow = ConditionalFlow(SMALL).eval()  # a new flow has no preference for any line
    coil = simulate_coil_dataset(images.source, 1, seed=0)
    spread = []
    for scan in (scans(coil, 4)[0], scans(coil, 2)[0]):
        drawn = ResidualFlowSampler(flow, net)(scan, samples=256, seed=0)
        scale = case_scale(scan.zero_filled[None])
        spread.append(float((drawn - drawn.mean(0)).abs().square().mean().sqrt() / scale))
    assert spread[0] == pytest.approx(spread[1], rel=0.02)


@pytest.mark.parametrize(("unmeasured", "widening"), [(12, 4 / 3), (8, 2), (1, 2), (0, 1)])
def test_noise_scale_is_limited_at_half_the_lines(unmeasured, widening):
    assert noise_scale_of(torch.arange(SIZE) >= unmeasured) == pytest.approx(widening**0.5)


def test_unmeasured_lines_are_not_used(net, flow, images, keep_coils):
    scan = scans(images, 4)[0]
    whole = replace(scan, zero_filled=images[0].image)
    recover = ResidualFlowSampler(flow, net)
    a, b = (recover(s, samples=2, seed=0) for s in (scan, whole))
    assert torch.allclose(a, b, atol=1e-5)


def test_latents_are_halved_beyond_the_limit(net, images):
    """A new flow gives its latents: of 512 numbers the largest is far above 1, and not above 9."""
    narrow = ConditionalFlow(replace(SMALL, max_value=1.0)).eval()
    recover = ResidualFlowSampler(narrow, net)
    drawn = recover(scans(images, 4)[0], samples=5, seed=0)
    assert torch.isfinite(drawn).all()
    assert recover.cooled == 5
    assert 5 * 11 <= recover.rejected <= 5 * 14
    first = recover(scans(images, 4)[0], samples=2, seed=0)
    assert torch.allclose(first, drawn[:2], atol=1e-5)
    hopeless = ConditionalFlow(replace(SMALL, max_value=1e-3)).eval()
    with refused("value.nonfinite"):
        ResidualFlowSampler(hopeless, net)(scans(images, 4)[0], samples=2, seed=0)


def test_training_cases_alternate_masks(net, images, monkeypatch):
    monkeypatch.setitem(BATCH, "cpu", 4)  # the last ones are fewer
    cases = MaskedDataset(images, MASKS, seed=0)
    estimated = EstimateDataset.of(cases, net, quiet=True)
    assert len(estimated) == 6
    for epoch in range(4):
        for index in range(6):
            item, mask = estimated[epoch, index], cases[epoch, index]["mask"][None]
            truth = images[index].image[None]
            found = varnet_estimate(net, project_measured(truth, mask), mask)
            assert torch.allclose(item["inputs"], found.inputs()[0], atol=1e-5)
            assert torch.allclose(item["error"], found.error(truth)[0], atol=1e-5)


def test_residual_flow_names_its_network(net, flow, images, tmp_path):
    varnet = save_weights(net, tmp_path / "net.safetensors", kind="varnet", config=net.config)
    notes = {"estimate": str(varnet)}
    save = partial(save_weights, flow, kind="flow", config=flow.config)
    named, unnamed = save(tmp_path / "a.safetensors", notes=notes), save(tmp_path / "b.safetensors")
    scan = scans(images, 4)[0]
    one = open_recovery(named)(scan, samples=2, seed=0)
    other = open_recovery(unnamed, estimate=varnet)(scan, samples=2, seed=0)
    assert torch.equal(one, other)
    with refused("config.missing"):
        open_recovery(unnamed)
    with refused("weights.mismatch"):
        open_recovery(unnamed, estimate=named)


def test_weights_hold_temperatures(net, flow, images, tmp_path):
    varnet = save_weights(net, tmp_path / "v.safetensors", kind="varnet", config=net.config)
    notes = {"estimate": str(varnet), "temperatures": [[4.0, 0.0], [2.0, 0.5]]}
    path = save_weights(
        flow, tmp_path / "f.safetensors", kind="flow", config=flow.config, notes=notes
    )
    cold, mild = scans(images, 4)[0], scans(images, 2)[0]
    recover = open_recovery(path)
    assert recover(cold, samples=3, seed=0).std(0).max() < 1e-6
    alike = open_recovery(path, temperature=0.5)
    assert torch.equal(recover(mild, samples=3, seed=0), alike(mild, samples=3, seed=0))
    assert alike(cold, samples=3, seed=0).std(0).max() > 1e-3  # what is given goes before


@pytest.mark.parametrize(("step", "expected"), [(1, 1), (2, 1), (4, 0.9), (8, 0.8), (16, 0.8)])
def test_temperatures_are_interpolated_between_accelerations(step, expected):
    mask = torch.arange(64) % step == 0
    assert temperature_at([(8, 0.8), (2, 1)], mask) == pytest.approx(expected)
    assert temperature_at(0.7, mask) == 0.7


@pytest.mark.parametrize("wrong", [-1, float("nan"), ()])
def test_wrong_temperature_or_flow_is_refused(net, flow, wrong):
    with refused("value.invalid"):
        ResidualFlowSampler(flow, net, temperature=wrong)
    whole = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2, condition_channels=4))
    with refused("weights.mismatch"):
        ResidualFlowSampler(whole, net)
