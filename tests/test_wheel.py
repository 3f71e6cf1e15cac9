"""The wheel carries everything the package needs at run time."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/taskuq"
# What Python and numba write beside the sources.
MADE = ("__pycache__", ".nbi", ".nbc", ".pyc")


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The names in a wheel that is built from a copy of the sources, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_package_files_are_in_the_wheel(packed):
    files = {p.relative_to(ROOT / "src").as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    wanted = {name for name in files if not any(part in name for part in MADE)}
    assert wanted - packed == set()


def test_networks_are_small():
    networks = list((PACKAGE / "training/bundled").glob("*.safetensors"))
    assert len(networks) >= 3
    assert sum(path.stat().st_size for path in networks) <= 20e6


def test_wheel_holds_nothing_else(packed):
    assert {name.split("/")[0].split("-")[0] for name in packed} == {"taskuq"}
    assert not [name for name in packed if "/tests/" in name or "__pycache__" in name]
