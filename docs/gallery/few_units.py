"""Cost of few calibration units

The rank of the calibration score is rounded up, so intervals are a little too wide on average. The
excess is largest if α(n + 1) is just below a whole number. With fewer than 1/α − 1 units, no interval is
finite. The figure shows the expected width for normal errors, divided by the width for a known error
distribution.
"""

from matplotlib.figure import Figure
from scipy.stats import beta, norm

from taskuq.conformal import coverage_rank

alpha = 0.1
sizes = range(9, 301)


def width(n):
    """Return the expected k-th smallest of n absolute normal errors, by the law of its rank."""
    k = coverage_rank(n, alpha)
    return beta(k, n + 1 - k).expect(lambda u: norm.ppf((1 + u) / 2))


ideal = norm.ppf(1 - alpha / 2)
canvas = Figure(figsize=(5.2, 3.4), layout="constrained")
axes = canvas.add_subplot()
axes.plot(sizes, [width(n) / ideal for n in sizes], color="#0072B2")
axes.axhline(1, color="black", lw=1, ls="--")
axes.set(xscale="log", xlabel="calibration units n", ylabel="width over the ideal width")
axes.set_xticks([9, 19, 39, 99, 299], ["9", "19", "39", "99", "299"])
axes.minorticks_off()
canvas.savefig("few_units.svg")
