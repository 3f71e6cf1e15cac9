"""Release checks: build wheel and sdist, check them, try both in empty environments.

python -m studies.release            # all automatic checks; nothing is uploaded
python -m studies.release --light    # without the demo, which installs torch
python -m studies.release --matrix   # the table of docs/reference/compatibility.md

A failed step ends the run. The manual steps are printed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Largest wheel in bytes: code, small networks and two tables.
LARGEST = 25e6
# Dependencies of extras only.
HEAVY = {"torch", "torchvision", "pytorch-lightning", "lightning", "triton", "numba"}
# User without rights.
NOBODY = 65534
FIRST_STEPS = """
import numpy as np, taskuq as tq
rng = np.random.default_rng(0)
truth = rng.random(200)
outputs = truth[:, None] + 0.1 * rng.standard_normal((200, 8))
bound = tq.calibrate(outputs, truth, alpha=0.1)
assert bound(outputs).contains(truth).mean() >= 0.9
assert tq.__version__ == {version!r}, tq.__version__
"""
# Name and version of each package of an environment.
PACKAGES = """
import json
from importlib.metadata import distributions
print(json.dumps(sorted({(d.name, d.version) for d in distributions()})))
"""
# Files that an sdist must hold, and folders of which it must hold something.
DOCUMENTS = {
    "pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff",
    "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "constraints.txt", "Makefile",
}  # fmt: skip
FOLDERS = {"tests", "docs", "configs", "deploy", "studies", "benchmarks", "runtime"}
LEFT = """
Manual steps:
  - read CHANGELOG.md and date its section
  - make test; make demo from a fresh clone; look at the report and at make docs
  - tag the revision, upload dist/*, check the page of the package index
"""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
# Pattern of the version in each other file that names it.
NAMED = {
    "src/taskuq/__init__.py": r'__version__ = "(.+)"', "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## (\S+)",
}  # fmt: skip


def require_one_version(root: Path = ROOT) -> str:
    """Check that every file names the version of pyproject.toml."""
    for name, pattern in NAMED.items():
        found = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        if found is None or found[1] != VERSION:
            raise SystemExit(f"{name} does not name version {VERSION} of pyproject.toml")
    return f"version {VERSION} in {', '.join(NAMED)}"


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a program and return its output; exit if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build(out: Path) -> str:
    """Build the sdist, and the wheel from the sdist, as an installer does."""
    run(sys.executable, "-m", "build", "-o", str(out), str(ROOT))
    return ", ".join(
        f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in sorted(out.iterdir())
    )


def build_twice(out: Path) -> str:
    """Build wheel and sdist again from a clone; exit if any byte differs from the first build."""
    with tempfile.TemporaryDirectory() as scratch:
        copy, again = Path(scratch) / "copy", Path(scratch) / "again"
        run("git", "clone", "-q", str(ROOT), str(copy))
        run(sys.executable, "-m", "build", "-o", str(again), str(copy))
        for path in sorted(out.glob("taskuq-*")):
            other = again / path.name
            if not other.exists() or other.read_bytes() != path.read_bytes():
                raise SystemExit(f"{path.name} differs between two builds; commit every change")
    return "the bytes of both are those of a second build"


def check_metadata(out: Path) -> str:
    made = sorted(map(str, out.glob("taskuq-*")))
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    return "twine finds no fault"


def package_files() -> set[str]:
    """Return every file of the package."""
    return set(run("git", "ls-files", "taskuq", cwd=ROOT / "src").splitlines())


def check_contents(out: Path, package: set[str]) -> str:
    """Check that the wheel is small and holds only the package, and that the sdist is complete."""
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    if (size := wheel.stat().st_size) > LARGEST:
        raise SystemExit(f"{wheel.name} has {size / 1e6:.1f} MB, more than {LARGEST / 1e6:g}")
    packed = set(zipfile.ZipFile(wheel).namelist())
    if missing := package - packed:
        raise SystemExit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    tops = {name.split("/")[0] for name in packed}
    if extra := {top for top in tops if not top.startswith("taskuq")}:
        raise SystemExit(f"{wheel.name} holds {', '.join(sorted(extra))}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    needed = DOCUMENTS | {f"src/{name}" for name in package}
    missing = (needed - inside) | (FOLDERS - {name.split("/")[0] for name in inside})
    if missing:
        raise SystemExit(f"{sdist.name} lacks {', '.join(sorted(missing))}")
    return f"{len(tops)} folders in the wheel, {len(inside)} files in the sdist"


def try_in_empty(archive: Path, extras: str) -> str:
    """Install one archive in an empty environment and run a new user's first commands."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        venv.create(folder / "env", with_pip=True)
        python = str(folder / "env/bin/python")
        install = (python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"))
        run(*install, f"{archive}{extras}", cwd=folder)
        run(python, "-c", FIRST_STEPS.format(version=VERSION), cwd=folder)
        run(str(folder / "env/bin/taskuq"), "sample-size", "--alpha", "0.1", cwd=folder)
        if extras:
            run(str(folder / "env/bin/taskuq"), "demo", "--fast", "-o", "demo", cwd=folder)
            if not (folder / "demo/report.html").exists():
                raise SystemExit(f"{archive.name}: the demo wrote no report")
        packages = json.loads(run(python, "-c", PACKAGES, cwd=folder))
    if not extras:
        require_no_torch(packages)
    return f"{archive.name}{extras} works; {len(packages)} packages in its environment"


def require_no_torch(packages: list[list[str]]) -> None:
    """Check that an installation without extras has no torch or other large packages."""
    names = {name.lower().replace("_", "-") for name, _ in packages}
    if heavy := sorted(name for name in names if name in HEAVY or name.startswith("nvidia-")):
        raise SystemExit(f"without extras, {', '.join(heavy)} came along")


ARRAYS = """
import numpy as np, taskuq as tq
rng = np.random.default_rng(0)
z = rng.random(60)
x = np.stack([z[:, None] + s * rng.normal(size=(60, 4)) for s in (0.2, 0.1)]).clip(0, 1)
tq.TaskOutputs(x, z, (4, 2), task_range=(0, 1)).save("t.npz")
"""
COMMANDS = (
    "--help",
    "calibrate t.npz --alpha 0.1 --acceleration 4 -o bound.json",
    "predict bound.json t.npz --acceleration 4 -o intervals.csv",
    "evaluate t.npz --alpha 0.1 --splits 20",
    "plan t.npz --alpha 0.1 --max-width 0.3 -o policy.json",
    "simulate t.npz --alpha 0.1 --max-width 0.3 --splits 20",
    "report t.npz --alpha 0.1 --max-width 0.3 --splits 20 -o report",
)


def matrix(wheel: Path, pythons: list[str]) -> str:
    """Return a table of Python and library versions, with the number of commands that succeeded."""
    rows = [
        "| Python | dependencies | NumPy | cyclopts | numba | commands |",
        "|---|---|---|---|---|---|",
    ]
    for python in pythons:
        for resolution, extra in (("highest", "[fast]"), ("lowest-direct", "")):
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(_line(Path(scratch), wheel, python, resolution, extra))
    return "\n".join(rows) + "\n"


def _line(folder: Path, wheel: Path, python: str, resolution: str, extra: str) -> str:
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "-q", "--python", python, str(folder / "env"))
    install = (*uv, "pip", "install", "-q", "--python", str(folder / "env"))
    # The lowest versions are chosen of direct requirements alone, so that they are named here.
    archive = f"taskuq{extra} @ {wheel.resolve().as_uri()}"
    run(*install, "--resolution", resolution, archive, *PROJECT["dependencies"])
    here, place = str(folder / "env/bin/python"), folder / "work"
    place.mkdir()
    steps = [("-c", ARRAYS), *(("-m", "taskuq", *words.split()) for words in COMMANDS)]
    worked = [run_alone(place, here, *step).returncode for step in steps][1:].count(0)
    found = dict(json.loads(run(here, "-c", PACKAGES)))
    number = run(here, "-c", "import platform; print(platform.python_version())").strip()
    names = " | ".join(found.get(name, "none") for name in ("numpy", "cyclopts", "numba"))
    which = {"highest": "newest", "lowest-direct": "lowest"}[resolution]
    return f"| {number} | {which} | {names} | {worked} of {len(COMMANDS)} |"


def run_alone(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program on one core, with LANG=C, no HOME and no root privileges."""
    alone = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    if os.getuid() == 0:
        # A user without rights, but to search the folders of the interpreter.
        os.chown(place, NOBODY, NOBODY)
        search = "+dac_read_search"
        alone += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        alone += [f"--inh-caps={search}", f"--ambient-caps={search}"]
        if subprocess.run([*alone, "true"], capture_output=True).returncode:
            alone = alone[:3]  # a container that may not set them
    empty = {"PATH": "/usr/bin:/bin", "LANG": "C", "OMP_NUM_THREADS": "1"}
    return subprocess.run([*alone, *command], cwd=place, env=empty, capture_output=True, text=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the release checks, or print the table of compatible versions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--light", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--matrix", nargs="*", metavar="PYTHON")
    given = parser.parse_args(arguments)
    out: Path = given.output
    if given.matrix is not None:
        build(out)
        table = matrix(next(out.glob("*.whl")), given.matrix or ["3.11", "3.12", "3.13"])
        (ROOT / "docs/results/compatibility.txt").write_text(table)
        print(table)
        return
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty; a release starts from nothing")
    steps: list[tuple[str, Callable[[], str]]] = [
        ("one version everywhere", require_one_version),
        ("wheel and sdist", lambda: build(out)),
        ("the same again", lambda: build_twice(out)),
        ("metadata", lambda: check_metadata(out)),
        ("contents", lambda: check_contents(out, package_files())),
        ("the wheel alone", lambda: try_in_empty(next(out.glob("*.whl")), "")),
        ("the sdist alone", lambda: try_in_empty(next(out.glob("*.tar.gz")), "")),
    ]
    if not given.light:
        steps += [("the demo", lambda: try_in_empty(next(out.glob("*.whl")), "[demo]"))]
    for name, step in steps:
        print(f"{name}: {step()}", flush=True)
    print(LEFT)


if __name__ == "__main__":
    main()
