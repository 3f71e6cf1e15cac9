"""The paper's table of image quality: PSNR, SSIM and FID of each method at each acceleration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from taskuq.data.dataset import Dataset
from taskuq.data.readers import Data, open_all, open_data, paper_data
from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.measure.masks import MaskConfig
from taskuq.measure.mri import MultiCoilMRI
from taskuq.protocols import PosteriorRecover, Recover
from taskuq.recover.cases import as_coils
from taskuq.recover.flow_training import FlowMethod
from taskuq.recover.methods import ZeroFilled, open_recovery
from taskuq.recover.metrics import (
    FloatArray,
    frechet_distance,
    rank_correlation,
    spread_error_correlation,
    volume_psnr,
    volume_ssim,
)
from taskuq.recover.varnet_training import VarNetMethod
from taskuq.recover.vgg import load_vgg
from taskuq.seeds import mixed_seed
from taskuq.settings import to_table

SCHEMA = "taskuq.quality/1"
# Rows and columns of the blocks in which spread and error are compared.
BLOCK = 4
# Pixels of each slice that are compared over all slices and accelerations.
PIXELS = 4096
Features = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class QualityConfig:
    """What is judged.

    Arguments:
        data: Where cases come from; validation cases are judged, training cases are FID's
            reference.
        part: Which cases are judged: ``"validation"``, or ``"all"`` where the data are nobody's
            training cases; then there is no FID.
        measure: The masks.
        varnet: Weights of a variational network.
        flow: Weights of a flow; the mean of its samples is judged, and one sample for FID.
        recoveries: Weights of other recovery networks, each called by the stem of its file.
        estimate: For a flow around estimates, its variational network where the TOML beside the
            flow's weights does not name it.
        features: VGG-16 weights (safetensors, torchvision's names); without them there is no FID.
        samples: Posterior samples whose mean is judged.
        seed: Where the samples come from.
        volumes: Judge only so many volumes.
        references: Use only so many training images for FID.

    Example:
        >>> QualityConfig().samples
        32
    """

    data: Data = field(default_factory=paper_data)
    part: Literal["validation", "all"] = "validation"
    measure: MaskConfig = field(default_factory=lambda: MaskConfig(published=True))
    varnet: Path | None = None
    flow: Path | None = None
    recoveries: tuple[Path, ...] | None = None
    estimate: Path | None = None
    features: Path | None = None
    samples: int = 32
    seed: int = 0
    volumes: int | None = None
    references: int | None = None

    def __post_init__(self) -> None:
        if self.features is not None and self.part == "all":
            raise InputError(
                "features are given, for FID, whose reference are training cases, and part is "
                "'all'; leave features out, or judge the part 'validation'"
            )


def judge(
    config: QualityConfig, *, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Judge every method at every acceleration.

    ``results`` of the record has one row for each acceleration and method, with the mean over
    volumes and its standard error. ``exact`` counts volumes that were recovered exactly; their
    PSNR is infinite, and the mean of such a row is null. ``spread_error_ratio`` compares the
    sizes of samples' spread and error (root mean squares; 1 where samples spread as they
    should), ``spread_error_pooled`` is the rank correlation of the two over pixels of all
    slices and accelerations. What is not defined is left out.

    Arguments:
        config: What to judge.
        tell: Called with a line of progress now and then.
    """
    if config.part == "all":
        training = validation = open_all(config.data)
    else:
        training, validation = open_data(config.data)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    methods = _methods(config, device)
    features = None if config.features is None else load_vgg(config.features).to(device)
    reference = None
    if features is not None:
        count = min(config.references or len(training), len(training))
        tell(f"features of {count} training images")
        reference = _reference(training, count, features)
    rows, pooled = [], []
    for acceleration in config.measure.accelerations:
        for name, recover in methods.items():
            tell(f"R = {acceleration:g}, {name}")
            found = _judge_method(validation, acceleration, recover, config, features)
            rows.append(_row(acceleration, name, found, reference, config.samples))
            pooled += found.pixels
    record: dict[str, Any] = {"schema": SCHEMA, "config": to_table(config), "results": rows}
    if pooled:
        spread, error = np.concatenate(pooled, axis=1)
        correlation = rank_correlation(spread, error)
        if not math.isnan(correlation):
            record["spread_error_pooled"] = correlation
    return record


@dataclass(frozen=True)
class _Measures:
    psnr: list[float]
    ssim: list[float]
    correlation: list[float]
    where: list[float]
    pixels: list[FloatArray]
    features: list[FloatArray]
    rejected: int


def _judge_method(
    cases: Dataset,
    acceleration: float,
    recover: Recover,
    config: QualityConfig,
    features: Features | None,
) -> _Measures:
    psnr, similarity, correlation, where, pixels, seen = [], [], [], [], [], []
    before = recover.rejected if isinstance(recover, PosteriorRecover) else 0
    for numbers in _volumes(cases, config.volumes):
        truth, means, singles = [], [], []
        for index in numbers:
            item = cases[index]
            image = as_coils(item.image)
            masks = config.measure.masks(image.shape[-1])
            scan = MultiCoilMRI(masks, config.measure.accelerations)(image, acceleration)
            seed = mixed_seed(config.seed, index)
            drawn = recover(scan, samples=config.samples, seed=seed).float().cpu()
            truth.append(rss(image))
            if len(drawn) > 1:
                correlation.append(spread_error_correlation(drawn, truth[-1]))
                where.append(spread_error_correlation(drawn, truth[-1], foreground=0, block=BLOCK))
                pixels.append(_some_pixels(drawn, truth[-1], seed))
            means.append(drawn.mean(0))
            singles.append(drawn[0])
        true, mean = torch.stack(truth), torch.stack(means)
        psnr.append(volume_psnr(mean, true))
        similarity.append(volume_ssim(mean, true))
        if features is not None:
            seen.append(_features(features, torch.stack(singles), float(true.max())))
    rejected = recover.rejected - before if isinstance(recover, PosteriorRecover) else 0
    return _Measures(psnr, similarity, correlation, where, pixels, seen, rejected)


def _some_pixels(drawn: Tensor, truth: Tensor, seed: int) -> FloatArray:
    """Spread and error of some pixels, relative to the slice's maximum, (2, pixel)."""
    maps = torch.stack([drawn.std(0), (drawn.mean(0) - truth).abs()]).flatten(1)
    maps /= truth.max().clamp_min(1e-12)
    chosen = np.random.default_rng(seed).permutation(maps.shape[1])[:PIXELS]
    return np.asarray(maps[:, chosen].double())


def _row(
    acceleration: float, method: str, found: _Measures, reference: FloatArray | None, samples: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"acceleration": acceleration, "method": method}
    row["psnr"], row["ssim"] = _average(found.psnr), _average(found.ssim)
    row["volumes"], row["rejected"] = len(found.psnr), found.rejected
    row["exact"] = int(np.isposinf(found.psnr).sum())
    for name, values in (
        ("spread_error_correlation", found.correlation),
        ("spread_error_blocks", found.where),
    ):
        defined = [value for value in values if not math.isnan(value)]
        if defined:
            row[name] = float(np.mean(defined))
    if found.pixels:
        ratio = _size_ratio(found.pixels, samples)
        if ratio is not None:
            row["spread_error_ratio"] = ratio
    if reference is not None:
        row["fid"] = frechet_distance(np.concatenate(found.features), reference)
    return row


def _size_ratio(pixels: Sequence[FloatArray], samples: int) -> float | None:
    """The spread's root mean square over the error's; none where there is no error."""
    spread, error = np.square(np.concatenate(pixels, axis=1)).mean(axis=1) ** 0.5
    # The mean of p samples has an error of its own, of one p-th of the variance.
    return float(spread / error) * (1 + 1 / samples) ** 0.5 if error else None


def _average(values: list[float]) -> dict[str, float | None]:
    """Mean over volumes and its standard error; null where a volume has no finite value."""
    # One volume that is recovered exactly has infinite PSNR, which JSON cannot hold.
    if not np.isfinite(values).all():
        return {"mean": None, "standard_error": None}
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "standard_error": error}


def _methods(config: QualityConfig, device: torch.device) -> dict[str, Recover]:
    methods: dict[str, Recover] = {"zero-filled": ZeroFilled()}
    if config.varnet is not None:
        methods["varnet"] = VarNetMethod(config.varnet).open(device)
    if config.flow is not None:
        methods["flow"] = FlowMethod(config.flow, config.estimate).open(device)
    for path in config.recoveries or ():
        if path.stem in methods:
            raise InputError(f"two recoveries are called {path.stem}; rename {path}")
        methods[path.stem] = open_recovery(path, device=device)
    return methods


def _volumes(cases: Dataset, limit: int | None) -> Iterator[list[int]]:
    groups = np.asarray(cases.groups)
    for name in list(dict.fromkeys(groups.tolist()))[:limit]:
        yield np.flatnonzero(groups == name).tolist()


def _reference(cases: Dataset, count: int, features: Features) -> FloatArray:
    parts = []
    for index in range(count):
        image = rss(as_coils(cases[index].image))
        parts.append(_features(features, image[None], float(image.max())))
    return np.concatenate(parts)


def _features(features: Features, images: Tensor, data_range: float) -> FloatArray:
    device = next(features.parameters()).device  # type: ignore[attr-defined]
    with torch.no_grad():
        limits = torch.full((len(images),), data_range, device=device)
        return np.asarray(features(images.to(device), limits).double().cpu())
