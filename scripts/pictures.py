"""The pictures and numbers of the README, from a run of the demo.

taskuq demo -o runs/demo
python -m scripts.pictures runs/demo           # docs/figures/first-screen.png and scan.png, and
                                               # the numbers between the marks of README.md

The first is what the page shows when it is opened (it takes a Chromium and playwright), the second
a scan that stops, round by round. All images are of the embedded atlas, which is synthetic.
"""

from __future__ import annotations

import json
import shutil
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from scripts.paper import put

import taskuq as tq
from taskuq.report.records import policy_name

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/figures"
# What a picture may weigh.
LARGEST = 300_000


def save_small(picture: Image.Image, path: Path) -> Path:
    """Write a picture as PNG, with a palette where it is large; if it stays large, refuse."""
    picture.convert("RGB").save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}")
    return path


def first_screen(page: Path, path: Path) -> Path:
    """What a reader sees who opens the page."""
    from playwright.sync_api import sync_playwright

    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None
    )
    if program is None:
        raise SystemExit("no chromium is installed, so the page cannot be pictured")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 800})
        opened.goto(page.resolve().as_uri())
        opened.wait_for_timeout(500)
        shot = Image.open(BytesIO(opened.screenshot()))
        browser.close()
    return save_small(shot, path)


def stopping_case(policy: tq.Policy, outputs: np.ndarray) -> tuple[int, list[Any]]:
    """The first case that stops neither at once nor never, or else the first; and its decisions."""
    said = []
    for of in outputs:
        decisions: list[Any] = []
        for k in range(len(of)):
            decisions.append(policy.decide(round=k, outputs=of[: k + 1]))
            if decisions[-1].stop:
                break
        said.append(decisions)
    short = (i for i, one in enumerate(said) if one[-1].stop and len(one) > 1)
    case = next(short, 0)
    return case, said[case]


def scan(run: Path, path: Path) -> Path:
    """One scan, round by round: what is recovered, what samples say, what is reported."""
    shown = np.load(run / "explorer.npz", allow_pickle=False)
    policy = tq.load_policy(run / "policy.json")
    case, decisions = stopping_case(policy, shown["outputs"])
    rounds = len(decisions)
    canvas = Figure(figsize=(2.4 * rounds + 0.6, 4.6), layout="constrained", dpi=110)
    axes = canvas.subplots(2, rounds, height_ratios=(1.3, 1), squeeze=False)
    for k, decision in enumerate(decisions):
        above, below = axes[:, k]
        above.imshow(shown["mean"][case, k], cmap="gray")
        above.set_title(f"R = {shown['accelerations'][k]:g}", fontsize=11)
        above.axis("off")
        below.plot(np.full_like(shown["outputs"][case, k], -0.2), shown["outputs"][case, k], "o",
                   color="#0072B2", alpha=0.3, ms=4)  # fmt: skip
        low, high = np.ravel(decision.interval.lower)[0], np.ravel(decision.interval.upper)[0]
        colour = "#D55E00" if decision.stop else "#999999"
        below.plot([0.2, 0.2], [low, high], lw=8, color=colour, solid_capstyle="butt")
        below.axhline(shown["targets"][case], color="black", lw=1, ls="--")
        below.set(
            xlim=(-0.6, 0.6), ylim=(-0.02, 1.02), xticks=[], yticks=[0, 0.5, 1] if k == 0 else []
        )
        below.set_xlabel("stop" if decision.stop else "not sure enough: go on", fontsize=10)
    axes[1, 0].set_ylabel("task output")
    drawn = BytesIO()
    canvas.savefig(drawn, format="png")
    return save_small(Image.open(drawn), path)


def headline(run: Path) -> str:
    """The numbers of the run's simulation with their standard errors, as a table in Markdown."""
    record = json.loads((run / "simulate.json").read_text())
    heads = ("policy", "guaranteed", "average acceleration R̄", "coverage", "width of early reports")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in record["results"]:
        means = [
            f"{row[of]:.{digits}f} ± {row['standard_errors'][of]:.{digits}f}"
            for of, digits in (("mean_acceleration", 2), ("coverage", 3))
        ]
        guaranteed = "yes" if row["guaranteed"] else "no"
        cells = [policy_name(row), guaranteed, *means, f"{row['width']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    units = f"{record['unit']}s, here {record['n']} synthetic patients"
    return "\n".join(lines) + (
        f"\n\nα = {record['alpha']:g}, intervals at most {record['goal']['max_width']:g} wide, "
        f"{record['trials']} random splits by {units}; coverage is of {record['coverage_of']}."
    )


def main(arguments: list[str]) -> None:
    """Make both pictures and put the numbers into the README."""
    if len(arguments) != 1:
        raise SystemExit("python -m scripts.pictures RUN_DIR")
    run = Path(arguments[0])
    print(first_screen(run / "report.html", FIGURES / "first-screen.png"))
    print(scan(run, FIGURES / "scan.png"))
    put(headline(run), ROOT / "README.md", "headline")
    print(ROOT / "README.md")


if __name__ == "__main__":
    main(sys.argv[1:])
