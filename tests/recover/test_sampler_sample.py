import numpy as np
import pytest
import torch

from raising import refused
from taskuq.data._arrays import ArrayDataset
from taskuq.data._readers import simulate_coil_dataset
from taskuq.measure._fourier import project_measured
from taskuq.measure._mri import MRIMeasurement, MultiCoilMRI
from taskuq.recover._estimate import CrossFitEstimates, assign_folds, varnet_estimate
from taskuq.recover._varnet import VarNet
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import SamplerRecovery, counter_normal
from taskuq.recover.sampler._train import VarNetEstimator
from taskuq.training._determinism import seeded

SIZE = 16
MASKS = abs(np.arange(SIZE) - 7.5) < [[2], [4]]
SMALL = SamplerConfig(width=4, decoder_channels=(4, 6, 8))


def loud(config: SamplerConfig) -> SamplerNet:
    """Return a network with random last convolutions, which are nearly 0 in a new one."""
    with seeded(2):
        net = SamplerNet(config).eval()
        for last in (net.mean, net.out):
            torch.nn.init.normal_(last.weight, std=0.3)
    return net


@pytest.fixture
def net() -> SamplerNet:
    return loud(SMALL)


@pytest.fixture
def recover(net, varnet) -> SamplerRecovery:
    return SamplerRecovery(net, VarNetEstimator(varnet))


def scans(acceleration: float, count: int = 3) -> list[MRIMeasurement]:
    pictures = np.random.default_rng(0).random((count, SIZE, SIZE)) + 0.5
    plain = ArrayDataset(pictures, label=[0] * count, group="image")
    data = simulate_coil_dataset(plain, 4, seed=0)
    scanner = MultiCoilMRI(MASKS, (4, 2))
    return [scanner(data[k].image, acceleration) for k in range(count)]


@pytest.mark.parametrize("acceleration", [4, 2])
def test_samples_agree_with_the_measurement(net, varnet, acceleration):
    cases = scans(acceleration)
    found = VarNetEstimator(varnet)(cases)
    noise = torch.randn(3, 5, net.noise_size(SIZE, SIZE), generator=torch.Generator())
    residuals = net(found.inputs(), found.sampled_fraction(), noise)
    assert residuals.std(1).mean() > 1e-2  # samples differ
    errors = torch.complex(*residuals.unbind(2))
    coils = found.estimate.coil_images(errors) * found.size.view(-1, 1, 1, 1, 1)
    mask = torch.stack([scan.mask for scan in cases])
    kept = project_measured(coils.flatten(0, 1), mask.repeat_interleave(5, 0))
    measured = torch.stack([scan.zero_filled for scan in cases])
    assert (kept - measured.repeat_interleave(5, 0)).abs().max() < 1e-5
    magnitudes = coils.abs().square().sum(2).sqrt()
    assert torch.allclose(found.images(residuals), magnitudes, atol=1e-5)


def test_sample_depends_on_case_seed_and_number_only(recover):
    cases = scans(4)
    alone = [recover(scan, samples=2, seed=7 + k) for k, scan in enumerate(cases)]
    together = recover.batch(cases, samples=300, seeds=[7, 8, 9])  # in chunks
    for k in range(3):
        assert torch.allclose(together[k, :2], alone[k], atol=1e-5)
    assert torch.pdist(together[0].flatten(1)).min() > 1e-2  # no sample twice
    assert not torch.allclose(recover(cases[0], samples=2, seed=8), alone[0], atol=1e-3)


def test_normal_numbers_are_normal_and_independent():
    numbers = counter_normal(torch.arange(200), 10_001).double()
    count = numbers.numel()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((numbers**power).mean()) - moment) < 6 * (variance / count) ** 0.5
    off = torch.corrcoef(numbers)[~torch.eye(200, dtype=torch.bool)]
    assert off.abs().max() < 6.5 / 10_001**0.5
    halves = numbers[:, :5000] * numbers[:, 5001:]  # cosines and sines of one angle
    assert abs(float(halves.mean())) < 6 / halves.numel() ** 0.5
    assert bool(torch.isfinite(numbers).all())


MATRIX = torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
INVERSE = torch.linalg.pinv(MATRIX)


class Slab:
    """A dense matrix as the operator."""

    def __init__(self, seen):
        self.seen, self.scale = seen, seen.abs().amax(1).clamp_min(1e-6)

    def inputs(self):
        return (self.seen @ INVERSE.T / self.scale[:, None]).view(-1, 1, 8, 8)

    def sampled_fraction(self):
        return torch.full((len(self.seen),), len(MATRIX) / 64)

    def images(self, residuals):
        error = residuals.flatten(2) * self.scale[:, None, None]
        guess = (self.seen @ INVERSE.T)[:, None] + error
        wrong = guess @ MATRIX.T - self.seen[:, None]
        return (guess - wrong @ INVERSE.T).view(*residuals.shape[:2], 8, 8)


def slab(batch, generator):
    return Slab(batch["image"].flatten(1) @ MATRIX.T), batch["image"]


def test_samples_of_another_operator_are_consistent():
    net = loud(SamplerConfig(in_channels=1, out_channels=1, width=4, decoder_channels=(4, 6)))
    truth = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1))
    found, _ = slab({"image": truth}, torch.Generator())
    images = SamplerRecovery(net, lambda _: found).batch([], samples=6, seeds=[0, 1, 2])
    assert (images.flatten(2) @ MATRIX.T - found.seen[:, None]).abs().max() < 1e-3
    assert images.std(1).mean() > 0.1


def test_gradient_through_data_consistency(net, varnet):
    found = VarNetEstimator(varnet)(scans(2)).estimate
    residuals = torch.zeros(3, 2, 2, SIZE, SIZE, requires_grad=True)
    found.images(residuals).square().sum().backward()
    grad = residuals.grad
    assert bool(torch.isfinite(grad).all())
    assert grad.abs().max() > 1e-3
    full = found._replace(mask=torch.ones_like(found.mask))
    again = torch.zeros_like(residuals, requires_grad=True)
    full.images(again).square().sum().backward()
    assert again.grad.abs().max() < 1e-4 * grad.abs().max()


def test_each_case_has_the_network_of_its_fold(varnet):
    with seeded(5):
        other = VarNet(varnet.config).eval()
    numbers = (1, 1, 0, 1, 1, 1)  # five are more than are filled up to
    images = torch.stack([scan.zero_filled for scan in scans(2, len(numbers))])
    mask = torch.as_tensor(MASKS[[0, 1, 0, 0, 1, 1]])
    batch = {"image": images, "mask": mask, "network": numbers}
    found, truth = CrossFitEstimates([varnet, other], None)(batch, torch.Generator())
    assert len(found.image) == len(numbers)
    for k, net in enumerate((varnet, other)[number] for number in numbers):
        lines = mask[k : k + 1]
        one = varnet_estimate(net, project_measured(images[k : k + 1], lines), lines)
        assert torch.allclose(found.image[k], one.image[0], atol=1e-5)
        assert torch.allclose(truth[k], images[k].abs().square().sum(0).sqrt(), atol=1e-5)


def test_folds_are_even_and_keep_patients_whole():
    groups = np.repeat([f"p{k}" for k in range(11)], 3)
    parts = assign_folds(groups, 4, seed=0)
    assert all(len(set(parts[groups == name])) == 1 for name in set(groups))
    counts = np.bincount(parts) // 3
    assert counts.max() - counts.min() <= 1
    assert not np.array_equal(parts, assign_folds(groups, 4, seed=1))
    with refused("units.few"):
        assign_folds(groups, 12, seed=0)


def test_replayed_samples_are_the_samples(recover):
    cases = scans(4, 2)
    expected = recover.batch(cases, samples=5, seeds=[3, 4])
    for samples in (2, 5, 1):
        images = recover._replay(cases, samples, [3, 4])
        assert images.shape == (2, samples, SIZE, SIZE)
        assert (images - expected[:, :samples]).abs().max() < 1e-4 * expected.max()
