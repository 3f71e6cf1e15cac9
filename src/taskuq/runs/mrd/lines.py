"""Which acquisitions are lines of an image, by their flags and counters."""

from __future__ import annotations

from typing import Any

# What a scanner sends beside the lines of an image, by MRD's flags (the package's numbers, from 1).
BESIDE = {
    19: "noise",
    20: "parallel calibration",
    23: "navigation",
    24: "phase correction",
    26: "feedback",
    27: "a dummy scan",
    28: "feedback",
    29: "surface coil correction",
    30: "phase stabilization",
    31: "phase stabilization",
}
# Calibration that belongs to the image too says so by a flag of its own.
CALIBRATION, CALIBRATION_AND_IMAGING, REVERSED = 20, 21, 22
COMPRESSED = (53, 54, 55, 56)
# There is one image for each slice: whatever else is counted has to be the first of its kind.
COUNTED = ("kspace_encode_step_2", "average", "contrast", "phase", "repetition", "set")


def beside_image(acquisition: Any) -> str | None:
    """Return what an acquisition is that a scanner sends beside its image; None for a line of it.

    Arguments:
        acquisition: One of the ismrmrd package.
    """
    for flag, name in BESIDE.items():
        is_image = flag == CALIBRATION and acquisition.is_flag_set(CALIBRATION_AND_IMAGING)
        if acquisition.is_flag_set(flag) and not is_image:
            return name
    return None


def unfit(acquisition: Any) -> str | None:
    """Return why a line of an image cannot be taken as it is; None where it can.

    A reversed line would have to be turned, and a line of another contrast or repetition is not of
    the image that is decided about.

    Arguments:
        acquisition: One of the ismrmrd package.
    """
    if acquisition.is_flag_set(REVERSED):
        return "a reversed line; turn it before it is sent"
    if any(acquisition.is_flag_set(flag) for flag in COMPRESSED):
        return "a compressed line; send it uncompressed"
    if acquisition.encoding_space_ref:
        return f"a line of encoding space {acquisition.encoding_space_ref}; the first is decided on"
    for name in COUNTED:
        if count := int(getattr(acquisition.idx, name)):
            return f"a line of {name.replace('kspace_encode', 'encoding')} {count}; 0 is decided on"
    return None
