"""Results print as short tables and show themselves in notebooks."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

import taskuq as tq
from raising import refused
from taskuq._display import MOST_BARS, svg
from taskuq.scan._state import RoundRecord
from taskuq.table import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
POLICY = tq.plan(TABLE, alpha=0.1, max_width=0.2, unit="case")
BOUND = tq.calibrate(TABLE, acceleration=8, alpha=0.1, score="lwr", unit="case")
TASKS = np.stack([TABLE.outputs[0], 3 * TABLE.outputs[0]], axis=-1)


def monitored():
    monitor = tq.Monitor(POLICY)
    for outputs in TABLE.outputs[:1, :5].swapaxes(0, 1):
        monitor.update(outputs)
    return monitor


def scanned():
    rounds, stopped = [], False
    while not stopped:
        k = len(rounds)
        found = POLICY.decide(k, TABLE.outputs[: k + 1, 0])
        ends, stopped = (found.interval.lower, found.interval.upper), found.stop or k == 3
        outputs, R = TABLE.outputs[k, 0], found.acceleration
        rounds.append(RoundRecord(k, R, outputs, found.stop, *ends, found.reason, "case 0"))
    return tq.Scan(tuple(rounds))


OBJECTS = {
    "interval": lambda: BOUND(TABLE.outputs[1]),
    "one interval": lambda: BOUND(TABLE.outputs[1, 0]),
    "infinite": lambda: tq.Interval([-np.inf, 0, 2], [np.inf, np.inf, 1]),
    "nothing": lambda: tq.Interval([], []),
    "bound": lambda: BOUND,
    "by class": lambda: tq.calibrate(
        TABLE, acceleration=8, alpha=0.1, unit="case", label=np.arange(TABLE.cases) % 2
    ),
    "joint": lambda: tq.calibrate_joint(TASKS, TABLE.targets[:, None] * [1, 3], alpha=0.1),
    "policy": lambda: POLICY,
    "evaluation": lambda: tq.evaluate_exact(TABLE, acceleration=8, alpha=0.1),
    "simulation": lambda: tq.simulate(
        TABLE, ["fixed-width"], alpha=0.1, max_width=0.2, splits=5, unit="case"
    )[0],
    "table": lambda: TABLE,
    "point table": lambda: TABLE.select(samples=1),
    "monitor": monitored,
    "new monitor": lambda: tq.Monitor(POLICY),
    "scan": scanned,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_results_show_themselves(name):
    result = OBJECTS[name]()
    printed = str(result).splitlines()
    assert 1 <= len(printed) <= 16
    root = ET.fromstring(result._repr_html_())
    [picture] = root.iter("svg")
    shapes = [shape for shape in picture if shape.tag in ("rect", "circle", "polyline")]
    if name not in ("nothing", "new monitor"):
        assert shapes
        assert len(list(root.iter("tr"))) >= 1
    numbers = [float(v) for shape in shapes for k, v in shape.items() if k in ("y", "height", "cy")]
    assert all(0 <= number <= 130 for number in numbers)


def test_pictures_escape_names_and_keep_proportions():
    root = ET.fromstring(svg("a < b", bars=[(0, 1), (0, 2)], labels=["<x>", "&"], reference=1.5))
    heights = [float(bar.get("height")) for bar in root.iter("rect")]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert {text.text for text in root.iter("text")} >= {"a < b", "<x>", "&"}
    many = ET.fromstring(svg("many", bars=[(0, k) for k in range(1000)]))
    assert len(list(many.iter("rect"))) == MOST_BARS


def test_frames_hold_what_is_printed():
    pytest.importorskip("pandas")
    found = OBJECTS["evaluation"]().to_frame()
    assert found["coverage"].item() == OBJECTS["evaluation"]().coverage.mean
    simulation = OBJECTS["simulation"]()
    frame = simulation.to_frame()
    assert frame["mean_acceleration"].item() == simulation.mean_acceleration
    assert frame["coverage_error"].item() == simulation.standard_errors["coverage"]
    joint = OBJECTS["joint"]()(TASKS[:3])
    assert joint.to_frame().index.names == ["case", "task"]
    assert len(joint[1].to_frame()) == 2


PLOTS = {
    "intervals": lambda ax: tq.plot.intervals(
        OBJECTS["interval"]()[:20], TABLE.targets[:20], ax=ax
    ),
    "infinite intervals": lambda ax: tq.plot.intervals(OBJECTS["infinite"](), ax=ax),
    "widths by R": lambda ax: tq.plot.widths(
        [tq.evaluate_exact(TABLE, acceleration=R, alpha=0.1) for R in (16, 8)], ax=ax
    ),
    "widths by p": lambda ax: tq.plot.widths(
        [tq.evaluate_exact(TABLE.select(samples=p), acceleration=8, alpha=0.1) for p in (4, 8)],
        ax=ax,
    ),
    "coverage law": lambda ax: tq.plot.coverage_law(evaluated(), ax=ax),
    "coverage by size": lambda ax: tq.plot.coverage([evaluated()], "size", ax=ax),
    "coverage by class": lambda ax: tq.plot.coverage(evaluated(), ax=ax),
    "ranks": lambda ax: tq.plot.rank_histogram(tq.diagnose(TABLE), acceleration=8, ax=ax),
    "stops": lambda ax: tq.plot.stops(OBJECTS["simulation"](), ax=ax),
    "coverage at stops": lambda ax: tq.plot.stop_coverage([OBJECTS["simulation"]()], ax=ax),
    "trade-off": lambda ax: tq.plot.trade_off(OBJECTS["simulation"](), ax=ax),
    "masks": lambda ax: tq.plot.masks(np.eye(3, 9).cumsum(0), (9, 4.5, 3), ax=ax),
    "scan": lambda ax: tq.plot.scan(scanned(), TABLE.targets[0], ax=ax),
    "evidence": lambda ax: tq.plot.evidence(monitored(), ax=ax),
    "sizes": lambda ax: tq.plot.calibration_sizes(0.1, ax=ax),
}


def evaluated():
    return tq.evaluate(
        TABLE, acceleration=8, alpha=0.1, score="lwr", splits=20, unit="case",
        label=np.arange(TABLE.cases) % 2, size_bins=(0, 0.3, np.inf),
    )  # fmt: skip


def test_plots_draw_on_the_axes_they_return():
    canvas = Figure()
    for name, draw in PLOTS.items():
        axes = canvas.add_subplot()
        assert draw(axes) is axes, name
        assert axes.lines or axes.patches, name
        assert axes.get_title(loc="left"), name
    interval = OBJECTS["interval"]()[:20]
    axes = tq.plot.intervals(interval, TABLE.targets[:20], ax=canvas.add_subplot())
    heights = np.reshape(axes.lines[-2].get_ydata(), (-1, 3))[:, :2]  # a gap after each
    np.testing.assert_allclose(heights, np.asarray(interval), atol=1e-9)
    wrong = {
        "dtype.invalid": lambda: tq.plot.widths(BOUND),
        "option.missing": lambda: tq.plot.coverage(OBJECTS["evaluation"](), "site"),
        "shape.axes": lambda: tq.plot.intervals(OBJECTS["joint"]()(TASKS[:3])),
        "shape.mismatch": lambda: tq.plot.masks(np.eye(3), (4, 2)),
        "choice.unknown": lambda: tq.plot.rank_histogram(tq.diagnose(TABLE), acceleration=3),
    }
    for code, call in wrong.items():
        with refused(code):
            call()


@pytest.mark.parametrize("seed", [7, np.random.default_rng(7)])
def test_seeds_are_integers_or_generators(seed):
    def recover(measurement, *, samples, seed):
        return np.random.default_rng(seed).random((samples, 2))

    pipeline = tq.Pipeline(lambda image, R: image, recover, lambda images: images.mean(axis=1))
    options = {"accelerations": (2,), "samples": 2, "progress": False}
    first = pipeline.run(np.zeros((2, 2)), seed=seed, **options)
    again = pipeline.run(np.zeros((2, 2)), seed=seed, **options)
    assert (first.outputs == again.outputs).all() == (seed == 7)
    tq.plan(TABLE, alpha=0.1, max_width=0.2, unit="case", seed=seed)
    tq.simulate(TABLE, ["paper"], alpha=0.1, max_width=0.2, unit="case", splits=2, seed=seed)
    with pytest.raises(tq.InputError, match="seed"):
        pipeline.run(np.zeros((2, 2)), seed="0", **options)
