"""A whole file of every kind that the command line reads, and the command that reads it."""

import io
import os
import shutil
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuzz_changes import (
    in_archive,
    in_arguments,
    in_bytes,
    in_chain,
    in_json,
    in_packed,
    in_text,
    in_toml,
)
from report.run_folder import write_small_records


@dataclass(frozen=True)
class Kind:
    """A kind of file and the command that reads it; without a file, arguments of a command."""

    file: str
    command: tuple[str, ...]
    result: str | None = None  # the file of the result; stdout if None
    change: object = in_bytes
    is_checked: bool = False  # True if it carries checksums


# A run over a few images; what recovers them is filled in.
RUN = """
subset = "all"
samples = {samples}
[data]
kind = "npz"
path = "images.npz"
coils = 2
[measure]
accelerations = [4, 2]
published = false
[recover]
{recover}
[task]
kind = "mean-intensity"
"""
FOLDER = RUN.format(samples=2, recover='kind = "folder"\npath = "recoveries"')
VARNET = RUN.format(samples=1, recover='kind = "varnet"\nweights = "net.safetensors"')


def make(folder):
    """Write one whole file of each kind into a folder, and say which command reads which."""
    os.chdir(folder)
    _tables()
    _records()
    _images()
    _volumes()
    _networks()
    read_slices(None)
    _scan()
    exact = ("--exact", "--acceleration", "8", "--json", "-")
    header, cases = "table/table.json", "table/cases.pq"
    table = [(header, in_json), (cases, in_bytes), (_shard(), in_bytes)]
    stored = ("python", "fuzz_files:read_scan", "scan/scan.json")
    check = ("data", "check", "pictures", "--labels", "pictures/labels.csv", "--json", "-")
    scan = ("data", "check", "volumes", "--labels", "knee.csv", "--file-list", "list.csv",
            "--min-coils", "2", "--min-lines", "8", "--size", "8",
            "--pathology", "Tear", "--json", "-")  # fmt: skip
    dry = ("run", "run.toml", "-o", "out", "--device", "cpu")
    story = ("interval", "scan/scan.json", "scan/policy.json")
    net = ("run", "varnet.toml", "-o", "out", "--device", "cpu", "--dry-run")
    kinds = [Kind(f, ("evaluate", "table", *exact), None, how, True) for f, how in table]
    kinds += [
        Kind("table.npz", ("evaluate", "table.npz", *exact), None, in_archive, True),
        Kind("table.csv", ("evaluate", "table.csv", "--exact", "--json", "-"), None, in_text),
        Kind("table.parquet", ("evaluate", "table.parquet", "--exact", "--json", "-")),
        Kind("table/log.jsonl", ("status", "table", "--json", "-"), None, in_text),
        Kind("table/table.json", ("status", "table", "--json", "-"), None, in_json, True),
        Kind("bound.json", ("predict", "bound.json", "table", "-o", "out.csv"), "out.csv", in_json,
             True),
        Kind("joint.json", ("predict", "joint.json", "both.npz", "-o", "out.csv"), "out.csv",
             in_json, True),
        Kind("monitor.json", ("monitor", "page/policy.json", "later.npz", "-o", "monitor.json"),
             None, in_json, True),
        Kind("page/policy.json", ("export-policy", "page/policy.json", "-o", "out.json"),
             "out.json", in_json, True),
        Kind("classes.json", ("export-policy", "classes.json", "--stratum", "0", "-o", "out.json"),
             "out.json", in_json, True),
        Kind("scan/scan.json", (*story, "-o", "out.json"), "out.json", in_json, True),
        Kind("scan/policy.json", (*story, "-o", "out.json"), "out.json", in_json, True),
        Kind("online.json",
             ("python", "taskuq.conformal._online:load_online_bound", "online.json"), None,
             in_json, True),
        Kind("order.json", ("python", "fuzz_files:read_order", "order.json"), None, in_json, True),
        Kind("times/timing.json", ("python", "fuzz_files:read_times", "times/timing.json"), None,
             in_json, True),
        Kind("masks.npz", ("experiment", "masks", "--masks", "masks.npz", "-o", "out"), None,
             in_archive),
        Kind("quality.json", ("experiment", "recovery-quality", "--quality", "quality.json", "-o",
                              "out"), None, in_json),
        Kind("images.npz", ("data", "check", "images.npz", "--json", "-"), None, in_archive, True),
        Kind("images.npz", ("data", "preview", "images.npz", "-o", "out.png"), None, in_archive),
        Kind("pictures/labels.csv", check, None, in_text),
        Kind("pictures/a.png", check), Kind("pictures/b.tif", check), Kind("pictures/c.nii", check),
        Kind("pictures/d.nii.gz", check, None, in_packed), Kind("pictures/e.dcm", check),
        Kind("volumes/file1.h5", scan), Kind("knee.csv", scan, None, in_text),
        Kind("list.csv", scan, None, in_text),
        Kind("run.toml", (*dry, "--dry-run"), None, in_text),
        *_settings(),
        Kind("data.toml", ("data", "check", "data.toml", "--json", "-"), None, in_toml),
        *(Kind(str(path), ("python", "fuzz_files:read_slices", str(path)), None, in_json)
          for path in sorted(Path("cache").rglob("*.json"))),
        Kind("page/task.json", ("experiment", "classifier-quality", "--classifier",
                                "page/task.json", "-o", "out"), None, in_json),
        Kind("recoveries/a/R4.npz", (*dry, "--dry-run"), None, in_archive),
        Kind("recoveries/f/R4.npy", (*dry, "--dry-run")),
        Kind("recoveries/c/R4.nii", (*dry, "--dry-run")),
        Kind("net.safetensors", net), Kind("net.toml", net, None, in_text),
        Kind("scan/log.jsonl", ("audit", "scan/log.jsonl"), None, in_chain),
        Kind("scan/scan.json", stored, None, in_json, True),
        Kind("scan/scan.json-round0.npz", stored, None, in_archive, True),
        # What a training reads when it goes on; the training itself would take too long.
        Kind("split.json", ("python", "taskuq.data._dataset:load_split", "split.json"), None,
             in_json, True),
        Kind("resume.safetensors", ("python", "taskuq.training._checkpoints:_load_state",
                                    "resume.safetensors")),
        Kind("metrics.csv", ("python", "taskuq.training._checkpoints:_read_log", "metrics.csv"),
             None, in_text),
    ]  # fmt: skip
    kinds += [Kind("", tuple(words.split()), None, in_arguments) for words in ARGUMENTS]
    # A report takes fifty times as long as the others.
    return 4 * kinds + [
        Kind(str(path), ("report", "page"), None, in_archive if path.suffix == ".npz" else in_json)
        for path in sorted(Path("page").rglob("*.*")) if path.suffix in (".json", ".npz")
    ]  # fmt: skip


ARGUMENTS = (
    "calibrate table.npz --acceleration 8 -o out/b.json", "sample-size",
    "evaluate table.npz --splits 5", "plan table.npz --max-width 0.3", "masks --size 32",
    "simulate table.npz --splits 5 --max-width 0.3 --statistic spread", "status table",
    "predict bound.json table.npz", "audit scan/log.jsonl", "export-policy page/policy.json",
    "interval scan/scan.json scan/policy.json", "table table.npz -o u.npz",
    "monitor page/policy.json later.npz -o out/m.json", "run run.toml -o out --dry-run",
    "experiment interval-length --table table.npz --splits 3 -o out",
)  # fmt: skip
# Commands that read a TOML file, and a file of the repository for each.
BUNDLED = "../src/taskuq/training/bundled"
CONFIGS = {
    "serve": "../deploy/service", "card-flow": f"{BUNDLED}/flow-atlas",
    "card-sampler": f"{BUNDLED}/sampler-atlas", "card-classifier": f"{BUNDLED}/classifier-atlas",
    "card-ct": f"{BUNDLED}/ct-sampler-chest",
    "run": "atlas/run-two-tasks", "quality": "lgg/quality", "masks": "atlas/masks",
    "ct": "chest/run-sampler", "varnet": "atlas/varnet", "flow": "atlas/flow",
    "sampler": "lgg/sampler-task", "ct-sampler": "chest/ct-sampler",
    "simclr": "atlas/simclr", "classifier": "atlas/classifier-adversarial",
}  # fmt: skip


def _settings():
    """Every kind of TOML file, read as its command reads it before it opens data."""
    from taskuq._config import to_toml_table, toml_text
    from taskuq.training._networks import NETWORKS

    Path("settings").mkdir()
    configs = Path(__file__).resolve().parents[1] / "configs"
    for name, source in CONFIGS.items():
        for file in (configs / source).parent.glob(f"{Path(source).name}.[ts]*"):
            shutil.copy(file, f"settings/{name}{file.suffix}")
    unrolled = toml_text(to_toml_table(NETWORKS["ct-unrolled"].training()))
    Path("settings/ct-unrolled.toml").write_text(unrolled)
    return [
        Kind(f"settings/{name}.toml",
             ("python", "fuzz_files:read_settings", f"settings/{name}.toml"), None, in_toml)
        for name in (*CONFIGS, "ct-unrolled")
    ]  # fmt: skip


def read_settings(path):
    """Read a TOML file as its command does, and derive what follows from numbers alone."""
    from taskuq._config import read_config, to_toml_table
    from taskuq.experiments._mask_learning import MaskLearningConfig
    from taskuq.experiments._quality import QualityConfig
    from taskuq.experiments._run import RunConfig, read_run
    from taskuq.recover._methods import open_recovery
    from taskuq.service._operations import read_serve_config
    from taskuq.task import load
    from taskuq.training._networks import NETWORKS

    if path.stem.startswith("card"):
        weights = path.with_suffix(".safetensors")
        return type(load(weights) if "classifier" in path.stem else open_recovery(weights))
    if path.stem == "serve":
        return read_serve_config({"policy": path})
    if path.stem in ("run", "ct"):
        config = read_run(path)
        config = getattr(config, "config", config)
    else:
        layout = {"quality": QualityConfig, "masks": MaskLearningConfig}.get(path.stem)
        config = read_config(layout or NETWORKS[path.stem].training, path)
    if isinstance(config, RunConfig):
        config.measure.masks(64)
    return to_toml_table(config)


SEARCH = {"configuration": {"seed": 1}, "code": "0"}


def read_order(path):
    """Read the lines that a killed search for masks has left, as the next one does."""
    from taskuq.experiments._mask_learning import _LineOrder, _load_order

    return _load_order(path, SEARCH, _LineOrder(np.arange(8) < 2))


def read_times(path):
    """Read the times of a training and format them, as its report does."""
    from taskuq.training._module import format_timing, read_timing

    return format_timing(read_timing(path.parent))


def _shard():
    return str(sorted(Path("table").glob("part-*.parquet"))[1])


def _tables():
    import taskuq as tq
    from taskuq.pipeline._local import RunLog
    from taskuq.table._examples import SyntheticTable, synthetic_outputs
    from taskuq.table._parquet import TableHeader, TableWriter, write_case_list

    made = synthetic_outputs(SyntheticTable(volumes=8, samples=4), seed=0)
    made, later = (
        made.select(accelerations=[8, 4], cases=np.arange(first, made.cases, 7)) for first in (0, 1)
    )
    made.save("table.npz")
    later.save("later.npz")
    header = TableHeader(tuple(map(float, made.accelerations)), made.samples, order="roster",
                    task_ranges=(made.task_range,), provenance={"seed": 3})  # fmt: skip
    writer, case = TableWriter("table", header), [f"case {i}" for i in range(made.cases)]
    write_case_list(Path("table"), [*case, "late"])
    for k, R in enumerate(made.accelerations):
        writer.write(case, float(R), made.outputs[k], made.targets_at(k), group=made.group)
    RunLog(Path("table")).failed("late", ValueError("no image"))
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    rows = pa.table({
        "case": case, "target": made.targets_at(0), "group": [str(g) for g in made.group],
        **{f"output_{j}": made.outputs[0, :, j] for j in range(4)},
    })  # fmt: skip
    pyarrow.csv.write_csv(rows, "table.csv")
    pq.write_table(rows, "table.parquet")
    both = tq.TaskOutputs(np.stack([made.outputs] * 2, axis=3)[:1],
                          np.stack([made.targets_at(0)] * 2, axis=1), (8.0,))  # fmt: skip
    both.save("both.npz")
    tq.calibrate(made.outputs[0], made.targets_at(0), alpha=0.3, score="lwr",
                 acceleration=8.0).save("bound.json")  # fmt: skip
    tq.calibrate_joint(both.outputs[0], both.targets_at(0), alpha=0.3).save("joint.json")


def _records():
    import taskuq as tq
    from taskuq._io import write_json
    from taskuq.cli.app import main
    from taskuq.report import save_explorer

    Path("page").mkdir()
    table = tq.TaskOutputs.load("table.npz")
    table.save("page/table.npz")
    shutil.copy("bound.json", "page/bound.json")
    tq.plan(table, alpha=0.3, max_width=0.4).save("page/policy.json")
    tq.plan(table, alpha=0.3, max_width=0.4, strata="group").save("classes.json")
    tq.calibrate_online(table.outputs[0], table.targets_at(0), alpha=0.3).save("online.json")
    write_json("order.json", {"schema": "taskuq.order/1", **SEARCH, "lines": [3, 5],
                              "gains": [0.2, 0.1]})  # fmt: skip
    times = dict.fromkeys(("first_step_s", "step_s", "wait_share", "epoch_s"), 0.5)
    counts = ("parameters", "batch", "devices", "epochs", "steps_per_epoch", "validation_steps",
              "peak_gpu_bytes", "peak_host_bytes")  # fmt: skip
    write_json("times/timing.json", {
        "schema": "taskuq.timing/1", "kind": "varnet", "device": "cpu", "before": None,
        "projected_hours": 0.1, **times, **dict.fromkeys(counts, 2),
    })  # fmt: skip
    write_json("page/run.json", {"schema": "taskuq.run/1", "title": "A run", "alpha": 0.3,
                                 "max_width": 0.4, "unit": "group"})  # fmt: skip
    # Not stderr: whatever they refuse is to be seen.
    with redirect_stdout(io.StringIO()):
        main(["evaluate", "table.npz", "--splits", "20", "--json", "page/evaluate.json"])
        main(["simulate", "table.npz", "--splits", "20", "--max-width", "0.4", "--json",
              "page/simulate.json", "--policy", "fixed-width,paper", "--statistic",
              "spread"])  # fmt: skip
        main(["status", "table", "--json", "page/status.json"])
        main(["monitor", "page/policy.json", "later.npz", "-o", "monitor.json"])
        main(["masks", "--size", "32", "--accelerations", "8,4", "-o", "masks.npz"])
    picture = np.zeros((2, 2, 8, 8))
    save_explorer(
        "page/explorer.npz", case=["a", "b"], group=["x", "y"], accelerations=[8, 4],
        truth=picture[:, 0], estimate=picture, mean=picture, sd=picture,
        outputs=table.outputs[:, :2].transpose(1, 0, 2), targets=table.targets_at(0)[:2],
        calibration_outputs=table.outputs.transpose(1, 0, 2),
        calibration_targets=table.targets_at(0),
    )  # fmt: skip
    from taskuq.table._examples import stored_quality

    write_json("quality.json", stored_quality())
    write_small_records(Path("page"))
    with redirect_stdout(io.StringIO()):
        main(["sample-size", "--json", "page/size.json"])


class _Scanner:
    """Measures a few numbers of one patient in each round."""

    def measure(self, round):
        """The numbers that a round adds."""
        return np.random.default_rng(round).random(5) + 1


def _scan():
    import taskuq as tq

    Path("scan").mkdir()
    table = tq.TaskOutputs.load("table.npz")
    policy = tq.plan(table, alpha=0.05, max_width=1e-4)
    policy.save("scan/policy.json")

    def recover(pieces, *, samples, seed):
        drawn = np.random.default_rng(seed).random((samples, 2, 2))
        return drawn * np.concatenate(pieces).mean() / 4

    tq.acquire(policy, _Scanner(), recover=recover, task=lambda x: x.mean((1, 2)).clip(0, 1),
               samples=table.samples, scan_id="one", state="scan/scan.json")  # fmt: skip


def read_scan(path):
    """Read a stored scan with everything in it, as going on with it would."""
    import taskuq as tq
    from taskuq.scan._state import load_scan

    scan = load_scan(path, tq.load_policy(path.with_name("policy.json")))
    return [one.to_dict() for one in scan.rounds], [
        np.asarray(p).tolist() for p in scan.measurements
    ]


def _images():
    import nibabel
    from PIL import Image

    rng = np.random.default_rng(0)
    images = rng.random((6, 16, 16)).astype(np.float32)
    np.savez_compressed("images.npz", images=images, label=[0, 1, 0, 1, 0, 1],
                        group=[0, 0, 1, 1, 2, 2], case=list("abcdef"))  # fmt: skip
    Path("pictures").mkdir()
    grey = (255 * images).astype(np.uint8)
    Image.fromarray(grey[0]).save("pictures/a.png")
    Image.fromarray(grey[1]).save("pictures/b.tif")
    volume = nibabel.Nifti1Image(np.ascontiguousarray(grey[:2].T), np.eye(4))
    nibabel.save(volume, "pictures/c.nii")
    nibabel.save(volume, "pictures/d.nii.gz")
    write_dicom(grey[3], "pictures/e.dcm")
    names = ("a.png", "b.tif", "c.nii", "d.nii.gz", "e.dcm")
    rows = "".join(f"{name},{k % 2},g{k}\n" for k, name in enumerate(names))
    Path("pictures/labels.csv").write_text("file,label,group\n" + rows)
    for case in "abcdef":
        Path(f"recoveries/{case}").mkdir(parents=True)
        samples = rng.random((2, 16, 16)).astype(np.float32)
        for R in (4, 2):
            stem = f"recoveries/{case}/R{R}"
            if case == "f":
                np.save(f"{stem}.npy", samples)
            elif case == "c":
                nibabel.save(nibabel.Nifti1Image(samples.T, np.eye(4)), f"{stem}.nii")
            else:
                np.savez(f"{stem}.npz", samples)
    Path("run.toml").write_text(FOLDER)
    Path("data.toml").write_text('[data]\nkind = "npz"\npath = "images.npz"\nscale = 0.0\n')


def write_dicom(image, path, **elements):
    """Write a picture of one frame as DICOM, with more elements."""
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.MRImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3.4"
    file = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3.4"
    file.Rows, file.Columns = image.shape
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated = file.BitsStored = 8 * image.itemsize
    file.HighBit, file.PixelRepresentation, file.NumberOfFrames = file.BitsStored - 1, 0, 1
    file.PixelData = image.tobytes()
    for name, value in elements.items():
        setattr(file, name, value)
    file.save_as(path, enforce_file_format=True)


def _volumes():
    import h5py

    rng = np.random.default_rng(1)
    Path("volumes").mkdir()
    with h5py.File("volumes/file1.h5", "w") as file:
        real, imaginary = rng.normal(size=(2, 2, 3, 12, 10)).astype(np.float32)
        file.create_dataset("kspace", data=(real + 1j * imaginary), chunks=(1, 3, 12, 10),
                            compression="gzip")  # fmt: skip
        file["ismrmrd_header"] = b"<ismrmrdHeader/>"
        file.attrs["acquisition"] = "CORPD_FBK"
    Path("knee.csv").write_text(
        "file,slice,study_level,x,y,width,height,label\nfile1,0,No,1,2,3,4,Tear\n"
        "file1,1,No,2,2,3,4,Tear\n"
    )
    Path("list.csv").write_text("file1.h5\nfile2.h5\n")
    Path("scans").mkdir()
    for name in "ab":
        shutil.copy("volumes/file1.h5", f"scans/{name}.h5")
    with h5py.File("scans/b.h5", "r+") as file:
        file["kspace"][0, 0, 0, 0] = np.nan


def read_slices(path):
    """Read two volumes, one with NaN, through the cache of their slices, which it fills."""
    from taskuq.data._fastmri import FastMRIDataset, prepare_slices
    from taskuq.data._volume import FastMRIPreprocessing

    plan = FastMRIPreprocessing("CORPD_FBK", 2, 8, 8, 2, first_acceleration=4, slices="all")
    data = FastMRIDataset("scans", plan, cache="cache")
    for volume in data.volumes if not Path("cache").exists() else ():
        with suppress(ValueError):
            prepare_slices(volume, plan, Path("cache"))
    return data.notes, data.raw_because, len(data)


def _networks():
    from taskuq.data._dataset import Split, save_split
    from taskuq.recover._varnet import VarNet, VarNetConfig
    from taskuq.training._checkpoints import _log_epoch, _save_state
    from taskuq.training._weights import save_weights

    config = VarNetConfig(cascades=1, width=2, pools=1, sensitivity_width=2, sensitivity_pools=1)
    save_weights(VarNet(config), "net.safetensors", kind="varnet", config=config)
    Path("varnet.toml").write_text(VARNET)
    save_split(Split(("0",), ("1",), ("2",)), "split.json")
    _save_state({"step": 3, "loss": 0.5, "weights": VarNet(config).state_dict()},
               "resume.safetensors")  # fmt: skip
    for epoch in range(3):
        _log_epoch(Path("metrics.csv"), {"epoch": epoch, "loss": 1.0 / (1 + epoch)})
