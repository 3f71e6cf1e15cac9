"""taskuq masks: nested sampling masks as a file and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

from taskuq.commands.arguments import Seed
from taskuq.commands.terminal import say, show
from taskuq.errors import InputError
from taskuq.measure.centre import acs_width
from taskuq.measure.mask_files import draw_masks, save_masks
from taskuq.measure.masks import nested_masks, published_masks


def masks(
    *,
    learn: Path | None = None,
    size: int = 320,
    accelerations: str = "16,8,4,2",
    published: bool = False,
    rule: Literal["inverse-distance", "uniform"] = "inverse-distance",
    acs: str | None = None,
    seed: Seed = 0,
    picture: Path | None = None,
    device: str | None = None,
    fresh: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("masks.npz"),
) -> None:
    """Make nested sampling masks: arrays masks (round, size) and accelerations, and a picture.

    Arguments:
        learn: A TOML file: learn the order of lines or views on training patients. Size,
            accelerations and seed are then its own. A learning that was interrupted goes on.
        size: Number of k-space columns.
        accelerations: Accelerations of the rounds, decreasing, separated by commas.
        published: Take the masks of the paper (size 320; 16, 8, 4, 2).
        rule: How random lines are drawn: as the paper says, or as its masks look.
        acs: Width of the fully sampled centre in each round, separated by commas.
        seed: Seed of the random lines.
        picture: Where the picture goes; by default beside the output.
        device: Where networks run while an order is learned: cpu, cuda, mps.
        fresh: Begin learning again, whatever was kept of an earlier start.
        output: The .npz file to write.
    """
    drawn = picture or output.with_suffix(".png")
    if output.suffix != ".npz":
        raise InputError(f"the output is {output}; give a name that ends in .npz")
    if learn is not None:
        _learn(learn, output, drawn, device, fresh)
        return
    rates = _numbers(accelerations, "accelerations")
    if published:
        if size != 320:
            raise InputError(f"size is {size}; the published masks have size 320")
        made = published_masks(rates)
    else:
        widths = None if acs is None else [int(w) for w in _numbers(acs, "acs")]
        made = nested_masks(size, rates, rng=np.random.default_rng(seed), rule=rule, acs=widths)
    save_masks(output, made, rates)
    draw_masks(made, rates, drawn)
    for mask, R in zip(made, rates, strict=True):
        say(f"R = {R:g}: {mask.sum()} of {len(mask)} lines, centre of {acs_width(mask)}")
    say(f"picture: {drawn}")
    show(str(output))


def _learn(config: Path, output: Path, picture: Path, device: str | None, fresh: bool) -> None:
    from taskuq.runs.orders.learning import OrderConfig, learn_masks, open_learner
    from taskuq.settings import read_settings

    learner = open_learner(read_settings(OrderConfig, config), device)
    made, order = learn_masks(learner, output, fresh=fresh)
    words, rates = learner.config.measure.words, learner.config.measure.accelerations
    draw_masks(made, rates, picture, order.all, what=words.many("measurement"))
    say(
        f"learned on {len(learner.cases)} training cases by {learner.config.aim}: calibrate on "
        "others, or the promise is gone"
    )
    for mask, R in zip(made, rates, strict=True):
        say(f"R = {R:g}: {mask.sum()} of {len(mask)} {words.many('measurement')}")
    say(f"picture: {picture}")
    show(str(output))


def _numbers(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{name} is {text!r}; give numbers separated by commas") from None
