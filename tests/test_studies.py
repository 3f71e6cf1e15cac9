"""The commands behind the figures of real chests, at toy size: split, train, tables, document."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from taskuq.cli.app import main

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "luna"
SMALL = {
    "training": {"epochs": 1, "batch": 4, "precision": "32-true"},
    "network": {"width": 8, "decoder_channels": [2, 2, 2, 2]},
}
ESTIMATE = {
    "folds": 2,
    "network": {"cascades": 1, "width": 4, "pools": 2},
    "training": {"epochs": 1, "batch": 4},
}


@pytest.fixture
def source(tmp_path):
    """A file as that of the real scans: 25 scans of two slices, twice the size that is used."""
    from taskuq.data._chest import ChestPhantom

    chests = ChestPhantom(patients=25, seed=3, size=64, slices=2)
    images = np.stack([chests[k].image.numpy() for k in range(len(chests))])
    path = tmp_path / "source.npz"
    groups = [chests[k].group for k in range(len(chests))]
    np.savez(path, images=np.round(255 * images.clip(0, 1)).astype(np.uint8), group=groups)
    return path


def smaller(name, folder, **changes):
    """A shipped configuration with some keys changed."""
    table = tomllib.loads((CONFIGS / name).read_text())
    for part, values in changes.items():
        table[part] = table[part] | values if isinstance(values, dict) else values
    table["measure"] |= {"views": 32, "accelerations": [8, 4]}
    path = folder / name
    path.write_text(tomli_w.dumps(table))
    return str(path)


def test_figures_are_written_into_the_document(source, tmp_path, monkeypatch):
    from studies.split import main as split
    from studies.tomography import RULES
    from studies.tomography import main as judge

    monkeypatch.chdir(tmp_path)
    split("luna", source, Path("data"), 32)
    training, judged = (set(np.load(f"data/luna-{n}.npz")["group"]) for n in ("training", "judged"))
    assert not training & judged, "no patient is in both"
    assert len(training | judged) == 25
    sampler = smaller("ct-sampler.toml", tmp_path, **SMALL, estimate=ESTIMATE, samples=2)
    main(["train", "ct-sampler", sampler, "-o", "runs/luna-ct-sampler", "--accelerator", "cpu"])
    for name in ("filtered-back-projection", "sampler"):
        config = smaller(f"run-{name}.toml", tmp_path, samples=1 if "back" in name else 4)
        main(["run", config, "-o", f"runs/{name}", "--device", "cpu"])
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- luna -->\nold\n<!-- end of luna -->\nafter\n")
    monkeypatch.setattr("studies.tomography.SAMPLES", 2)
    monkeypatch.delitem(RULES, "fixed-width, learned")  # nine scans are too few to learn from
    judge(
        Path("data/luna-judged.npz"), Path("runs/luna-ct-sampler/best.safetensors"),
        [Path("runs/filtered-back-projection"), Path("runs/sampler")], 2, 5, document,
    )  # fmt: skip
    text = document.read_text()
    assert text.startswith("before\n<!-- luna -->\n")
    assert text.endswith("<!-- end of luna -->\nafter\n")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    assert [row[0].strip() for row in rows] == [
        "views", "4", "8", "rule", "paper's rule, MLWR", "fixed-width",
    ]  # fmt: skip
    assert [len(row) for row in rows] == [8, 8, 8, 4, 4, 4]
    assert "old" not in text
    assert "nan" not in text


def test_training_and_tables_measure_alike():
    names = ("ct-sampler", "run-filtered-back-projection", "run-sampler")
    trained, simple, drawn = (
        tomllib.loads((CONFIGS / f"{name}.toml").read_text()) for name in names
    )
    assert simple["measure"] == drawn["measure"] == {"kind": "tomography", **trained["measure"]}
    assert simple["data"] == drawn["data"]
    assert drawn["recover"]["weights"] == "runs/luna-ct-sampler/best.safetensors"
    assert trained["data"]["path"] == simple["data"]["path"].replace("judged", "training")
