"""A flow around an estimate: laws of its samples, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from taskuq.data._arrays import ArrayDataset
from taskuq.data._dataset import Subset
from taskuq.data._readers import simulate_coil_dataset
from taskuq.errors import InputError
from taskuq.measure._coils import to_complex
from taskuq.measure._fourier import project_measured
from taskuq.measure._mri import MultiCoilMRI
from taskuq.recover._cases import MaskedDataset
from taskuq.recover._estimate import TOGETHER, EstimateDataset, varnet_estimate
from taskuq.recover._methods import open_recovery
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.recover.flow import _around as around
from taskuq.recover.flow._around import ResidualFlowSampler, temperature_at
from taskuq.recover.flow._folded import fold
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.recover.flow._sample import case_scale
from taskuq.recover.flow._train import FlowMethod, _FlowTraining, _residual_flow_recipe
from taskuq.training._determinism import seeded
from taskuq.training._weights import save_weights

SIZE = 16
MASKS = np.zeros((2, SIZE), dtype=bool)
MASKS[0, 6:10] = True
MASKS[1, 4:12] = True
SMALL = FlowConfig(
    coils=1, inputs=6, unet_width=4, unet_pools=2, condition_channels=4, layers=2, steps=2
)


@pytest.fixture
def net() -> VarNet:
    with seeded(1):
        return VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2)).eval()


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


@pytest.mark.parametrize("acceleration", [4, 2])
def test_samples_agree_with_the_measurement(net, flow, images, acceleration):
    scan = scans(images, acceleration)[0]
    drawn = ResidualFlowSampler(flow, net).coil_images(scan, samples=5, seed=0)
    kept = project_measured(drawn, scan.mask.expand(5, -1))
    assert (kept - scan.zero_filled).abs().max() < 1e-5
    assert drawn.std(0).max() > 1e-3  # and differ elsewhere


def test_a_sample_depends_on_its_case_seed_and_number_alone(net, flow, images):
    recover, both = ResidualFlowSampler(flow, net), scans(images, 4)[:3]
    alone = [recover(scan, samples=4, seed=7 + k) for k, scan in enumerate(both)]
    together = recover.batch(both, samples=70, seeds=[7, 8, 9])
    for k in range(3):
        assert torch.allclose(together[k, :4], alone[k], atol=1e-5)
    assert not torch.allclose(together[0, 0], together[0, 69])
    assert not torch.allclose(recover(both[0], samples=4, seed=8), alone[0], atol=1e-3)


def test_samples_follow_the_scale_of_the_measurement(net, flow, images):
    scan = scans(images, 4)[0]
    louder = replace(scan, zero_filled=10 * scan.zero_filled)
    recover = ResidualFlowSampler(flow, net)
    quiet, loud = (recover(s, samples=3, seed=0) for s in (scan, louder))
    assert torch.allclose(loud, 10 * quiet, rtol=1e-3, atol=1e-3)


def test_the_error_is_what_lies_between_the_estimate_and_the_truth(net, images):
    """With one coil the combination loses nothing: estimate and error give the truth."""
    coil = simulate_coil_dataset(images.source, 1, seed=0)
    truth = coil[0].image[None]
    mask = torch.as_tensor(MASKS[:1])
    found = varnet_estimate(net, project_measured(truth, mask), mask)
    error = torch.complex(*found.error(truth)[0])
    assert torch.allclose(found.coil_images(0, error[None, None]), truth, atol=1e-5)


def test_a_change_of_phase_changes_nothing_the_flow_sees(net, images):
    """Errors and inputs are turned to the estimate's phase; only magnitudes are left to learn."""
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


def test_direct_conditions_see_what_instance_normalisation_hides():
    """Twice the signal: the U-Net's features are the same, the flow's conditions are not."""
    told = torch.rand(1, 6, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    for direct in (False, True):
        with seeded(4):
            flow = ConditionalFlow(replace(SMALL, direct=direct)).eval()
        with torch.no_grad():
            plain, louder = flow.condition(told), flow.condition(2 * told)
        change = max(float((a - b).abs().max()) for a, b in zip(plain, louder, strict=True))
        assert (change > 1e-2) == direct
        folded = fold(flow, device="cpu", dtype=torch.float32)
        latents = [torch.randn(2, *shape) for shape in flow.latent_shapes(SIZE, SIZE)]
        with torch.no_grad():
            slow = flow.inverse(latents, [c.expand(2, -1, -1, -1) for c in plain])
            quick = folded.inverse([z.movedim(1, -1) for z in latents], folded.shares(told))
        assert torch.allclose(to_complex(slow), quick, atol=1e-5)


def test_what_measured_lines_take_away_is_given_in_advance(net, images):
    """Errors in all lines alike spread as far as they were drawn, however much is measured."""
    with seeded(2):
        flow = ConditionalFlow(SMALL).eval()  # a new flow has no preference for any line
    coil = simulate_coil_dataset(images.source, 1, seed=0)
    spread = []
    for scan in (scans(coil, 4)[0], scans(coil, 2)[0]):
        drawn = ResidualFlowSampler(flow, net).coil_images(scan, samples=256, seed=0)
        scale = case_scale(scan.zero_filled[None])
        spread.append(float((drawn - drawn.mean(0)).abs().square().mean().sqrt() / scale))
    assert spread[0] == pytest.approx(spread[1], rel=0.02)


@pytest.mark.parametrize(("unmeasured", "widening"), [(12, 4 / 3), (8, 2), (1, 2), (0, 1)])
def test_latents_are_widened_as_far_as_at_half_the_lines(net, images, unmeasured, widening):
    mask = torch.zeros(1, SIZE, dtype=torch.bool)
    mask[:, unmeasured // 2 : unmeasured // 2 + SIZE - unmeasured] = True
    found = varnet_estimate(net, images[0].image[None], mask)
    assert found.widening(0) == pytest.approx(widening**0.5)


def test_what_was_not_measured_is_not_used(net, flow, images):
    """A zero-filled image that still holds other lines gives the samples of its measured ones."""
    scan = scans(images, 4)[0]
    whole = replace(scan, zero_filled=images[0].image)
    recover = ResidualFlowSampler(flow, net)
    a, b = (recover.coil_images(s, samples=2, seed=0) for s in (scan, whole))
    assert torch.allclose(a, b, atol=1e-5)


def test_no_temperature_gives_one_image(net, flow, images):
    drawn = ResidualFlowSampler(flow, net, temperature=0)(scans(images, 4)[0], samples=3, seed=0)
    assert drawn.std(0).max() < 1e-6


def test_a_draw_beyond_the_limit_is_counted_and_drawn_again(net, images):
    tight = ConditionalFlow(FlowConfig(**{**SMALL.__dict__, "limit": 4.2})).eval()
    recover = ResidualFlowSampler(tight, net)
    drawn = recover(scans(images, 4)[0], samples=40, seed=0)
    assert recover.rejected > 0
    assert torch.isfinite(drawn).all()
    assert recover.cooled == 0


def test_latents_are_halved_where_no_draw_is_within_the_limit(net, images):
    """A new flow gives its latents: of 512 numbers the largest is far above 1, and not above 9."""
    narrow = ConditionalFlow(FlowConfig(**{**SMALL.__dict__, "limit": 1.0})).eval()
    recover = ResidualFlowSampler(narrow, net)
    drawn = recover(scans(images, 4)[0], samples=5, seed=0)
    assert torch.isfinite(drawn).all()
    assert recover.cooled == 5
    assert 5 * 11 <= recover.rejected <= 5 * 14
    first = recover(scans(images, 4)[0], samples=2, seed=0)
    assert torch.allclose(first, drawn[:2], atol=1e-5)
    hopeless = ConditionalFlow(FlowConfig(**{**SMALL.__dict__, "limit": 1e-3})).eval()
    with pytest.raises(InputError, match=r"beyond 0\.001 after 16 draws, .* lower temperatures"):
        ResidualFlowSampler(hopeless, net)(scans(images, 4)[0], samples=2, seed=0)


def test_an_estimate_that_is_not_finite_is_said_to_be_so(net, flow, images):
    recover = ResidualFlowSampler(flow, net)
    with torch.no_grad():
        next(net.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="estimate to draw around is not finite"):
        recover(scans(images, 4)[0], samples=2, seed=0)


def test_a_flow_that_is_asked_for_float32_estimates_so(net, flow, tmp_path, monkeypatch):
    kinds = []
    monkeypatch.setattr(around, "inference_varnet", lambda net, dtype: kinds.append(dtype) or net)
    other = save_weights(net, tmp_path / "net.safetensors", kind="varnet", config=net.config)
    path = save_weights(flow, tmp_path / "flow.safetensors", kind="flow", config=flow.config)
    for precision in ("auto", "float32"):
        FlowMethod(path, estimate=other, precision=precision).open("cpu")
    assert kinds == [torch.float16, torch.float32]


def test_the_last_draw_counts(net, flow, images, monkeypatch):
    """Ten draws that are not numbers and an eleventh that is: it is taken."""
    recover, draws = ResidualFlowSampler(flow, net), []

    def inverse(inputs, shares, rows, spread):
        draws.append(len(rows))
        value = torch.nan if len(draws) < 11 else 0.0
        return torch.full((len(rows), 1, SIZE, SIZE), value, dtype=torch.complex64)

    monkeypatch.setattr(recover, "_inverse", inverse)
    assert torch.isfinite(recover(scans(images, 4)[0], samples=2, seed=0)).all()
    assert (len(draws), recover.rejected) == (11, 20)


def test_training_cases_take_their_masks_in_turn(net, images, monkeypatch):
    monkeypatch.setitem(TOGETHER, "cpu", 4)  # the last ones are fewer
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


def test_it_learns_how_large_errors_are_and_where(net):
    """Errors three times as large on the right: the samples' spread says so after training."""
    config = FlowConfig(
        coils=1, inputs=6, unet_width=8, unet_pools=2, condition_channels=8, layers=1, steps=4
    )
    with seeded(0):
        recipe = _residual_flow_recipe(config)
    flow, generator = recipe.network, torch.Generator().manual_seed(0)
    spread = torch.ones(SIZE) * 0.06
    spread[SIZE // 2 :] = 0.2
    inputs = torch.zeros(16, 6, SIZE, SIZE)
    inputs[:, 0] = spread * 5  # the picture tells
    optimiser = torch.optim.Adam(flow.parameters(), 5e-3)
    flow.train()
    for step in range(250):
        error = torch.randn(16, 2, SIZE, SIZE, generator=generator) * spread
        batch = {"inputs": inputs, "error": error}
        if step == 0:
            recipe.example_batch(flow, batch, generator)
        loss = recipe.loss(flow, batch, generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    flow.eval()
    with torch.no_grad():
        shapes = flow.latent_shapes(SIZE, SIZE)
        latents = [torch.randn(64, *shape, generator=generator) for shape in shapes]
        condition = [c.expand(64, -1, -1, -1) for c in flow.condition(inputs[:1])]
        found = flow.inverse(latents, condition).std((0, 1, 2))
    # A convolution cannot change its mind within a pixel: leave the edge out.
    assert torch.allclose(found[:6], spread[:6], rtol=0.15)
    assert torch.allclose(found[-6:], spread[-6:], rtol=0.15)


def test_a_flow_around_estimates_names_its_network(net, flow, images, tmp_path):
    varnet = save_weights(net, tmp_path / "net.safetensors", kind="varnet", config=net.config)
    notes = {"estimate": str(varnet)}
    told = save_weights(
        flow, tmp_path / "a.safetensors", kind="flow", config=flow.config, notes=notes
    )
    silent = save_weights(flow, tmp_path / "b.safetensors", kind="flow", config=flow.config)
    scan = scans(images, 4)[0]
    one = open_recovery(told)(scan, samples=2, seed=0)
    other = open_recovery(silent, estimate=varnet)(scan, samples=2, seed=0)
    assert torch.equal(one, other)
    with pytest.raises(InputError, match="does not say whose"):
        open_recovery(silent)
    with pytest.raises(InputError, match="no variational network"):
        open_recovery(silent, estimate=told)


def test_weights_say_at_what_temperature_to_draw(net, flow, images, tmp_path):
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


def test_temperatures_of_a_configuration_are_checked():
    with pytest.raises(InputError, match="for a flow around estimates"):
        _FlowTraining(temperatures=((16, 0.9),))
    for wrong in ((0.5, 1.0), (16.0, -1.0), (16.0, float("nan")), (16.0,), (16.0, 1.0, 1.0)):
        with pytest.raises(InputError, match="or pairs of an acceleration"):
            _FlowTraining(estimate=Path("varnet-atlas"), temperatures=(wrong,))


@pytest.mark.parametrize("wrong", [-1, float("nan"), ()])
def test_a_temperature_that_is_none_is_refused(net, flow, wrong):
    with pytest.raises(InputError, match="the temperature is"):
        ResidualFlowSampler(flow, net, temperature=wrong)


def test_a_flow_of_whole_images_is_no_flow_around_estimates(net):
    whole = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2, condition_channels=4))
    with pytest.raises(InputError, match="coils = 1 and inputs = 6"):
        ResidualFlowSampler(whole, net)
