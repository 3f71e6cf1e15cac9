"""Random views: still where nothing is asked for, exact where the answer is known."""

import pytest
import torch

from raising import refused
from taskuq.task._cases import AugmentConfig, _blur, augment

STILL = {"flip": 0.0, "rotation": 0.0, "shift": 0.0, "crop": 1.0}
X = torch.rand(4, 12, 12, generator=torch.Generator().manual_seed(0))


def views(images=X, seed=0, **changes):
    config = AugmentConfig(**(STILL | changes))
    return augment(images, config, torch.Generator().manual_seed(seed))


def test_flip_mirrors():
    assert torch.allclose(views(flip=1.0), X.flip(-1), atol=1e-5)


def test_seed_determines_the_views():
    free = {"flip": 0.5, "rotation": 15.0, "shift": 0.1, "crop": 0.8, "contrast": 0.5, "blur": 1.0}
    assert torch.equal(views(seed=3, **free), views(seed=3, **free))
    assert not torch.allclose(views(seed=3, **free), views(seed=4, **free), atol=0.1)


def test_rotation_keeps_a_ring():
    """A ring about the middle looks the same from every angle, on oblong images too."""
    rows, columns = torch.meshgrid(torch.arange(41.0), torch.arange(61.0), indexing="ij")
    ring = torch.exp(-(((rows - 20) ** 2 + (columns - 30) ** 2).sqrt() - 10).square() / 8)
    turned = views(ring.expand(8, 41, 61), rotation=180.0)
    assert float((turned - ring).abs().max()) < 0.03


def test_crop_enlarges():
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    disc = (((rows - 31.5) ** 2 + (columns - 31.5) ** 2) < 100).float()
    area = views(disc.expand(50, 64, 64), crop=0.5).sum((1, 2)) / disc.sum()
    # A crop of share s enlarges areas by 1 / s.
    assert float(area.min()) > 0.98
    assert 1.6 < float(area.max()) < 2.05


def test_contrast_keeps_black_white_and_the_order_between():
    ramp = torch.linspace(0, 1, 12).expand(6, 12, 12)
    changed = views(ramp, contrast=0.5, contrast_probability=1.0)
    assert torch.allclose(changed[:, :, 0], torch.zeros(6, 12), atol=1e-6)
    assert torch.allclose(changed[:, :, -1], torch.ones(6, 12), atol=1e-5)
    assert (changed.diff(dim=-1) > 0).all()
    assert float((changed - ramp).abs().max()) > 0.02


def test_blur_keeps_constants_and_has_its_variance():
    assert torch.allclose(_blur(torch.full((1, 9, 9), 0.3), torch.ones(1)), torch.tensor(0.3))
    point = torch.zeros(2, 31, 31)
    point[:, 15, 15] = 1
    wide = _blur(point, torch.tensor([1.0, 2.0]))
    t = torch.arange(31) - 15
    variance = (wide.sum(1) * t**2).sum(1)
    assert variance.tolist() == pytest.approx([1.0, 4.0], rel=0.03)


def test_views_stay_between_0_and_1():
    many = views(X.repeat(20, 1, 1), rotation=45.0, shift=0.5, crop=0.3, contrast=2.0, blur=3.0)
    assert float(many.min()) >= 0
    assert float(many.max()) <= 1


@pytest.mark.parametrize("wrong", [{"flip": 2}, {"crop": 0}, {"rotation": -1}])
def test_wrong_settings_are_refused(wrong):
    with refused("value.invalid", next(iter(wrong))):
        AugmentConfig(**wrong)
