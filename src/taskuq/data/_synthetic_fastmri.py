"""Small synthetic data sets in the fastMRI layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taskuq._io import atomic_write, make_folder
from taskuq.data._atlas import LesionDistribution, PatientDistribution, draw_patient, load_anatomy
from taskuq.data._dataset import parallel_map
from taskuq.data._volume import COLUMNS
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.data._atlas import Patient


# As NYU's files have it: readout oversampled twice, some outer lines never acquired.
HEADER = """<?xml version="1.0" encoding="utf-8"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
  <encoding>
    <encodedSpace>
      <matrixSize><x>{height}</x><y>{width}</y><z>1</z></matrixSize>
    </encodedSpace>
    <reconSpace>
      <matrixSize><x>{recon}</x><y>{recon}</y><z>1</z></matrixSize>
    </reconSpace>
    <encodingLimits>
      <kspace_encoding_step_1>
        <minimum>0</minimum><maximum>{maximum}</maximum><center>{center}</center>
      </kspace_encoding_step_1>
    </encodingLimits>
  </encoding>
</ismrmrdHeader>"""
# Scale of the k-space of a knee; nothing may depend on it.
UNIT = 1e-5
# Relative to the brain's signal, in each coil and each point of k-space.
NOISE = 0.01
FINDING = "Meniscus Tear"


@dataclass(frozen=True)
class FastMRILayout:
    height: int = 640
    width: int = 368
    coils: int = 15
    recon: int = 320

    @property
    def acquired(self) -> tuple[int, int]:
        """Range (first, last + 1) of acquired phase-encoding lines; all others are zero."""
        left = self.width // 20
        return left, self.width - left

    @property
    def header(self) -> str:
        left, end = self.acquired
        return HEADER.format(
            height=self.height, width=self.width, recon=self.recon,
            center=self.width // 2 - left, maximum=end - left - 1,
        )  # fmt: skip


@dataclass(frozen=True)
class _SyntheticVolume:
    path: Path
    slices: int
    number: int
    acquisition: str = "CORPD_FBK"


def _make_volume(volume: _SyntheticVolume, layout: FastMRILayout) -> list[str]:
    import h5py
    import torch

    from taskuq.measure._coils import coil_sensitivities, rss, simulate_coils, smooth_phase
    from taskuq.measure._fourier import fft2c

    size, rng = layout.recon, np.random.default_rng([volume.number, 1])
    patient = _patient(volume, size)
    maps = coil_sensitivities(layout.coils, size, size, rng=rng)
    top, left = (layout.height - size) // 2, (layout.width - size) // 2
    first, end = layout.acquired
    shape = (layout.coils, layout.height, layout.width)
    make_folder(volume.path.parent)
    # No need to wait until gigabytes have reached the disk.
    partial = volume.path.with_suffix(".partial")
    with h5py.File(partial, "w") as file:
        kspace = file.create_dataset("kspace", (volume.slices, *shape), dtype=np.complex64)
        images = file.create_dataset("reconstruction_rss", (volume.slices, size, size), np.float32)
        for index, image in enumerate(patient.images):
            canvas = torch.zeros(shape, dtype=torch.complex64)
            phase = smooth_phase(size, size, rng=rng)
            coils = simulate_coils(torch.as_tensor(image), maps, phase)
            canvas[:, top : top + size, left : left + size] = coils
            values = fft2c(canvas).numpy()
            noise = rng.standard_normal((*shape, 2), dtype=np.float32).view(np.complex64)[..., 0]
            values += NOISE * noise
            values[..., :first] = values[..., end:] = 0
            kspace[index] = UNIT * values
            images[index] = UNIT * rss(coils).numpy()
        file["ismrmrd_header"] = layout.header.encode()
        file.attrs["acquisition"] = volume.acquisition
        file.attrs["patient_id"] = f"made-{volume.number:04d}"
        file.attrs["max"] = float(np.max(images[:]))
        file.attrs["norm"] = float(np.linalg.norm(images[:]))
    partial.replace(volume.path)
    return _rows(volume.path.stem, patient)


def make_fastmri(
    folder: Path,
    *,
    training: tuple[int, int],
    validation: tuple[int, int],
    layout: FastMRILayout | None = None,
    workers: int = 1,
) -> None:
    """Write synthetic volumes in the folder layout of docs/how-to/fastmri.md."""
    if min(*training, *validation) < 1:
        text = f"volumes and slices are {training} and {validation}; pass at least 1 of each"
        raise InputError(text, code="value.invalid")
    layout = layout or FastMRILayout()
    val = folder / "knee_multicoil_val"
    used = [
        _SyntheticVolume(folder / f"knee_multicoil_{part}" / f"file100{kind}{k:03d}.h5", slices,
                         number=1000 * kind + k)
        for kind, (part, (count, slices)) in enumerate((("train", training), ("val", validation)))
        for k in range(count)
    ]  # fmt: skip
    others = [
        _SyntheticVolume(val / "file1002000.h5", 1, 2000, acquisition="CORPDFS_FBK"),
        _SyntheticVolume(val / "file1002001.h5", 1, 2001),
    ]
    volumes = [*used, *others]
    load_anatomy()  # once, before processes would do it at the same time
    each = list(parallel_map(_make_volume, volumes, [layout] * len(volumes), workers=workers))
    rows = [row for written in each[: len(used)] for row in written]
    # Other findings, and one about a whole volume, which has no box.
    name = used[0].path.stem
    rows += [f"{name},0,No,1,2,3,4,Bone - Subchondral edema", f"{name},0,Yes,,,,,Joint Effusion"]
    names = [volume.path.stem for volume in used]
    for table, lines in (("knee", [",".join(COLUMNS), *rows]), ("knee_file_list", names)):
        with atomic_write(folder / f"{table}.csv") as partial:
            partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _patient(volume: _SyntheticVolume, size: int) -> Patient:
    lesions = LesionDistribution(patients=1.0)
    plan = PatientDistribution(
        size=size, slices=volume.slices, spacing=60 / volume.slices, lesions=lesions, noise=(0, 0)
    )
    return draw_patient(plan, load_anatomy(), rng=np.random.default_rng([volume.number, 0]))


def _rows(name: str, patient: Patient) -> list[str]:
    """Return one annotation row per slice with a lesion; boxes are flipped as in fastMRI+."""
    rows = []
    for index in np.flatnonzero(patient.area >= PatientDistribution.minimum_area):
        lesion: NDArray[np.bool_] = patient.lesion[index]
        down, across = (np.flatnonzero(lesion.any(axis=axis)) for axis in (1, 0))
        box = (across[0], len(lesion) - 1 - down[-1], np.ptp(across) + 1, np.ptp(down) + 1)
        rows.append(",".join(map(str, (name, index, "No", *box, FINDING))))
    return rows
