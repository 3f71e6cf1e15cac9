"""Image quality in pieces: a volume, a method and an acceleration, each kept once it is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from taskuq.data.dataset import Dataset
from taskuq.disk import ended_by_sigterm
from taskuq.errors import MachineError, first_line
from taskuq.files import open_npz, whole_file
from taskuq.measure.coils import rss
from taskuq.measure.masks import MaskConfig
from taskuq.measure.mri import MultiCoilMRI
from taskuq.pipeline.device import pinned_threads
from taskuq.pipeline.progress import Progress
from taskuq.protocols import PosteriorRecover, Recover
from taskuq.recover.cases import as_coils
from taskuq.recover.metrics import (
    FloatArray,
    spread_error_correlation,
    volume_psnr,
    volume_ssim,
)
from taskuq.seeds import mixed_seed

# Rows and columns of the blocks in which spread and error are compared.
BLOCK = 4
# Pixels of each slice that are compared over all slices and accelerations.
PIXELS = 4096
# Training images whose features are one piece.
TOGETHER = 64
Features = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Measures:
    """What is known of recoveries; arrays that are put together piece after piece.

    Arguments:
        psnr: Of volumes.
        ssim: Of volumes.
        correlation: Of spread and error, of slices.
        where: The same in blocks.
        pixels: Spread and error of some pixels, (2, pixel).
        features: For FID, (image, feature).
        rejected: How many draws were rejected.
    """

    psnr: FloatArray
    ssim: FloatArray
    correlation: FloatArray
    where: FloatArray
    pixels: FloatArray
    features: FloatArray
    rejected: FloatArray

    @classmethod
    def together(cls, parts: Sequence[Measures]) -> Measures:
        """Put parts one behind the other."""
        names = [field.name for field in fields(cls)]
        joined = {
            name: np.concatenate(
                [getattr(part, name) for part in parts], axis=int(name == "pixels")
            )
            for name in names
        }
        return cls(**joined)


@dataclass(frozen=True)
class Piece:
    """What is judged at once.

    Arguments:
        method: The name of the recovery; None for features of training images.
        acceleration: Of the round.
        cases: The cases of a volume, or some training images.
    """

    method: str | None
    acceleration: float
    cases: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Judging:
    """All pieces of a judgement, and how one is judged: what an engine shares out.

    Arguments:
        pieces: All of them, in the order of the record.
        folder: Where each is kept.
        validation: The cases that are judged.
        training: The cases that are FID's reference.
        methods: Recoveries by name.
        features: Images to features for FID.
        measure: The masks.
        samples: Posterior samples whose mean is judged.
        seed: Where the samples come from.
        threads: How many threads torch computes with, here and in every worker.
    """

    pieces: Sequence[Piece]
    folder: Path
    validation: Dataset
    training: Dataset
    methods: Mapping[str, Recover]
    features: Features | None
    measure: MaskConfig
    samples: int
    seed: int
    threads: int | None = None

    @property
    def size(self) -> int:
        """Pieces are done one by one."""
        return 1

    def unfinished(self, todo: Sequence[int]) -> list[int]:
        """Return the pieces that are not kept yet.

        Arguments:
            todo: The numbers of pieces.
        """
        return [index for index in todo if not self._file(index).exists()]

    def give_up(self, index: int, error: Exception) -> None:
        """A judgement is whole or there is none.

        Arguments:
            index: The number of the piece.
            error: What became of whoever tried it.
        """
        raise MachineError(
            f"a piece of the judgement ended its worker again and again ({first_line(error):.160})"
            "; start the same command again to do the rest"
        )

    def do(self, todo: list[int], progress: Progress | None = None) -> int:
        """Judge pieces, keep each, and return how many there were.

        Arguments:
            todo: The numbers of the pieces.
            progress: Told of every piece.
        """
        said = ""
        with pinned_threads(self.threads), ended_by_sigterm():
            for index in todo:
                stage = self._stage(self.pieces[index])
                if progress is not None and stage != said:
                    progress.say(stage)
                said = stage
                found = self.judged(self.pieces[index])
                arrays = {field.name: getattr(found, field.name) for field in fields(found)}
                with whole_file(self._file(index)) as partial, partial.open("wb") as file:
                    np.savez(file, **arrays)
                if progress is not None:
                    progress.step()
        return len(todo)

    def kept(self, index: int) -> Measures:
        """Read a piece that was judged.

        Arguments:
            index: Its number.
        """
        with open_npz(self._file(index)) as arrays:
            return Measures(**{field.name: arrays[field.name] for field in fields(Measures)})

    def judged(self, piece: Piece) -> Measures:
        """Judge a piece.

        Arguments:
            piece: A volume at an acceleration, or training images.
        """
        if piece.method is None:
            return _measures(features=[self._reference(index) for index in piece.cases])
        recover = self.methods[piece.method]
        before = recover.rejected if isinstance(recover, PosteriorRecover) else 0
        truth, means, singles = [], [], []
        correlation, where, pixels = [], [], []
        for index in piece.cases:
            image = as_coils(self.validation[index].image)
            masks = self.measure.masks(image.shape[-1])
            scan = MultiCoilMRI(masks, self.measure.accelerations)(image, piece.acceleration)
            seed = mixed_seed(self.seed, index)
            drawn = recover(scan, samples=self.samples, seed=seed).float().cpu()
            truth.append(rss(image))
            if len(drawn) > 1:
                correlation.append(spread_error_correlation(drawn, truth[-1]))
                where.append(spread_error_correlation(drawn, truth[-1], foreground=0, block=BLOCK))
                pixels.append(_some_pixels(drawn, truth[-1], seed))
            means.append(drawn.mean(0))
            singles.append(drawn[0])
        true, mean = torch.stack(truth), torch.stack(means)
        seen = []
        if self.features is not None:
            # Each image by the brightest pixel of its true image, as those of the reference are.
            seen.append(_seen(self.features, torch.stack(singles), true.amax((1, 2))))
        rejected = recover.rejected - before if isinstance(recover, PosteriorRecover) else 0
        return _measures(
            psnr=[volume_psnr(mean, true)], ssim=[volume_ssim(mean, true)],
            correlation=correlation, where=where, pixels=pixels, features=seen,
            rejected=rejected,
        )  # fmt: skip

    def _reference(self, index: int) -> FloatArray:
        assert self.features is not None
        image = rss(as_coils(self.training[index].image))
        return _seen(self.features, image[None], image.amax()[None])

    def _stage(self, piece: Piece) -> str:
        if piece.method is not None:
            return f"R = {piece.acceleration:g}, {piece.method}"
        images = sum(len(each.cases) for each in self.pieces if each.method is None)
        return f"features of {images} training images"

    def _file(self, index: int) -> Path:
        return self.folder / f"piece-{index:06d}.npz"


def pieces_of(
    accelerations: Sequence[float], methods: Sequence[str], volumes: Sequence[Sequence[int]]
) -> Iterator[Piece]:
    """Yield what is judged: every volume by every method at every acceleration.

    Arguments:
        accelerations: Of the rounds.
        methods: Names of recoveries.
        volumes: The cases of each volume.

    Example:
        >>> [piece.cases for piece in pieces_of([4.0], ["flow"], [[0, 1], [2]])]
        [(0, 1), (2,)]
    """
    for acceleration in accelerations:
        for method in methods:
            for cases in volumes:
                yield Piece(method, acceleration, tuple(cases))


def reference_pieces(count: int) -> Iterator[Piece]:
    """Yield the training images whose features are FID's reference, some at a time.

    Arguments:
        count: How many of them.

    Example:
        >>> [len(piece.cases) for piece in reference_pieces(100)]
        [64, 36]
    """
    for start in range(0, count, TOGETHER):
        yield Piece(None, 1.0, tuple(range(start, min(start + TOGETHER, count))))


def _measures(
    psnr: Sequence[float] = (),
    ssim: Sequence[float] = (),
    correlation: Sequence[float] = (),
    where: Sequence[float] = (),
    pixels: Sequence[FloatArray] = (),
    features: Sequence[FloatArray] = (),
    rejected: int = 0,
) -> Measures:
    return Measures(
        np.array(psnr, dtype=float),
        np.array(ssim, dtype=float),
        np.array(correlation, dtype=float),
        np.array(where, dtype=float),
        np.concatenate(pixels, axis=1) if pixels else np.empty((2, 0), dtype=np.float32),
        np.concatenate(features) if features else np.empty((0, 0)),
        np.array([rejected]),
    )


def _some_pixels(drawn: Tensor, truth: Tensor, seed: int) -> FloatArray:
    """Spread and error of some pixels, relative to the slice's maximum, (2, pixel)."""
    maps = torch.stack([drawn.std(0), (drawn.mean(0) - truth).abs()]).flatten(1)
    maps /= truth.max().clamp_min(1e-12)
    chosen = np.random.default_rng(seed).permutation(maps.shape[1])[:PIXELS]
    return np.asarray(maps[:, chosen])


def _seen(features: Features, images: Tensor, limits: Tensor) -> FloatArray:
    device = next(features.parameters()).device  # type: ignore[attr-defined]
    with torch.no_grad():
        return np.asarray(features(images.to(device), limits.to(device)).double().cpu())
