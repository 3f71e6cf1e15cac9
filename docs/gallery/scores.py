"""From samples to intervals

The samples of three cases have the same mean but different spread. The score `ar` gives all three intervals
the same width. With `lwr` and `mlwr` the width grows with the spread, and `cqr` starts from sample quantiles.
"""

import numpy as np
from matplotlib.figure import Figure

import taskuq as tq

rng = np.random.default_rng(0)
spread = rng.uniform(0.02, 0.15, 500)
truth = rng.random(500)
outputs = truth[:, None] + spread[:, None] * (
    rng.standard_normal((500, 1)) + rng.standard_normal((500, 32))
)
new = 0.5 + np.array([0.02, 0.06, 0.12])[:, None] * rng.standard_normal((3, 32))

canvas = Figure(figsize=(6, 3.4), layout="constrained")
axes = canvas.add_subplot()
colours = {"ar": "#0072B2", "lwr": "#D55E00", "cqr": "#009E73", "mlwr": "#CC79A7"}
for j, (score, colour) in enumerate(colours.items()):
    interval = tq.calibrate(outputs, truth, alpha=0.1, score=score)(new)
    for i in range(3):
        ends = [interval.lower[i], interval.upper[i]]
        name = score if i == 0 else None
        axes.plot(
            [i + 0.1 + 0.12 * j] * 2, ends, lw=5, color=colour, label=name, solid_capstyle="butt"
        )
for i in range(3):
    axes.plot(np.full(32, i - 0.08), new[i], "o", color="black", alpha=0.3, ms=4)
axes.set_xticks(range(3), ["little spread", "some spread", "much spread"])
axes.set(ylabel="task output", xlim=(-0.4, 2.8))
axes.legend(ncols=4, loc="upper left", frameon=False)
canvas.savefig("scores.svg")
