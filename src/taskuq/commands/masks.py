"""taskuq masks: nested sampling masks as a file and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

from taskuq.commands.arguments import Seed
from taskuq.commands.terminal import say, show
from taskuq.errors import InputError
from taskuq.files import whole_file
from taskuq.measure.masks import acs_width, draw_masks, nested_masks, published_masks


def masks(
    *,
    size: int = 320,
    accelerations: str = "16,8,4,2",
    published: bool = False,
    rule: Literal["inverse-distance", "uniform"] = "inverse-distance",
    acs: str | None = None,
    seed: Seed = 0,
    picture: Path | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("masks.npz"),
) -> None:
    """Make nested sampling masks: arrays masks (round, size) and accelerations, and a picture.

    Arguments:
        size: Number of k-space columns.
        accelerations: Accelerations of the rounds, decreasing, separated by commas.
        published: Take the masks of the paper (size 320; 16, 8, 4, 2).
        rule: How random lines are drawn: as the paper says, or as its masks look.
        acs: Width of the fully sampled centre in each round, separated by commas.
        seed: Seed of the random lines.
        picture: Where the picture goes; by default beside the output.
        output: The .npz file to write.
    """
    rates = _numbers(accelerations, "accelerations")
    if published:
        if size != 320:
            raise InputError(f"size is {size}; the published masks have size 320")
        made = published_masks(rates)
    else:
        widths = None if acs is None else [int(w) for w in _numbers(acs, "acs")]
        made = nested_masks(size, rates, rng=np.random.default_rng(seed), rule=rule, acs=widths)
    if output.suffix != ".npz":
        raise InputError(f"the output is {output}; give a name that ends in .npz")
    with whole_file(output) as partial, partial.open("wb") as file:
        np.savez(file, masks=made, accelerations=np.asarray(rates, dtype=float))
    drawn = draw_masks(made, rates, picture or output.with_suffix(".png"))
    for mask, R in zip(made, rates, strict=True):
        say(f"R = {R:g}: {mask.sum()} of {len(mask)} lines, centre of {acs_width(mask)}")
    say(f"picture: {drawn}")
    show(str(output))


def _numbers(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{name} is {text!r}; give numbers separated by commas") from None
