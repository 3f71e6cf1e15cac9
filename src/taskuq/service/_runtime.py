"""Exported recovery and task, loaded without the code of the networks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._io import complete_record, fingerprint, read_json, safe_join
from taskuq._seeds import mix_seeds
from taskuq.errors import InputError, first_line
from taskuq.policy._policy import Policy
from taskuq.training._determinism import gaussian_rows

SCHEMA, MANIFEST = "taskuq.runtime/1", "manifest.json"


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, eq=False)
class _ExportedRecover:
    """Reconstruction method loaded from a program exported with torch.export."""

    program: Any = field(repr=False)
    shape: tuple[int, int, int]
    samples: int
    draws: Mapping[str, Any] = field(repr=False)
    fingerprint: str

    @torch.no_grad()
    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Tensor:
        """Draw posterior samples (sample, height, width)."""
        zero_filled = torch.as_tensor(measurement.zero_filled).to(torch.complex64)
        if tuple(zero_filled.shape) != self.shape or samples > self.samples:
            raise InputError(
                f"the runtime has {self.samples} samples of {self.shape}, got {samples} of "
                f"{tuple(zero_filled.shape)}; export another runtime",
                code="samples.mismatch",
            )
        if not bool(torch.isfinite(torch.view_as_real(zero_filled)).all()):
            raise InputError("the measurement contains NaN or infinity", code="value.nonfinite")
        mask = torch.as_tensor(measurement.mask).bool()
        if self.draws["kind"] == "gaussian":
            return self._sample_within_limit(zero_filled, mask, seed)[:samples]
        rows = [mix_seeds(seed, j, 0) for j in range(self.samples)]
        draws = torch.tensor(rows) if self.draws["kind"] == "seeds" else torch.zeros(1)
        images: Tensor = self.program(zero_filled, mask, draws)[0]
        return images[:samples]

    def _sample_within_limit(self, zero_filled: Tensor, mask: Tensor, seed: int) -> Tensor:
        """Draw samples; redraw any beyond the flow's limit, finally with reduced noise."""
        deviations = {int(lines): float(wide) for lines, wide in self.draws["deviations"]}
        lines, most = int(mask.sum()), int(self.draws["attempts"])
        if lines not in deviations:
            text = f"the runtime has no round of {lines} lines; export another runtime"
            raise InputError(text, code="policy.mismatch")
        attempt = np.zeros(self.samples, dtype=int)
        for _ in range(most + int(self.draws["cooler"])):
            rows = [mix_seeds(seed, j, int(attempt[j])) for j in range(self.samples)]
            draws = gaussian_rows(torch.empty(self.samples, int(self.draws["numbers"])), rows)
            wide = deviations[lines] * 0.5 ** np.maximum(0, attempt - most + 1)
            draws *= torch.as_tensor(wide, dtype=draws.dtype)[:, None]
            images, sizes = self.program(zero_filled, mask, draws)
            # Not "above the limit": NaN counts as beyond it.
            beyond = ~(sizes <= float(self.draws["limit"])).numpy()
            if not beyond.any():
                return torch.as_tensor(images)
            attempt += beyond
        text = f"a sample is not finite or beyond {self.draws['limit']} after all attempts"
        raise InputError(text, code="value.nonfinite")


@dataclass(frozen=True, eq=False)
class _ExportedTask:
    """Task loaded from a program exported with torch.export."""

    program: Any = field(repr=False)
    images: int
    fingerprint: str

    @torch.no_grad()
    def __call__(self, images: Any) -> Tensor:
        """Return outputs (image,) or (image, task) of images (image, height, width)."""
        given = torch.as_tensor(images).float()
        if not 1 <= len(given) <= self.images:
            text = f"the runtime takes 1 to {self.images} images, got {len(given)}"
            raise InputError(text, code="samples.mismatch")
        filled = torch.cat([given, given[:1].expand(self.images - len(given), *given.shape[1:])])
        outputs: Tensor = self.program(filled)
        return outputs[: len(given)]


@dataclass(frozen=True)
class _ExportedModel:
    """Exported recovery, task and masks of a service."""

    recover: _ExportedRecover
    task: _ExportedTask
    columns: list[NDArray[np.intp]]
    shape: tuple[int, int, int]


def open_runtime(folder: Path, policy: Policy) -> _ExportedModel:
    path = folder / MANIFEST
    record = read_json(path, SCHEMA, remedy="export again")
    if record.get("policy") != fingerprint(policy.to_dict()):
        text = f"{folder} was exported for a different policy; export again"
        raise InputError(text, code="policy.mismatch")
    with complete_record(path, "runtime", "export again"):
        coils, height, width = map(int, record["shape"])
        shape, draws = (coils, height, width), record["recover"]["draws"]
        # Both are verified before either is unpickled.
        files = [_verified(folder, record[part]) for part in ("recover", "task")]
        (recover, mark), (task, task_mark) = (
            _load_program(path, record[part])
            for path, part in zip(files, ("recover", "task"), strict=True)
        )
        return _ExportedModel(
            _ExportedRecover(recover, shape, int(record["samples"]), draws, mark),
            _ExportedTask(task, int(record["images"]), task_mark),
            [np.asarray(added, dtype=np.intp) for added in record["columns"]],
            shape,
        )


def _verified(folder: Path, part: Mapping[str, Any]) -> Path:
    """Return the path of an exported program; raise InputError if its checksum differs."""
    path = safe_join(folder, str(part["file"]))
    if not path.is_file():
        raise InputError(f"{path} does not exist; export again", code="file.missing")
    if checksum(path) != part["sha256"]:
        raise InputError(f"{path} does not match its SHA-256; export again", code="file.damaged")
    return path


def _load_program(path: Path, part: Mapping[str, Any]) -> tuple[Any, str]:
    """Return an exported program and its fingerprint."""
    try:
        return torch.export.load(path).module(), str(part["mark"] or part["sha256"])
    except Exception as error:
        text = f"{path} cannot be opened ({first_line(error):.120}); export again"
        raise InputError(text, code="file.schema") from None
