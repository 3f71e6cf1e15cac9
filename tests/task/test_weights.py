"""The weights that travel with the package do what their card says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from taskuq.data._atlas import Atlas
from taskuq.task import load
from taskuq.task._metrics import auroc

WEIGHTS = Path(__file__).resolve().parents[2] / "src/taskuq/weights/classifier-atlas.safetensors"


def test_the_weights_are_small_and_have_a_card():
    assert WEIGHTS.stat().st_size < 8e6
    assert "AUROC" in WEIGHTS.with_suffix(".md").read_text()


def test_the_classifier_finds_lesions_in_patients_it_has_not_seen():
    pytest.importorskip("nilearn")
    atlas = Atlas(patients=12, seed=0, coils=0, first=1000)  # beyond all patients it was made with
    images = torch.stack([atlas[k].image for k in range(len(atlas))])
    with torch.no_grad():
        outputs = load(WEIGHTS)(images)

    assert auroc(outputs.numpy(), atlas.labels) > 0.85
