"""Is the atlas a fair test? Speed, a small classifier's AUROC by patient, and its error by R."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from taskuq.data.atlas import Atlas, draw_patients
from taskuq.measure.coils import rss
from taskuq.measure.masks import nested_masks
from taskuq.measure.mri import MultiCoilMRI

TRAIN, TEST, EPOCHS = 360, 120, 10
RATES = (16, 8, 4, 2)


def main(workers: int = 2) -> None:
    torch.set_num_threads(workers)
    torch.manual_seed(0)
    start = time.perf_counter()
    train = Atlas(patients=TRAIN, seed=0)
    test = Atlas(patients=TEST, seed=0, first=TRAIN)
    x, y = _tensors(train, workers)
    print(
        f"drew {len(x)} slices of {train.plan.size}×{train.plan.size} with {workers} processes "
        f"in {time.perf_counter() - start:.0f} s; {y.mean():.0%} with a lesion"
    )
    network = _train(x, y)

    truth = torch.cat([rss(item.image)[None] for item in test])
    label = test.labels.astype(bool)
    z = _outputs(network, truth)
    print(f"AUROC on {TEST} other patients: {_auroc(z, label):.3f}")
    small = test.lesion_area < 100
    print(f"AUROC for lesions below 100 mm²: {_auroc(z[small], label[small]):.3f}")
    masks = nested_masks(train.plan.size, RATES, rng=np.random.default_rng(0))
    scanner = MultiCoilMRI(masks, RATES)
    print(f"\n{'R':>4}{'PSNR of zero-filled':>22}{'mean |ẑ − z|':>16}")
    errors = []
    for R in RATES:
        images = torch.cat([rss(scanner(item.image, R).zero_filled)[None] for item in test])
        psnr = 10 * torch.log10(truth.amax((1, 2)) ** 2 / (images - truth).square().mean((1, 2)))
        errors.append(float(np.abs(_outputs(network, images) - z).mean()))
        print(f"{R:>4}{psnr.mean():>19.1f} dB{errors[-1]:>16.3f}")
    grows = all(a > b for a, b in pairwise(errors))
    print(f"\nthe error {'grows' if grows else 'does NOT grow'} with R")


def _tensors(atlas: Atlas, workers: int) -> tuple[Tensor, Tensor]:
    patients = draw_patients(atlas, workers=workers)
    images = np.concatenate([patient.images for patient in patients])
    areas = np.concatenate([patient.area for patient in patients])
    return torch.as_tensor(images), torch.as_tensor(areas >= atlas.plan.minimum_area).float()


def _train(x: Tensor, y: Tensor) -> nn.Module:
    network = _Small()
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    steps = EPOCHS * -(-len(x) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(64):
            images = x[batch] * (1 + 0.1 * torch.randn(len(batch), 1, 1))
            images = images.flip(-1) if torch.rand(()) < 0.5 else images
            shift = torch.randint(-6, 7, (2,)).tolist()
            loss = nn.functional.binary_cross_entropy_with_logits(
                network(images.roll(shift, (-2, -1))), y[batch]
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()


class _Small(nn.Module):
    """Eight convolutions and a pooled head: 0.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(1, 16, 2), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
        self.layers = nn.Sequential(*(_layer(*w) for w in (*widths, (64, 96, 2), (96, 96, 1))))
        self.head = nn.Linear(192, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.layers(images[:, None])
        pooled = torch.cat([features.mean((2, 3)), features.amax((2, 3))], dim=1)
        return self.head(pooled)[:, 0]


def _layer(before: int, after: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


@torch.no_grad()
def _outputs(network: nn.Module, images: Tensor) -> np.ndarray:
    return torch.cat([network(part).sigmoid() for part in images.split(128)]).numpy()


def _auroc(z: np.ndarray, label: np.ndarray) -> float:
    return mannwhitneyu(z[label], z[~label]).statistic / (label.sum() * (~label).sum())


if __name__ == "__main__":
    main()
