"""Scans that are known in full: from an MRD file, or of the embedded atlas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.errors import InputError
from taskuq.runs.mrd.header import ScanHeader, header_xml, read_header
from taskuq.runs.mrd.lines import beside_image, unfit
from taskuq.words import counted


@dataclass(frozen=True)
class StoredScan:
    """A scan that is known in full.

    Arguments:
        header: Who is scanned, and how large k-space is.
        kspace: Of each slice, complex (coil, height, width), by its number.
        xml: The header as it was found; made anew where None.
        left_out: What is not played of what a file holds, in sentences.
    """

    header: ScanHeader
    kspace: Mapping[int, NDArray[np.complex64]]
    xml: str | None = None
    left_out: tuple[str, ...] = ()

    def line(self, slice_: int, column: int) -> Any:
        """One line as the acquisition that a scanner sends."""
        import ismrmrd

        data = np.ascontiguousarray(self.kspace[slice_][..., column])
        found = ismrmrd.Acquisition.from_array(data.astype(np.complex64))
        found.idx.slice, found.idx.kspace_encode_step_1 = slice_, column
        return found

    def save(self, path: Path) -> Path:
        """Write an MRD file of all lines, with the ismrmrd package."""
        import ismrmrd

        with ismrmrd.Dataset(str(path), "dataset", create_if_needed=True) as file:
            file.write_xml_header((self.xml or header_xml(self.header)).encode())
            for slice_ in self.kspace:
                for column in range(self.header.shape[2]):
                    file.append_acquisition(self.line(slice_, column))
        return path


def read_scan(path: Path) -> StoredScan:
    """Read a Cartesian scan from an MRD file; of lines measured more than once, the first.

    What a service would not take is left out: lines beside the image, reversed ones, and those of
    other contrasts, repetitions, averages and encoding spaces. The scan says what.

    Arguments:
        path: The file, HDF5 with a group ``dataset``.
    """
    xml, acquisitions = _opened(path)
    header = read_header(xml)
    coils, height, width = header.shape
    kspace: dict[int, NDArray[np.complex64]] = {}
    seen: set[tuple[int, int]] = set()
    left: Counter[str] = Counter()
    for one in acquisitions:
        place = int(one.idx.slice), int(one.idx.kspace_encode_step_1)
        if why := _left_out(one, place, seen, width):
            left[why] += 1
            continue
        if one.data.shape != (coils, height):
            raise InputError(
                f"{path}: a line has {one.data.shape[0]} channels of {one.data.shape[1]} samples, "
                f"and the header says {coils} and {height}; crop oversampling away first"
            )
        seen.add(place)
        kspace.setdefault(place[0], np.zeros(header.shape, np.complex64))[..., place[1]] = one.data
    said = tuple(f"{counted(count, 'line')} left out: {why}" for why, count in left.items())
    if not kspace:
        why = "; ".join(said) or "it holds no line"
        raise InputError(f"{path} holds no line that a service would take ({why:.300})")
    if missing := len(kspace) * width - len(seen):
        raise InputError(
            f"{path} lacks {counted(missing, 'line')} of {counted(len(kspace), 'slice')}; a replay "
            "needs all of them, since a service may ask for any"
            + (f" ({'; '.join(said):.300})" if said else "")
        )
    return StoredScan(header, kspace, xml, said)


def _opened(path: Path) -> tuple[str, list[Any]]:
    """The header and all acquisitions of an MRD file."""
    import ismrmrd

    holds = "an MRD file is HDF5 with a group 'dataset' that holds a header, 'xml', and 'data'"
    try:
        with ismrmrd.File(str(path), mode="r") as file:
            if "dataset" not in file:
                raise InputError(f"{path} is HDF5 and no MRD file: {holds}")
            dataset = file["dataset"]
            if not dataset.has_header() or not dataset.has_acquisitions():
                lacks = "lines" if dataset.has_header() else "header"
                raise InputError(f"{path} has no MRD {lacks}: {holds}")
            return dataset.header.toXML(), list(dataset.acquisitions)
    except InputError:
        raise
    except Exception:
        # Whatever HDF5 and the package say of damaged bytes helps nobody to mend them.
        raise InputError(
            f"{path} cannot be read as MRD: it is truncated, damaged or of another kind; {holds}"
        ) from None


def _left_out(
    acquisition: Any, place: tuple[int, int], seen: set[tuple[int, int]], width: int
) -> str | None:
    """Why an acquisition is not played; None where it is."""
    if kind := beside_image(acquisition):
        return f"beside the image ({kind})"
    if why := unfit(acquisition):
        return why
    if place[1] >= width:
        return f"beyond the {width} lines of the header"
    if place in seen:
        return "measured before; of lines that were measured twice the first is played"
    return None


def atlas_scans(patients: int, seed: int, first: int, coils: int) -> Iterator[StoredScan]:
    """Yield scans of synthetic patients of the embedded atlas.

    Arguments:
        patients: How many.
        seed: Their seed.
        first: The number of the first.
        coils: Receiver coils.
    """
    from taskuq.data.atlas import Atlas
    from taskuq.measure.fourier import fft2c

    atlas = Atlas(patients, seed, first=first, coils=coils)
    per = atlas.plan.slices
    for k in range(patients):
        kspace = {s: fft2c(atlas[k * per + s].image).numpy() for s in range(per)}
        name = f"patient-{first + k}"
        # Patients of another seed are others, and so are their scans.
        scan_id = f"{name}-seed-{seed}-coils-{coils}"
        yield StoredScan(ScanHeader(scan_id, name, kspace[0].shape, per), kspace)
