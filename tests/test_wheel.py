import os
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


def built(folder, kind, mode=0o644):
    """Build an archive from a copy of the sources, without a network."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore, copy_function=shutil.copyfile)
    for path in folder.rglob("*.py"):
        path.chmod(mode)
    build = f"from setuptools import build_meta; print(build_meta.build_{kind}('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (made,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("wheel"), "wheel")


def test_two_builds_have_the_same_bytes(wheel, tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    assert built(folders[0], "wheel", 0o664).read_bytes() == wheel.read_bytes()
    first, second = (built(folder, "sdist", mode) for folder, mode in
                     zip(folders[1:], (0o600, 0o664), strict=True))  # fmt: skip
    assert first.read_bytes() == second.read_bytes()


def test_wheel_holds_the_package_alone(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = {p.relative_to(ROOT / "src").as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    assert {name for name in files if not any(part in name for part in MADE)} - packed == set()
    assert {name.split("/")[0].split("-")[0] for name in packed} == {"taskuq"}
    assert not [name for name in packed if "/tests/" in name or "__pycache__" in name]


def test_networks_are_small():
    sizes = [path.stat().st_size for path in (PACKAGE / "training/bundled").glob("*.safetensors")]
    assert len(sizes) >= 3
    assert sum(sizes) <= 20e6
