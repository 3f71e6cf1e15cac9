"""Files exactly as fastMRI distributes them, made from random k-space, and files of arrays."""

import h5py
import numpy as np

from taskuq.data._synthetic_fastmri import FastMRILayout


def save_npz(data, path):
    images, *columns = zip(*data, strict=True)
    np.savez(path, images=np.stack(images), **dict(zip(data[0]._fields[1:], columns, strict=True)))
    return path


def write_volume(
    path, *, slices=3, coils=15, height=48, width=40, recon=32, acquisition="CORPD_FBK",
    header=True, kspace=True, seed=0, patient=None, institution="",
):  # fmt: skip
    """Write a volume and return its path and its k-space; 0 coils is the single-coil layout."""
    rng = np.random.default_rng(seed)
    shape = (slices, coils, height, width) if coils else (slices, height, width)
    real, imaginary = rng.normal(size=(2, *shape)).astype(np.float32) * 1e-5
    # A strong centre, as k-space has; and fewer independent signals than coils.
    envelope = 1 / (1 + np.abs(np.arange(width) - width // 2))
    mixing = (0.6 ** np.arange(max(coils, 1))).astype(np.float32)[:, None, None]
    mixing = mixing if coils else mixing[0]
    values = ((real + 1j * imaginary) * envelope * mixing).astype(np.complex64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        if kspace:
            file["kspace"] = values
        if header:
            layout = FastMRILayout(height, width, coils, recon)
            named = f"<institutionName>{institution}</institutionName>"
            system = f"<acquisitionSystemInformation>{named}</acquisitionSystemInformation>"
            header = layout.header.replace("<encoding>", f"{system}<encoding>", 1)
            file["ismrmrd_header"] = header.encode()
        if acquisition is not None:
            file.attrs["acquisition"] = acquisition
        if patient is not None:
            file.attrs["patient_id"] = patient
    return path, values
