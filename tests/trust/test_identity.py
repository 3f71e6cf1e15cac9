"""A table is gone on with by the run that began it, or the difference is named."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import taskuq as tq
from fuzz_files import VARNET
from taskuq._io import BLOCK, WHOLE, content_fingerprint
from taskuq.cli.app import main
from taskuq.pipeline import _local as identity
from taskuq.pipeline import _pipeline as provenance
from taskuq.pipeline._executor import pinned_threads
from taskuq.table._parquet import image_marks, read_header

IMAGES = np.random.default_rng(0).random((9, 4, 6))
RUN = {"accelerations": (4, 2), "samples": 3, "seed": 0, "progress": False}


def measure(image, acceleration):
    return image


def recover(measurement, *, samples, seed):
    noise = np.random.default_rng(seed).standard_normal((samples, *measurement.shape))
    return measurement + 0.1 * noise


def task(images):
    return images.mean(axis=(1, 2))


class Lazy:
    """Images that are read when they are asked for."""

    def __init__(self, images):
        self.images, self.asked = images, 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.asked += 1
        return self.images[index]


def run(folder, images=IMAGES, measure=measure, recover=recover, task=task, **changes):
    return tq.Pipeline(measure, recover, task).run(images, store=folder, **{**RUN, **changes})


def other_image(which):
    changed = IMAGES.copy()
    changed[which, 0, 0] += 1e-6
    return changed


CHANGES = {
    "f times 100": ({"task": lambda x: 100 * task(x)}, "has other outputs"),
    "f a little larger": ({"task": lambda x: 1.01 * task(x)}, "has other outputs"),
    "another f": ({"task": lambda x: x.max(axis=(1, 2))}, "has other outputs"),
    "another g": (
        {"recover": lambda y, *, samples, seed: recover(0.9 * y, samples=samples, seed=seed)},
        "has other outputs",
    ),
    "a g that draws differently": (
        {"recover": lambda y, *, samples, seed: recover(y, samples=samples, seed=seed + 1)},
        "has other outputs",
    ),
    "another h": ({"measure": lambda x, acceleration: x / acceleration}, "has other outputs"),
    "other images": ({"images": IMAGES + 5}, "has another image"),
    "one other image": ({"images": other_image(0)}, "case 0 has another image"),
    "an f that fails": ({"task": lambda x: 1 / 0}, "cannot be computed again"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_whole", [True, False], ids=["finished", "unfinished"])
def test_another_run_is_refused_with_what_differs(tmp_path, change, is_whole):
    run(tmp_path / "t")
    if not is_whole:
        _forget_some(tmp_path / "t")
    before = sorted(p.name for p in (tmp_path / "t").iterdir())
    changes, words = CHANGES[change]

    with pytest.raises(tq.InputError, match=words) as refused:
        run(tmp_path / "t", **changes)
    assert refused.value.code == "resume.mismatch"
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == before


def _forget_some(folder):
    """As if the run had been killed after its first shard."""
    first, *others = sorted(folder.glob("part-*.parquet"))
    for shard in others:
        shard.unlink()
    assert first.exists()
    assert others


@pytest.mark.parametrize("images", [list(IMAGES), Lazy(IMAGES), IMAGES])
def test_the_same_run_is_gone_on_with(tmp_path, images):
    first = run(tmp_path / "t", images)
    again = run(tmp_path / "t", images)

    np.testing.assert_array_equal(first.outputs, again.outputs)


def test_images_on_disk_are_compared_where_they_are_computed_again(tmp_path):
    run(tmp_path / "t")
    again = Lazy(IMAGES)
    run(tmp_path / "t", again)

    # One to see the size of images, three to compare.
    assert again.asked == 1 + identity.PROBES
    with pytest.raises(tq.InputError, match="case 8 has another image"):
        run(tmp_path / "t", Lazy(other_image(8)))


def test_rounding_is_no_difference(tmp_path):
    first = run(tmp_path / "t")
    again = run(tmp_path / "t", task=lambda x: task(x) * (1 + 1e-7))

    np.testing.assert_array_equal(first.outputs, again.outputs)


def test_one_other_image_among_many_in_memory_is_found(tmp_path):
    run(tmp_path / "t")

    with pytest.raises(tq.InputError, match="case 5 has another image"):
        run(tmp_path / "t", other_image(5))


def test_every_shard_remembers_its_images(tmp_path):
    run(tmp_path / "t")
    marks = image_marks(tmp_path / "t")

    assert set(marks) == {str(i) for i in range(9)}
    assert len(set(marks.values())) == 9


def test_other_code_is_refused(tmp_path, monkeypatch):
    run(tmp_path / "t")
    monkeypatch.setattr(provenance, "_code_fingerprint", lambda: "another")

    with pytest.raises(tq.InputError, match=r"provenance\.code was \w+, now another"):
        run(tmp_path / "t")


def test_the_fingerprint_of_a_large_file_sees_its_size_and_its_ends(tmp_path):
    path = tmp_path / "a"
    content = bytearray(WHOLE + 10**6)
    path.write_bytes(content)
    whole = content_fingerprint(path)
    for place in (0, BLOCK - 1, len(content) - 1):
        changed = content.copy()
        changed[place] = 1
        path.write_bytes(changed)
        assert content_fingerprint(path) != whole
    path.write_bytes(content + b"\0")
    assert content_fingerprint(path) != whole


def _files(scale=1.0, seed=0):
    import torch

    from taskuq.recover._varnet import VarNet, VarNetConfig
    from taskuq.training._weights import save_weights

    np.savez("images.npz", images=scale * IMAGES.repeat(4, 1).repeat(4, 2), label=np.zeros(9, int),
             group=np.arange(9))  # fmt: skip
    config = VarNetConfig(cascades=1, width=2, pools=1, sensitivity_width=2, sensitivity_pools=1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_weights(VarNet(config), "net.safetensors", kind="varnet", config=config)


REPLACED = {"data": {"scale": 2.0}, "recover": {"seed": 1}}


@pytest.mark.parametrize("part", REPLACED)
def test_a_file_replaced_under_its_name_is_refused(tmp_path, monkeypatch, capsys, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(VARNET)
    _files()
    main(["run", "run.toml", "-o", "t", "--device", "cpu"])
    main(["run", "run.toml", "-o", "t", "--device", "cpu"])
    assert "were finished before" in capsys.readouterr().err
    _files(**REPLACED[part])

    with pytest.raises(SystemExit) as ended:
        main(["run", "run.toml", "-o", "t", "--device", "cpu"])
    assert ended.value.code == 2
    assert f"fingerprints.{part} was" in capsys.readouterr().err


def test_the_header_holds_what_the_table_was_made_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(VARNET)
    _files()
    main(["run", "run.toml", "-o", "t", "--device", "cpu", "--threads", "1"])
    made = read_header(tmp_path / "t").provenance

    assert set(made["configuration"]["fingerprints"]) == {"data", "masks", "recover"}
    assert len(made["code"]) == 16
    assert made["threads"] == 1


def test_a_policy_names_the_networks_it_was_calibrated_with(tmp_path):
    rng = np.random.default_rng(0)
    made = {"configuration": {"fingerprints": {"recover": "abc", "task": "def"}}}
    table = tq.TaskOutputs(rng.random((1, 60, 3)), rng.random(60), (8.0,), provenance=made)
    path = tq.plan(table, alpha=0.2, max_width=0.5).save(tmp_path / "policy.json")

    assert tq.load_policy(path).provenance["fingerprints"] == {"recover": "abc", "task": "def"}


@pytest.mark.parametrize(
    ("truth", "found"), [((3, 8, 8), (8, 8)), ((8, 8), (8, 4)), ((8, 8), (1, 8, 8))]
)
def test_recoveries_of_another_shape_than_the_truth_are_refused(truth, found):
    pipeline = tq.Pipeline(
        lambda image, acceleration: image,
        lambda y, *, samples, seed: np.ones((samples, *found)),
        lambda images: images.reshape(len(images), -1).mean(axis=1),
    )
    with pytest.raises(tq.InputError, match="shape"):
        pipeline.run(np.full((2, *truth), 0.5), **RUN)


def test_a_spreadsheet_runs_nothing_that_predict_writes(tmp_path):
    rng = np.random.default_rng(0)
    names = ['=HYPERLINK("x")', "+1", "-1", "@a", "\tb", "plain", *map(str, range(14))]
    table = tq.TaskOutputs(rng.random((1, 20, 3)), rng.random(20), (8.0,), case=names,
                           group=["=1+1"] * 20, task_names=["-t"])  # fmt: skip
    table.save(tmp_path / "t.npz")
    tq.calibrate(table.outputs[0], table.targets_at(0), alpha=0.2).save(tmp_path / "b.json")
    main(["predict", str(tmp_path / "b.json"), str(tmp_path / "t.npz"), "-o",
          str(tmp_path / "i.csv")])  # fmt: skip
    with open(tmp_path / "i.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    texts = [row[name] for row in rows for name in ("case", "group", "task")]
    assert not [text for text in texts if text.startswith(("=", "+", "-", "@", "\t"))]
    assert rows[0]["case"] == '\'=HYPERLINK("x")'
    assert rows[5]["case"] == "plain"


def threads_of(folder, threads=None):
    import torch

    seen = set()

    def counting(images):
        seen.add(torch.get_num_threads())
        return task(images)

    run(folder, task=counting, threads=threads)
    return seen, read_header(folder).provenance["threads"]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_pinned_and_written_down(tmp_path, threads):
    import torch

    before = torch.get_num_threads()

    assert threads_of(tmp_path / "t", threads) == ({threads}, threads)
    assert torch.get_num_threads() == before
    # The table remembers them, whatever there is when it is gone on with.
    with pinned_threads(3 - threads):
        assert threads_of(tmp_path / "t") == ({threads}, threads)
    with pytest.raises(tq.InputError, match="threads was"):
        threads_of(tmp_path / "t", 7)


def test_the_command_line_lets_threads_sleep_before_torch_is_loaded():
    script = (
        "import os, sys\nfrom taskuq.cli import app\n"
        "def look(words):\n"
        "    print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)\n"
        "app.app = look\napp.main([])\n"
    )
    for said, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        environment |= {} if said is None else {"OMP_WAIT_POLICY": said}
        ran = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        assert ran.stdout == f"{expected} False\n", ran.stderr


def test_a_log_says_when_a_run_was_taken_up(tmp_path):
    run(tmp_path / "t")
    run(tmp_path / "t")
    lines = (tmp_path / "t" / "log.jsonl").read_text().splitlines()

    events = [json.loads(line)["event"] for line in lines]
    assert events == ["started", "finished", "retrying", "finished"]
