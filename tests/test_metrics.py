"""Metrics agree with the statistics of the package, in parts and over processes."""

import numpy as np
import pytest

import taskuq as tq

pytest.importorskip("torchmetrics")

import torch

from taskuq.metrics import CRPS, IntervalCoverage, IntervalWidth, RankHistogram


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 60) / 4
    samples = np.round(truth[:, None] + 0.3 * rng.standard_normal((60, 6)), 1)
    return torch.tensor(samples), torch.tensor(truth)


def test_metrics_equal_the_diagnosis(arrays):
    samples, truth = arrays
    diagnosis = tq.diagnose(samples.numpy(), truth.numpy(), bins=7).results[0]
    assert float(CRPS()(samples, truth)) == pytest.approx(diagnosis.crps.value, rel=1e-12)
    counts = RankHistogram(6)(samples, truth)
    assert counts.sum() == pytest.approx(len(truth))
    fractions = [one.fraction for one in diagnosis.histogram]
    np.testing.assert_allclose(counts / len(truth), fractions, rtol=1e-12)


def test_coverage_and_width_equal_those_of_an_interval(arrays):
    samples, truth = arrays
    interval = tq.Interval(samples.min(1).values, samples.max(1).values - 0.3)
    lower, upper = map(torch.tensor, interval)
    assert float(IntervalCoverage()(lower, upper, truth)) == interval.contains(truth).mean()
    assert float(IntervalWidth()(lower, upper)) == pytest.approx(interval.width.mean())


def of_all_cases(samples, truth):
    """All metrics of the cases of this process; with several, of all of theirs."""
    ends = samples.min(1).values, samples.max(1).values
    inputs = {
        IntervalCoverage(): (*ends, truth), IntervalWidth(): ends,
        CRPS(): (samples, truth), RankHistogram(6): (samples, truth),
    }  # fmt: skip
    for metric, tensors in inputs.items():
        metric.update(*tensors)
    return [metric.compute() for metric in inputs]


def in_process(rank, file, samples, truth, queue):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    own = slice(0, 17) if rank == 0 else slice(17, None)  # unequal parts
    queue.put([value.tolist() for value in of_all_cases(samples[own], truth[own])])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_two_processes_give_the_values_of_one(arrays, tmp_path):
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    arguments = tmp_path / "store", *arrays, queue
    processes = [context.Process(target=in_process, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    expected = [value.tolist() for value in of_all_cases(*arrays)]
    for values in found:
        for value, one in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, one, rtol=1e-12)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_metrics_are_logged_by_a_lightning_module(arrays):
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.crps = CRPS()

        def validation_step(self, batch, index):
            self.crps(*batch)
            self.log("crps", self.crps)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*arrays), batch_size=7)
    options = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", devices=1, **options)
    [logged] = trainer.validate(Module(), loader, verbose=False)
    assert logged["crps"] == pytest.approx(float(CRPS()(*arrays)), rel=1e-6)


def test_too_few_samples_are_refused(arrays):
    for metric in (CRPS(), RankHistogram(3)):
        with pytest.raises(tq.InputError) as caught:
            metric.update(arrays[0][:, :1], arrays[1])
        assert caught.value.code == "samples.mismatch"
