"""Table and CSV file that compare posterior samplers on the same test patients.

    python -m studies.compare draw FOLDER NAME WEIGHTS... --data TEST.npz --tasks TASK...
    python -m studies.compare judge FOLDER [--into docs/results/samplers.md]

``draw`` writes a table of task outputs for each task network and seed, and image quality and costs
of a network, or of several as an ensemble; seeds that are there are skipped, costs are measured
anew. Milliseconds are those of all samples of a slice and of the first task network; parameters and
minutes (all epochs at the pace of the fastest) those of the named networks and folders. ``judge``
writes samplers.csv and samplers.svg next to the page, or to the folder: figures on all slices of
each sampler, and on those common to all samplers. Standard errors are over patients.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from studies.paper import markdown, put

import taskuq as tq
from taskuq.data import NpzData, open_all
from taskuq.errors import GuaranteeWarning
from taskuq.measure import MaskConfig, MultiCoilMRI, rss
from taskuq.recover import RECOVERIES, load, open_recovery
from taskuq.task import TASKS

RATES, GOALS = (16.0, 8.0, 4.0, 2.0), ((0.05, 0.1), (0.1, 0.1), (0.1, 0.2))
COLUMNS = ("sampler", "slices", "task", "figure", "at", "value", "standard error")
PARTS = {"crps": "CRPS", "outside": "outside all samples", "spread_over_error": "spread/error"}
# Slices of one call (the sampler's CUDA graph has 16); slices timed alone, the first of which warm
# up; bars of a rank histogram.
BATCH, TIMED, WARM_UP, BINS = 16, 23, 3, 8


def chosen_rows(groups, slices):
    """Return the rows of all slices, or of some that are spread over each patient."""
    if slices is None:
        return np.arange(len(groups))
    of_group = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    places = (np.arange(slices) + 0.5) / slices
    return np.unique([found[int(p * len(found))] for found in of_group for p in places])


@torch.no_grad()
def draw(given):
    """Write the tables, image quality and costs of one sampler."""
    import studies.baselines  # noqa: F401  # registers the diffusion prior

    members, device, samples = tuple(given.weights), given.device, given.samples
    recover = open_recovery(members[0], device=device)
    if len(members) > 1:
        recover = RECOVERIES["ensemble"](members=members).open(device)
    tasks = {p.parent.name: TASKS["classifier"](weights=p).open(device) for p in given.tasks}
    cases = open_all(NpzData(path=given.data, coils=given.coils))
    rows = chosen_rows(cases.groups, given.slices)
    images = torch.stack([cases[int(row)].image for row in rows]).to(device)
    masks = MaskConfig(RATES, path=given.masks).masks(images.shape[-1])
    scanner, truths = MultiCoilMRI(masks, RATES), rss(images)

    def sample(k, chosen, seed):
        scans = [scanner(images[case], RATES[k]) for case in chosen]
        seeds = [len(cases) * seed + int(rows[case]) for case in chosen]
        found, times = [], [time.perf_counter()]
        if hasattr(recover, "batch"):
            x = recover.batch(scans, samples=samples, seeds=seeds)
        else:
            pairs = zip(scans, seeds, strict=True)
            x = torch.stack([recover(y, samples=samples, seed=one) for y, one in pairs])
        for task in tasks.values():
            found.append(task(x.flatten(0, 1)).view(len(chosen), samples).cpu().numpy())
            times.append(time.perf_counter())
        return x, found, times[1] - times[0]

    given.folder.mkdir(parents=True, exist_ok=True)
    logs = [log for p in members for log in p.parent.rglob("metrics.csv")]
    epochs = [[float(e["seconds"]) for e in csv.DictReader(log.open())] for log in logs]
    alone = [sample(0, [case], 0)[2] for case in range(min(TIMED, len(rows)))]
    cost = {
        "ms": 1e3 * float(np.median(alone[WARM_UP:])),
        "parameters": sum(w.numel() for p in members for w in load(p).parameters()),
        "minutes": sum(len(seconds) * min(seconds) for seconds in epochs) / 60,
    }
    (given.folder / f"{given.name}.json").write_text(json.dumps(cost))
    print(f"{given.name}: {cost['ms']:.3g} ms", flush=True)
    for seed in range(given.seeds):
        path, shape = given.folder / f"{given.name}.{seed}.json", (len(RATES), len(rows))
        if path.exists():
            continue
        outputs, quality = np.empty((len(tasks), *shape, samples)), np.empty((4, *shape))
        for k, first in itertools.product(range(len(RATES)), range(0, len(rows), BATCH)):
            chosen = [*range(first, min(first + BATCH, len(rows)))]
            x, outputs[:, k, chosen], _ = sample(k, chosen, seed)
            truth, spread = truths[chosen], x.var(1).mean((1, 2)) * (1 + 1 / samples)
            errors = [(y - truth).square().mean((1, 2)) for y in (x.mean(1), x[:, 0])]
            decibels = [10 * torch.log10(truth.amax((1, 2)) ** 2 / error) for error in errors]
            quality[:, k, chosen] = torch.stack([*decibels, spread, errors[0]]).cpu()
        columns = {"group": cases.groups[rows], "label": cases.labels[rows]}
        for (name, task), values in zip(tasks.items(), outputs, strict=True):
            targets = task(truths).cpu().numpy()
            table = tq.TaskOutputs(values, targets, RATES, task_range=(0.0, 1.0), **columns)
            table.save(given.folder / f"{given.name}.{name}.{seed}.npz")
        record = {"tasks": list(tasks), "rows": rows.tolist(), "quality": quality.tolist()}
        path.write_text(json.dumps(record))


def jackknife(statistic, group):
    """Return a statistic of all slices, and its standard error over patients."""
    kept = [np.ones(len(group), bool), *(group != name for name in np.unique(group))]
    value, *others = [float(statistic(one)) for one in kept]
    return value, float(np.std(others) * (len(others) - 1) ** 0.5)


def figures(quality, task, table, splits):
    """Yield task, name, place, value and standard error of each figure of one table."""
    mean, single, spread, error = quality
    for k, R in enumerate(RATES):
        at = f"R = {R:g}"
        for name, values in (("PSNR of mean", mean[k]), ("PSNR of sample", single[k])):
            yield "", name, at, *jackknife(lambda kept, x=values: x[kept].mean(), table.group)
        pair = spread[k], error[k]
        ratio = jackknife(lambda kept, x=pair: x[0][kept].sum() / x[1][kept].sum(), table.group)
        yield "", "image spread/error", at, ratio[0] ** 0.5, ratio[1] / (2 * ratio[0] ** 0.5)
        found = tq.evaluate(table, acceleration=R, alpha=0.05, score="mlwr", splits=splits, seed=0)
        yield task, "width", at, found.width.mean, np.nan
    for one in tq.diagnose(table, bins=BINS).results:
        of_class = "" if one.label is None else f" of class {one.label}"
        for field, quantity in PARTS.items():
            part = getattr(one, field)
            yield task, quantity + of_class, str(one.round), part.value, part.se
        for bar in one.histogram if one.label is None else ():
            at = f"{one.round}, {bar.first} to {bar.last}"
            yield task, "rank histogram / uniform", at, bar.fraction / bar.expected, np.nan
    for (alpha, width), unit in ((goal, unit) for goal in GOALS for unit in ("case", "group")):
        goal = {"alpha": alpha, "max_width": width, "unit": unit}
        (one,) = tq.simulate(table, ["fixed-width"], **goal, splits=splits, seed=0)
        at, errors = f"{alpha:g}, {width:g}, by {unit}", one.standard_errors
        yield task, "mean R", at, one.mean_acceleration, errors["mean_acceleration"]
        yield task, "coverage", at, one.coverage, errors["coverage"]
        for part in one.class_coverage:
            values = part["coverage"], part["standard_error"]
            yield task, f"coverage of class {part['class']}", at, *values


def crps(table):
    """Return the CRPS of each case in each round."""
    x, p = np.sort(table.outputs, axis=-1), table.outputs.shape[-1]
    pairs = x @ (2 * np.arange(p) - p + 1) / (p * (p - 1))
    return np.abs(x - table.targets[:, None]).mean(-1) - pairs


def judge(folder, splits, into):
    """Average over the seeds of samples, and write the CSV file and the table."""
    values, costs, scores = {}, {}, {}
    # A patient has several slices, and goals by slice are wanted too.
    warnings.simplefilter("ignore", GuaranteeWarning)
    records = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*.*.json"))}
    common = set.intersection(*(set(record["rows"]) for record in records.values()))
    several = 1 + any(len(record["rows"]) > len(common) for record in records.values())
    for path, record in records.items():
        name, seed, _ = path.name.rsplit(".", 2)
        costs[name] = json.loads((folder / f"{name}.json").read_text())
        quality, shared = np.array(record["quality"]), np.isin(record["rows"], list(common))
        parts = (("all", shared | True), ("common", shared))[:several]
        for task, (slices, kept) in itertools.product(record["tasks"], parts):
            table = tq.TaskOutputs.load(folder / f"{name}.{task}.{seed}.npz").select(cases=kept)
            for *key, value, error in figures(quality[:, :, kept], task, table, splits):
                values.setdefault((name, slices, *key), []).append((value, error))
            if slices == parts[-1][0]:
                scores.setdefault((task, name), []).append(crps(table))
    for (task, one), (other, two) in itertools.combinations(scores, 2):
        gaps = np.mean(scores[task, one], 0) - np.mean(scores[other, two], 0)
        for R, gap in zip(RATES, gaps, strict=True) if task == other else ():
            pair = jackknife(lambda kept, x=gap: x[kept].mean(), table.group)
            values[one, slices, task, f"CRPS minus that of {two}", f"R = {R:g}"] = [pair]
    path = (into.parent if into else folder) / "samplers.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for name, cost in costs.items():
            for key in ("parameters", "minutes", "ms"):
                rows.writerow((name, "", "", key, "", f"{cost[key]:.4g}", ""))
        for key, pairs in values.items():
            rows.writerow((*key, *("" if np.isnan(v) else f"{v:.4g}" for v in np.mean(pairs, 0))))
    columns, lines = summary(path)
    figure(lines, path.with_suffix(".svg"))
    table = markdown(columns, lines)
    put(table, into, "samplers") if into else print(table)


def summary(path):
    """Return columns and rows of the table on the page; it has the first task network only."""
    with path.open(newline="") as file:
        lines = [tuple(row.values()) for row in csv.DictReader(file)]
    found = {line[:5]: line[5:] for line in lines}
    task = next(line[2] for line in lines if line[2])
    parts = list(dict.fromkeys(line[1] for line in lines if line[1]))
    at, rows = f"{GOALS[0][0]:g}, {GOALS[0][1]:g}, by group", []
    for name in dict.fromkeys(line[0] for line in lines):
        cost = [float(found[name, "", "", key, ""][0]) for key in ("parameters", "minutes", "ms")]
        crps = [v[0] for key, v in found.items() if key[:4] == (name, parts[-1], task, "CRPS")]
        pairs = [found[name, slices, task, "mean R", at] for slices in parts]
        rows.append([
            name, f"{cost[0] / 1e6:.1f}", f"{cost[1]:.1f}", f"{float(f'{cost[2]:.3g}'):g}",
            " ".join(f"{float(v):.3f}" for v in crps),
            *(f"{float(v):.2f} ± {float(error):.2f}" for v, error in pairs),
            f"{float(found[name, 'all', task, 'coverage', at][0]):.3f}",
        ])  # fmt: skip
    columns = ["sampler", "million parameters", "minutes", "ms", f"CRPS, {parts[-1]} slices"]
    return [*columns, *(f"mean R, {one} slices" for one in parts), "coverage"], rows


def figure(rows, path):
    """Plot the mean acceleration against the time of a slice."""
    axes = (canvas := Figure(figsize=(7, 3.6), layout="constrained")).subplots()
    times = [float(row[3]) for row in rows]
    for row, milliseconds, marker in zip(rows, times, itertools.cycle("osD^v<>Pp*h"), strict=False):
        value, error = map(float, row[-2].split(" ± "))
        axes.errorbar(milliseconds, value, error, fmt=marker, capsize=3, label=row[0])
    axes.set(xscale="log", xlim=(min(times) / 3, 3 * max(times)), ylabel="mean acceleration")
    axes.set_xlabel("milliseconds for all samples of a slice")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    canvas.savefig(path, metadata={"Date": None})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    one, two = parts.add_parser("draw"), parts.add_parser("judge")
    for each in (one, two):
        each.add_argument("folder", type=Path)
    one.add_argument("name")
    one.add_argument("weights", type=Path, nargs="+")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--tasks", type=Path, nargs="+", required=True)
    one.add_argument("--masks", type=Path, help="mask file of taskuq masks --learn")
    one.add_argument("--slices", type=int, help="slices of each patient; default: all")
    for name, value in {"coils": 4, "samples": 32, "seeds": 1}.items():
        one.add_argument(f"--{name}", type=int, default=value)
    one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    two.add_argument("--splits", type=int, default=200)
    two.add_argument("--into", type=Path, help="page whose table is replaced")
    given = parser.parse_args(arguments)
    return draw(given) if given.part == "draw" else judge(given.folder, given.splits, given.into)


if __name__ == "__main__":
    main()
