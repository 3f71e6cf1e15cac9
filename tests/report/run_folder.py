"""A run's folder with everything in it, as an experiment would leave it; quick to make."""

import csv
from pathlib import Path

import numpy as np

import taskuq as tq
from taskuq._io import write_json
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.data._atlas import Atlas, PatientDistribution
from taskuq.measure._masks import nested_masks
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate, simulation_record
from taskuq.report._explorer import save_explorer
from taskuq.report._records import experiment_record
from taskuq.report._report import write_report
from taskuq.report.figures import Figure, Series
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs

HOSTILE = (
    "<script>alert('name')</script>",
    '"><img src=x onerror=alert(1)>',
    "</script></style></title><script>document.title='owned'</script>",
    "'; DROP TABLE cases; --",
    "{{ 7 * 7 }} ${7 * 7} {% raw %}",
    "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\U0001f9e0 & &lt;b&gt; \\u003cb\\u003e",
    "=HYPERLINK(1)\ttab",
)
RATES = (16.0, 8.0, 4.0, 2.0)


def pictures(slices, size=64, samples=4, seed=0):
    """Atlas slices, and samples around them that vary less from round to round."""
    rng = np.random.default_rng(seed)
    plan = PatientDistribution(size=size, slices=2)
    atlas = Atlas(patients=(slices + 1) // 2, seed=seed, coils=0, plan=plan)
    truth = np.concatenate([atlas.patient(k).images for k in range(atlas.patients)])[:slices]
    noise = rng.standard_normal((slices, len(RATES), samples, size, size)).astype(np.float32)
    drawn = np.abs(truth[:, None, None] + noise * np.reshape(RATES, (-1, 1, 1, 1)) / 100)
    return {
        "accelerations": RATES, "masks": nested_masks(size, RATES, seed=rng), "truth": truth,
        "estimate": drawn[:, :, 0] / 2, "mean": drawn.mean(2), "sd": drawn.std(2),
        "samples": drawn, "point": (drawn[:, :, 0] + truth[:, None]) / 2,
    }  # fmt: skip


def table_of(volumes=30, samples=16, seed=0):
    made = synthetic_outputs(SyntheticTable(volumes=volumes, samples=samples), seed=seed)
    names = [f"patient-{g:02d}" for g in made.group]
    return TaskOutputs(
        made.outputs, made.targets, made.accelerations, group=names, label=made.label,
        case=[f"slice-{i}" for i in range(made.cases)], task_names=("finding",),
        task_range=(0.0, 1.0), provenance={"synthetic": True}, missing_cases=("slice-9001",),
    )  # fmt: skip


def write_explorer(folder, table, slices=6, size=64, samples=4, **changes):
    """Show the last slices; calibrate on the groups that none of them belongs to."""
    shown = np.arange(table.cases)[-8 * slices :: 8][:slices]
    rest = np.flatnonzero(~np.isin(table.group, table.group[shown]))
    outputs = np.moveaxis(table.outputs, 0, 1)
    arrays = pictures(slices, size, samples) | {
        "case": table.case[shown], "group": table.group[shown], "label": table.label[shown],
        "outputs": outputs[shown], "targets": table.targets[shown],
        "point_outputs": outputs[shown].mean(axis=2),
        "calibration_outputs": outputs[rest], "calibration_targets": table.targets[rest],
        "calibration_group": table.group[rest], "calibration_label": table.label[rest],
        "task_range": (0.0, 1.0),
    }  # fmt: skip
    return save_explorer(folder / "explorer.npz", **(arrays | changes))


def write_run(folder, *, volumes=30, samples=16, trials=60, slices=6, size=64, shown=4):
    folder = Path(folder)
    table = table_of(volumes, samples)
    table.save(folder / "table.npz")
    write_explorer(folder, table, slices, size, shown)
    for unit in ("case", "group"):
        record = evaluate_table(table, EvaluationGrid(("ar", "lwr", "cqr", "mlwr"), splits=trials,
                                           unit=unit, alpha=0.1))  # fmt: skip
        write(folder / f"evaluate-by-{unit}.json", record.to_dict())
    goal = Goal(max_width=0.1)
    plans = [PolicySpec("paper", 0.1, goal, score="lwr"), PolicySpec("fixed-width", 0.1, goal),
             PolicySpec("adaptive", 0.1, goal, score="lwr")]  # fmt: skip
    found = simulate(table, plans, splits=trials, seed=0, unit="group")
    write(folder / "simulate.json", {
        "schema": "taskuq.simulate/1", "alpha": 0.1, "goal": goal.to_dict(), "unit": "group",
        "results": [{"samples": table.samples, **r.to_dict()} for r in found],
    })  # fmt: skip
    tq.plan(table, alpha=0.1, max_width=0.1).save(folder / "policy.json")
    tq.calibrate(
        table.outputs[1], table.targets, alpha=0.1, score="lwr", group=table.group,
        task_range=(0, 1), acceleration=8,
    ).save(folder / "bound-8.json")  # fmt: skip
    write_small_records(folder)
    write(folder / "run.json", {
        "schema": "taskuq.run/1", "title": "A synthetic run with atlas pictures",
        "what": {
            "data": "Task outputs are synthetic; pictures show atlas slices.",
            "measure": "Nested Cartesian masks at R = 16, 8, 4 and 2.",
            "recover": "What was measured, plus noise in what was not.",
            "task": "A latent logit of the truth.",
        },
        "alpha": 0.1, "max_width": 0.1, "samples": samples, "unit": "group", "seed": 0,
        "versions": {"taskuq": tq.__version__, "numpy": np.__version__}, "revision": "0123abc",
        "commands": ["taskuq demo --fast -o runs/demo"], "seconds": 42.0,
        "networks": [{"name": "classifier", "auroc": 0.94, "parameters": 123456}],
    })  # fmt: skip
    return folder


def write_small_records(folder):
    """Image quality, a task network, a split, an experiment, failures, and something unknown."""
    write(folder / "quality.json", {"schema": "taskuq.quality/1", "results": [
        {"acceleration": R, "method": method, "volumes": 9,
         "psnr": {"mean": base - 2 * k, "standard_error": 0.3},
         "ssim": {"mean": 0.96 - 0.02 * k, "standard_error": 0.004}}
        for method, base in (("varnet", 40.0), ("flow", 38.5))
        for k, R in enumerate(reversed(RATES))
    ]})  # fmt: skip
    curve = {"false": [0.0, 0.05, 0.2, 1.0], "true": [0.0, 0.7, 0.92, 1.0]}
    row = {"task": "finding", "auroc": 0.94, "cases": 400, "groups": 40, "accuracy": 0.9,
           "precision": 0.8, "recall": 0.7, "robust_accuracy": 0.6, "roc": curve,
           "reliability": [{"mean": 0.1, "positive": 0.12, "cases": 300},
                           {"mean": 0.8, "positive": 0.7, "cases": 100}]}  # fmt: skip
    write(folder / "task.json", {"schema": "taskuq.task/1", "parts": {"judge": [row]}})
    write(folder / "split.json", {"schema": "taskuq.split/1", "train": ["a", "b", "c"],
                                  "tune": ["d"], "judge": ["e", "f"]})  # fmt: skip
    figure = Figure("against-p", "More samples make shorter intervals.", "samples p", "width",
                    (Series("cqr", (4, 8, 16), (0.31, 0.28, 0.27), (0.02, 0.02, None)),),
                    x_scale="log2")  # fmt: skip
    write(folder / "experiments/samples.json", experiment_record(
        "samples", "How many samples are enough", "More samples help CQR.",
        "From 4 to 16 samples the width falls by 13 %.", {"alpha": 0.1, "scores": ["cqr"]},
        [figure],
        [{"name": "widths", "caption": "Widths.", "columns": ["p", "width"],
          "rows": [[4, 0.31], [8, 0.28], [16, 0.27]]}],
    ))  # fmt: skip
    failed = {"slice-9001": "ran out of memory"}
    write(folder / "status.json", {"schema": "taskuq.status/1", "cases": 3, "finished": 1,
                                   "failed": failed, "left": 2})  # fmt: skip
    write(folder / "later.json", {"schema": "taskuq.later/7"})


def write(path, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def write_hostile(folder):
    """A run whose every name tries to be something else."""
    made = table_of(volumes=12, samples=4)
    n = made.cases
    table = TaskOutputs(
        made.outputs, made.targets, made.accelerations,
        case=[f"{HOSTILE[i % 8]}{i if i >= 8 else ''}" for i in range(n)],
        group=[HOSTILE[int(g[-2:]) % 8] for g in made.group],
        label=[HOSTILE[i % 2] for i in range(n)], task_names=(HOSTILE[0],), task_range=(0, 1),
        missing_cases=HOSTILE,
    )  # fmt: skip
    table.save(folder / "table.npz")
    write_explorer(
        folder, table, slices=8, size=16, samples=2, case=HOSTILE, group=HOSTILE, label=HOSTILE
    )
    tq.plan(table, alpha=0.2, max_width=0.2, unit="case").save(folder / "policy.json")
    series = tuple(Series(name, (name, "b"), (0.1, 0.2), style="bars") for name in HOSTILE)
    figure = Figure(HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[3], series, x_scale="category",
                    reference=((HOSTILE[4], 0.15),))  # fmt: skip
    record = experiment_record(
        HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[5], dict(zip(HOSTILE, HOSTILE, strict=True)),
        [figure], [{"name": HOSTILE[2], "caption": HOSTILE[0], "columns": HOSTILE[:2],
                    "rows": [HOSTILE[2:4]]}],
    )  # fmt: skip
    write(folder / "experiment.json", record)
    write(folder / "run.json", {
        "schema": "taskuq.run/1", "title": HOSTILE[2], "what": dict.fromkeys(HOSTILE, HOSTILE[1]),
        "versions": dict.fromkeys(HOSTILE, HOSTILE[0]), "revision": HOSTILE[1], "seed": HOSTILE[0],
        "commands": list(HOSTILE), "unit": HOSTILE[0], "alpha": 0.2, "max_width": 0.2,
        "networks": [{"name": HOSTILE[1], HOSTILE[0]: HOSTILE[2]}],
    })  # fmt: skip
    write(folder / "other.json", {"schema": HOSTILE[0]})
    write_report(folder)
    return folder


GOAL = Goal(max_width=0.1)


def write_simulation(path, table, plans, **asked):
    asked = {"unit": "group", "delta": None, **asked}
    rng = np.random.default_rng(0)
    found = simulate(table, plans, splits=5, seed=rng, **asked)
    pairs = [(table.samples, one) for one in found]
    write(path, simulation_record(table, plans[0].goal, pairs, asked))


def rows_of(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))
