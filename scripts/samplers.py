r"""Posterior samplers side by side: draw where a GPU is, judge at home, one table.

    python -m scripts.samplers draw configs/lgg/samplers.toml -o runs/samplers
    python -m scripts.samplers judge runs/samplers --aims configs/lgg/aims.toml \
        -o samplers.json --figures figures --into docs/recovery.md

The first command draws from every ``[recover.NAME]`` of the file for every case and stores, for
each, tables of task outputs (``taskuq evaluate`` and ``taskuq simulate`` read them), summaries of
pixels and what it cost. ``--only``, ``--data``, ``--seed`` and ``--weights NAME=FILE`` change what
the file says. The second command judges what was stored, from several such folders if there are,
and prints one Markdown table; ``--table SAMPLER:TASK=FILE`` adds any other table of the same cases.
A record that is there is shown again, for some task networks alone if so wished, by

    python -m scripts.samplers show samplers.json --tasks adversarial --into docs/recovery.md
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

BEGIN = time.monotonic()


def say(line: str) -> None:
    print(f"[{time.monotonic() - BEGIN:4.0f} s] {line}", flush=True)


def pairs(given: list[str]) -> dict[str, str]:
    """NAME=VALUE, several."""
    return dict(one.split("=", 1) for one in given)


def draw(given: argparse.Namespace) -> None:
    from taskuq.errors import InputError
    from taskuq.runs.samplers.drawing import SamplersConfig
    from taskuq.runs.samplers.drawing import draw as draw_all
    from taskuq.settings import read_settings

    config: Any = read_settings(SamplersConfig, given.config)
    if given.data is not None:
        config = replace(config, data=replace(config.data, path=given.data))
    if given.seed is not None:
        config = replace(config, seed=given.seed)
    weights = pairs(given.weights)
    parts: dict[str, dict[str, Any]] = {"recover": dict(config.recover), "task": dict(config.task)}
    only = given.only.split(",") if given.only else list(parts["recover"])
    known = [name for part in parts.values() for name in part]
    if unknown := [name for name in [*only, *weights] if name not in known]:
        raise InputError(f"{given.config} has no {unknown[0]}; choose from {', '.join(known)}")
    for name, path in weights.items():
        part = next(part for part in parts.values() if name in part)
        part[name] = replace(part[name], weights=Path(path))
    parts["recover"] = {name: parts["recover"][name] for name in only}
    config = replace(config, **parts)
    for path in draw_all(config, given.output, device=given.device, tell=say):
        say(f"{path}")


def show(given: argparse.Namespace) -> None:
    from taskuq.files import read_json
    from taskuq.runs.samplers.judging import SCHEMA

    tell(read_json(given.record, SCHEMA), given)


def tell(record: dict[str, Any], given: argparse.Namespace) -> None:
    """Print the table, or put it into a document."""
    from scripts.paper import put

    from taskuq.runs.samplers.words import markdown

    text = markdown(record, _tasks(given))
    if given.into:
        put(text, given.into, given.place)
    else:
        print(text)


def _tasks(given: argparse.Namespace) -> list[str] | None:
    return given.tasks.split(",") if given.tasks else None


def judge(given: argparse.Namespace) -> None:
    from taskuq.files import write_json
    from taskuq.report.figure import figure_from_dict
    from taskuq.report.ink import draw as ink
    from taskuq.runs.samplers.aims import read_aims
    from taskuq.runs.samplers.judging import judge as judge_all
    from taskuq.runs.samplers.judging import read_samplers

    samplers = read_samplers(given.folders, pairs(given.table), _tasks(given))
    aims = read_aims(given.aims) if given.aims else ()
    record = judge_all(
        samplers, given.reference, aims=aims, trials=given.trials, seed=given.seed, tell=say
    )
    if given.output:
        say(f"{write_json(given.output, record)}")
    if given.figures:
        given.figures.mkdir(parents=True, exist_ok=True)
        for figure in map(figure_from_dict, record["figures"]):
            ink(figure, given.figures / f"{figure.name}.svg")
    tell(record, given)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    drawing = commands.add_parser("draw")
    drawing.set_defaults(run=draw)
    drawing.add_argument("config", type=Path)
    drawing.add_argument("-o", "--output", type=Path, required=True)
    drawing.add_argument("--data", type=Path, help="the judged cases")
    drawing.add_argument("--weights", nargs="*", default=[], metavar="NAME=FILE")
    drawing.add_argument("--only", help="samplers, with commas")
    drawing.add_argument("--seed", type=int, help="the seed of the samples")
    drawing.add_argument("--device")
    judging = commands.add_parser("judge")
    judging.set_defaults(run=judge)
    judging.add_argument("folders", type=Path, nargs="*")
    judging.add_argument("--table", nargs="*", default=[], metavar="SAMPLER:TASK=FILE")
    judging.add_argument("--reference", help="the sampler that the others are compared with")
    judging.add_argument("--aims", type=Path)
    judging.add_argument("--trials", type=int, default=1000)
    judging.add_argument("--seed", type=int, default=0)
    judging.add_argument("-o", "--output", type=Path)
    judging.add_argument("--figures", type=Path)
    showing = commands.add_parser("show")
    showing.set_defaults(run=show)
    showing.add_argument("record", type=Path)
    for one in (judging, showing):
        one.add_argument("--tasks", help="task networks that judge, with commas")
        one.add_argument("--into", type=Path)
        one.add_argument("--place", default="samplers", help="the mark in that document")
    given = parser.parse_args()
    from scripts.one_sentence import one_sentence

    with one_sentence():
        given.run(given)


if __name__ == "__main__":
    main()
