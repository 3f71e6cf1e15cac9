"""The commands of docs/fastmri.md, in their order: what each needs and what it makes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskuq.settings import read_toml

# The document's blocks, to the character; a test compares them.
COMMANDS = Path(__file__).parent / "commands.sh"
# Where the commands look for configurations.
CONFIGS = Path("configs/fastmri-knee")
# Options whose value is a place to write to.
_WRITES = ("-o", "--output", "--json", "--cache")
# What commands make lies here; all else was there before.
_MADE = ("runs/", "cache/")


@dataclass(frozen=True)
class Line:
    r"""One command of the document.

    Arguments:
        section: The heading under which it stands.
        text: The command to the character, with its continued lines.

    Example:
        >>> line = Line("4. Train", "taskuq train flow \\\n    configs/fastmri-knee/flow.toml")
        >>> line.words, line.verb
        (('train', 'flow', 'configs/fastmri-knee/flow.toml'), 'train')
        >>> line.makes
        ('runs/fastmri-knee-flow',)
    """

    section: str
    text: str

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of ``taskuq``."""
        return tuple(shlex.split(self.text.replace("\\\n", " "))[1:])

    @property
    def verb(self) -> str:
        """The command: ``train``, or with its folder, ``data check``."""
        return " ".join(self.words[:2]) if self.words[0] == "data" else self.words[0]

    @property
    def name(self) -> str:
        """A short name for a file, such as ``train-flow``."""
        given = [word for word in self.words[:3] if not word.startswith("-")]
        return "-".join(Path(word).stem for word in given)

    @property
    def config(self) -> Path | None:
        """The configuration that it follows."""
        return next((Path(word) for word in self.words if word.endswith(".toml")), None)

    @property
    def makes(self) -> tuple[str, ...]:
        """The files and folders that it writes, relative to the working folder."""
        pairs = zip(self.words, self.words[1:], strict=False)
        made = [value for option, value in pairs if option in _WRITES]
        if self.verb == "train" and self.config is not None:
            # What taskuq train calls its folder where nobody names one.
            made.append(f"runs/{self.config.parent.name}-{self.config.stem}")
        return tuple(made)

    def needs(self, folder: Path) -> tuple[str, ...]:
        """What it reads of what others make, by its own words and its configuration.

        Arguments:
            folder: The working folder.
        """
        words = [*self.words]
        if self.config is not None and (folder / self.config).exists():
            words += _texts(read_toml(folder / self.config))
        return tuple(word for word in words if word.startswith(_MADE) and word not in self.makes)

    def follows(self, other: Line, folder: Path) -> bool:
        """Whether it reads what another line makes."""
        return any(
            need == made or need.startswith(f"{made}/")
            for need in self.needs(folder)
            for made in other.makes
        )


def read_recipe(text: str | None = None) -> list[Line]:
    r"""The document's commands, one for each.

    Arguments:
        text: Blocks of commands below headings; those of the package by default.

    Example:
        >>> lines = read_recipe("# 1. Try\ntaskuq demo \\\n    --fast\ntaskuq status runs/demo\n")
        >>> [(line.section, line.words) for line in lines]
        [('1. Try', ('demo', '--fast')), ('1. Try', ('status', 'runs/demo'))]
        >>> len(read_recipe()) > 10
        True
    """
    found, section = [], ""
    joined = (text or COMMANDS.read_text(encoding="utf-8")).replace("\\\n", "\\\0")
    for row in joined.splitlines():
        if row.startswith("# "):
            section = row.removeprefix("# ")
        elif row.strip():
            found.append(Line(section, row.replace("\0", "\n")))
    return found


def recipe_of(document: str) -> str:
    r"""The commands that a document shows: its bash blocks below the headings they stand under.

    Arguments:
        document: Markdown.

    Example:
        >>> recipe_of("# Page\n\n## 1. Try\n\nSo:\n\n```bash\ntaskuq demo\n```\n")
        '# 1. Try\ntaskuq demo\n'
    """
    parts = []
    for section in re.split(r"^## ", document, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        blocks = re.findall(r"^```bash\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
        parts += [f"# {title}\n{block}" for block in blocks]
    return "\n".join(parts)


def _texts(table: Any) -> Iterator[str]:
    """All texts in a configuration."""
    if isinstance(table, str):
        yield table
    elif isinstance(table, dict):
        for value in table.values():
            yield from _texts(value)
