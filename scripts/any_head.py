r"""Draws of recovery networks for heads, masks, coils and noise that they were not made for.

    python -m scripts.any_head [varnet-atlas sampler-atlas ...] [--draws 1000] [--seed 0]
        [--device cuda] [--json any-head.json] [--into docs/recovery.md]
    python -m scripts.any_head --from any-head.json --into docs/recovery.md

Each input is a slice of the atlas in one of three contrasts, cut to a random size, seen by 1 to 20
coils through a random mask between R = 2 and 16, with or without noise; one of ten is all zeros,
noise alone, a constant, or a slice in numbers that are very large or very small. Eight samples are
drawn of each. Prints, or puts into a document, for each network how many draws were finite, how
many agree with what was measured to 1e-5 of its largest number, how many were rejected, and how
many inputs ended in an error. A point estimate is one draw of an input, and a network that shows no
coil images cannot be asked whether it agrees.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from scripts.paper import put
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.data.atlas import Atlas
from taskuq.data.patient import PatientPlan
from taskuq.errors import InputError
from taskuq.files import write_json
from taskuq.measure.mri import Measurement
from taskuq.measure.noise import complex_noise
from taskuq.measure.projections import keep_measured
from taskuq.measure.random_masks import RandomMasks
from taskuq.measure.sensitivity import random_phases, random_sensitivities
from taskuq.recover import open_recovery
from taskuq.recover.scan import DrawsCoilImages, unit_sized

SAMPLES = 8
SIZES = tuple(range(48, 193, 16))
SNR = (0.0, 60.0)


def heads(seed: int) -> Tensor:
    """Slices (case, height, width) of patients whom no network was trained on."""
    plan = PatientPlan(slices=4, contrast="mixed")
    atlas = Atlas(8, seed=1000 + seed, coils=0, plan=plan)
    return torch.stack([atlas[k].image for k in range(len(atlas))])


def cut(image: Tensor, height: int, width: int) -> Tensor:
    """The middle of an image, or the image in the middle."""
    rows, columns = height - image.shape[0], width - image.shape[1]
    top, left = rows // 2, columns // 2
    return F.pad(image, (left, columns - left, top, rows - top))


def measured(images: Tensor, seed: int) -> tuple[str, Measurement]:
    """One random input, and what it is."""
    generator = torch.Generator().manual_seed(seed)

    def choose(options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=generator))]

    height, width, coils = choose(SIZES), choose(SIZES), choose(range(1, 21))
    head = cut(choose(images), height, width)
    maps = random_sensitivities(1, coils, height, width, generator)[0]
    seen = head * random_phases(1, height, width, generator) * maps
    noise = complex_noise(seen, generator)
    low, high = SNR
    decibels = low + (high - low) * float(torch.rand((), generator=generator))
    deviation = 10 ** (-decibels / 20) * float(head.square().mean().sqrt())
    what = choose(("head", "noisy head")) if seed % 10 else choose(tuple(SPECIAL))
    seen = SPECIAL[what](seen, noise) if what in SPECIAL else seen
    seen = seen + deviation * noise if what == "noisy head" else seen
    mask = RandomMasks()(1, width, generator)[0, 0]
    return what, Measurement(keep_measured(seen, mask), mask, width / float(mask.sum()))


SPECIAL = {
    "zeros": lambda seen, noise: 0 * seen,
    "noise alone": lambda seen, noise: noise,
    "a constant": lambda seen, noise: torch.ones_like(seen),
    "very large": lambda seen, noise: 1e30 * seen,
    "very small": lambda seen, noise: 1e-30 * seen,
}


def judge(recover: Any, scan: Measurement, seed: int) -> Counter[str]:
    """What happened to the draws of one input."""
    counts: Counter[str] = Counter()
    rejected = getattr(recover, "rejected", 0)
    if isinstance(recover, DrawsCoilImages):
        coils = recover.coil_images(scan, samples=SAMPLES, seed=seed).cpu()
        expected, size = unit_sized(scan.zero_filled[None])
        kept = keep_measured(coils / size, scan.mask.expand(len(coils), -1))
        off = (kept - expected).abs().flatten(1).amax(1)
        counts["agree"] = int((off < 1e-5).sum())
    drawn = recover(scan, samples=SAMPLES, seed=seed).cpu()
    counts["draws"] = len(drawn)
    counts["finite"] = int(torch.isfinite(drawn).flatten(1).all(1).sum())
    counts["rejected"] = getattr(recover, "rejected", 0) - rejected
    return counts


def count(name: str, images: Tensor, inputs: int, seed: int, device: str) -> dict[str, Any]:
    """What happened to all draws of one network; inputs that end in an error are told of."""
    recover, total = open_recovery(name, device=device), Counter[str]()
    for k in range(inputs):
        what, scan = measured(images, seed + k)
        try:
            total.update(judge(recover, scan, seed=k))
        except InputError as error:
            total["errors"] += 1
            print(f"{name}, {what}: {error}", flush=True)
    agree = total["agree"] if isinstance(recover, DrawsCoilImages) else None
    row = {key: total[key] for key in ("draws", "finite", "rejected", "errors")}
    return {"inputs": inputs, **row, "agree": agree}


def table(results: dict[str, dict[str, Any]]) -> str:
    """The counts as Markdown."""
    keys = ("inputs", "draws", "finite", "agree", "rejected", "errors")
    lines = ["| network | inputs | draws | finite | agree to 1e-5 | rejected | errors |"]
    lines += ["|---" * (len(keys) + 1) + "|"]
    for name, row in results.items():
        cells = ["–" if row[key] is None else str(row[key]) for key in keys]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def main(
    names: list[str],
    draws: int,
    seed: int,
    device: str,
    record: Path | None,
    counted: Path | None,
    into: Path | None,
) -> None:
    if counted is None:
        images, inputs = heads(seed), -(-draws // SAMPLES)
        results = {name: count(name, images, inputs, seed, device) for name in names}
    else:
        results = json.loads(counted.read_text())["results"]
    print(table(results))
    if record is not None:
        write_json(record, {"seed": seed, "results": results})
    if into is not None:
        put(table(results), into, "any-head")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=["varnet-atlas"])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", dest="record", type=Path)
    parser.add_argument("--from", dest="counted", type=Path, help="show a record that is there")
    parser.add_argument("--into", type=Path)
    main(**vars(parser.parse_args()))
