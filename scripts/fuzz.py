"""Damaged files by the thousand: each ends in one sentence, or in the result of the whole file.

Every kind of file that the command line reads is changed at random, byte by byte and part by part,
and given to a command that reads it. An input is a fault where the command ends in a traceback,
computes for more than 10 seconds, waits for more than 60, or takes more than 2 GB of memory beyond
what it had, ends without a sentence, or, for files that carry checksums, succeeds with another
result than that of the whole file.

    python -m scripts.fuzz                        # 12,000 inputs
    python -m scripts.fuzz --inputs 400 --seed 7
    python -m scripts.fuzz --only 1234            # one of them again, with what the command said

The inputs depend on the seed and their number alone.
"""

import argparse
import gzip
import importlib
import io
import json
import multiprocessing
import os
import queue
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taskuq.fingerprints import sealed

# Seconds of computing, seconds of waiting, and bytes that no command may exceed.
SECONDS, PATIENCE, MEMORY = 10, 60, 2 * 2**30
ODD = (
    None, True, 0, -1, 3, 0.1, 1e308, 10**30, "", "abc", "inf", "nan", [], {}, [1, 2],
    {"name": "ar"}, float("inf"), float("nan"),
)  # fmt: skip
WORDS = (
    b"", b"nan", b"inf", b"-1", b"1e308", b"1" * 5000, b"=1+1", b"\0", b"\xff\xfe", b'"', b",",
    b"\n", b"../../x", b"/etc/passwd", b"a" * 5000, b"[" * 2000, b"true", "é".encode(),
)  # fmt: skip


class Dice:
    """Random choices from one seed."""

    def __init__(self, *seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, choices):
        """One of several."""
        return choices[int(self.rng.integers(len(choices)))]


def mutated(dice, content):
    """Bytes with some exchanged, dropped, doubled or cut off."""
    content = bytearray(content)
    for _ in range(int(dice.rng.integers(1, 5))):
        if not content:
            break
        at = int(dice.rng.integers(len(content)))
        match int(dice.rng.integers(5)):
            case 0:
                content[at] = int(dice.rng.integers(256))
            case 1:
                content[at] ^= 1 << int(dice.rng.integers(8))
            case 2:
                del content[at : at + int(dice.rng.integers(1, 20))]
            case 3:
                content[at:at] = content[at : at + int(dice.rng.integers(1, 20))]
            case 4 if dice.rng.random() < 0.2:
                del content[at:]
    return bytes(content)


def exchanged(dice, record):
    """A JSON record with one value anywhere in it replaced."""
    if isinstance(record, dict) and record and dice.rng.random() < 0.9:
        key = dice.pick(sorted(record))
        return record | {key: exchanged(dice, record[key])}
    if isinstance(record, list) and record and dice.rng.random() < 0.7:
        at = int(dice.rng.integers(len(record)))
        return [*record[:at], exchanged(dice, record[at]), *record[at + 1 :]]
    return dice.pick(ODD)


def forged(record):
    """With a checksum that is right again, so that what lies behind it is tried."""
    return sealed(record) if isinstance(record, dict) else record


def _json(dice, content):
    if dice.rng.random() < 0.4:
        return mutated(dice, content), True
    record = exchanged(dice, json.loads(content))
    is_forged = bool(dice.rng.random() < 0.6)
    return json.dumps(forged(record) if is_forged else record).encode(), not is_forged


def _text(dice, content):
    """Text with a word of it replaced by something odd."""
    if dice.rng.random() < 0.4:
        return mutated(dice, content), False
    ends = [0] + [i for i, c in enumerate(content) if c in b',\n "=[]'] + [len(content)]
    k = int(dice.rng.integers(len(ends) - 1))
    return content[: ends[k]] + dice.pick(WORDS) + content[ends[k + 1] :], False


def _archive(dice, content):
    """An archive whose members are damaged, exchanged or gone, with checksums that fit."""
    if dice.rng.random() < 0.4:
        return mutated(dice, content), True
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = dice.pick(sorted(members))
    match int(dice.rng.integers(4)):
        case 0:
            del members[name]
        case 1:
            members[name] = mutated(dice, members[name])
        case 2:
            members[name] = members[dice.pick(sorted(members))]
        case 3:
            odd = (np.array("x"), np.zeros((0, 3)), np.array([1j]), np.array([np.nan] * 3),
                   np.array([b"a"]), np.arange(3), np.zeros((2, 2, 2, 2, 2)), np.array(1e308),
                   np.zeros(3, "M8[s]"), np.zeros(2, [("a", int)]))  # fmt: skip
            file = io.BytesIO()
            np.save(file, dice.pick(odd))
            members[name] = file.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return packed.getvalue(), False


def _packed(dice, content):
    if dice.rng.random() < 0.4:
        return mutated(dice, content), False
    return gzip.compress(mutated(dice, gzip.decompress(content)), mtime=0), False


def _bytes(dice, content):
    return mutated(dice, content), True


@dataclass(frozen=True)
class Kind:
    """A kind of file, and the command that reads it.

    Arguments:
        file: Which file is changed.
        command: What is run then; paths are seen from the folder that holds all files.
        result: The file in which the command leaves its result; stdout where None.
        change: How content is changed; it says too whether a checksum still holds it.
        is_checked: Whether the file carries checksums at all.
    """

    file: str
    command: tuple[str, ...]
    result: str | None = None
    change: object = _bytes
    is_checked: bool = False


RUN = """
part = "all"
samples = 2
[data]
kind = "npz"
path = "images.npz"
coils = 2
[measure]
accelerations = [4, 2]
published = false
[recover]
kind = "folder"
path = "recoveries"
[task]
kind = "mean-intensity"
"""
VARNET = """
part = "all"
samples = 1
[data]
kind = "npz"
path = "images.npz"
coils = 2
[measure]
accelerations = [4, 2]
published = false
[recover]
kind = "varnet"
weights = "net.safetensors"
[task]
kind = "mean-intensity"
"""


def make(folder):
    """Write one whole file of each kind into a folder, and say which command reads which."""
    os.chdir(folder)
    _tables()
    _records()
    _images()
    _volumes()
    _networks()
    _scan()
    exact = ("--exact", "--acceleration", "8", "--json", "-")
    table = [("table/table.json", _json), ("table/_cases.parquet", _bytes), (_shard(), _bytes)]
    check = ("data", "check", "pictures", "--labels", "pictures/labels.csv", "--json", "-")
    scan = ("data", "check", "volumes", "--labels", "knee.csv", "--files", "list.csv",
            "--minimum-coils", "2", "--minimum-width", "8", "--size", "8", "--thorough",
            "--pathology", "Tear", "--json", "-")  # fmt: skip
    dry = ("run", "run.toml", "-o", "out", "--device", "cpu")
    net = ("run", "varnet.toml", "-o", "out", "--device", "cpu", "--dry-run")
    kinds = [Kind(f, ("evaluate", "table", *exact), None, how, True) for f, how in table]
    kinds += [
        Kind("table.npz", ("evaluate", "table.npz", *exact), None, _archive, True),
        Kind("table.csv", ("evaluate", "table.csv", "--exact", "--json", "-"), None, _text),
        Kind("table.parquet", ("evaluate", "table.parquet", "--exact", "--json", "-")),
        Kind("table/log.jsonl", ("status", "table", "--json", "-"), None, _text),
        Kind("table/table.json", ("status", "table", "--json", "-"), None, _json, True),
        Kind("bound.json", ("predict", "bound.json", "table", "-o", "out.csv"), "out.csv", _json,
             True),
        Kind("joint.json", ("predict", "joint.json", "both.npz", "-o", "out.csv"), "out.csv", _json,
             True),
        Kind("page/policy.json", ("report", "page"), None, _json),
        Kind("page/evaluate.json", ("report", "page"), None, _json),
        Kind("page/simulate.json", ("report", "page"), None, _json),
        Kind("page/status.json", ("report", "page"), None, _json),
        Kind("page/run.json", ("report", "page"), None, _json),
        Kind("page/bound.json", ("report", "page"), None, _json),
        Kind("page/table.npz", ("report", "page"), None, _archive),
        Kind("page/explorer.npz", ("report", "page"), None, _archive),
        Kind("masks.npz", ("experiment", "masks", "--masks", "masks.npz", "-o", "out"), None,
             _archive),
        Kind("quality.json", ("experiment", "recovery-quality", "--quality", "quality.json", "-o",
                              "out"), None, _json),
        Kind("images.npz", ("data", "check", "images.npz", "--json", "-"), None, _archive, True),
        Kind("images.npz", ("data", "sheet", "images.npz", "-o", "out.png"), None, _archive),
        Kind("pictures/labels.csv", check, None, _text),
        Kind("pictures/a.png", check), Kind("pictures/b.tif", check), Kind("pictures/c.nii", check),
        Kind("pictures/d.nii.gz", check, None, _packed), Kind("pictures/e.dcm", check),
        Kind("volumes/file1.h5", scan), Kind("knee.csv", scan, None, _text),
        Kind("list.csv", scan, None, _text),
        Kind("run.toml", (*dry, "--dry-run"), None, _text),
        Kind("recoveries/a/R4.npz", (*dry, "--dry-run"), None, _archive),
        Kind("recoveries/f/R4.npy", (*dry, "--dry-run")),
        Kind("recoveries/c/R4.nii", (*dry, "--dry-run")),
        Kind("net.safetensors", net), Kind("net.toml", net, None, _text),
        Kind("scan/log.jsonl", ("audit", "scan/log.jsonl"), None, _text),
        Kind("scan/scan.json", ("python", "scripts.fuzz:read_scan", "scan/scan.json"), None, _json,
             True),
        Kind("scan/scan.json-round0.npz", ("python", "scripts.fuzz:read_scan", "scan/scan.json"),
             None, _archive, True),
        # What a training reads when it goes on; the training itself would take too long.
        Kind("split.json", ("python", "taskuq.data.splits:load_split", "split.json"), None, _json,
             True),
        Kind("resume.safetensors", ("python", "taskuq.training.state:load_state",
                                    "resume.safetensors")),
        Kind("metrics.csv", ("python", "taskuq.training.log:read_log", "metrics.csv"), None, _text),
    ]  # fmt: skip
    return kinds


def _shard():
    return str(sorted(Path("table").glob("part-*.parquet"))[1])


def _tables():
    import taskuq as tq
    from taskuq.outputs.columns import write_roster
    from taskuq.outputs.shards import Header, TableWriter
    from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
    from taskuq.pipeline.log import RunLog

    made = synthetic_outputs(SyntheticScanner(volumes=8, samples=4), seed=0)
    made = made.select(accelerations=[8, 4], cases=np.arange(0, made.cases, 7))
    made.save("table.npz")
    header = Header(tuple(map(float, made.accelerations)), made.samples, order="roster",
                    task_range=made.task_range, provenance={"seed": 3})  # fmt: skip
    writer, case = TableWriter("table", header), [f"case {i}" for i in range(made.cases)]
    write_roster(Path("table"), [*case, "late"])
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
    from taskuq.commands.app import main
    from taskuq.files import write_json
    from taskuq.report.explorer import save_explorer

    Path("page").mkdir()
    table = tq.TaskOutputs.load("table.npz")
    table.save("page/table.npz")
    shutil.copy("bound.json", "page/bound.json")
    tq.plan(table, alpha=0.3, max_width=0.4).save("page/policy.json")
    write_json("page/run.json", {"schema": "taskuq.run/1", "title": "A run", "alpha": 0.3,
                                 "max_width": 0.4, "unit": "group"})  # fmt: skip
    # Not stderr: whatever they refuse is to be seen.
    with redirect_stdout(io.StringIO()):
        main(["evaluate", "table.npz", "--trials", "20", "--json", "page/evaluate.json"])
        main(["simulate", "table.npz", "--trials", "20", "--max-width", "0.4", "--json",
              "page/simulate.json", "--policy", "fixed-width,paper", "--statistic",
              "spread"])  # fmt: skip
        main(["status", "table", "--json", "page/status.json"])
        main(["masks", "--size", "32", "--accelerations", "8,4", "-o", "masks.npz"])
    picture = np.zeros((2, 2, 8, 8))
    save_explorer(
        "page/explorer.npz", case=["a", "b"], group=["x", "y"], accelerations=[8, 4],
        truth=picture[:, 0], zero_filled=picture, mean=picture, sd=picture,
        outputs=table.outputs[:, :2].transpose(1, 0, 2), targets=table.targets_at(0)[:2],
        calibration_outputs=table.outputs.transpose(1, 0, 2),
        calibration_targets=table.targets_at(0),
    )  # fmt: skip
    from taskuq.runs.stored import stored_quality

    write_json("quality.json", stored_quality())


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
    from taskuq.decide import load_acquisition

    scan = load_acquisition(path, tq.load_policy(path.with_name("policy.json")))
    return [one.to_dict() for one in scan.rounds], [np.asarray(p).tolist() for p in scan.pieces]


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
    _dicom(grey[3], "pictures/e.dcm")
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
    Path("run.toml").write_text(RUN)


def _dicom(image, path):
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
    file.BitsAllocated = file.BitsStored = 8
    file.HighBit, file.PixelRepresentation, file.NumberOfFrames = 7, 0, 1
    file.PixelData = image.tobytes()
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


def _networks():
    from taskuq.data.splits import Split, save_split
    from taskuq.recover.varnet import VarNet, VarNetConfig
    from taskuq.training.log import log_epoch
    from taskuq.training.state import save_state
    from taskuq.weights.files import save_weights

    config = VarNetConfig(cascades=1, width=2, pools=1, sensitivity_width=2, sensitivity_pools=1)
    save_weights(VarNet(config), "net.safetensors", kind="varnet", config=config)
    Path("varnet.toml").write_text(VARNET)
    save_split(Split(("0",), ("1",), ("2",)), "split.json")
    save_state({"step": 3, "loss": 0.5, "weights": VarNet(config).state_dict()},
               "resume.safetensors")  # fmt: skip
    for epoch in range(3):
        log_epoch(Path("metrics.csv"), {"epoch": epoch, "loss": 1.0 / (1 + epoch)})


class TooLongError(BaseException):
    """No command may take this long."""


@dataclass(frozen=True)
class End:
    """How a command ended."""

    status: object
    said: str
    result: str

    @property
    def fault(self):
        """What is wrong with it, or nothing."""
        if self.status not in (0, 1, 2):
            return str(self.status)
        if self.status and "made a mistake" in self.said:
            return "a mistake of ours"
        if self.status and "memory ran out" in self.said:
            return "too much memory"
        sentences = [line for line in self.said.splitlines() if line.startswith("taskuq: ")]
        if self.status and (not sentences or "Traceback" in self.said):
            return "no sentence"
        return ""


def call(words):
    """Run a command; or, for 'python', a function that reads a file, as a command would."""
    from taskuq.commands import app

    if words[0] != "python":
        app.main(list(words))
        return
    module, name = words[1].split(":")
    try:
        print(getattr(importlib.import_module(module), name)(Path(words[2])))
    except Exception as error:
        status, sentence = app._ending(error)
        sys.stderr.write(f"taskuq: {sentence}\n")
        sys.exit(status)


def ended(kind):
    """Run a kind's command here, and say how it ended."""
    out, said, status = io.StringIO(), io.StringIO(), 0
    shutil.rmtree("out", ignore_errors=True)
    if kind.result is not None:
        Path(kind.result).unlink(missing_ok=True)

    def stop(number, frame):
        raise TooLongError

    # A machine that others use may leave a command waiting; what it computes itself is counted.
    clocks = {
        signal.SIGPROF: (signal.ITIMER_PROF, SECONDS),
        signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE),
    }
    before = {number: signal.signal(number, stop) for number in clocks}
    for timer, seconds in clocks.values():
        signal.setitimer(timer, seconds)
    try:
        with redirect_stdout(out), redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("always")
            call(kind.command)
    except SystemExit as stopped:
        status = stopped.code or 0
    except TooLongError:
        status = f"more than {SECONDS} s"
    except BaseException as error:
        status = f"a traceback: {type(error).__name__}"
        said.write(traceback.format_exc())
    finally:
        for number, (timer, _) in clocks.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
    is_file = kind.result is not None and Path(kind.result).exists()
    result = Path(kind.result).read_text() if is_file else out.getvalue()
    return End(status, said.getvalue(), result)


def tried(kinds, whole, seed, number):
    """Change a file, run its command, and say what is wrong with the end; the file is restored."""
    kind, dice = kinds[number % len(kinds)], Dice(seed, number)
    path = Path(kind.file)
    content = path.read_bytes()
    changed, still_checked = kind.change(dice, content)
    path.write_bytes(changed)
    try:
        end = ended(kind)
    finally:
        path.write_bytes(content)
    fault = end.fault
    is_silent = "no sha256" not in end.said
    if kind.is_checked and still_checked and end.status == 0 and is_silent:
        fault = fault or ("" if end.result == whole[kind].result else "another result, silently")
    return fault, end


def limited():
    """Let memory beyond what is in use run out, so that whoever takes it is seen."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def work(folder, seed, numbers, answers):
    """Go through some of the inputs, and say of each before and after it what happened."""
    try:
        kinds = make(folder)
        whole = {kind: ended(kind) for kind in kinds}
        broken = {kind.file: end.said for kind, end in whole.items() if end.status != 0}
        if broken:
            answers.put(("broken", None, json.dumps(broken)))
            return
        limited()
        for number in numbers:
            answers.put(("begun", number, ""))
            fault, end = tried(kinds, whole, seed, number)
            kind = kinds[number % len(kinds)]
            what = "refused" if end.status else "read"
            said = f"{kind.file} ({' '.join(kind.command[:2])}): {fault}" if fault else kind.file
            answers.put(("fault" if fault else what, number, said))
        answers.put(("done", None, ""))
    except BaseException:
        answers.put(("broken", None, traceback.format_exc()))


def fuzz(inputs, seed=0, workers=1, tell=lambda line: None):
    """Go through inputs in processes of their own; return how they ended, and the faults."""
    context = multiprocessing.get_context("spawn")
    ends, faults = Counter(), []
    waiting = [list(range(k, inputs, workers)) for k in range(workers)]
    running = []
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or running:
            while waiting:
                numbers, answers = waiting.pop(), context.Queue()
                folder = tempfile.mkdtemp(dir=scratch)
                process = context.Process(target=work, args=(folder, seed, numbers, answers))
                process.start()
                running.append([process, answers, numbers, None, time.monotonic()])
            for job in running[:]:
                _listen(job, running, waiting, ends, faults, tell)
    return ends, faults


def _listen(job, running, waiting, ends, faults, tell):
    process, answers, numbers, begun, since = job
    try:
        what, number, said = answers.get(timeout=0.2)
    except queue.Empty:
        is_silent = time.monotonic() - since > (600 if begun is None else 2 * PATIENCE)
        if process.is_alive() and not is_silent:
            return
        process.kill()
        process.join()
        running.remove(job)
        if begun is None:
            raise SystemExit("a worker died before it began") from None
        faults.append((begun, "the process died" if not is_silent else "the process hung"))
        ends["fault"] += 1
        waiting.append([n for n in numbers if n > begun])
        return
    job[4] = time.monotonic()
    if what == "begun":
        job[3] = number
    elif what == "broken":
        raise SystemExit(f"a worker could not begin: {said}")
    elif what == "done":
        process.join()
        running.remove(job)
    else:
        ends[what] += 1
        if what == "fault":
            faults.append((number, said))
            tell(f"input {number}: {said}")
        if sum(ends.values()) % 1000 == 0:
            tell(f"{sum(ends.values())} inputs: {dict(ends)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", type=int)
    chosen = parser.parse_args()
    if chosen.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            kinds = make(folder)
            whole = {kind: ended(kind) for kind in kinds}
            fault, end = tried(kinds, whole, chosen.seed, chosen.only)
            print(kinds[chosen.only % len(kinds)], fault or "no fault", end.status, end.said)
        return
    ends, faults = fuzz(chosen.inputs, chosen.seed, chosen.workers, tell=print)
    print(f"{chosen.inputs} inputs: {dict(ends)}; {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
