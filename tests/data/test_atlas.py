"""The atlas: reproducible, different between patients, consistent within one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raising import refused
from taskuq.data._arrays import read_npz
from taskuq.data._atlas import (
    Atlas,
    LesionDistribution,
    PatientDistribution,
    draw_patient,
    load_anatomy,
    save_anatomy,
    save_atlas,
)
from taskuq.data._dataset import Dataset
from taskuq.measure._coils import rss

PLAN = PatientDistribution(size=64, slices=4)


@pytest.fixture(scope="module")
def atlas():
    pytest.importorskip("nilearn")
    return Atlas(patients=12, seed=0, plan=PLAN)


def test_the_same_seed_gives_the_same_bytes(atlas):
    first = draw_patient(PLAN, load_anatomy(), rng=np.random.default_rng([7, 1]))
    again = draw_patient(PLAN, load_anatomy(), rng=np.random.default_rng([7, 1]))
    assert first.images.tobytes() == again.images.tobytes()
    assert first.lesion.tobytes() == again.lesion.tobytes()
    assert atlas[5].image.numpy().tobytes() == replace(atlas)[5].image.numpy().tobytes()


def test_patient_does_not_depend_on_the_others(atlas):
    later = Atlas(patients=2, seed=0, plan=PLAN, first=3)
    assert torch.equal(later[0].image, atlas[12].image)
    assert later[0].group == atlas[12].group == "patient-3"


def test_items_are_coil_images_whose_rss_is_the_magnitude(atlas):
    assert isinstance(atlas, Dataset)
    plain = Atlas(patients=12, seed=0, coils=0, plan=PLAN)
    for index in (0, 17):
        assert atlas[index].image.shape == (8, 64, 64)
        assert torch.allclose(rss(atlas[index].image), plain[index].image, atol=1e-5)


def test_labels_masks_and_areas_agree(atlas):
    pixel = (PLAN.field_of_view / PLAN.size) ** 2
    for index in range(len(atlas)):
        area = atlas.lesion_mask(index).sum() * pixel
        assert atlas.lesion_area[index] == pytest.approx(area)
        assert atlas[index].label == atlas.labels[index] == int(area >= PLAN.minimum_area)


def test_lesions_change_the_image_in_their_mask_only():
    plan = replace(PLAN, lesions=LesionDistribution(patients=1.0, mass=1.0, visibility=(1.0, 1.0)))
    free = replace(plan, lesions=replace(plan.lesions, visibility=(0.0, 0.0)))
    ill, well = (
        draw_patient(p, load_anatomy(), rng=np.random.default_rng(4)) for p in (plan, free)
    )
    assert np.array_equal(ill.lesion, well.lesion)
    difference = np.abs(ill.images - well.images)
    assert difference[ill.lesion].mean() > 20 * difference[~ill.lesion].mean()


def test_base_file_replaces_nilearn(atlas, tmp_path, monkeypatch):
    path = save_anatomy(tmp_path / "base.npz")
    assert torch.equal(Atlas(patients=1, seed=0, plan=PLAN, base=path)[2].image, atlas[2].image)
    (tmp_path / "wrong.npz").write_text("no archive")
    monkeypatch.setenv("TASKUQ_ATLAS_BASE", str(tmp_path / "wrong.npz"))
    with refused("file.format"):
        load_anatomy()


def test_missing_nilearn_names_the_extra(tmp_path, monkeypatch):
    from taskuq.data import _atlas as anatomy

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(anatomy, "find_spec", lambda name: None)
    anatomy._load.cache_clear()
    with refused("dependency.missing", "taskuq[demo]"):
        load_anatomy()
    anatomy._load.cache_clear()


def test_a_saved_atlas_reads_as_arrays(atlas, tmp_path):
    path = save_atlas(atlas, tmp_path / "atlas.npz")
    data = read_npz(path, normalise=False)
    assert data.labels.tolist() == atlas.labels.tolist()
    assert data.groups.tolist() == atlas.groups.tolist()
    assert [item.case for item in data] == [item.case for item in atlas]
    # Half precision keeps three digits.
    assert torch.allclose(data[9].image, rss(atlas[9].image), rtol=2e-3, atol=1e-3)
