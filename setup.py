"""Long description of the wheel: the README, with links that work outside the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

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


if __name__ == "__main__":
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    setup(
        long_description=describe((ROOT / "README.md").read_text(), urls.get("Source")),
        long_description_content_type="text/markdown",
    )
