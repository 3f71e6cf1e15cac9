"""Where labelled images come from: the atlas, fastMRI, folders of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taskuq.errors import InputError
from taskuq.task import BackboneConfig, ClassifierConfig
from taskuq.task.cases import TaskCases
from taskuq.task.sources import SplitConfig, TaskData, open_task_data
from taskuq.task.train import ClassifierTraining, open_parts, train
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine

LGG = Path(__file__).resolve().parents[2] / "../shared/data/lgg/lgg_flair_128_all_dev.npz"


def test_the_atlas_is_the_same_in_memory_and_case_by_case():
    pytest.importorskip("nilearn")
    lazy = TaskData(kind="atlas", patients=3, size=32, slices=2, target="lesion_area")
    one = open_task_data(lazy)
    other = open_task_data(TaskData(**(vars(lazy) | {"in_memory": True})))

    assert np.array_equal(one.targets, other.targets)
    assert np.array_equal(one.cases.groups, other.cases.groups)
    assert np.array_equal(one.cases.labels, other.cases.labels)
    for k in range(6):
        assert np.array_equal(one.cases[k].image, other.cases[k].image)


def test_fastmri_slices_come_as_magnitudes_with_their_labels(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    for name in ("file1", "file2"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            values = rng.normal(size=(5, 9, 320, 320, 2)).astype(np.float32)
            file["kspace"] = values.view(np.complex64)[..., 0]
            file.attrs["acquisition"] = "CORPD_FBK"
    notes = "file,slice,study_level,x,y,width,height,label\nfile2,2,No,10,10,5,5,Meniscus Tear\n"
    (tmp_path / "knee.csv").write_text(notes)
    config = TaskData(path=tmp_path, labels=tmp_path / "knee.csv")
    part = open_task_data(config)
    case = TaskCases(part.cases, part.targets)[0, 1]

    assert part.targets.sum() == 1
    assert case["image"].shape == (320, 320)
    assert not case["image"].is_complex()


def test_a_folder_of_mixed_sizes_is_refused_and_can_be_cut(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rows = ["file,label,group"]
    for k in range(12):
        pixels = np.random.default_rng(k).integers(0, 255, (16 + k % 2, 16), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{k}.png")
        rows.append(f"{k}.png,{k // 2 % 2},{k // 4}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    data = TaskData(kind="folder", path=tmp_path, labels=tmp_path / "labels.csv")
    settings = ClassifierTraining(
        network=ClassifierConfig(BackboneConfig("small", width=4, blocks=(1,)), hidden=(4,)),
        training=TrainingConfig(epochs=1, batch=4),
        data=data,
        split=SplitConfig(train=0.4, tune=0.4),
    )
    machine = Machine("cpu", progress=False)
    with pytest.raises(InputError, match="images are of size 16×16 and 17×16"):
        train(settings, tmp_path / "run", machine=machine)
    cut = TaskData(**(vars(data) | {"cut": 16}))
    train(ClassifierTraining(**(vars(settings) | {"data": cut})), tmp_path / "b", machine=machine)


@pytest.mark.skipif(not LGG.exists(), reason="the real slices are not part of this project")
def test_real_slices_are_split_by_patient():
    data = TaskData(kind="npz", path=LGG, keep="central")
    parts = open_parts(ClassifierTraining(data=data, split=SplitConfig(train=0.5, tune=0.1)))
    patients = [set(part.cases.groups) for part in parts]

    assert sum(len(part.cases) for part in parts) == 1801
    assert [len(p) for p in patients] == [44, 8, 36]
    assert not patients[0] & patients[1] | patients[1] & patients[2] | patients[0] & patients[2]
