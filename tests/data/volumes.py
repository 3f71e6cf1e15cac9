"""Files exactly as fastMRI distributes them, made from random k-space."""

import h5py
import numpy as np

HEADER = """<?xml version="1.0" encoding="utf-8"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
  <encoding>
    <encodedSpace><matrixSize><x>{height}</x><y>{width}</y><z>1</z></matrixSize></encodedSpace>
    <reconSpace><matrixSize><x>{recon}</x><y>{recon}</y><z>1</z></matrixSize></reconSpace>
    <encodingLimits>
      <kspace_encoding_step_1>
        <minimum>0</minimum><maximum>{maximum}</maximum><center>{center}</center>
      </kspace_encoding_step_1>
    </encodingLimits>
  </encoding>
</ismrmrdHeader>"""


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
    rss=True,
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
        if rss:
            file["reconstruction_rss"] = np.abs(values[:, 0, :recon, :recon])
        if header:
            text = HEADER.format(
                height=height,
                width=width,
                recon=recon,
                center=width // 2 - 2,
                maximum=width - 5,
            )
            file["ismrmrd_header"] = text.encode()
        if acquisition is not None:
            file.attrs["acquisition"] = acquisition
        file.attrs["patient_id"] = "0a1b"
        file.attrs["max"] = float(np.abs(values).max())
        file.attrs["norm"] = 1.0
    return path, values
