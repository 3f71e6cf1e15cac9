r"""Orders of lines side by side: the same patients and networks, one table.

    python -m scripts.orders learn configs/atlas/order.toml -o tables/atlas-learned.npz
    python -m scripts.orders learn configs/atlas/order.toml --aim variance \
        -o tables/atlas-variance.npz
    python -m scripts.orders measure configs/atlas/orders.toml -o tables/orders-atlas
    python -m scripts.orders show tables/orders-atlas tables/orders-lgg tables/orders-ct \
        --into docs/orders.md

The first command is ``taskuq masks --learn`` for machines without the command line's packages.
``measure`` fills a table for each order and goes on where it was cut off. ``show`` judges all of
them and prints the tables, or puts each into a document at the place of its name.
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


def learn(given: argparse.Namespace) -> None:
    from taskuq.measure.mask_files import draw_masks
    from taskuq.runs.orders.learning import OrderConfig, learn_masks, open_learner
    from taskuq.settings import read_settings

    config: Any = read_settings(OrderConfig, given.config)
    if given.aim:
        tries = 0 if given.aim == "variance" else config.tries
        config = replace(config, aim=given.aim, tries=tries)
    learner = open_learner(config, given.device)
    masks, order = learn_masks(learner, given.output, fresh=given.fresh)
    rates, what = config.measure.accelerations, config.measure.words.many("measurement")
    draw_masks(masks, rates, given.output.with_suffix(".png"), order.all, what=what)
    say(str(given.output))


def measure(given: argparse.Namespace) -> None:
    from taskuq.runs.orders.measuring import OrdersConfig, measure_orders
    from taskuq.settings import read_settings

    config: Any = read_settings(OrdersConfig, given.config)
    if given.cases:
        config = replace(config, cases=given.cases)
    say(
        str(
            measure_orders(
                config, given.output, device=given.device, batch=given.batch, quiet=given.quiet,
                tell=say,
            )
        )
    )  # fmt: skip


def show(given: argparse.Namespace) -> None:
    from scripts.paper import put

    from taskuq.files import write_json
    from taskuq.report.figure import drawable
    from taskuq.runs.orders.comparing import compare, markdown

    for folder in given.folders:
        say(f"judging {folder}")
        record = compare(folder, trials=given.trials, seed=given.seed)
        write_json(folder / "comparison.json", drawable(record))
        if given.into:
            put(markdown([record]), given.into, f"orders: {record['name']}")
        else:
            print(markdown([record]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("learn", help="learn an order on training patients")
    one.add_argument("config", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--aim", choices=("gradient", "outputs", "variance"))
    one.add_argument("--fresh", action="store_true")
    one.set_defaults(do=learn)
    two = commands.add_parser("measure", help="fill a table for each order")
    two.add_argument("config", type=Path)
    two.add_argument("-o", "--output", type=Path, required=True)
    two.add_argument("--cases", type=int, help="look at so many cases alone")
    two.add_argument("--batch", type=int)
    two.add_argument("--quiet", action="store_true")
    two.set_defaults(do=measure)
    for command in (one, two):
        command.add_argument("--device")
    three = commands.add_parser("show", help="judge tables, and print them side by side")
    three.add_argument("folders", nargs="+", type=Path)
    three.add_argument("--trials", type=int, default=1000)
    three.add_argument("--seed", type=int, default=0)
    three.add_argument("--into", type=Path, help="a document with places 'orders: NAME'")
    three.set_defaults(do=show)
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    from scripts.one_sentence import one_sentence

    with one_sentence():
        given.do(given)
