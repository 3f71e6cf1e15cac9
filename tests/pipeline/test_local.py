import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from toy import RUN, same

import taskuq as tq
from fuzz_files import VARNET
from raising import refused
from taskuq._io import open_npz
from taskuq._seeds import case_seed
from taskuq.cli.app import main
from taskuq.errors import MachineError
from taskuq.measure._masks import nested_masks
from taskuq.measure._mri import MultiCoilMRI
from taskuq.pipeline import _local as identity
from taskuq.pipeline import _pipeline as provenance
from taskuq.pipeline._executor import pinned_threads
from taskuq.pipeline._local import RunLog, batch_size
from taskuq.pipeline._pipeline import status
from taskuq.recover import build
from taskuq.recover._methods import ZeroFilled
from taskuq.recover._varnet_training import VarNetRecovery
from taskuq.recover.flow._train import FlowRecovery
from taskuq.table._parquet import read_header
from taskuq.task._methods import MeanIntensity

RATES = (8.0, 4.0)


class Together:
    """The toy recovery, several cases at a time; remembers how many."""

    def __init__(self, fits=100, error=MemoryError):
        self.fits, self.error, self.sizes = fits, error, []

    def __call__(self, measurement, *, samples, seed):
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements, *, samples, seeds):
        self.sizes.append(len(measurements))
        if len(measurements) > self.fits:
            raise self.error("out of memory")
        if any(np.isnan(m[:, 0]).any() for m in measurements):
            raise ValueError("a measurement of nothing")
        pairs = zip(measurements, seeds, strict=True)
        return np.stack([toy.recover(m, samples=samples, seed=s) for m, s in pairs])


def run(recover, images, **settings):
    return tq.Pipeline(toy.measure, recover, toy.task).run(images, **{**RUN, **settings})


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_batch_size_changes_nothing(batch):
    recover = Together()
    found = run(recover, toy.images(7), batch=batch)
    assert same(found, run(toy.recover, toy.images(7)))
    # All batches are full, so that arithmetic that depends on their size gives the same bits.
    assert len(set(recover.sizes)) == 1


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_batches_are_halved_until_they_fit(tmp_path, error):
    recover = Together(fits=2, error=error)
    found = run(recover, toy.images(32), batch=16, store=tmp_path / "t")
    assert same(found, run(toy.recover, toy.images(32)))
    # Once: what the first cases taught is remembered for the others.
    assert [s for s in recover.sizes if s > 2] == [16, 8, 4]


def test_progress_is_one_line_or_none(capsys, tmp_path):
    for _ in range(2):
        run(toy.recover, toy.images(3), store=tmp_path / "t")
    assert capsys.readouterr().err == ""
    run(toy.recover, toy.images(3), store=tmp_path / "t", progress=True)
    assert capsys.readouterr().err.count("\n") == 1


def test_bad_case_of_a_batch_fails_alone(tmp_path):
    images, bad = toy.images(7), 3
    expected = run(toy.recover, images)
    images[bad] = np.nan
    table = run(Together(), images, batch=7, store=tmp_path / "t")
    assert table.missing_cases == (str(bad),)
    assert np.array_equal(table.outputs, np.delete(expected.outputs, bad, axis=1))


def test_output_outside_the_range_fails_its_case():
    images = toy.images(5)
    images[3] += 5
    assert run(toy.recover, images, task_range=(0, 1)).missing_cases == ("3",)


def networks():
    torch.manual_seed(0)
    flow = build("flow", preset="tiny")
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return {
        "zero-filled": ZeroFilled(),
        "varnet": VarNetRecovery(build("varnet", preset="tiny")),
        "flow": FlowRecovery(flow, temperature=0.5),
    }


@pytest.fixture(scope="module", params=["zero-filled", "varnet", "flow"])
def recovery(request):
    return networks()[request.param]


@pytest.fixture(scope="module")
def coil_images():
    generator = torch.Generator().manual_seed(1)
    return [torch.complex(*torch.randn(2, 1, 32, 32, generator=generator)) for _ in range(7)]


def mri(recover, images, **settings):
    measure = MultiCoilMRI(nested_masks(32, RATES, seed=0), RATES)
    pipeline = tq.Pipeline(measure, recover, MeanIntensity())
    return pipeline.run(
        images, **{"accelerations": RATES, "samples": 3, "seed": 0, "progress": False, **settings}
    )


def test_neighbours_in_a_batch_change_no_bits(recovery, coil_images):
    table = mri(recovery, coil_images, batch=3)
    order = [4, 6, 2, 0, 3, 5, 1]
    other = mri(recovery, [coil_images[i] for i in order], batch=3, case=[str(i) for i in order])
    assert np.array_equal(table.outputs[:, order], other.outputs)
    assert np.array_equal(table.targets[order], other.targets)


def test_batch_size_changes_networks_by_rounding_only(recovery, coil_images):
    # Up to rounding: convolutions of one image and of several add in different orders.
    tables = [mri(recovery, coil_images, batch=size) for size in (1, 2, 5)]
    for table in tables[1:]:
        assert np.abs(table.outputs / tables[0].outputs - 1).max() < 1e-5


def test_used_recovery_can_be_pickled(recovery, coil_images):
    before = mri(recovery, coil_images)
    assert same(mri(pickle.loads(pickle.dumps(recovery)), coil_images), before)


def test_batch_size_follows_memory():
    recover, image = Together(), np.ones((128, 128))
    assert batch_size(recover, image, samples=1, cases=1000) == 16
    assert batch_size(recover, image, samples=10**6, cases=1000) == 1
    assert batch_size(recover, image, samples=1, cases=17) == 9  # two equal batches
    assert batch_size(toy.recover, image, samples=1, cases=1000) == 1
    with refused("value.invalid", "batch"):
        batch_size(recover, image, samples=1, cases=5, batch=0)


TWO_RATES = (8, 2)


def measure(image, acceleration):
    return np.repeat(image[::2], 2, axis=0) / acceleration


def recover(measurement, *, samples, seed):
    noise = np.random.default_rng(seed).standard_normal((samples, *measurement.shape))
    return measurement + 0.1 * noise


def task(images):
    return images.reshape(len(images), -1).mean(axis=1)


PIPELINE = tq.Pipeline(measure, recover, task)
IMAGES = np.random.default_rng(0).random((40, 12, 10)) * np.linspace(0, 1, 40)[:, None, None]
ASKED = {"accelerations": TWO_RATES, "samples": 3, "seed": 5, "progress": False}


def pictures(path):
    with open_npz(path, "pictures") as archive:
        return {name: archive[name] for name in archive}


def test_stored_images_are_those_of_the_outputs(tmp_path):
    table = PIPELINE.run(IMAGES, **ASKED, store=tmp_path, keep_images=6)
    kept = pictures(table.images_path)
    assert kept["samples"].shape == (6, 2, 3, 12, 10)
    assert sorted(kept) == ["case", "estimate", "mean", "samples", "sd", "truth"]
    for s, case in enumerate(kept["case"]):
        at = table.case.tolist().index(case)
        np.testing.assert_allclose(task(kept["samples"][s, 1]), table.outputs[1, at], rtol=1e-5)
        drawn = recover(measure(IMAGES[at], 2), samples=3, seed=case_seed(5, case, 2.0))
        np.testing.assert_allclose(kept["sd"][s, 1], drawn.std(0), rtol=1e-5)
    targets = task(kept["truth"])
    assert np.ptp(targets) > 0.8 * np.ptp(table.targets), "they are spread over the outcomes"


def test_stored_cases_do_not_depend_on_recoveries(tmp_path):
    worse = tq.Pipeline(measure, lambda y, *, samples, seed: np.stack([0 * y] * samples), task)
    one = PIPELINE.run(IMAGES, **ASKED, store=tmp_path / "a", keep_images=5)
    other = worse.run(IMAGES, **ASKED, store=tmp_path / "b", keep_images=5)
    stored, again = (pictures(t.images_path)["case"].tolist() for t in (one, other))
    assert stored == again


def test_signals_and_colours_are_stored_and_volumes_refused(tmp_path):
    signals = PIPELINE.run(IMAGES[:, 0], **ASKED, store=tmp_path / "signals", keep_images=2)
    colours = np.random.default_rng(0).random((5, 6, 8, 3))
    seen = PIPELINE.run(colours, **ASKED, store=tmp_path / "colours", keep_images=2)
    assert pictures(signals.images_path)["truth"].shape == (2, 1, 10)
    assert pictures(seen.images_path)["mean"].shape == (2, 2, 6, 8, 3)
    assert pictures(seen.images_path)["sd"].shape == (2, 2, 6, 8)
    with refused("shape.axes"):
        PIPELINE.run(np.zeros((2, 4, 4, 4, 4)), **ASKED, store=tmp_path / "volumes", keep_images=2)
    assert not (tmp_path / "volumes").exists()


@pytest.mark.parametrize("wrapped", [lambda y: (y, 3), lambda y: {"y": y}, lambda y: [y, "seen"]])
def test_measurement_without_an_image_is_left_out(wrapped, tmp_path):
    def inside(y):
        return y["y"] if isinstance(y, dict) else y[0]

    table = tq.Pipeline(
        lambda image, R: wrapped(measure(image, R)),
        lambda y, *, samples, seed: recover(inside(y), samples=samples, seed=seed),
        task,
    ).run(IMAGES, **ASKED, store=tmp_path, keep_images=3)
    assert sorted(pictures(table.images_path)) == ["case", "mean", "samples", "sd", "truth"]


def test_missing_pixels_are_black(tmp_path):
    table = tq.Pipeline(
        lambda image, R: np.where(image > 0.5, np.nan, image),
        lambda y, *, samples, seed: recover(np.nan_to_num(y), samples=samples, seed=seed),
        task,
    ).run(IMAGES, **ASKED, store=tmp_path, keep_images=3)
    seen = pictures(table.images_path)
    unseen = seen["truth"] > 0.5
    assert unseen.any()
    assert (seen["estimate"][:, 0][unseen] == 0).all()


def test_failed_images_are_logged(tmp_path):
    calls = []

    def forgetful(measurement, *, samples, seed):
        calls.append(seed)
        if len(calls) > len(IMAGES) * len(TWO_RATES):
            raise RuntimeError("no film is left")
        return recover(measurement, samples=samples, seed=seed)

    with refused("component.invalid"):
        tq.Pipeline(measure, forgetful, task).run(IMAGES, **ASKED, store=tmp_path, keep_images=3)
    events = [event["event"] for event in RunLog(tmp_path).events()]
    assert events.count("no picture") == 3
    assert tq.TaskOutputs.load(tmp_path).cases == 40, "the numbers are kept"


def failing(images, part, when, tmp_path):
    """Run with a part that divides by zero for one image."""

    def broken(function):
        def call(x, *arguments, **keywords):
            if when(x):
                return 1 / 0  # the user's line
            return function(x, *arguments, **keywords)

        return call

    parts = {"measure": measure, "recover": recover, "task": task}
    parts[part] = broken(parts[part])
    table = tq.Pipeline(**parts).run(images, **ASKED, store=tmp_path, round_names=["short", "long"])
    return table, RunLog(tmp_path).failures()


@pytest.mark.parametrize(
    ("part", "when", "where"),
    [
        ("measure", lambda x: x.max() > 5, "case 3 at short"),
        ("recover", lambda x: x.max() > 5 / 3, "case 3 at long"),
        ("task", lambda x: x.max() > 5, "case 3, the true image"),
    ],
)
def test_error_names_case_round_and_line(tmp_path, part, when, where):
    images = IMAGES.copy()[:8]
    images[3] *= 100
    images[3] = np.minimum(images[3], 6)
    # At the first round the measurement is an eighth of that: too small for the recovery to fail.
    table, failures = failing(images, part, when, tmp_path)
    here = Path(__file__)
    lines = here.read_text().splitlines()
    line = next(k for k, text in enumerate(lines, 1) if text.endswith("# the user's line"))
    assert table.missing_cases == ("3",)
    assert failures == {
        "3": f"ZeroDivisionError: division by zero (in {part}, {here.name} line {line}, {where})"
    }


NINE = np.random.default_rng(0).random((9, 4, 6))
RUN_NINE = {"accelerations": (4, 2), "samples": 3, "seed": 0, "progress": False}


def unchanged(image, acceleration):
    return image


def mean_of(images):
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


def run_nine(folder, images=NINE, measure=unchanged, recover=recover, task=mean_of, **changes):
    return tq.Pipeline(measure, recover, task).run(images, store=folder, **{**RUN_NINE, **changes})


def other_image(which):
    changed = NINE.copy()
    changed[which, 0, 0] += 1e-6
    return changed


CHANGES = {
    "f times 100": {"task": lambda x: 100 * mean_of(x)},
    "f a little larger": {"task": lambda x: 1.01 * mean_of(x)},
    "another g": {
        "recover": lambda y, *, samples, seed: recover(0.9 * y, samples=samples, seed=seed)
    },
    "another seed of g": {
        "recover": lambda y, *, samples, seed: recover(y, samples=samples, seed=seed + 1)
    },
    "another h": {"measure": lambda x, acceleration: x / acceleration},
    "other images": {"images": NINE + 5},
    "one other image": {"images": other_image(0)},
    "an f that fails": {"task": lambda x: 1 / 0},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_whole", [True, False], ids=["finished", "unfinished"])
def test_changed_run_is_refused(tmp_path, change, is_whole):
    run_nine(tmp_path / "t")
    if not is_whole:
        _forget_some(tmp_path / "t")
    before = sorted(p.name for p in (tmp_path / "t").iterdir())
    with refused("resume.mismatch"):
        run_nine(tmp_path / "t", **CHANGES[change])
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == before


def _forget_some(folder):
    """As if the run had been killed after its first shard."""
    first, *others = sorted(folder.glob("part-*.parquet"))
    for shard in others:
        shard.unlink()
    assert first.exists()
    assert others


def test_images_on_disk_are_compared(tmp_path):
    run_nine(tmp_path / "t")
    again = Lazy(NINE)
    run_nine(tmp_path / "t", again)
    # One to see the size of images, three to compare.
    assert again.asked == 1 + identity.PROBES
    with refused("resume.mismatch", "case 8"):
        run_nine(tmp_path / "t", Lazy(other_image(8)))
    # Those in memory are all compared.
    with refused("resume.mismatch", "case 5"):
        run_nine(tmp_path / "t", other_image(5))


def test_rounding_is_no_change(tmp_path):
    first = run_nine(tmp_path / "t")
    again = run_nine(tmp_path / "t", task=lambda x: mean_of(x) * (1 + 1e-7))
    np.testing.assert_array_equal(first.outputs, again.outputs)


def test_other_code_is_refused(tmp_path, monkeypatch):
    run_nine(tmp_path / "t")
    monkeypatch.setattr(provenance, "_code_fingerprint", lambda: "another")
    with refused("resume.mismatch", "provenance.code"):
        run_nine(tmp_path / "t")


def _files(scale=1.0, seed=0):
    from taskuq.recover._varnet import VarNet, VarNetConfig
    from taskuq.training._weights import save_weights

    images = scale * NINE.repeat(4, 1).repeat(4, 2)
    np.savez("images.npz", images=images, label=np.zeros(9, int), group=np.arange(9))
    config = VarNetConfig(cascades=1, width=2, pools=1, sensitivity_width=2, sensitivity_pools=1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_weights(VarNet(config), "net.safetensors", kind="varnet", config=config)


REPLACED = {"data": {"scale": 2.0}, "recover": {"seed": 1}}


@pytest.mark.parametrize("part", REPLACED)
def test_replaced_file_is_refused(tmp_path, monkeypatch, capsys, part):
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


@pytest.mark.parametrize(
    ("truth", "found"), [((3, 8, 8), (8, 8)), ((8, 8), (8, 4)), ((8, 8), (1, 8, 8))]
)
def test_recoveries_of_another_shape_are_refused(truth, found):
    pipeline = tq.Pipeline(unchanged, lambda y, *, samples, seed: np.ones((samples, *found)), task)
    with refused("component.invalid", "shape"):
        pipeline.run(np.full((2, *truth), 0.5), **RUN_NINE)


def threads_of(folder, threads=None):
    seen = set()

    def counting(images):
        seen.add(torch.get_num_threads())
        return mean_of(images)

    run_nine(folder, task=counting, threads=threads)
    return seen, read_header(folder).provenance["threads"]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_pinned_and_recorded(tmp_path, threads):
    before = torch.get_num_threads()
    assert threads_of(tmp_path / "t", threads) == ({threads}, threads)
    assert torch.get_num_threads() == before
    # The table remembers them, whatever there is when it is gone on with.
    with pinned_threads(3 - threads):
        assert threads_of(tmp_path / "t") == ({threads}, threads)
    with refused("resume.mismatch", "threads"):
        threads_of(tmp_path / "t", 7)


STOPPED_RUN = """
import signal, sys, time
import numpy as np
import taskuq as tq

# Whoever starts the tests in the background leaves them deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

def recover(measurement, *, samples, seed):
    if measurement[0, 0] == 6:
        print("six", flush=True)
        time.sleep(600)
    return np.repeat(measurement[None], samples, axis=0)

images = np.arange(9.0)[:, None, None] * np.ones((1, 4, 4))
pipeline = tq.Pipeline(lambda image, acceleration: image, recover, lambda x: x.mean((1, 2)))
pipeline.run(images, accelerations=(4, 2), samples=2, seed=0, progress=False, store=sys.argv[1])
"""


def stopped_in_the_seventh_case(folder, number):
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_RUN, str(folder)], stdout=-1, stderr=-1, text=True
    ) as run:
        assert run.stdout.readline() == "six\n"
        run.send_signal(number)
        said = run.communicate(timeout=300)[1]
    return run.returncode, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_run_keeps_finished_cases(tmp_path, number):
    code, said = stopped_in_the_seventh_case(tmp_path / "t", number)
    assert code == (143 if number == signal.SIGTERM else -number)
    assert status(tmp_path / "t")["finished"] == 6
    if number == signal.SIGINT:
        assert "6 of 9 cases are finished and kept" in said
    assert not list((tmp_path / "t").glob(".*"))


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_log_is_not_written_through_a_link(tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine\n")
    (tmp_path / "t").mkdir()
    log = tmp_path / "t" / "log.jsonl"
    make = {"link": lambda: log.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(log)}
    make.get(kind, log.mkdir)()
    with pytest.raises(MachineError, match=r"cannot write .*log\.jsonl"):
        RunLog(tmp_path / "t").failed("a", ValueError("x"))
    assert elsewhere.read_text() == "mine\n"
    assert RunLog(tmp_path / "t").failures() == {}


def test_damaged_log_lines_are_skipped(tmp_path):
    log = RunLog(tmp_path)
    log.failed("a", ValueError("x"))
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(b'\xff\xfe{"event": "failed"\n' + b"[" * 10**5 + b'\n{"event": "failed"}\n')
    assert log.failures()["a"] == "ValueError: x"
