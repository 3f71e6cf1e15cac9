"""The embedded atlas: an endless, seeded brain data set with lesions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from taskuq.data.anatomy import load_anatomy
from taskuq.data.arrays import ArrayDataset
from taskuq.data.contrast import Contrasts
from taskuq.data.dataset import Dataset, Item
from taskuq.data.memory import InMemory, shared_out, worth_starting
from taskuq.data.patient import Patient, PatientPlan, draw_patient
from taskuq.data.readers import Reader
from taskuq.data.splits import Part
from taskuq.errors import InputError
from taskuq.files import whole_file

if TYPE_CHECKING:
    from torch import Tensor

# Streams of random numbers that do not touch each other.
_PATIENT, _COILS, _PHASE = 0, 1, 2


@dataclass(frozen=True)
class Atlas:
    """Synthetic brain MR slices with and without lesions, as complex coil images.

    The anatomy is real (an average of 152 people), the variation and the lesions are made; the
    datasheet in docs/atlas.md says exactly what. Patient k of a seed is always the same, whatever
    the number of patients, so that disjoint ranges of patients make training and test sets.

    Arguments:
        patients: The number of patients.
        seed: Together with a patient's number it decides everything about the patient.
        coils: The number of receive coils; 0 gives magnitude images (height, width).
        plan: Size, slices, contrast and lesions.
        first: The number of the first patient.
        base: A base file, for machines without nilearn; see
            :func:`taskuq.data.anatomy.load_anatomy`.

    Example:
        >>> atlas = Atlas(patients=2, seed=0, plan=PatientPlan(size=64, slices=4))
        >>> len(atlas), atlas[5].image.shape, atlas[5].group
        (8, torch.Size([8, 64, 64]), 'patient-1')
        >>> atlas.labels.shape
        (8,)
    """

    patients: int
    seed: int
    coils: int = 8
    plan: PatientPlan = field(default_factory=PatientPlan)
    first: int = 0
    base: Path | None = None

    def __post_init__(self) -> None:
        if self.patients < 1 or self.coils < 0:
            raise InputError(
                f"{self.patients} patients with {self.coils} coils are asked for; ask for at "
                "least 1 patient, and for no negative number of coils",
                code="value.invalid",
            )

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """1 where a slice shows a lesion of at least the plan's minimum area, (case,)."""
        # Lesions are placed in white matter, so the label is known once the patient is drawn.
        return np.asarray(self.lesion_area >= self.plan.minimum_area, dtype=np.int64)

    @cached_property
    def lesion_area(self) -> NDArray[np.float64]:
        """Lesion area of each slice, in square millimetres, (case,)."""
        return np.concatenate([self.patient(k).area for k in range(self.patients)])

    @property
    def groups(self) -> NDArray[np.str_]:
        """The patient of each case, (case,)."""
        names = [f"patient-{self.first + k}" for k in range(self.patients)]
        return np.repeat(np.array(names), self.plan.slices)

    @property
    def cases(self) -> NDArray[np.str_]:
        """The name of each case, (case,)."""
        slices = np.tile(np.arange(self.plan.slices), self.patients)
        return np.array([f"{g}-slice-{k}" for g, k in zip(self.groups, slices, strict=True)])

    def patient(self, index: int) -> Patient:
        """One patient: images, lesion masks, areas. The latest patients are kept in memory."""
        if not 0 <= index < self.patients:
            raise IndexError(f"patient {index} of {self.patients}")
        return _patient(self.plan, self.base, self.seed, self.first + index)

    def lesion_mask(self, index: int) -> NDArray[np.bool_]:
        """Return where the lesions of one case are, (height, width)."""
        patient, slice_ = divmod(index, self.plan.slices)
        return np.asarray(self.patient(patient).lesion[slice_])

    def __len__(self) -> int:
        return self.patients * self.plan.slices

    def __getitem__(self, index: int) -> Item:
        import torch

        index = range(len(self))[index]
        number, slice_ = divmod(index, self.plan.slices)
        patient = self.patient(number)
        image = torch.as_tensor(patient.images[slice_])
        if self.coils:
            image = self._coil_images(image, self.first + number, slice_)
        return Item(
            image=image,
            label=int(patient.area[slice_] >= self.plan.minimum_area),
            group=f"patient-{self.first + number}",
            case=f"patient-{self.first + number}-slice-{slice_}",
            scale=1.0,
        )

    def _coil_images(self, magnitude: Tensor, number: int, slice_: int) -> Tensor:
        from taskuq.measure.sensitivity import simulate_coils, smooth_phase

        size = self.plan.size
        maps = _sensitivities(self.coils, size, self.seed, number)
        rng = np.random.default_rng([self.seed, number, _PHASE, slice_])
        return simulate_coils(magnitude, maps, smooth_phase(size, size, rng=rng))


def draw_patients(atlas: Atlas, *, workers: int = 1) -> list[Patient]:
    """All patients of an atlas in order, drawn by several processes; any number gives the same."""
    return list(shared_out(atlas.patient, range(atlas.patients), workers=workers))


def save_atlas(atlas: Atlas, path: Path | str, *, workers: int = 1) -> Path:
    """Write an atlas into one .npz file that :func:`taskuq.data.arrays.read_npz` reads.

    Magnitude images are written; coils are added again by
    :func:`taskuq.data.simulate.simulated_coils`. Beside images, label, group and case the file
    has lesion masks (``lesion``) and areas (``lesion_area``, square millimetres).
    """
    patients = draw_patients(atlas, workers=workers)
    area = np.concatenate([patient.area for patient in patients])
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file,
            images=np.concatenate([patient.images for patient in patients]).astype(np.float16),
            label=(area >= atlas.plan.minimum_area).astype(np.uint8),
            group=atlas.groups,
            case=atlas.cases,
            lesion=np.concatenate([patient.lesion for patient in patients]),
            lesion_area=area,
            contrast=np.repeat([patient.contrast for patient in patients], atlas.plan.slices),
            seed=atlas.seed,
        )
    return Path(path)


@dataclass(frozen=True, kw_only=True)
class AtlasData(Reader):
    """The embedded atlas, drawn; ``seed`` decides its patients and their coils too.

    Arguments:
        patients: How many patients.
        size: Rows and columns of a slice.
        slices: Slices for each patient.
        contrast: ``"t1"``, ``"t2"``, ``"flair"``, or ``"mixed"``: each patient one of
            the three, FLAIR twice as often as the others.
        target: What a task network should say: ``"label"`` or ``"lesion_area"``.

    Example:
        >>> AtlasData(patients=10).size
        128
    """

    patients: int = 200
    size: int = 128
    slices: int = 8
    contrast: Contrasts = "flair"
    target: Literal["label", "lesion_area"] = "label"

    # A patient takes a processor to draw.
    processes: ClassVar[int] = 8

    def open(self) -> Dataset:
        """All slices of all patients, with coils."""
        return self._atlas(self.coils)

    def open_targets(self) -> Part:
        """The same as magnitude images, with labels or lesion areas."""
        atlas = self._atlas(coils=0)
        if self.target not in ("label", "lesion_area"):
            raise InputError(
                f"the atlas has no {self.target}; choose label or lesion_area",
                code="choice.unknown",
            )
        cases: Dataset = atlas
        if self.in_memory:
            # Drawn once for images and areas; case by case every patient would be drawn many times.
            workers = worth_starting(self.processes, len(atlas))
            patients = draw_patients(atlas, workers=workers)
            area = np.concatenate([patient.area for patient in patients])
            images = np.concatenate([patient.images for patient in patients])
            label = (area >= atlas.plan.minimum_area).astype(int)
            cases = InMemory.of(ArrayDataset(images, label, atlas.groups, normalise=False))
        else:
            area = atlas.lesion_area
        targets = area[:, None] if self.target == "lesion_area" else Part.of(cases).targets
        return Part(cases, targets, is_read=self.in_memory)

    def _atlas(self, coils: int) -> Atlas:
        plan = PatientPlan(size=self.size, slices=self.slices, contrast=self.contrast)
        return Atlas(self.patients, self.seed, coils=coils, plan=plan)


@lru_cache(maxsize=160)
def _patient(plan: PatientPlan, base: Path | None, seed: int, number: int) -> Patient:
    rng = np.random.default_rng([seed, number, _PATIENT])
    return draw_patient(plan, load_anatomy(base), rng=rng)


@lru_cache(maxsize=160)
def _sensitivities(coils: int, size: int, seed: int, number: int) -> Tensor:
    from taskuq.measure.sensitivity import coil_sensitivities

    rng = np.random.default_rng([seed, number, _COILS])
    return coil_sensitivities(coils, size, size, rng=rng)
