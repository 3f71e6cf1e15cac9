"""The paper's table of image quality: PSNR, SSIM and FID of each method at each acceleration."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from taskuq.data.dataset import Dataset
from taskuq.data.readers import Data, open_all, open_data, paper_data
from taskuq.disk import make_folder
from taskuq.errors import InputError
from taskuq.files import read_json, write_json
from taskuq.fingerprints import content_fingerprint, fingerprint
from taskuq.measure.masks import MaskConfig
from taskuq.pipeline.device import pick_device, threads_here
from taskuq.pipeline.engines import Engine, ThisProcess
from taskuq.pipeline.progress import Progress
from taskuq.protocols import Recover
from taskuq.recover.flow_training import FlowMethod
from taskuq.recover.methods import ZeroFilled, open_recovery
from taskuq.recover.metrics import FloatArray, frechet_distance, rank_correlation
from taskuq.recover.varnet_training import VarNetMethod
from taskuq.recover.vgg import load_vgg
from taskuq.runs.judging import Judging, Measures, pieces_of, reference_pieces
from taskuq.runs.run import files_of
from taskuq.settings import to_table, toml_text

SCHEMA, PIECES = "taskuq.quality/1", "taskuq.pieces/1"
HEADER = "judging.json"


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
    config: QualityConfig,
    *,
    store: Path | None = None,
    engine: Engine | None = None,
    device: str | None = None,
    threads: int | None = None,
    quiet: bool = False,
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
        store: A folder for pieces that are judged, from which a judgement goes on that was
            stopped; it is removed at the end. A temporary one where None.
        engine: A Ray cluster or SLURM jobs to share the work; this process alone where None.
        device: Where networks run: 'cpu', 'cuda', 'mps'; the best there is where None.
        threads: How many threads torch computes with, in every worker; by default as many as it
            has here, and one in the workers of another engine; as many as before where a
            judgement is gone on with.
        quiet: Show no progress.
    """
    chosen: Engine = ThisProcess() if engine is None else engine
    here = pick_device(device)
    threads = threads or _threads_before(store)
    if threads is None:
        threads = threads_here() if isinstance(chosen, ThisProcess) else 1
    with tempfile.TemporaryDirectory() as scratch, chosen.ready(Path(scratch)):
        folder = Path(scratch) if store is None else store
        work = _opened(config, folder, here, threads)
        if store is not None:
            _require_same(store, config, threads)
        numbers = list(range(len(work.pieces)))
        todo = work.unfinished(numbers)
        progress = Progress(len(numbers), len(numbers) - len(todo), quiet=quiet, what="pieces")
        with progress:
            chosen.run(work, todo, progress)
        record = _record(config, work)
        if store is not None:
            shutil.rmtree(store)
    return record


def _opened(config: QualityConfig, folder: Path, device: str, threads: int | None) -> Judging:
    if config.part == "all":
        training = validation = open_all(config.data)
    else:
        training, validation = open_data(config.data)
    methods = _methods(config, torch.device(device))
    features = None if config.features is None else load_vgg(config.features).to(device)
    volumes = list(_volumes(validation, config.volumes))
    count = min(config.references or len(training), len(training)) if features else 0
    pieces = pieces_of(config.measure.accelerations, list(methods), volumes)
    return Judging(
        [*reference_pieces(count), *pieces], folder, validation, training, methods, features,
        config.measure, config.samples, config.seed, threads,
    )  # fmt: skip


def _require_same(store: Path, config: QualityConfig, threads: int | None) -> None:
    """Refuse pieces of another judgement: of other settings, networks or data."""
    # Weights of a network for features have no card beside them.
    files = [*files_of(replace(config, features=None)), *files_of(config.data)]
    files += [] if config.features is None else [config.features]
    contents = [content_fingerprint(path) for path in files]
    made_from = fingerprint([toml_text(to_table(config)), threads, *contents])
    header = store / HEADER
    if header.exists() and read_json(header, PIECES)["made_from"] != made_from:
        raise InputError(
            f"{store} holds pieces of another judgement (other settings, networks, data or "
            "threads); remove it, or name another output"
        )
    make_folder(store)
    write_json(header, {"schema": PIECES, "made_from": made_from, "threads": threads})


def _threads_before(store: Path | None) -> int | None:
    """With how many threads the pieces of a store were judged, where there are any."""
    if store is None or not (store / HEADER).exists():
        return None
    found = read_json(store / HEADER, PIECES).get("threads")
    return found if isinstance(found, int) else None


def _record(config: QualityConfig, work: Judging) -> dict[str, Any]:
    """What all pieces say together."""
    found: dict[tuple[float, str | None], list[Measures]] = {}
    for number, piece in enumerate(work.pieces):
        found.setdefault((piece.acceleration, piece.method), []).append(work.kept(number))
    images = found.pop((1.0, None), None)
    reference = None if images is None else Measures.together(images).features
    rows, pooled = [], []
    for (acceleration, name), parts in found.items():
        assert name is not None
        whole = Measures.together(parts)
        rows.append(_row(acceleration, name, whole, reference, config.samples))
        pooled.append(whole.pixels)
    record: dict[str, Any] = {"schema": SCHEMA, "config": to_table(config), "results": rows}
    spread, error = np.concatenate(pooled, axis=1).astype(float)
    if len(spread):
        correlation = rank_correlation(spread, error)
        if not math.isnan(correlation):
            record["spread_error_pooled"] = correlation
    return record


def _row(
    acceleration: float, method: str, found: Measures, reference: FloatArray | None, samples: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"acceleration": acceleration, "method": method}
    row["psnr"], row["ssim"] = _average(found.psnr), _average(found.ssim)
    row["volumes"], row["rejected"] = len(found.psnr), int(found.rejected.sum())
    row["exact"] = int(np.isposinf(found.psnr).sum())
    for name, values in (
        ("spread_error_correlation", found.correlation),
        ("spread_error_blocks", found.where),
    ):
        defined = [value for value in values if not math.isnan(value)]
        if defined:
            row[name] = float(np.mean(defined))
    if found.pixels.size:
        ratio = _size_ratio(found.pixels, samples)
        if ratio is not None:
            row["spread_error_ratio"] = ratio
    if reference is not None:
        row["fid"] = frechet_distance(found.features, reference)
    return row


def _size_ratio(pixels: FloatArray, samples: int) -> float | None:
    """The spread's root mean square over the error's; none where there is no error."""
    spread, error = np.square(pixels.astype(float)).mean(axis=1) ** 0.5
    # The mean of p samples has an error of its own, of one p-th of the variance.
    return float(spread / error) * (1 + 1 / samples) ** 0.5 if error else None


def _average(values: FloatArray) -> dict[str, float | None]:
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
