"""Image quality: PSNR, SSIM, NMSE, LPIPS, DISTS and FID by method and acceleration."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from taskuq._config import Count, Seed, to_toml_table, toml_text
from taskuq._io import (
    atomic_write,
    content_fingerprint,
    fingerprint,
    make_folder,
    open_npz,
    read_json,
    sigterm_as_exit,
    write_json,
)
from taskuq._seeds import mix_seeds
from taskuq.data._dataset import Dataset
from taskuq.data._readers import Data, open_all, open_data, paper_data
from taskuq.errors import InputError, MachineError, first_line
from taskuq.interval import FloatArray
from taskuq.measure._coils import rss, ssim
from taskuq.measure._mri import MaskConfig, MultiCoilMRI
from taskuq.pipeline._engines import Engine, LocalEngine
from taskuq.pipeline._executor import Executor, num_threads, pick_device, pinned_threads
from taskuq.pipeline._progress import Progress
from taskuq.protocols import Recover
from taskuq.recover._cases import as_coil_images
from taskuq.recover._methods import ZeroFilled, open_recovery
from taskuq.recover._varnet_training import VarNetMethod
from taskuq.recover.flow._train import FlowMethod
from taskuq.task._backbone import VGG16, load_vgg
from taskuq.task._quality import perceptual_distance, perceptual_network
from taskuq.training._weights import referenced_files


def _volume_psnr(recovered: Tensor, truth: Tensor) -> float:
    x, y = truth.double(), recovered.double()
    return float(10 * torch.log10(x.max() ** 2 / (x - y).square().mean()))


def _volume_ssim(recovered: Tensor, truth: Tensor) -> float:
    x, y = truth.double(), recovered.double()
    return float(ssim(y, x, x.max().expand(len(x))).mean())


def _spread_error_correlation(samples: Tensor, truth: Tensor) -> float:
    from scipy.stats import spearmanr

    inside = truth > FOREGROUND * truth.max()
    spread, error = samples.std(0)[inside], (samples.mean(0) - truth).abs()[inside]
    if not spread.numel() or 0 in (np.ptp(spread.numpy()), np.ptp(error.numpy())):
        return math.nan
    return float(spearmanr(spread.numpy(), error.numpy()).statistic)


def _variance_and_error(samples: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return the squared error of the mean as predicted by the variance, and the actual one."""
    expected = samples.var(0).mean() * (1 + 1 / len(samples))
    return float(expected), float((samples.mean(0) - truth).square().mean())


def _frechet_distance(first: FloatArray, second: FloatArray) -> float:
    shift = first.mean(0) - second.mean(0)
    # Sigma = A' A for centred features A, so that the cross term is the sum of the singular values
    # of A1 A2': as large as the numbers of images, or of features where those are fewer.
    roots = [(x - x.mean(0)) / np.sqrt(len(x) - 1) for x in (first, second)]
    one, two = (np.asarray(np.linalg.qr(a, mode="r")) if len(a) > a.shape[1] else a for a in roots)
    cross = np.linalg.svd(one @ two.T, compute_uv=False).sum()
    return float(shift @ shift + np.square(one).sum() + np.square(two).sum() - 2 * cross)


# Smallest intensity of the foreground, relative to the maximum.
FOREGROUND = 0.05
METRICS = ("psnr", "ssim", "nmse", "lpips", "dists")
# Training images whose features are one piece.
TOGETHER = 64
Arrays = dict[str, FloatArray]


def _concatenate(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class _QualityChunk:
    method: str | None
    acceleration: float
    cases: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _QualityWork:
    pieces: Sequence[_QualityChunk]
    folder: Path
    validation: Dataset
    training: Dataset
    methods: Mapping[str, Recover]
    features: VGG16 | None
    measure: MaskConfig
    samples: int
    seed: int
    threads: int | None = None

    @property
    def size(self) -> int:
        return 1

    def unfinished(self, todo: Sequence[int]) -> list[int]:
        return [index for index in todo if not self._file(index).exists()]

    def record_failure(self, index: int, error: Exception) -> None:
        text = f"a worker died repeatedly ({first_line(error):.160})"
        raise MachineError(f"{text}; start the same command again to do the rest")

    def run(self, todo: list[int], progress: Progress | None = None) -> int:
        shown = ""
        with pinned_threads(self.threads), sigterm_as_exit():
            for index in todo:
                stage = self._stage(self.pieces[index])
                if progress is not None and stage != shown:
                    progress.say(stage)
                shown = stage
                arrays = self.evaluate(self.pieces[index])
                with atomic_write(self._file(index)) as partial, partial.open("wb") as file:
                    np.savez(file, **arrays)  # type: ignore[arg-type]
                if progress is not None:
                    progress.step()
        return len(todo)

    def load(self, index: int) -> Arrays:
        with open_npz(self._file(index)) as arrays:
            return {name: arrays[name] for name in arrays}

    def evaluate(self, piece: _QualityChunk) -> Arrays:
        if piece.method is None:
            images = [rss(as_coil_images(self.training[index].image)) for index in piece.cases]
            seen = [self._seen(image[None], image.amax()[None]) for image in images]
            return {"features": np.concatenate(seen)}
        recover = self.methods[piece.method]
        executor = Executor(recover, _no_task, self.seed)
        before = getattr(recover, "rejected", 0)
        truth, means, singles, correlation, variance = [], [], [], [], []
        for index in piece.cases:
            image = as_coil_images(self.validation[index].image)
            masks = self.measure.masks(image.shape[-1])
            scan = MultiCoilMRI(masks, self.measure.accelerations)(image, piece.acceleration)
            seed = mix_seeds(self.seed, index)
            drawn = executor.sample_with_seed(scan, self.samples, seed).float().cpu()
            truth.append(rss(image))
            if len(drawn) > 1:
                correlation.append(_spread_error_correlation(drawn, truth[-1]))
                variance.append(_variance_and_error(drawn, truth[-1]))
            means.append(drawn.mean(0))
            singles.append(drawn[0])
        true, mean = torch.stack(truth), torch.stack(means)
        arrays = {
            "psnr": np.array([_volume_psnr(mean, true)]),
            "ssim": np.array([_volume_ssim(mean, true)]),
            "nmse": np.array([float((mean - true).square().sum() / true.square().sum())]),
            "correlation": np.array(correlation, dtype=float),
            "variance": np.array(variance, dtype=float).reshape(-1, 2),
            "rejected": np.array([getattr(recover, "rejected", 0) - before]),
        }
        if self.features is not None:
            # Each image by the brightest pixel of its true image, as those of the reference are.
            arrays["features"] = self._seen(torch.stack(singles), true.amax((1, 2)))
            pair = [x.to(self._vgg_device) for x in (mean, true)]
            # Smaller images vanish in the pooling layers.
            is_seen = isinstance(self.features, VGG16) and min(true.shape[1:]) >= 16
            for name in ("LPIPS", "DISTS") if is_seen else ():
                network = perceptual_network(name, self.features.features).to(self._vgg_device)
                distance = perceptual_distance(network, *pair).mean()
                arrays[name.lower()] = np.array([float(distance)])
        return arrays

    def _seen(self, images: Tensor, limits: Tensor) -> FloatArray:
        assert self.features is not None
        device = self._vgg_device
        with torch.no_grad():
            return np.asarray(self.features(images.to(device), limits.to(device)).double().cpu())

    @property
    def _vgg_device(self) -> torch.device:
        assert self.features is not None
        return next(self.features.parameters()).device

    def _stage(self, piece: _QualityChunk) -> str:
        if piece.method is not None:
            return f"R = {piece.acceleration:g}, {piece.method}"
        images = sum(len(each.cases) for each in self.pieces if each.method is None)
        return f"features of {images} training images"

    def _file(self, index: int) -> Path:
        return self.folder / f"piece-{index:06d}.npz"


def _no_task(images: Any) -> Any:
    raise NotImplementedError


SCHEMA, PIECES = "taskuq.quality/1", "taskuq.pieces/2"
HEADER = "judging.json"


@dataclass(frozen=True)
class QualityConfig:
    """Settings of taskuq quality."""

    #: Images; validation cases are evaluated, training cases are the reference for FID.
    data: Data = field(default_factory=paper_data)
    subset: Literal["validation", "all"] = "validation"  #: Subset of the data; "all" disables FID.
    #: Sampling masks.
    measure: MaskConfig = field(default_factory=lambda: MaskConfig(published=True))
    varnet: Path | None = None  #: VarNet weights.
    flow: Path | None = None  #: Flow weights.
    networks: tuple[Path, ...] | None = None  #: Weights of other recovery networks.
    #: Weights of the VarNet whose residuals the flow samples; default: those used in training.
    estimate: Path | None = None
    #: VGG-16 weights (safetensors), required for FID, LPIPS and DISTS.
    vgg_weights: Path | None = None
    samples: Count = 32  #: Number of posterior samples averaged per reconstruction.
    seed: Seed = 0  #: Seed of the samples.
    max_volumes: Count | None = None  #: Evaluate only this many volumes; default: all.
    fid_images: Count | None = None  #: Number of training images used for FID; default: all.


def evaluate_quality(
    config: QualityConfig,
    *,
    store: Path | None = None,
    engine: Engine | None = None,
    device: str | None = None,
    threads: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    chosen: Engine = LocalEngine() if engine is None else engine
    here = pick_device(device)
    if threads is None and store is not None and (store / HEADER).exists():
        threads = read_json(store / HEADER, PIECES).get("threads")
    if threads is None:
        threads = num_threads() if isinstance(chosen, LocalEngine) else 1
    with tempfile.TemporaryDirectory() as scratch, chosen.ready(Path(scratch)):
        folder = Path(scratch) if store is None else store
        work = _opened(config, folder, here, threads)
        if store is not None:
            _require_same(store, config, threads)
        total = len(work.pieces)
        todo = work.unfinished(range(total))
        with Progress(total, total - len(todo), quiet=quiet, what="pieces") as progress:
            chosen.run(work, todo, progress)
        record = _record(config, work)
        if store is not None:
            shutil.rmtree(store)
    return record


def _opened(config: QualityConfig, folder: Path, device: str, threads: int | None) -> _QualityWork:
    if config.subset == "all":
        training = validation = open_all(config.data)
    else:
        training, validation = open_data(config.data)
    methods = _methods(config, torch.device(device))
    features = None if config.vgg_weights is None else load_vgg(config.vgg_weights).to(device)
    volumes = list(_volumes(validation, config.max_volumes))
    has_fid = features is not None and config.subset != "all"
    count = min(config.fid_images or len(training), len(training)) if has_fid else 0
    pieces = [
        _QualityChunk(None, 1.0, tuple(range(start, min(start + TOGETHER, count))))
        for start in range(0, count, TOGETHER)
    ]
    pieces += [
        _QualityChunk(method, acceleration, tuple(cases))
        for acceleration in config.measure.accelerations
        for method in methods
        for cases in volumes
    ]
    return _QualityWork(
        pieces, folder, validation, training, methods, features,
        config.measure, config.samples, config.seed, threads,
    )  # fmt: skip


def _require_same(store: Path, config: QualityConfig, threads: int | None) -> None:
    files = [*referenced_files(config), *referenced_files(config.data)]
    contents = [content_fingerprint(path) for path in files]
    made_from = fingerprint([toml_text(to_toml_table(config)), threads, *contents])
    header = store / HEADER
    if header.exists() and read_json(header, PIECES).get("made_from") != made_from:
        text = f"{store} was made with other settings, networks, data or threads; "
        raise InputError(f"{text}remove it, or name another output", code="resume.mismatch")
    make_folder(store)
    write_json(header, {"schema": PIECES, "made_from": made_from, "threads": threads})


def _record(config: QualityConfig, work: _QualityWork) -> dict[str, Any]:
    found: dict[tuple[float, str | None], list[Arrays]] = {}
    for number, piece in enumerate(work.pieces):
        found.setdefault((piece.acceleration, piece.method), []).append(work.load(number))
    images = found.pop((1.0, None), None)
    reference = None if images is None else _concatenate(images)["features"]
    rows = []
    for (acceleration, name), parts in found.items():
        assert name is not None
        whole = _concatenate(parts)
        row = {"acceleration": acceleration, "method": name, **_row(whole)}
        if reference is not None:
            row["fid"] = _frechet_distance(whole["features"], reference)
        rows.append(row)
    return {"schema": SCHEMA, "config": to_toml_table(config), "results": rows}


def _row(found: Arrays) -> dict[str, Any]:
    row: dict[str, Any] = {name: _average(found[name]) for name in METRICS if name in found}
    row["volumes"], row["rejected"] = len(found["psnr"]), int(found["rejected"].sum())
    row["exact"] = int(np.isposinf(found["psnr"]).sum())
    variance, error = found["variance"].sum(0)
    if error > 0 and math.isfinite(variance + error):
        row["spread_error_ratio"] = float(np.sqrt(variance / error))
    if (defined := found["correlation"][~np.isnan(found["correlation"])]).size:
        row["spread_error_correlation"] = float(np.mean(defined))
    return row


def _average(values: FloatArray) -> dict[str, float | None]:
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
    for path in config.networks or ():
        if path.stem in methods:
            text = f"two recoveries are called {path.stem}; rename {path}"
            raise InputError(text, code="table.duplicate")
        methods[path.stem] = open_recovery(path, device=device)
    return methods


def _volumes(cases: Dataset, limit: int | None) -> Iterator[list[int]]:
    groups = np.asarray(cases.groups)
    for name in list(dict.fromkeys(groups.tolist()))[:limit]:
        yield np.flatnonzero(groups == name).tolist()
