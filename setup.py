"""Reproducible archives, and the README with links that work outside the repository."""

import gzip
import os
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent


def describe(readme: str, source: str | None) -> str:
    """Return the README for a package index.

    Relative links and pictures lead to ``source``, the project URL "Source" of pyproject.toml.
    Without one, links become plain text, and pictures are left out with their captions.
    """
    relative = r"\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)"
    if source is None:
        without_pictures = re.sub(rf"!{relative}\s*(\*.+\*\s*)?", "", readme)
        return re.sub(relative, r"\1", without_pictures)
    return re.sub(relative, rf"[\1]({source.rstrip('/')}/\2)", readme)


def epoch() -> int:
    """Return the time of the commit or, in an unpacked sdist, of its files."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip():
            return int(found.stdout)
    return int((ROOT / "pyproject.toml").stat().st_mtime)


class ReproducibleSdist(sdist):
    """An sdist whose bytes depend on the contents of its files alone."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **owner):
        """Write a .tar.gz with one time, owner and mode."""
        path, time = f"{base_name}.tar.gz", epoch()
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)

        def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.mtime, info.uid, info.gid, info.uname, info.gname = time, 0, 0, "", ""
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            return info

        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for one in sorted(p for p in Path(base_dir).rglob("*") if p.is_file()):
                archive.add(one, filter=plain, recursive=False)
        return path


class ReproducibleWheel(bdist_wheel):
    """A wheel whose files all have one mode."""

    def write_wheelfile(self, wheelfile_base, *args, **kwargs):
        """Write the last file of the wheel, and set the mode of all."""
        super().write_wheelfile(wheelfile_base, *args, **kwargs)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch())
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    setup(
        long_description=describe((ROOT / "README.md").read_text(), urls.get("Source")),
        long_description_content_type="text/markdown",
        cmdclass={"sdist": ReproducibleSdist, "bdist_wheel": ReproducibleWheel},
    )
