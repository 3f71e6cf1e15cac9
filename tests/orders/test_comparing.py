"""Orders side by side at toy size: tables that go on, and ratios to the mean draw."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from orders.toy import RATES, SIZE, Draws, corner
from taskuq.data.readers import READERS
from taskuq.errors import InputError
from taskuq.files import open_npz, write_json
from taskuq.measure.adaptive import Choosing
from taskuq.measure.mask_files import save_masks
from taskuq.measure.masks import MaskConfig
from taskuq.outputs import TaskOutputs
from taskuq.outputs.shards import read_header
from taskuq.recover.methods import RECOVERIES
from taskuq.runs.orders.comparing import USUAL, compare, markdown
from taskuq.runs.orders.measuring import OrdersConfig, equidistant_masks, measure_orders
from taskuq.task.methods import TASKS

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ToyDraws:
    """A recovery without a network."""

    def open(self, device):
        return Draws()


@dataclass(frozen=True)
class ToyTask:
    """A task without a network."""

    def open(self, device):
        return corner


RECOVERIES.register("toy-draws", ToyDraws)
TASKS.register("toy-corner", ToyTask)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison of two draws, an order from a file, and lines chosen for each case."""
    home = tmp_path_factory.mktemp("orders")
    rng = np.random.default_rng(0)
    images = 1 + rng.random((12, SIZE, SIZE), dtype=np.float32)
    np.savez(home / "data.npz", images=images, group=np.repeat(np.arange(6), 2), label=[0] * 12)
    save_masks(home / "learned.npz", equidistant_masks(SIZE, RATES)[:, ::-1], RATES)
    config = OrdersConfig(
        name="Toy",
        data=READERS["npz"](path=home / "data.npz", coils=2),
        measure=MaskConfig(accelerations=RATES),
        recover=ToyDraws(),
        task=ToyTask(),
        samples=4,
        draws=2,
        learned=home / "learned.npz",
        choose=Choosing(),
    )
    return config, measure_orders(config, home / "toy", device="cpu", quiet=True)


@pytest.fixture(scope="module")
def record(folder):
    return compare(folder[1], trials=20)


def test_every_order_has_a_table_of_the_same_cases(folder):
    tables = [TaskOutputs.load(p.parent) for p in sorted(folder[1].glob("*/table.json"))]
    assert len(tables) == 5
    assert all(np.array_equal(t.case, tables[0].case) for t in tables)
    assert np.allclose([t.targets for t in tables], tables[0].targets)
    assert [t.lines is not None for t in tables] == [True, False, False, False, False]


def test_what_is_finished_is_not_run_again(folder):
    before = {p: p.stat().st_mtime_ns for p in folder[1].glob("*/part-*.parquet")}
    measure_orders(folder[0], folder[1], device="cpu", quiet=True)
    assert {p: p.stat().st_mtime_ns for p in folder[1].glob("*/part-*.parquet")} == before


def test_a_table_of_other_networks_begins_anew_and_this_is_told(folder, tmp_path):
    home = shutil.copytree(folder[1], tmp_path / "toy")
    kept = {path.name for path in (home / "learned").glob("part-*.parquet")}
    header = read_header(home / "learned")
    header.provenance["configuration"]["fingerprints"] = {"recover": "of another machine"}
    write_json(home / "learned" / "table.json", header.to_dict())
    told: list[str] = []
    measure_orders(folder[0], home, device="cpu", quiet=True, tell=told.append)
    assert [line for line in told if "anew" in line and "fingerprints" in line] == [
        line for line in told if line.startswith("learned begins anew")
    ]
    assert sum("anew" in line for line in told) == 1
    assert not kept & {path.name for path in (home / "learned").glob("part-*.parquet")}
    again, before = (TaskOutputs.load(at / "learned") for at in (home, folder[1]))
    assert np.array_equal(again.outputs, before.outputs)


def test_errors_are_means_of_distances_and_ratios_are_to_the_mean_draw(folder, record):
    tables = {name: TaskOutputs.load(folder[1] / name) for name in record["orders"]}
    off = {
        name: np.abs(t.outputs.mean(axis=2) - t.targets).mean(axis=1) for name, t in tables.items()
    }
    usual = (off["inverse-distance 0"] + off["inverse-distance 1"]) / 2
    for name, error in off.items():
        assert np.allclose(record["error"][name]["value"], error)
        assert np.allclose(record["error"][name]["ratio"], error / usual)
    assert np.allclose(record["error"][USUAL]["value"], usual)


def test_standard_errors_are_over_patients(folder, record):
    # Patients of two cases each: leaving one out is leaving out one of six equal means.
    table = TaskOutputs.load(folder[1] / "learned")
    off = np.abs(table.outputs.mean(axis=2) - table.targets).reshape(3, 6, 2).mean(axis=2)
    assert np.allclose(record["error"]["learned"]["error"], off.std(axis=1, ddof=1) / 6**0.5)


def test_the_table_has_a_row_for_each_order_and_says_what_choosing_costs(record):
    text = markdown([record, record])
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0][2:] for row in rows[: len(rows) // 2]] == [
        "order", USUAL, "equidistant", "learned", "adaptive"
    ]  # fmt: skip
    assert "12 cases of 6 patients" in text
    assert "choosing, on cpu" in text
    assert len({row.count("|") for row in rows}) == 1


@pytest.mark.parametrize("width", [16, 30, 128])
def test_equidistant_masks_nest_and_have_their_number_of_lines(width):
    masks = equidistant_masks(width, (8, 4, 2))
    assert masks.sum(axis=1).tolist() == [round(width / R) for R in (8, 4, 2)]
    assert (masks[1:] >= masks[:-1]).all()


def test_an_order_learned_on_those_who_are_judged_is_refused(folder, tmp_path):
    config = folder[0]
    from taskuq.runs.orders.measuring import _data_of

    made = {"configuration": {"data": _data_of(config)}}
    path = tmp_path / "cheating.npz"
    save_masks(path, equidistant_masks(SIZE, RATES), RATES, provenance=made)
    with pytest.raises(InputError, match="the very data"):
        measure_orders(replace(config, learned=path), tmp_path / "t", device="cpu", quiet=True)


BARE = """
import runpy, sys
for name in ("cyclopts", "ray", "nilearn"):
    sys.modules[name] = None
import taskuq.runs.orders.learning, taskuq.runs.orders.measuring
runpy.run_module("scripts.orders", run_name="__main__")
"""


def test_the_script_puts_its_tables_into_a_document_without_the_command_lines_packages(
    folder, tmp_path
):
    document = tmp_path / "orders.md"
    document.write_text("before\n<!-- orders: Toy -->\n<!-- end of orders: Toy -->\nafter\n")
    arguments = ["show", str(folder[1]), "--trials", "5", "--into", str(document)]
    subprocess.run([sys.executable, "-c", BARE, *arguments], cwd=ROOT, check=True)
    text = document.read_text()
    assert "**Toy**" in text
    assert text.endswith("after\n")


def test_masks_of_orders_are_kept(folder):
    with open_npz(folder[1] / "inverse-distance 1.npz") as arrays:
        kept = arrays["masks"]
    assert np.array_equal(kept, MaskConfig(accelerations=RATES, seed=1).masks(SIZE))
