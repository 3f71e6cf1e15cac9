"""Release checks: build wheel and sdist, check them, try both in empty environments.

python -m studies.release            # all automatic checks; nothing is uploaded
python -m studies.release --light    # without the demo, which brings torch

A failed step ends the run. The manual steps are printed at the end.
"""

from __future__ import annotations

import argparse
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
FIRST_STEPS = """
import numpy as np, taskuq as tq
rng = np.random.default_rng(0)
truth = rng.random(200)
outputs = truth[:, None] + 0.1 * rng.standard_normal((200, 8))
bound = tq.calibrate(outputs, truth, alpha=0.1)
assert bound(outputs).contains(truth).mean() >= 0.9
assert tq.__version__ == {version!r}, tq.__version__
"""
LEFT = """
Manual steps:
  - read CHANGELOG.md and date its section
  - make test; make demo from a fresh clone; look at the report and at make docs
  - tag the revision, upload dist/*, check the page of the package index
"""


def version(root: Path = ROOT) -> str:
    """Return the version of the project's metadata."""
    found: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return found


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version in each file that names one."""
    package = re.search(r'__version__ = "(.+)"', (root / "src/taskuq/__init__.py").read_text())
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    logged = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = {"__init__.py": package, "CITATION.cff": cited, "CHANGELOG.md": logged}
    return {"pyproject.toml": version(root)} | {
        name: match[1] if match else "none" for name, match in found.items()
    }


def require_one_version() -> str:
    found = versions()
    if len(set(found.values())) > 1:
        raise SystemExit(f"versions differ: {found}")
    return f"version {version()} in {', '.join(found)}"


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


def check_metadata(out: Path) -> str:
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir())))
    return "twine finds nothing"


def package_files() -> set[str]:
    """Return every file of the package."""
    return set(run("git", "ls-files", "taskuq", cwd=ROOT / "src").splitlines())


def check_contents(out: Path, package: set[str]) -> str:
    """Check that the wheel is small and holds the package only, and that the sdist builds it.

    Arguments:
        out: The folder of both.
        package: Names of the package's files, "taskuq/...".
    """
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    if wheel.stat().st_size > LARGEST:
        raise SystemExit(
            f"{wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB, more than {LARGEST / 1e6:g}"
        )
    packed = set(zipfile.ZipFile(wheel).namelist())
    if missing := package - packed:
        raise SystemExit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    tops = {name.split("/")[0] for name in packed}
    if extra := {top for top in tops if not top.startswith("taskuq")}:
        raise SystemExit(f"{wheel.name} holds {', '.join(sorted(extra))}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", *(f"src/{name}" for name in package)}
    if missing := needed - inside:
        raise SystemExit(f"{sdist.name} lacks {', '.join(sorted(missing))}")
    return f"{len(tops)} folders in the wheel, {len(inside)} files in the sdist"


def try_in_empty(archive: Path, extras: str, light: bool) -> str:
    """Install one archive in an empty environment and run the first steps of a user."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        venv.create(folder / "env", with_pip=True)
        python = str(folder / "env/bin/python")
        install = (python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"))
        run(*install, f"{archive}{extras}", cwd=folder)
        run(python, "-c", FIRST_STEPS.format(version=version()), cwd=folder)
        run(str(folder / "env/bin/taskuq"), "sample-size", "--alpha", "0.1", cwd=folder)
        if not light:
            run(str(folder / "env/bin/taskuq"), "demo", "--fast", "-o", "demo", cwd=folder)
            if not (folder / "demo/report.html").exists():
                raise SystemExit(f"{archive.name}: the demo wrote no page")
        listed = run(python, "-m", "pip", "list", "--format=freeze", cwd=folder).splitlines()
    if not extras:
        require_no_torch(listed)
    return f"{archive.name}{extras} works; {len(listed)} packages in its environment"


def require_no_torch(listed: list[str]) -> None:
    """Whoever installs the statistics alone is not given networks.

    Arguments:
        listed: Packages as pip lists them, "name==version".
    """
    names = {line.partition("==")[0].lower().replace("_", "-") for line in listed}
    if heavy := sorted(name for name in names if name in HEAVY or name.startswith("nvidia-")):
        raise SystemExit(f"without extras, {', '.join(heavy)} came along")


def main(arguments: list[str] | None = None) -> None:
    """Go through the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--light", action="store_true", help="leave out the demo, which brings torch"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "dist", help="where archives go"
    )
    given = parser.parse_args(arguments)
    out: Path = given.output
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty; a release starts from nothing")
    steps: list[tuple[str, Callable[[], str]]] = [
        ("one version everywhere", require_one_version),
        ("wheel and sdist", lambda: build(out)),
        ("metadata", lambda: check_metadata(out)),
        ("contents", lambda: check_contents(out, package_files())),
        ("the wheel alone", lambda: try_in_empty(next(out.glob("*.whl")), "", True)),
        ("the sdist alone", lambda: try_in_empty(next(out.glob("*.tar.gz")), "", True)),
    ]
    if not given.light:
        steps += [("the demo", lambda: try_in_empty(next(out.glob("*.whl")), "[demo]", False))]
    for name, step in steps:
        print(f"{name}: {step()}", flush=True)
    print(LEFT)


if __name__ == "__main__":
    main()
