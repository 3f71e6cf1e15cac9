"""Files exactly as fastMRI distributes them, made from random k-space."""

import h5py
import numpy as np

from taskuq.data._synthetic_fastmri import FastMRILayout


def write_volume(
    path,
    *,
    slices=3,
    coils=15,
    height=48,
    width=40,
    recon=32,
    acquisition="CORPD_FBK",
    header=True,
    kspace=True,
    seed=0,
):
    """Write a volume and return its path and its k-space."""
    rng = np.random.default_rng(seed)
    shape = (slices, coils, height, width)
    real, imaginary = rng.normal(size=(2, *shape)).astype(np.float32) * 1e-5
    # A strong centre, as k-space has; and fewer independent signals than coils.
    envelope = 1 / (1 + np.abs(np.arange(width) - width // 2))
    mixing = (0.6 ** np.arange(coils)).astype(np.float32)[:, None, None]
    values = ((real + 1j * imaginary) * envelope * mixing).astype(np.complex64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        if kspace:
            file["kspace"] = values
        if header:
            layout = FastMRILayout(height, width, coils, recon)
            file["ismrmrd_header"] = layout.header.encode()
        if acquisition is not None:
            file.attrs["acquisition"] = acquisition
    return path, values
