"""Bundled demo experiment."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import taskuq
from taskuq._arrays import as_array
from taskuq._io import make_folder, write_json
from taskuq.conformal._diagnose import diagnose
from taskuq.data._atlas import Atlas, PatientDistribution, mask_box
from taskuq.data._dataset import Dataset
from taskuq.experiments._claims import (
    EXPERIMENTS,
    ClaimSettings,
    Log,
    StoredExample,
    make_inputs,
    run_experiments,
)
from taskuq.interval import BoolArray, FloatArray
from taskuq.measure._coils import rss
from taskuq.measure._mri import MaskConfig, MultiCoilMRI, SimulatedMRIScanner
from taskuq.pipeline._executor import Executor, pick_device
from taskuq.pipeline._pipeline import provenance
from taskuq.pipeline._progress import Progress
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._plan import plan
from taskuq.policy._policy import Policy
from taskuq.policy._simulate import simulate, simulation_record
from taskuq.protocols import Recover, Task
from taskuq.recover._methods import open_recovery
from taskuq.report._explorer import save_explorer
from taskuq.report._records import experiment_record
from taskuq.report._report import write_report
from taskuq.scan._acquire import ScanOptions, open_scan
from taskuq.scan._scanners import as_scanners
from taskuq.scan._state import Scan
from taskuq.table._examples import stored_quality
from taskuq.table._table import TaskOutputs
from taskuq.table._terminology import MRI
from taskuq.task import load
from taskuq.training._weights import locate

# A scan, and the explorer's arrays.
_Scanned = tuple[Scan, dict[str, Any]]


class _DemoNetworks(NamedTuple):
    sampler: Recover
    point: Recover
    task: Task


def _bundled_networks() -> _DemoNetworks:
    device = pick_device(None)
    return _DemoNetworks(
        open_recovery("sampler-atlas", device=device),
        open_recovery("varnet-atlas", device=device),
        load(locate("classifier-atlas")).to(device),
    )


def _scan_slice(
    data: Dataset, index: int, policy: Policy, networks: _DemoNetworks, masks: BoolArray,
    settings: DemoSettings, log: Log,
) -> _Scanned:  # fmt: skip
    item = data[index]
    rates = tuple(float(R) for R in policy.accelerations)
    samples: list[Tensor] = []
    executor = Executor(
        networks.sampler, networks.task, settings.seed,
        on_samples=lambda images, _: samples.append(images),
    )  # fmt: skip
    options = ScanOptions(
        on_round=lambda r: log(_sentence(item.case, r.acceleration, r.lower, r.upper, r.stop))
    )
    scanners = as_scanners(SimulatedMRIScanner(item.image, masks, rates), item.case, None)
    scan = open_scan(policy, scanners, executor, options).run()
    assert isinstance(scan, Scan)
    scanner = MultiCoilMRI(masks, rates)
    measurements = [scanner(item.image, R) for R in rates]
    for k in range(len(samples), len(rates)):
        executor.sample(measurements[k], item.case, rates[k], policy.samples)
    drawn = torch.stack([images.cpu() for images in samples[: len(rates)]])
    point = Executor(networks.point, networks.task)
    points = torch.cat([point.sample_with_seed(m, 1, 0).cpu() for m in measurements])
    outputs = [one.outputs for one in scan.rounds[: len(rates)]]
    outputs += [_numbers(executor.read(images)) for images in drawn[len(outputs) :]]
    truth = rss(item.image)
    return scan, {
        "case": item.case,
        "group": item.group,
        "label": int(item.label),
        "truth": truth.numpy(),
        "targets": float(_numbers(executor.read(truth[None]))[0]),
        "estimate": torch.stack([rss(m.zero_filled) for m in measurements]).numpy(),
        "mean": drawn.mean(1).numpy(),
        "sd": drawn.std(1).numpy(),
        "samples": drawn[:, : settings.shown].numpy(),
        "outputs": np.stack(outputs),
        "point": points.numpy(),
        "point_outputs": _numbers(executor.read(points)),
    }


def _numbers(values: Any) -> FloatArray:
    return as_array(values, "task outputs").astype(float)


def _sentence(case: str, R: float, lower: Any, upper: Any, stop: bool) -> str:
    ends = f"[{float(lower):.3f}, {float(upper):.3f}]"
    if R == 1:
        return f"{case}, R = 1: everything is measured, the output is {float(upper):.3f}"
    return f"{case}, R = {R:g}: {ends}, {'stop' if stop else 'measure more'}"


# Patients of the seed of the stored table, far beyond those it holds.
SEED, FIRST = 1, 1000
ALPHA, MAX_WIDTH = 0.1, 0.2


@dataclass(frozen=True)
class DemoSettings:
    patients: int = 2
    slices: int = 3
    shown: int = 8
    trials: int = 10_000  # splits of intervals
    simulations: int = 1_000  # splits of the policy, which learns anew in each
    replays: int = 50  # splits of every other stopping rule
    seed: int = 0

    @classmethod
    def fast(cls, seed: int = 0) -> DemoSettings:
        return cls(patients=1, slices=2, trials=100, simulations=100, replays=20, seed=seed)


def run_demo(
    settings: DemoSettings,
    folder: Path,
    *,
    stage: Log = lambda line: None,
    log: Log = lambda line: None,
    quiet: bool = True,
) -> Path:
    """Run the demo, write all results and the report, and return the report's path."""
    make_folder(folder)
    stage("1/4  Planning a stopping policy on a stored table of patients.")
    samples, point = TaskOutputs.load("atlas-sampler"), TaskOutputs.load("atlas-varnet")
    path = samples.save(folder / "table.npz")
    log(f"{path}: {samples!r}, made earlier on patients that no network was trained on.")
    policy = plan(samples, alpha=ALPHA, max_width=MAX_WIDTH, unit="group")
    policy.save(folder / "policy.json")
    log(f"The policy: {policy}")
    number = settings.patients * settings.slices
    stage(f"2/4  Scanning {number} slices of new patients, round by round.")
    with Progress(number, what="slices", quiet=quiet) as scanned:
        live, examples = _scan(settings, policy, samples, folder, log, scanned)
    write_json(folder / "records" / "live.json", live)
    stage(f"3/4  Evaluating the policy and the claims on {settings.simulations} random splits.")
    _judge(settings, samples, point, examples, folder, log, quiet)
    stage("4/4  Writing the report.")
    write_json(folder / "run.json", _run(settings, policy))
    return write_report(folder)


def _scan(
    settings: DemoSettings,
    policy: Policy,
    table: TaskOutputs,
    folder: Path,
    log: Log,
    progress: Progress,
) -> tuple[dict[str, Any], list[StoredExample]]:
    networks = _bundled_networks()
    data = Atlas(settings.patients, SEED, first=FIRST)
    masks = MaskConfig().masks(data.plan.size)
    per = data.plan.slices
    chosen = np.linspace(0, per - 1, settings.slices).astype(int)
    scanned = []
    for index in (k * per + int(s) for k in range(settings.patients) for s in chosen):
        scanned.append(_scan_slice(data, index, policy, networks, masks, settings, log))
        progress.step()
    save_explorer(
        folder / "explorer.npz",
        **{name: np.stack([shown[name] for _, shown in scanned]) for name in scanned[0][1]},
        accelerations=table.accelerations,
        masks=masks,
        calibration_outputs=table.outputs.transpose(1, 0, 2),
        calibration_targets=table.targets,
        calibration_group=table.group,
        calibration_label=table.label,
        task_range=table.task_range,
    )
    places = {name: index for index, name in enumerate(data.cases.tolist())}
    return _record(scanned, settings), [
        StoredExample(
            str(s["case"]), str(s["group"]), s["truth"], s["mean"], s["sd"], s["outputs"],
            s["targets"], s["point"], s["point_outputs"],
            mask_box(data.lesion_mask(places[s["case"]])),
        )
        for _, s in scanned
    ]  # fmt: skip


def _judge(
    settings: DemoSettings,
    samples: TaskOutputs,
    point: TaskOutputs,
    examples: list[StoredExample],
    folder: Path,
    log: Log,
    quiet: bool,
) -> None:
    goal, measured = Goal(max_width=MAX_WIDTH), MaskConfig()
    plans = [PolicySpec("fixed-width", ALPHA, goal)]
    plans += [PolicySpec("paper", ALPHA, goal, score=score) for score in ("lwr", "cqr")]
    simulation = simulate(
        samples, plans, splits=settings.simulations, seed=settings.seed, unit="group"
    )
    inputs = make_inputs(
        samples, point, published=True, masks=measured.masks(PatientDistribution().size),
        mask_accelerations=measured.accelerations, quality=stored_quality(),
        simulated=simulation, simulated_width=MAX_WIDTH, examples=examples,
    )  # fmt: skip
    claims = ClaimSettings(
        trials=settings.trials, round_trials=settings.replays, seed=settings.seed,
        stops_by_case=False,
    )  # fmt: skip
    with Progress(1 + len(list(EXPERIMENTS)), what="claims", quiet=quiet) as progress:
        pairs = [(samples.samples, one) for one in simulation]
        record = simulation_record(samples, goal, pairs, {"seed": settings.seed})
        write_json(folder / "simulate.json", record)
        write_json(folder / "diagnose.json", diagnose(samples).to_dict())
        progress.step()
        for record in run_experiments(inputs, claims, log=log):
            write_json(folder / "records" / f"{record['name']}.json", record)
            log(f"{record['title']}: {record['finding']}")
            progress.step()


def _record(scanned: Sequence[_Scanned], settings: DemoSettings) -> dict[str, Any]:
    rows = []
    for scan, shown in scanned:
        low, high, truth = *map(float, (scan.interval.lower, scan.interval.upper)), shown["targets"]
        contained = "yes" if low <= truth <= high else "no"
        rows.append([shown["case"], scan.acceleration, low, high, truth, contained])
    covered = sum(row[-1] == "yes" for row in rows)
    mean = len(rows) / sum(1 / scan.acceleration for scan, _ in scanned)
    return experiment_record(
        "live",
        "New patients, scanned now",
        f"The reported interval is at most {MAX_WIDTH:g} wide and contains the truth "
        f"with probability at least {1 - ALPHA:g} for a random slice of a new patient.",
        f"{covered} of {len(rows)} intervals contain the truth; the mean acceleration "
        f"(harmonic) is {mean:.2f}. A few slices illustrate the method; they do not test coverage.",
        {"alpha": ALPHA, "max_width": MAX_WIDTH, "seed": settings.seed},
        [],
        [
            {
                "name": "live",
                "caption": "Stop and reported interval of each scan.",
                "columns": ["slice", "stopped at R", "lower", "upper", "truth", "contained"],
                "rows": rows,
            }
        ],
        number=f"{covered} of {len(rows)} contain the truth",
    )


def _run(settings: DemoSettings, policy: Policy) -> dict[str, Any]:
    made = provenance({}, settings.seed)["made_by"]
    return {
        "schema": "taskuq.run/1",
        "title": "The bundled experiment",
        "what": {
            "data": "Synthetic brain slices with and without lesions (the bundled atlas, 128×128, "
            "8 coils). Calibration, evaluation and scanned patients are separate, and no network "
            "was trained on any of them.",
            "measure": "Nested Cartesian masks at R = 16, 8, 4, 2; every round adds lines.",
            "recover": "A variational network (point estimate) and a sampler trained by proper "
            "scores around its estimates (posterior samples), both bundled.",
            "task": "Probability that a slice shows a lesion, by a small residual network.",
        },
        "alpha": ALPHA,
        "max_width": MAX_WIDTH,
        "samples": policy.samples,
        "unit": "group",
        "classes": {"0": "no lesion", "1": "lesion"},
        "words": MRI.to_dict(),
        "seed": settings.seed,
        "versions": {
            "taskuq": taskuq.__version__,
            "python": platform.python_version(),
            **{k: v for k, v in made.items() if k not in ("taskuq", "python", "revision")},
        },
        "revision": made["revision"],
        "commands": ["taskuq demo -o runs/demo", "taskuq report runs/demo"],
    }
