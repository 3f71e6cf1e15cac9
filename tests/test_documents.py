"""The code in the README and the docs runs as it is printed.

Blocks of a file run in order in an empty folder: ``python`` blocks as one program, ``console``
blocks line by line if a line starts with ``$ taskuq``, optionally after environment variables. A
block whose first line is a comment with a file name becomes that file; later ``python`` blocks are
then separate programs, which may import it. Blocks in other languages, or marked ``no-run``, do not
run.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from taskuq._registry import Registry

ROOT = Path(__file__).resolve().parents[1]
FILE = re.compile(r"# ([\w-]+\.\w+)\n")
COMMAND = re.compile(r"\$ ((?:[A-Z_]+=\S+ )*)taskuq (.*)")
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```\s*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    code: str
    line: int


def blocks_of(text):
    for match in FENCE.finditer(text):
        indent, words, code = match.group(1), match.group(2).split(), match.group(3)
        language = words[0].strip("{}") if words else ""
        runs = language in ("python", "console") or FILE.match(code)
        if runs and "no-run" not in words:
            lines = [line.removeprefix(indent) for line in code.splitlines()]
            yield Block(language, "\n".join(lines) + "\n", text[: match.start()].count("\n") + 2)


def commands_of(code):
    """Return environment and arguments of each command of a console block."""
    found = map(COMMAND.match, code.replace("\\\n", " ").splitlines())
    return [
        (
            dict(value.split("=", 1) for value in match[1].split()),
            shlex.split(match[2], comments=True),
        )
        for match in found
        if match
    ]


def run_program(arguments, folder, environment=None):
    """Run Python in a folder and require exit status 0."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True,
        env=os.environ | {"MPLBACKEND": "Agg"} | (environment or {}),
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


def run_document(text, name, folder):
    names, has_files = {"__name__": "__main__"}, False
    for block in blocks_of(text):
        if file := FILE.match(block.code):
            (folder / file[1]).write_text(block.code)
            has_files = True
        elif block.language == "console":
            for environment, arguments in commands_of(block.code):
                # The command as this Python has it, whether or not a script is on the path.
                run_program(["-m", "taskuq.cli.app", *arguments], folder, environment)
        elif has_files:
            run_program(["-c", block.code], folder)
        else:
            # Padding makes the line numbers of a traceback those of the document.
            exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), names)


def documents():
    made = {ROOT / "docs/_build", ROOT / "docs/_made"}
    pages = sorted(p for p in (ROOT / "docs").rglob("*.md") if made.isdisjoint(p.parents))
    return [p for p in (ROOT / "README.md", *pages) if p.exists()]


@pytest.fixture
def _restore_registries(monkeypatch):
    """Undo registrations of a document, which other tests would see."""
    register, added = Registry.register, []

    def noted(kinds, name, thing):
        if name not in tuple(kinds):
            added.append((kinds, name))
        return register(kinds, name, thing)

    monkeypatch.setattr(Registry, "register", noted)
    yield
    for kinds, name in added:
        kinds._known.pop(name, None)


@pytest.mark.usefixtures("_restore_registries")
@pytest.mark.timeout(3600)  # the README runs a demo: minutes on a busy machine
@pytest.mark.parametrize("document", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_documents_code_runs(document, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    if any("import deepinv" in block.code for block in blocks_of(text)):
        request.getfixturevalue("deepinv")
        warnings.simplefilter("ignore")  # deepinv's own; pytest puts the filters back
    run_document(text, str(document), tmp_path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (None, "a guide, [home](https://x.org)"),
        (
            "https://x.org/raw/",
            "![p](https://x.org/raw/p.png)\n\n*Caption*\n\n[a guide](https://x.org/raw/docs/a.md), [home](https://x.org)",
        ),
    ],
)
def test_links_of_the_wheels_description_lead_outside_the_repository(source, expected):
    describe = runpy.run_path(str(ROOT / "setup.py"))["describe"]
    text = "![p](p.png)\n\n*Caption*\n\n[a guide](docs/a.md), [home](https://x.org)"
    assert describe(text, source) == expected
    readme = describe((ROOT / "README.md").read_text(), source)
    assert not re.search(r"\]\((?!https?:)", readme)


def test_blocks_share_their_names_and_run_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = "```python\nfrom pathlib import Path\nx = 2\n```\n"
    then = "text\n```python\nPath('out.txt').write_text(str(x + 1))\n```\n"
    run_document(first + then, "page.md", tmp_path)
    assert (tmp_path / "out.txt").read_text() == "3"


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert False\n```\n",
        "- item\n  ```python\n  1 / 0\n  ```\n",
        "```console\n$ taskuq no-such-command\n```\n",
    ],
)
def test_code_that_fails_is_seen(text, tmp_path):
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run_document(text, "page.md", tmp_path)


def test_blocks_that_only_show_something_do_not_run(tmp_path):
    run_document("```text\nno\n```\n```python no-run\n1 / 0\n```\n```\n1 / 0\n```\n", "p", tmp_path)
    assert commands_of("$ taskuq a \\\n  --b\nprinted\n$ ls\n") == [({}, ["a", "--b"])]
    assert commands_of("$ X=1 taskuq a\n") == [({"X": "1"}, ["a"])]


def test_a_block_with_a_name_becomes_a_file(tmp_path):
    shown = "```python\n# mine.py\nx = 2\n```\n```python\nimport mine\nassert mine.x == {}\n```\n"
    run_document(shown.format(2), "page.md", tmp_path)
    with pytest.raises(AssertionError):
        run_document(shown.format(3), "page.md", tmp_path)
