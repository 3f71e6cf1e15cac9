"""Images of 16 x 16 seen by two coils, a recovery that fills in noise, and a task."""

import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import ismrmrd
import numpy as np
import torch

import taskuq as tq
from taskuq.measure._fourier import fft2c
from taskuq.measure._masks import nested_masks
from taskuq.measure._mri import MultiCoilMRI, SimulatedMRIScanner, added_columns
from taskuq.service._mrd import ACQUISITION, CLOSE, HEADER, IMAGE, Geometry, ScanHeader, header_xml
from taskuq.service._replay import _decision, _StoredScan

SIZE, COILS, RATES, SAMPLES = 16, 2, (8.0, 4.0, 2.0), 4
GEOMETRY = Geometry(COILS, (SIZE, SIZE), (float(SIZE), float(SIZE), 1.0))
MASKS = nested_masks(SIZE, RATES, seed=0)
COLUMNS = added_columns(MASKS)


def image(seed):
    """Coil images (coil, height, width) of a bright spot in a texture of random strength."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    spot = np.exp(-((rows - 8) ** 2 + (columns - rng.uniform(6, 10)) ** 2) / 4)
    one = rng.uniform(0, 1) * spot + rng.uniform(0, 1) ** 3 * rng.standard_normal((SIZE, SIZE))
    weights = np.array([0.8, 0.6j])[:, None, None]
    return torch.as_tensor((weights * one).astype(np.complex64))


def recover(measurement, *, samples, seed):
    generator = torch.Generator().manual_seed(seed)
    kspace, mask = measurement.kspace, measurement.mask
    noise = torch.randn((samples, *kspace.shape, 2), generator=generator)
    strength = kspace[..., mask].abs().mean() / 4
    filled = torch.where(mask, kspace, strength * torch.view_as_complex(noise))
    return torch.fft.ifft2(torch.fft.ifftshift(filled, dim=(-2, -1)), norm="ortho").abs().sum(1)


def task(images):
    return 1 / (1 + torch.exp(-images[..., 6:10, 6:10].mean(dim=(-2, -1)) + 0.3))


@cache
def policy(unit="case", width=0.02):
    measure = MultiCoilMRI(MASKS, RATES)
    table = tq.Pipeline(measure, recover, task).run(
        [image(k) for k in range(90)], case=[f"old-{k}" for k in range(90)],
        group=[f"patient {k // 3}" for k in range(90)], accelerations=RATES, samples=SAMPLES,
        seed=0, task_range=(0, 1), progress=False,
    )  # fmt: skip
    return tq.plan(table, alpha=0.2, max_width=width, unit=unit)


def scan_of(number, slices=3):
    """A scan of some slices, as a file or a scanner would have it."""
    kspace = {k: fft2c(image(1000 + 10 * number + k)).numpy() for k in range(slices)}
    name = f"patient-{number}"
    return _StoredScan(ScanHeader(f"MR-{number}", name, (COILS, SIZE, SIZE), slices), kspace)


def begin(wire, scan, columns=(), slices=None):
    """Send the header, and lines of some slices."""
    wire.send(HEADER, header_xml(scan.header))
    for slice_ in scan.kspace if slices is None else slices:
        for column in columns:
            wire.send(ACQUISITION, scan.line(slice_, int(column)))


def begun(connect, service, scan, columns=()):
    """A connection whose header was taken, and that has sent some lines of all slices."""
    wire = connect(service)
    begin(wire, scan, columns)
    assert "send these lines" in wire.read().content
    return wire


@dataclass
class Held:
    """A recovery that waits until it may go on."""

    computing: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(self, measurement, **options):
        self.computing.set()
        assert self.go_on.wait(300)
        return recover(measurement, **options)


def heard(wire):
    """Close a connection; return the decisions and the texts until its end.

    Images without a decision must continue the scan and carry a fault.
    """
    images, texts = replies(wire)
    for one in images:
        if one["undecided"]:
            assert (one["decision"], one["would_stop"]) == ("continue", "false")
            assert one["fault"]
            assert one["lower"] is one["round"] is None
    return [one for one in images if not one["undecided"]], texts


def ends_undecided(wire, slices=1):
    """Return True if only images without a decision follow, which continue the scan."""
    found = []
    while (message := wire.read()) is not None:
        found.append(_decision(message))
    return len(found) == slices and all(
        one["undecided"] and one["decision"] == "continue" and one["fault"] for one in found
    )


def replies(wire):
    """Close a connection; return all images and texts until its end."""
    wire.send(CLOSE)
    found = []
    while (message := wire.read()) is not None:
        found.append(_decision(message) if message.kind == IMAGE else message.content)
    return [f for f in found if isinstance(f, dict)], [f for f in found if isinstance(f, str)]


def answers(wire, xml, lines):
    """Send a header and lines; return all images and texts."""
    wire.send(HEADER, xml)
    for line in lines:
        wire.send(ACQUISITION, line)
    return replies(wire)


def file_of(path, xml, lines):
    with ismrmrd.Dataset(str(path), "dataset", create_if_needed=True) as file:
        file.write_xml_header(xml.encode())
        for line in lines:
            file.append_acquisition(line)
    return path


def raw(kind, content):
    """The bytes of a message."""
    parts = [struct.pack("<H", kind)]
    content.serialize_into(lambda part: parts.append(bytes(part)))
    return b"".join(parts)


def serve(folder, port):
    """A service in a process of its own, until it is killed."""
    from taskuq.service._server import Service
    from taskuq.service._session import ServiceModel

    model = ServiceModel(
        tq.load_policy(folder / "policy.json"), recover, task, COLUMNS, folder / "states"
    )
    Service(model, port=port).start()
    while True:
        time.sleep(1)


def acquired(policy, number, slice_, **options):
    scanner = SimulatedMRIScanner(image(1000 + 10 * number + slice_), MASKS, RATES)
    return tq.acquire(policy, scanner, recover=recover, task=task, samples=SAMPLES,
                      case=f"patient-{number}-slice-{slice_}", **options)  # fmt: skip


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
