"""Drawing quickly changes nothing: same samples, whatever is drawn beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from taskuq.errors import InputError
from taskuq.measure._coils import to_channels, to_complex
from taskuq.measure._fourier import data_consistency, data_consistency_1d, project_measured
from taskuq.recover.flow._folded import fold
from taskuq.recover.flow._model import ConditionalFlow
from taskuq.recover.flow._sample import FlowSampler, case_scale


@pytest.fixture
def measurement(draw):
    x = torch.complex(draw(2, 2, 16, 24), draw(2, 2, 16, 24)).to(torch.complex64)
    mask = torch.arange(24) % torch.tensor([[3], [5]]) == 0
    return project_measured(x, mask), mask


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
@pytest.mark.parametrize("side", [16, 20, 26])  # also odd sides inside the U-Net and the flow
def test_folded_flow_is_the_flow(small_flow, randomise, draw, dtype, tolerance, side):
    if side == 26:
        one_layer = ConditionalFlow(replace(small_flow.config, layers=1))
        small_flow = randomise(one_layer).eval()
    flow, samples = small_flow.to(dtype), 3
    y = draw(2, 4, side, side, dtype=dtype)
    z = [draw(2 * samples, *shape, dtype=dtype) for shape in flow.latent_shapes(side, side)]
    with torch.no_grad():
        conditions = [c.repeat_interleave(samples, 0) for c in flow.condition(y)]
        plain = to_complex(flow.inverse(z, conditions))
        folded = fold(flow, device="cpu", dtype=dtype)
        quick = folded.inverse([latent.movedim(1, -1) for latent in z], folded.shares(y))
    assert (quick - plain).abs().max() < tolerance * plain.abs().max()


def test_samples_are_data_consistent(small_flow, measurement):
    y, mask = measurement
    samples = FlowSampler(small_flow)(y, mask, samples=3, seeds=[1, 2], temperature=0.5).images
    again = project_measured(samples.transpose(0, 1).contiguous(), mask.expand(3, 2, 24))
    assert (again.transpose(0, 1) - y[:, None]).abs().max() < 1e-5 * samples.abs().max()


def test_one_dimensional_consistency_is_the_full_one(measurement, draw):
    y, mask = (tensor[0] for tensor in measurement)
    x = torch.complex(draw(4, 2, 16, 24), draw(4, 2, 16, 24)).to(torch.complex64)
    difference = data_consistency_1d(x, y, mask) - data_consistency(x, y, mask)
    assert difference.abs().max() < 1e-5


def test_a_sample_does_not_depend_on_what_is_drawn_beside_it(small_flow, measurement):
    y, mask = measurement
    both = FlowSampler(small_flow)(y, mask, samples=5, seeds=[1, 2]).images
    # 1 byte of memory: every sample is a chunk of its own.
    alone = FlowSampler(small_flow, memory=1)(y[1:], mask[1:], samples=2, seeds=[2]).images
    assert (both[1, :2] - alone[0]).abs().max() < 1e-4 * both.abs().max()
    assert (both[0, 0] - both[0, 1]).abs().max() > 1e-2 * both.abs().max()


@pytest.mark.parametrize(("cases", "each"), [(5, 2), (7, 3), (4, 9)])
def test_batches_of_cases_are_equal_and_lose_none(small_flow, draw, cases, each):
    y = torch.complex(draw(cases, 2, 16, 16), draw(cases, 2, 16, 16)).to(torch.complex64)
    mask = torch.arange(16).expand(cases, -1) % 3 == 0
    y, seeds = project_measured(y, mask), list(range(cases))
    sampler = FlowSampler(small_flow)
    sampler.memory *= 2 * each / sampler.chunk_limit(16, 16) * (1 + 1e-9)
    assert len({len(batch) for batch in sampler._batches(cases, 2, 16, 16)}) == 1
    found = sampler(y, mask, samples=2, seeds=seeds)
    alone = [
        FlowSampler(small_flow)(y[i, None], mask[i, None], samples=2, seeds=[i]) for i in seeds
    ]
    expected = torch.cat([one.images for one in alone])
    assert found.images.shape == expected.shape
    assert (found.images - expected).abs().max() < 1e-4 * expected.abs().max()


def test_temperature_scales_the_latents(small_flow, measurement):
    y, mask = measurement
    cold = FlowSampler(small_flow)(y, mask, samples=2, seeds=[1, 2], temperature=0.0).images
    assert (cold[:, 0] - cold[:, 1]).abs().max() < 1e-6 * cold.abs().max()
    spread = [
        FlowSampler(small_flow)(y, mask, samples=8, seeds=[1, 2], temperature=t)
        .images.std(1)
        .mean()
        for t in (0.1, 0.2)
    ]
    assert spread[1] > 1.5 * spread[0]


def test_samples_beyond_the_limit_are_drawn_again_and_counted(small_flow, measurement):
    y, mask = measurement
    free = FlowSampler(small_flow)(y, mask, samples=20, seeds=[1, 2])
    largest = [_largest(small_flow, y, mask, seed) for seed in (1, 2)]
    limit = torch.cat(largest).sort().values[19:21].mean().item()
    small_flow.config = replace(small_flow.config, limit=limit)
    kept = FlowSampler(small_flow)(y, mask, samples=20, seeds=[1, 2])
    assert free.rejected.tolist() == [0, 0]
    over = [int((sizes > limit).sum()) for sizes in largest]
    assert all(count >= first for count, first in zip(kept.rejected.tolist(), over, strict=True))
    assert sum(over) == 20  # half of the first draws are beyond the median
    same = torch.stack(largest) <= limit
    assert torch.equal(kept.images[same], free.images[same])


def _largest(flow, y, mask, seed):
    """The largest value of each of 20 unconstrained draws, read through a full set of nulls."""
    from taskuq._seeds import mix_seeds
    from taskuq.recover.flow._sample import _FlowGraph

    case = seed - 1
    recording = _FlowGraph(FlowSampler(flow), 1, 20, *y.shape[-2:])
    recording.measure(y[case : case + 1], torch.ones(1), mask[case : case + 1])
    recording.draw([mix_seeds(seed, j, 0) for j in range(20)], 1.0)
    latents, start = [], 0
    for c, h, w in recording.shapes:
        latents.append(recording.z[:, start : start + c * h * w].view(-1, h, w, c))
        start += c * h * w
    x = recording.sampler.folded.inverse(latents, recording.shares)
    return to_channels(x).abs().flatten(1).amax(1).detach()


def test_a_flow_that_only_gives_nonsense_is_refused(small_flow, measurement):
    y, mask = measurement
    with torch.no_grad():
        small_flow.layers[0].norm.bias.fill_(float("nan"))
    with pytest.raises(InputError, match="not finite or beyond"):
        FlowSampler(small_flow)(y, mask, samples=2, seeds=[1, 2])


def test_a_normalising_flow_follows_the_scale_of_its_input(small_flow, measurement):
    y, mask = measurement
    small_flow.config = replace(small_flow.config, normalise=True)
    once = FlowSampler(small_flow)(y, mask, samples=2, seeds=[1, 2]).images
    thousand = FlowSampler(small_flow)(1000 * y, mask, samples=2, seeds=[1, 2]).images
    assert (thousand / 1000 - once).abs().max() < 1e-4 * once.abs().max()


def test_case_scale_is_the_95_percent_quantile():
    y = torch.arange(1, 101).view(1, 1, 10, 10) * (1 + 0j)
    assert case_scale(y).item() == 95
    assert case_scale(torch.zeros(1, 1, 4, 4, dtype=torch.complex64)).item() > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda y, m: (y.real, m, [1, 2]), "give complex images"),
        (lambda y, m: (y[..., :18], m[:, :18], [1, 2]), "divisible by 4"),
        (lambda y, m: (y, m[:1], [1, 2]), "one for each case"),
        (lambda y, m: (y, m, [1]), "one seed for each case"),
        (lambda y, m: (y * float("nan"), m, [1, 2]), "not finite"),
    ],
)
def test_bad_input_is_one_sentence(small_flow, measurement, change, sentence):
    y, mask, seeds = change(*measurement)
    with pytest.raises(InputError, match=sentence):
        FlowSampler(small_flow)(y, mask, samples=1, seeds=seeds)
