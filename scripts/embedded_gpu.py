r"""Everything of the embedded experiment that needs a GPU, in one call of minutes.

    taskuq data atlas-base -o base.npz                         # where nilearn is installed
    TASKUQ_ATLAS_BASE=base.npz python scripts/embedded_gpu.py OUT SECONDS \
        [--lgg FOLDER] [--networks FOLDER]

Trains the atlas's variational network for about SECONDS, then the flow around its estimates for as
long, fills the two tables (flow with 32 samples, variational network) on patients that nothing was
trained on, and judges both networks. With a folder that scripts/lgg.py made, the same for real
slices at the same time, task network included. Networks that are there already, in OUT-work or in
the atlas and lgg folders of --networks, are not trained again. OUT receives weights-*.tar (the
recovery networks in float16, with cards) and records.tar (tables, learning curves, judgements),
renewed after every stage; everything is in OUT-work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
CONFIGS = ROOT / "configs"
NETWORKS = ("varnet", "flow")
# Into how many processes a table is split: drawing atlas patients keeps a CPU core busy.
PROCESSES = {"atlas-flow": 6, "atlas-varnet": 2, "lgg-flow": 2, "lgg-varnet": 1}
TASKS = ("classifier", "plain")
TRAINED = {name: f"{name}/best.safetensors" for name in TASKS}
BEGIN = time.monotonic()

Job = tuple[str, str, str]


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGIN:5.0f} s] {text}", flush=True)


def main(out: Path, seconds: float, lgg: Path | None, networks: Path | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    work = out.parent / f"{out.name}-work"
    if networks is not None:
        shutil.copytree(networks, work, dirs_exist_ok=True)
    sets = ["atlas"] if lgg is None else ["atlas", "lgg"]
    for name in sets:
        (work / name).mkdir(parents=True, exist_ok=True)
    first: list[Job] = [("recovery", s, "varnet") for s in sets]
    first += [("task", "lgg", "classifier")] if lgg else []
    for jobs in (first, [("recovery", s, "flow") for s in sets]):
        missing = [job for job in jobs if not is_trained(work, job)]
        side_by_side(missing, work, seconds, lgg)
        pack(out, work)
    parts = [(s, k, i) for s in sets for k in NETWORKS for i in range(PROCESSES[f"{s}-{k}"])]
    side_by_side([("table", s, f"{k}:{i}") for s, k, i in parts], work, seconds, lgg)
    for which in sets:
        for kind in NETWORKS:
            join_tables(work / which, kind, PROCESSES[f"{which}-{kind}"])
    pack(out, work)
    side_by_side([("quality", s, "both") for s in sets], work, seconds, lgg)
    pack(out, work)
    for name in sets:
        show(work / name / "quality.json")
    say("done")


def is_trained(work: Path, job: Job) -> bool:
    kind, which, network = job
    files = [f"{network}.safetensors"] if kind == "recovery" else list(TRAINED.values())
    return all((work / which / file).exists() for file in files)


def side_by_side(jobs: Sequence[Job], work: Path, seconds: float, lgg: Path | None) -> None:
    # Small networks leave most of a GPU idle.
    rest = [str(work), str(seconds), str(lgg or "")]
    running = [subprocess.Popen([sys.executable, __file__, "job", *job, *rest]) for job in jobs]
    failed = [job for job, process in zip(jobs, running, strict=True) if process.wait()]
    say(f"{len(jobs)} jobs, failed: {failed or 'none'}")


def do(kind: str, which: str, network: str, work: Path, seconds: float, lgg: Path | None) -> None:
    import torch

    torch.set_num_threads(1)
    begin = time.monotonic()
    folder = work / which
    if kind == "recovery":
        train_recovery(which, network, folder, seconds, lgg)
    elif kind == "task":
        train_task(folder, lgg)
    elif kind == "table":
        name, part = network.split(":")
        fill_table(which, name, int(part), folder, lgg)
    else:
        judge_quality(which, folder, lgg)
    say(f"{kind} {which} {network}: {time.monotonic() - begin:.0f} s")


def train_recovery(which: str, kind: str, folder: Path, seconds: float, lgg: Path | None) -> None:
    from scripts.shipping import train_one

    from taskuq.settings import read_settings
    from taskuq.training.networks import NETWORKS as LISTED

    settings = read_settings(LISTED[kind].training, CONFIGS / which / f"{kind}.toml")
    if lgg is not None and which == "lgg":
        settings = replace(settings, data=replace(settings.data, path=lgg / "lgg-training.npz"))
    if kind == "flow":
        settings = replace(settings, estimate=folder / "varnet.safetensors")
    train_one(kind, settings, folder, seconds, say=say)


def train_task(folder: Path, lgg: Path | None) -> None:
    """Plain training, then adversarial training from there."""
    from taskuq.settings import read_settings
    from taskuq.task.backbone import StartConfig
    from taskuq.task.classifier_training import ClassifierTraining
    from taskuq.training.fit import Machine, train

    assert lgg is not None
    for name, config in (("plain", "classifier-plain"), ("classifier", "classifier-adversarial")):
        settings = read_settings(ClassifierTraining, CONFIGS / "lgg" / f"{config}.toml")
        settings = replace(
            settings,
            data=replace(settings.data, path=lgg / "lgg-training.npz"),
            split=replace(settings.split, path=None),
        )
        if name == "classifier":
            settings = replace(settings, start=StartConfig(classifier=folder / TRAINED["plain"]))
        train(settings, folder / name, machine=Machine(progress=False), fresh=True)
        say(f"lgg: {name} task network trained")


def fill_table(which: str, kind: str, part: int, folder: Path, lgg: Path | None) -> None:
    import torch

    from taskuq.data.dataset import Subset
    from taskuq.runs.run import open_run, read_run

    # As on a CPU: no shortened products.
    torch.backends.cudnn.allow_tf32 = False
    config = read_run(CONFIGS / which / f"table-{kind}.toml")
    trained = {"weights": folder / f"{kind}.safetensors"}
    if kind == "flow":
        trained["estimate"] = folder / "varnet.safetensors"
    config = replace(config, recover=replace(config.recover, **trained))
    names = [("", config.task.weights)]
    if lgg is not None and which == "lgg":
        config = replace(config, data=replace(config.data, path=lgg / "lgg-judged.npz"))
        names = [(f"-{n}", folder / TRAINED[n]) for n in TASKS]
    for suffix, weights in names:
        config = replace(config, task=replace(config.task, weights=weights))
        run = open_run(config)
        edges = [len(run.images) * k // PROCESSES[f"{which}-{kind}"] for k in (part, part + 1)]
        begin = time.monotonic()
        table = run.pipeline.run(
            Subset(run.images, range(*edges)),
            accelerations=config.measure.accelerations,
            samples=config.samples,
            seed=config.seed,
            quiet=True,
        )
        say(f"{which} {kind}{suffix}:{part}: {table} in {time.monotonic() - begin:.0f} s")
        table.save(folder / f"part-{kind}{suffix}-{part}.npz")


def join_tables(folder: Path, kind: str, parts: int) -> None:
    import numpy as np

    from taskuq.outputs import TaskOutputs

    for suffix in ("", *(f"-{name}" for name in TASKS)):
        files = [folder / f"part-{kind}{suffix}-{part}.npz" for part in range(parts)]
        if not all(file.exists() for file in files):
            continue
        tables = [TaskOutputs.load(file) for file in files]
        fields = {
            name: np.concatenate([getattr(table, name) for table in tables])
            for name in ("targets", "label", "group", "case")
        }
        whole = TaskOutputs(
            np.concatenate([table.outputs for table in tables], axis=1),
            accelerations=tables[0].accelerations,
            task_names=tables[0].task_names,
            task_range=tables[0].task_range,
            provenance=tables[0].provenance,
            **fields,
        )
        say(f"{whole} saved as {whole.save(folder / f'table-{kind}{suffix}.npz').name}")
        for file in files:
            file.unlink()


def judge_quality(which: str, folder: Path, lgg: Path | None) -> None:
    from taskuq.recover.flow_training import FlowTraining
    from taskuq.runs.quality import QualityConfig, judge
    from taskuq.settings import read_settings

    settings = read_settings(FlowTraining, CONFIGS / which / "flow.toml")
    data = settings.data
    if lgg is not None and which == "lgg":
        data = replace(data, path=lgg / "lgg-judged.npz", validation=0.5)
    else:
        data = replace(data, patients=24, seed=2, validation=0.5)  # patients of a third seed
    weights = {kind: folder / f"{kind}.safetensors" for kind in NETWORKS}
    config = QualityConfig(
        data=data, measure=settings.measure, estimate=weights["varnet"], **weights
    )
    record = judge(config)
    (folder / "quality.json").write_text(json.dumps(record, indent=1))


def pack(out: Path, work: Path) -> None:
    """What is there so far, in a few files."""
    for which in ("atlas", "lgg"):
        files = [work / which / f"{k}.{e}" for k in NETWORKS for e in ("safetensors", "toml")]
        _tar(out / f"weights-{which}.tar", files, work)
    patterns = ("*/*.csv", "*/table-*.npz", "*/quality.json", "lgg/*/metrics.csv")
    _tar(out / "records.tar", [path for pattern in patterns for path in work.glob(pattern)], work)


def _tar(target: Path, files: Sequence[Path], root: Path) -> None:
    found = [path for path in files if path.exists()]
    if found:
        with tarfile.open(target, "w") as tar:
            for path in found:
                tar.add(path, str(path.relative_to(root)))


def show(path: Path) -> None:
    if not path.exists():
        return
    record = json.loads(path.read_text())
    pooled = record.get("spread_error_pooled", float("nan"))
    print(f"{path.parent.name}: spread and error of all pixels {pooled:.3f}")
    for row in record["results"]:
        numbers: dict[str, Any] = {k: row[k]["mean"] for k in ("psnr", "ssim")}
        for name in ("correlation", "blocks", "ratio"):
            numbers[f"spread-error {name}"] = row.get(f"spread_error_{name}", float("nan"))
        print(
            f"{path.parent.name:6s} R={row['acceleration']:<5g} {row['method']:12s}",
            *(f"{k} {v:7.3f}" for k, v in numbers.items()),
            f"rejected {row['rejected']}",
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        kind, which, network, work, seconds, lgg = sys.argv[2:]
        do(kind, which, network, Path(work), float(seconds), Path(lgg) if lgg else None)
    else:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("out", type=Path)
        parser.add_argument("seconds", type=float)
        parser.add_argument("--lgg", type=Path)
        parser.add_argument("--networks", type=Path)
        main(**vars(parser.parse_args()))
