"""Rehearsal of the commands on the fastMRI how-to page, with a few training steps each."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import taskuq
from taskuq._config import read_toml, toml_text
from taskuq._io import (
    atomic_write,
    complete_record,
    content_fingerprint,
    fingerprint,
    make_folder,
    read_json,
    write_json,
)
from taskuq.data._synthetic_fastmri import FINDING, FastMRILayout, make_fastmri
from taskuq.data._volume import FastMRIPreprocessing
from taskuq.errors import InputError
from taskuq.pipeline._local import RunLog
from taskuq.pipeline._progress import duration

SCHEMA = "taskuq.rehearsal/1"
RECORD, PAGE = "rehearsal.json", "rehearsal.md"
# The blocks of the document, to the character; a test compares them.
COMMANDS = Path(__file__).parent / "commands.sh"
TOY = COMMANDS.with_name("toy.toml")
SIZE = 64  # of toy images
CONFIGS = Path("configs/fastmri-knee")
TABLES = ("knee.csv", "knee_file_list.csv")
IMAGENET = {"resnet50_imagenet1k_v2.pth": "imagenet", "vgg16.safetensors": "vgg_weights"}
# Options of a path to write to, and folders of what commands make; all else was there before.
_WRITES, _MADE = ("-o", "--output", "--json", "--cache"), ("runs/", "cache/")
# Random splits: their number changes no code that is run.
_SPLITS, _SPLITTING = "--splits 200", ("evaluate", "simulate", "experiment")
# Judged cases, so that splits leave the learned score ten to learn from.
JUDGED = 54
# The paper's counts of volumes and slices; files of both acquisitions in the download.
TRAINING_SLICES, JUDGED_SLICES = 17286, 2188
FILES = {"knee_multicoil_train": 973, "knee_multicoil_val": 199}
PREPARED = {"knee_multicoil_train": TRAINING_SLICES,
            "knee_multicoil_val": round(100 * TRAINING_SLICES / 484)}  # fmt: skip


@dataclass(frozen=True)
class _Command:
    text: str

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.text.replace("\\\n", " "))[1:])

    @property
    def verb(self) -> str:
        return " ".join(self.words[:2]) if self.words[0] == "data" else self.words[0]

    @property
    def config(self) -> Path | None:
        return next((Path(word) for word in self.words if word.endswith(".toml")), None)

    @property
    def makes(self) -> tuple[str, ...]:
        """Files and folders that the command writes, relative to the working folder."""
        pairs = zip(self.words, self.words[1:], strict=False)
        made = [value for option, value in pairs if option in _WRITES]
        if self.verb == "train" and self.config is not None:
            made.append(f"runs/{self.config.parent.name}-{self.config.stem}")
        return tuple(made)

    def follows(self, other: _Command, folder: Path) -> bool:
        """Return True if the command or its configuration reads the output of another command."""
        words = [*self.words]
        if self.config is not None and (folder / self.config).exists():
            words += _texts(read_toml(folder / self.config))
        needs = [w for w in words if w.startswith(_MADE) and w not in self.makes]
        return any(n == made or n.startswith(f"{made}/") for n in needs for made in other.makes)


def _read_recipe(text: str) -> tuple[_Command, ...]:
    rows = text.replace("\\\n", "\\\0").splitlines()
    return tuple(_Command(row.replace("\0", "\n")) for row in rows if row.startswith("taskuq "))


def _texts(table: Any) -> Iterator[str]:
    if isinstance(table, str):
        yield table
    for value in table.values() if isinstance(table, dict) else ():
        yield from _texts(value)


@dataclass(frozen=True)
class Rehearsal:
    output: Path
    configs: Path
    steps: int = 3
    volumes: int = 5
    data: Path | None = None
    toy: bool = False
    log: Callable[[str], None] = field(default=lambda line: None, repr=False)
    recipe: tuple[_Command, ...] = field(
        default_factory=lambda: _read_recipe(COMMANDS.read_text(encoding="utf-8")), repr=False
    )

    @property
    def work(self) -> Path:
        return self.output / "work"

    @property
    def settings(self) -> dict[str, Any]:
        data = None if self.data is None else str(self.data.resolve())
        return {"steps": self.steps, "volumes": self.volumes, "data": data, "toy": self.toy}

    def run(self, *, fresh: bool = False) -> dict[str, Any]:
        start = time.monotonic()
        wanted = {command.config.name for command in self.recipe if command.config is not None}
        if missing := sorted(n for n in wanted if not (self.configs / n).is_file()):
            message = f"{self.configs} lacks {', '.join(missing)}; pass {CONFIGS}"
            raise InputError(message, code="file.missing")
        before = self._earlier(fresh)
        self._copy_configs()
        self.lay_out()
        code, results = [_code(), _machine()], list[dict[str, Any]]()
        keys = {}
        for c in self.recipe:
            config = c.config and content_fingerprint(self.work / c.config)
            keys[c] = fingerprint([c.text, self.added(c), config, *code])[:16]
        known = {c: before[c.text] for c in self.recipe if c.text in before}
        passed = {c: old["key"] for c, old in known.items() if old["status"] == "passed"}
        for number, command in enumerate(self.recipe, start=1):
            self.log(f"\n[{number}/{len(self.recipe)}] {command.text}")
            if added := self.added(command):
                self.log(f"    added: {added}")
            pairs = zip(self.recipe, results, strict=False)
            inputs = [result for other, result in pairs if command.follows(other, self.work)]
            lost = next((r for r in inputs if r["status"] != "passed"), None)
            result = {"line": command.text, "added": added, "key": keys[command], "kept": False,
                      "error": "", "seconds": 0.0, "peak_gpu_bytes": 0, "peak_host_bytes": 0,
                      "cost": None}  # fmt: skip
            # Commands that fill one place are kept or run together.
            together = [c for c in self.recipe if c == command or {*c.makes} & {*command.makes}]
            if all(passed.get(c) == keys[c] for c in together) and all(r["kept"] for r in inputs):
                result = {**known[command], "kept": True}
            elif lost is not None:
                result |= {"status": "skipped", "error": f"needs what '{lost['line']}' makes"}
            else:
                result |= self._run(number, command)
            self.log(f"    {_sentence(result)}")
            results.append(result)
            earlier = sum(result["seconds"] for result in results if result["kept"])
            record = self._record(results, earlier + time.monotonic() - start)
            write_json(self.output / RECORD, record)
        with atomic_write(self.output / PAGE) as partial:
            partial.write_text(rehearsal_markdown(record), encoding="utf-8")
        return record

    def added(self, command: _Command) -> str:
        if command.verb == "train":
            return f"--steps {self.steps}"
        is_small = self.toy and command.verb.startswith("data ")
        small = f"--size {SIZE} --min-lines {SIZE}" if is_small else ""
        return _SPLITS if command.verb in _SPLITTING else small

    def _earlier(self, fresh: bool) -> dict[str, dict[str, Any]]:
        path = self.output / RECORD
        if self.output.exists() and any(self.output.iterdir()) and not path.exists():
            text = f"{self.output} holds other files; pass another folder to -o"
            raise InputError(text, code="file.exists")
        if fresh and path.exists():
            for name in ("work", "logs"):
                shutil.rmtree(self.output / name, ignore_errors=True)
            path.unlink()
        if not path.exists():
            make_folder(self.output)
            write_json(path, self._record([], 0.0))
        with complete_record(path, "rehearsal", "use --overwrite"):
            record = read_json(path, SCHEMA)
            if record["settings"] != self.settings:
                text = f"{self.output} was made with other settings ({record['settings']}); "
                raise InputError(f"{text}pass another -o, or --overwrite", code="resume.mismatch")
            return {r["line"]: r | {k: r[k] for k in ("key", "status")} for r in record["lines"]}

    def _record(self, results: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
        statuses = [result["status"] for result in results]
        counts = {name: statuses.count(name) for name in ("passed", "failed", "skipped")}
        machine = {"device": _machine()[0] or "cpu", "cores": os.cpu_count()}
        return {
            "schema": SCHEMA, "settings": self.settings, "machine": machine,
            "taskuq": taskuq.__version__, "commands": len(self.recipe), "seconds": seconds,
            **counts, "lines": results,
        }  # fmt: skip

    def _run(self, number: int, command: _Command) -> dict[str, Any]:
        self._clear(command)
        log = self.output / "logs" / f"{number:02d}-{command.verb}.log"
        make_folder(log.parent)
        words = [*command.words, *self.added(command).split(), "--traceback"]
        ended = _run_command(words, self.work, log)
        found: dict[str, Any] = {"seconds": ended.seconds, "peak_host_bytes": ended.peak_host_bytes}
        if ended.status:
            error = f"{ended.output}\nexit status {ended.status}"
            return {**found, "status": "failed", "error": error}
        cost = _cost(command, self.work, ended.seconds)
        gpu = cost.pop("gpu_bytes", 0)
        return {**found, "status": "passed", "peak_gpu_bytes": gpu, "cost": cost}

    def _clear(self, command: _Command) -> None:
        for made in command.makes:
            others = [m for other in self.recipe if other != command for m in other.makes]
            first = next(other for other in self.recipe if made in other.makes)
            path = self.work / made
            if command != first or any(m.startswith(f"{made}/") for m in others):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _copy_configs(self) -> None:
        there = None if self.toy else self.data
        missing = [IMAGENET[n] for n in IMAGENET if there is None or not (there / n).exists()]
        toy = read_toml(TOY)
        for source in sorted(self.configs.glob("*.toml")):
            table = _without(read_toml(source), missing)
            if self.toy:
                table = _changed(table, {**toy["everywhere"], **toy.get(source.stem, {})})
            with atomic_write(self.work / CONFIGS / source.name) as partial:
                partial.write_text(toml_text(table), encoding="utf-8")

    def lay_out(self) -> None:
        data, marker = self.work / "data", self.work / "data.json"
        if marker.exists():
            return
        files = [c.config for c in self.recipe if c.verb == "train" and c.config is not None]
        batches = [int(read_toml(self.work / file)["training"]["batch"]) for file in files]
        if self.data is None:
            learned, training = self.volumes - 1, 6  # one volume decides which weights are best
            while any(
                (total := learned * training) < b or (total % b and total // b < self.steps)
                for b in batches
            ):
                training += 1
            validation = 1
            while self.volumes * len(FastMRIPreprocessing().chosen_slices(validation)) < JUDGED:
                validation += 1
            self.log(f"Making {2 * self.volumes} volumes in fastMRI's layout from the atlas.")
            layout = FastMRILayout()
            if self.toy:
                layout = FastMRILayout(height=80, width=72, coils=9, recon=SIZE)
            workers = 1 if self.toy else min(os.cpu_count() or 1, 2 * self.volumes)
            make_fastmri(
                data, training=(self.volumes, training), validation=(self.volumes, validation),
                layout=layout, workers=workers,
            )  # fmt: skip
        else:
            self._link(data, self.data, max(batches))
        write_json(marker, {"schema": SCHEMA})

    def _link(self, data: Path, source: Path, batch: int) -> None:
        # Nine tenths are trained on; each step takes a batch of its own.
        wanted = {"train": self.steps * batch / 0.85, "val": JUDGED / 0.6}
        links = [source / name for name in (*TABLES, *IMAGENET) if (source / name).exists()]
        for part, least in wanted.items():
            folder, slices = source / f"knee_multicoil_{part}", 0
            for k, (path, count) in enumerate(_usable(folder, source)):
                if k >= self.volumes and slices >= least:
                    break
                links.append(path)
                slices += count
            if slices == 0:
                text = f"{folder} has no usable volume; run 'taskuq data check {folder}'"
                raise InputError(text, code="file.missing")
            self.log(f"Linked {slices} slices of {folder}.")
        for path in links:
            link = data / path.relative_to(source)
            make_folder(link.parent)
            link.unlink(missing_ok=True)
            link.symlink_to(path.resolve())


def _usable(folder: Path, source: Path) -> Iterator[tuple[Path, int]]:
    """Yield usable volumes and their numbers of slices, those with a positive label first."""
    from taskuq.data._volume import open_volume, read_annotations, read_file_list

    listed = read_file_list(source / TABLES[1])
    torn = {row.file for row in read_annotations(source / TABLES[0]).of(FINDING)}
    files = sorted(path for path in folder.rglob("*.h5") if path.stem in listed)
    for path in sorted(files, key=lambda path: path.stem not in torn):
        try:
            volume = open_volume(path)
        except InputError:
            continue
        if FastMRIPreprocessing().refusal(volume) is None:
            yield path, volume.slices


def _changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(table)
    for key, value in changes.items():
        if not isinstance(value, dict):
            changed[key] = value
        elif key in table:
            changed[key] = _changed(table[key], value)
    return changed


def _without(table: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    kept = {key: value for key, value in table.items() if key not in names}
    return {k: _without(v, names) if isinstance(v, dict) else v for k, v in kept.items()}


def _code() -> str:
    root = Path(taskuq.__file__).parent
    return fingerprint([(p.name, content_fingerprint(p)) for p in sorted(root.rglob("*.py"))])


def _machine() -> list[Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return [gpu, os.cpu_count(), platform.machine()]


class _Ended(NamedTuple):
    status: int
    seconds: float
    peak_host_bytes: int
    output: str = ""


def _run_command(words: Sequence[str], folder: Path, log: Path) -> _Ended:
    """Run ``taskuq`` in a folder with the same Python and code; measure time and memory."""
    # The folder changes, so that a relative path would lead elsewhere.
    given = [Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    paths = os.pathsep.join(map(str, [Path(taskuq.__file__).parents[1], *given]))
    start, peak = time.monotonic(), 0
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "taskuq", *words], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
    try:
        while process.poll() is None:
            # The peak that wait4 gives begins with that of this process.
            with suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max([1024 * int(n) for n in re.findall(r"VmHWM:\s*(\d+)", status)] or [peak])
            time.sleep(0.05)
    except BaseException:
        process.kill()
        process.wait()
        raise
    text = log.read_text(encoding="utf-8", errors="replace")
    return _Ended(process.returncode, time.monotonic() - start, peak, text)


def _cost(command: _Command, work: Path, seconds: float) -> dict[str, Any]:
    if command.verb == "train":
        from taskuq.training._module import read_timing

        assert command.config is not None
        config, record = read_toml(work / command.config), read_timing(work / command.makes[0])
        fraction = config.get("split", {}).get("train", 1 - config["data"].get("validation", 0.0))
        return {"unit": "step", "each": record["step_s"], "first": record["first_step_s"],
                "gpu_bytes": record["peak_gpu_bytes"],
                "hours": _full_training(record, round(TRAINING_SLICES * fraction))}  # fmt: skip
    if command.verb == "run":
        log = RunLog(work / command.makes[0]).events()
        last = [event for event in log if event["event"] == "finished"][-1]
        each = last["seconds"] / last["timed"] if last["timed"] else seconds
        return {"unit": "slice", "each": each, "hours": each * JUDGED_SLICES / 3600}
    if command.verb not in ("data check", "data prepare", "quality"):
        return {}  # it reads tables, which takes seconds to minutes at any size
    from taskuq.data._volume import open_volume

    folder = "knee_multicoil_val" if command.verb == "quality" else Path(command.words[2]).name
    rule, unit = FastMRIPreprocessing(), "file" if command.verb == "data check" else "slice"
    volumes = [open_volume(path) for path in sorted((work / "data" / folder).rglob("*.h5"))]
    if command.verb == "data check":
        here, total = len(volumes), FILES[folder]
    elif command.verb == "data prepare":
        here, total = sum(volume.slices for volume in volumes), PREPARED[folder]
    else:
        used = [v.slices for v in volumes if v.acquisition == rule.acquisition]
        here, total = sum(len(rule.chosen_slices(count)) for count in used), JUDGED_SLICES
    return {"unit": unit, "each": seconds / here, "hours": seconds / here * total / 3600}


def _full_training(record: Mapping[str, Any], learned: int) -> float:
    from taskuq.training._module import projected_hours

    batch, before = int(record["batch"]), record["before"]
    if before is not None:
        before = {**before, "projected_hours": _full_training(before, learned)}
    scaled = {
        "steps_per_epoch": math.ceil(learned / batch), "before": before, "epoch_s": None,
        "validation_steps": math.ceil((TRAINING_SLICES - learned) / batch),
    }  # fmt: skip
    return projected_hours({**record, **scaled})


def _sentence(result: Mapping[str, Any]) -> str:
    if result["status"] == "skipped":
        return f"skipped: {result['error']}"
    kept = "kept from before: " if result["kept"] else ""
    peak = f"{result['peak_host_bytes'] / 2**30:.2f} GiB of memory"
    error = f"\n{result['error']}" if result["error"] else ""
    return f"{kept}{result['status']} in {duration(result['seconds'])}, {peak}{error}"


def rehearsal_markdown(record: Mapping[str, Any]) -> str:
    machine, settings, results = record["machine"], record["settings"], record["lines"]
    head = (
        f"`taskuq rehearse`: {record['passed']} of {record['commands']} commands passed in "
        f"{duration(record['seconds'])} on {machine['device']} with {machine['cores']} cores, "
        f"{settings['steps']} steps of each training"
        f"{', at toy size: the hours mean nothing' if settings['toy'] else ''}."
    )
    columns = ["command", "result", "took", "first", "then each", "GPU GiB", "host GiB", "hours"]
    rows = [columns, ["---"] * len(columns)]
    for result in results:
        cost, words = result["cost"] or {}, _Command(result["line"]).words
        ends = [k for k, word in enumerate(words) if word.startswith("-")]
        shown = words[: min([2 if words[0] == "train" else 3, *ends])]
        name = " ".join("/".join(Path(word).parts[-2:]) for word in shown)
        each = f"{_few(cost['each'])} s a {cost['unit']}" if cost.get("each") else ""
        memory = (_few(result[f"peak_{kind}_bytes"] / 2**30) for kind in ("gpu", "host"))
        rows.append([
            f"`{name}`" + (f" `{result['added']}`" if result["added"] else ""), result["status"],
            duration(result["seconds"]), f"{_few(cost.get('first'))} s".removeprefix(" s"), each,
            *memory, _few(cost.get("hours")),
        ])  # fmt: skip
    hours = sum((result["cost"] or {}).get("hours") or 0 for result in results)
    took = duration(sum(result["seconds"] for result in results))
    rows.append(["all", "", took, "", "", "", "", f"**{_few(hours)}**"])
    return "\n".join([head, "", *["| " + " | ".join(cells) + " |" for cells in rows], ""])


def _few(value: float | None) -> str:
    return "" if not value else f"{value:.2g}" if value < 9.95 else f"{value:.0f}"
