"""Rehearse: run every command, say how each went, keep it, and go on whatever happens."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import taskuq
from taskuq.disk import make_folder
from taskuq.errors import InputError
from taskuq.files import read_json, whole_file, write_json
from taskuq.fingerprints import content_fingerprint, fingerprint
from taskuq.pipeline.progress import duration
from taskuq.runs.rehearsal import toy
from taskuq.runs.rehearsal.child import run_command
from taskuq.runs.rehearsal.cost import Done, cost_of
from taskuq.runs.rehearsal.folder import Settings, WorkFolder
from taskuq.runs.rehearsal.recipe import Line, read_recipe
from taskuq.runs.rehearsal.tables import rehearsal_markdown, result_line

SCHEMA = "taskuq.rehearsal/1"
RECORD, PAGE = "rehearsal.json", "rehearsal.md"
# Random splits of the commands that make some: their number changes no code that is run.
TRIALS = "--trials 200"
SPLITTING = ("evaluate", "simulate", "experiment")
# Every command would show where it failed.
TRACED = "--traceback"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal in its folder.

    Arguments:
        output: Where the record, the logs and the working folder go.
        settings: What is rehearsed.
        tell: Called with every line for the person who waits.
        recipe: The commands; those of docs/fastmri.md by default.
    """

    output: Path
    settings: Settings
    tell: Tell = field(default=lambda line: None)
    recipe: tuple[Line, ...] = field(default_factory=lambda: tuple(read_recipe()))

    @property
    def work(self) -> WorkFolder:
        """Where the commands run."""
        return WorkFolder(self.output / "work", self.settings, self.recipe)

    def run(self, *, fresh: bool = False) -> dict[str, Any]:
        """Run every command that has not passed before, and return the record.

        Arguments:
            fresh: Whether to throw away an earlier rehearsal.
        """
        start = time.monotonic()
        work = self.work
        work.require_configs()
        before = self._earlier(fresh)
        make_folder(work.path)
        work.copy_configs()
        self._foretell(work)
        work.lay_out(self.tell)
        made = time.monotonic() - start
        code, machine = _code(), _machine()
        keys = {line.text: self._key(line, self.added(line), code, machine) for line in self.recipe}
        results: list[dict[str, Any]] = []
        for number, line in enumerate(self.recipe, start=1):
            added = self.added(line)
            self.tell(f"\n[{number}/{len(self.recipe)}] {line.text}")
            if added:
                self.tell(f"    added: {added}")
            result = self._kept(before, line, keys, results)
            if result is None:
                result = self._skipped(line, added, results)
            if result is None:
                result = self._run(number, line, added, keys[line.text])
            self.tell(f"    {result_line(result)}")
            if result["status"] == "failed":
                self.tell(result["error"])
            result["after"] = [before["line"] for before in self._before(line, results)]
            results.append(result)
            # What was kept took its time as well, in another start.
            earlier = sum(result["seconds"] for result in results if result["kept"])
            record = self._record(results, made, earlier + time.monotonic() - start)
            write_json(self.output / RECORD, record)
        with whole_file(self.output / PAGE) as partial:
            partial.write_text(rehearsal_markdown(record), encoding="utf-8")
        return record

    def added(self, line: Line) -> str:
        """What a command is told beyond the document, so that it ends soon."""
        words = [f"--steps {self.settings.steps}"] if line.verb == "train" else []
        words += [TRIALS] if line.verb in SPLITTING else []
        words += [toy.WORDS[line.verb]] if self.settings.toy and line.verb in toy.WORDS else []
        return " ".join(words)

    def _earlier(self, fresh: bool) -> dict[str, dict[str, Any]]:
        """What an earlier rehearsal in this folder has found, by command."""
        path = self.output / RECORD
        if self.output.exists() and any(self.output.iterdir()) and not path.exists():
            raise InputError(
                f"{self.output} holds other things than a rehearsal; give -o another folder"
            )
        if fresh and path.exists():
            for name in ("work", "logs"):
                shutil.rmtree(self.output / name, ignore_errors=True)
            path.unlink()
        if not path.exists():
            write_json(path, self._record([], 0.0, 0.0))
        found = read_json(path, SCHEMA)["lines"]
        return {result["line"]: result for result in found}

    def _foretell(self, work: WorkFolder) -> None:
        import torch

        names = {"toy": "about a minute on two cores", "gpu": "about 8 minutes on an H200"}
        networks = ", ".join(f"{k} {n / 1e6:.1f} M" for k, n in work.parameters.items())
        self.tell(
            f"{len(self.recipe)} commands, {self.settings.steps} steps of each training; "
            f"parameters: {networks}. It takes about {work.bytes / 1e9:.2g} GB at {work.path} and "
            f"{names['toy' if self.settings.toy else 'gpu']}."
        )
        if not self.settings.toy and not torch.cuda.is_available():
            self.tell("No GPU was found: at these sizes it takes hours; --toy takes a minute.")
        self.tell(f"Every command is given {TRACED} too, to show where it fails.")
        work.require_space()

    def _key(self, line: Line, added: str, code: str, machine: list[Any]) -> str:
        """What decides how a command goes: itself, its configuration, the code and the machine."""
        config = line.config and content_fingerprint(self.work.path / line.config)
        return fingerprint([line.text, added, config, code, machine])[:16]

    def _kept(
        self,
        before: dict[str, dict[str, Any]],
        line: Line,
        keys: dict[str, str],
        results: list[dict[str, Any]],
    ) -> dict[str, Any] | None:
        """The earlier result, where the command passed and nothing that it reads was made anew.

        Commands that fill one place are kept or run together: what one finds there costs nothing.
        """
        for other in self.recipe:
            if other == line or set(other.makes) & set(line.makes):
                old = before.get(other.text)
                if old is None or old["status"] != "passed" or old["key"] != keys[other.text]:
                    return None
        if any(not result["kept"] for result in self._before(line, results)):
            return None
        return {**before[line.text], "kept": True}

    def _before(self, line: Line, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of the commands whose output a command reads."""
        pairs = zip(self.recipe, results, strict=False)
        return [result for other, result in pairs if line.follows(other, self.work.path)]

    def _skipped(
        self, line: Line, added: str, results: list[dict[str, Any]]
    ) -> dict[str, Any] | None:
        """A result for a command that reads what another should have made."""
        lost = [r for r in self._before(line, results) if r["status"] != "passed"]
        if not lost:
            return None
        because = f"needs what '{_short(lost[0]['line'])}' should have made"
        return {**_result(line, added, ""), "status": "skipped", "error": because}

    def _run(self, number: int, line: Line, added: str, key: str) -> dict[str, Any]:
        self._clear(line)
        work, logs = self.work.path, self.output / "logs"
        make_folder(logs)
        before = _size(work, line)
        log = logs / f"{number:02d}-{line.name}.log"
        words = [*line.words, *added.split(), TRACED]
        ended = run_command(words, work, log)
        result = {
            **_result(line, added, key),
            "status": "passed" if ended.status == 0 else "failed",
            "error": "" if ended.status == 0 else f"{ended.text}\nexit status {ended.status}",
            "seconds": ended.seconds,
            "device": ended.device,
            "peak_gpu_bytes": ended.peak_gpu_bytes,
            "peak_host_bytes": ended.peak_host_bytes,
            "log": str(log.relative_to(self.output)),
        }
        if ended.status == 0:
            grown = _size(work, line) - before
            done = Done(line, work, ended.seconds, grown, ended.said)
            try:
                result["cost"] = asdict(cost_of(done))
            except Exception as error:  # what is left is worth more than one figure
                self.tell(f"    its cost could not be read: {type(error).__name__}: {error}")
        return result

    def _clear(self, line: Line) -> None:
        """Remove what an earlier try of a command made, where nothing of others lies there.

        A place that several commands fill is removed before the first of them.
        """
        for made in line.makes:
            others = [m for other in self.recipe if other != line for m in other.makes]
            first = next(other for other in self.recipe if made in other.makes)
            path = self.work.path / made
            if line != first or any(m.startswith(f"{made}/") for m in others):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _record(self, results: list[dict[str, Any]], made: float, seconds: float) -> dict[str, Any]:
        devices = {r["device"] for r in results if r["peak_gpu_bytes"]}
        return {
            "schema": SCHEMA,
            "settings": self.settings.as_record(),
            "machine": {
                "device": ", ".join(sorted(devices)) or "cpu",
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "taskuq": taskuq.__version__,
            "commands": len(self.recipe),
            "made_s": made,
            "seconds": seconds,
            "passed": sum(r["status"] == "passed" for r in results),
            "failed": sum(r["status"] == "failed" for r in results),
            "skipped": sum(r["status"] == "skipped" for r in results),
            "lines": results,
        }


def closing(record: dict[str, Any]) -> str:
    """How a rehearsal went, in a sentence.

    Arguments:
        record: What :meth:`Rehearsal.run` returns.

    Example:
        >>> closing({"passed": 3, "failed": 1, "skipped": 0, "seconds": 75.0})
        '3 commands passed, 1 failed, 0 were skipped because of it, in 75 s.'
    """
    return (
        f"{record['passed']} commands passed, {record['failed']} failed, {record['skipped']} were "
        f"skipped because of it, in {duration(record['seconds'])}."
    )


def _result(line: Line, added: str, key: str) -> dict[str, Any]:
    return {
        "section": line.section, "line": line.text, "added": added, "key": key, "kept": False,
        "status": "", "error": "", "seconds": 0.0, "device": "cpu", "peak_gpu_bytes": 0,
        "peak_host_bytes": 0, "log": "", "cost": None,
    }  # fmt: skip


def _short(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").split()[:4])


def _code() -> str:
    """A fingerprint of the package's code."""
    root = Path(taskuq.__file__).parent
    files = sorted(root.rglob("*.py"))
    return fingerprint([(str(p.relative_to(root)), content_fingerprint(p)) for p in files])


def _machine() -> list[Any]:
    """What decides how long a command takes: the GPU, or none, and the processors."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return [gpu, os.cpu_count(), platform.machine()]


def _size(work: Path, line: Line) -> int:
    """The bytes of what a command makes."""
    places = [work / made for made in line.makes]
    files = [p for place in places for p in ([place] if place.is_file() else place.rglob("*"))]
    return sum(p.stat().st_size for p in files if p.is_file())
