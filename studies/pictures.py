"""Figures and numbers of the README, from a run of the demo.

taskuq demo -o runs/demo
python -m studies.pictures runs/demo           # prints the numbers, makes first-screen.png and
                                               # scan.png of docs/figures, and puts the numbers
                                               # between the marks of README.md

first-screen.png shows the first screen of the report (this needs Chromium and playwright), scan.png
the rounds of a scan until it stops. All images show the synthetic atlas.
"""

from __future__ import annotations

import json
import shutil
import sys
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from studies.paper import put

import taskuq as tq
from taskuq.report import one_scan, policy_name, read_folder

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/figures"
# Largest size of a figure in bytes.
LARGEST = 300_000
# A run made with --fast has fewer splits than the README needs.
FEWEST_TRIALS = 1_000
# Colours of the scan in the report.
SAMPLES, REPORT, TRUTH = "#1c232d", "#0072b2", "#c1121f"


def save_small(picture: Image.Image, path: Path) -> Path:
    """Write a PNG picture, with 256 colours if it is too large; exit if it is still too large."""
    picture.convert("RGB").save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}")
    return path


def first_screen(page: Path, path: Path) -> Path:
    """Take a screenshot of the top of the report."""
    from playwright.sync_api import sync_playwright

    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None
    )
    if program is None:
        raise SystemExit("chromium is not installed")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 800})
        opened.goto(page.resolve().as_uri())
        opened.wait_for_timeout(500)
        shot = Image.open(BytesIO(opened.screenshot()))
        browser.close()
    return save_small(shot, path)


def scan(run: Path, path: Path) -> Path:
    """Plot the mean image, sample outputs and reported interval of a scan in each round."""
    folder, policy = read_folder(run), tq.load_policy(run / "policy.json")
    found, pictures = one_scan(policy, folder), folder.explorer
    if found is None or found.shown is None or pictures is None:
        raise SystemExit(f"{run} has no scan with images")
    canvas = Figure(figsize=(2.4 * len(found.rounds) + 0.6, 4.6), layout="constrained", dpi=110)
    axes = canvas.subplots(2, len(found.rounds), height_ratios=(1.3, 1), squeeze=False)
    for k, one in enumerate(found.rounds):
        above, below = axes[:, k]
        above.imshow(pictures.mean[found.shown, k], cmap="gray")
        above.set_title(one.label, fontsize=11)
        above.axis("off")
        below.plot([-0.2] * len(one.outputs), one.outputs, "o", color=SAMPLES, alpha=0.42, ms=4)
        if one.report is not None:
            below.plot([0.2, 0.2], one.report, lw=8, color=REPORT, solid_capstyle="butt")
        below.axhline(found.target, color=TRUTH, lw=1.5, ls="--")
        below.set(
            xlim=(-0.6, 0.6), ylim=(-0.02, 1.02), xticks=[], yticks=[0, 0.5, 1] if k == 0 else []
        )
        below.set_xlabel("stop" if one.stops else "not certain enough", fontsize=10)
    axes[1, 0].set_ylabel("lesion probability")
    drawn = BytesIO()
    canvas.savefig(drawn, format="png")
    return save_small(Image.open(drawn), path)


def headline(run: Path) -> str:
    """Return the simulation results of a run, with standard errors, as a table in Markdown."""
    record = json.loads((run / "simulate.json").read_text())
    if record["trials"] < FEWEST_TRIALS:
        raise SystemExit(
            f"{run} was simulated with {record['trials']} random splits, the README needs "
            f"{FEWEST_TRIALS}: taskuq demo, without --fast"
        )
    heads = (
        "policy",
        "guaranteed",
        "average acceleration R̄",
        "coverage",
        "interval width if stopped early",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in record["results"]:
        means = [
            f"{row[of]:.{digits}f} ± {row['standard_errors'][of]:.{digits}f}"
            for of, digits in (("mean_acceleration", 2), ("coverage", 3))
        ]
        guaranteed = "yes" if row["guaranteed"] else "no"
        cells = [policy_name(row), guaranteed, *means, f"{row['width']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    units = f"{record['unit']} ({record['n']} synthetic patients)"
    return "\n".join(lines) + (
        f"\n\nThe policies are simulated on {record['trials']} random splits by {units}, at α = "
        f"{record['alpha']:g} and for intervals at most {record['goal']['max_width']:g} wide. "
        f"Coverage is for {record['coverage_of']}."
    )


def main(arguments: list[str]) -> None:
    """Print the numbers, make both pictures and put the numbers into the README."""
    if len(arguments) != 1:
        raise SystemExit("python -m studies.pictures RUN_DIR")
    run = Path(arguments[0])
    # First: it takes neither browser nor pictures, and refuses a run that is too short for both.
    numbers = headline(run)
    print(numbers)
    print(first_screen(run / "report.html", FIGURES / "first-screen.png"))
    print(scan(run, FIGURES / "scan.png"))
    put(numbers, ROOT / "README.md", "headline")
    print(ROOT / "README.md")


if __name__ == "__main__":
    main(sys.argv[1:])
