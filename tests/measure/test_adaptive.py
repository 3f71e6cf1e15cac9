"""Adaptive lines: exact variance reduction of normal samples, rules, stored lines."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import taskuq as tq
from measure.adaptive_toy import RATES, SIZE, Draws, DrawsTogether, corner, patients, scanner
from raising import refused
from taskuq._seeds import case_seed
from taskuq.measure._adaptive import (
    AdaptiveLines,
    _GramCovariance,
    _noise_variance,
    _ScalarCovariance,
    line_covariance,
    stack_cases,
)
from taskuq.measure._masks import center_lines
from taskuq.measure._mri import MultiCoilMRI
from taskuq.measure._tomography import ParallelBeamCT
from taskuq.pipeline._executor import CaseExecutor, Executor
from taskuq.table._table import TaskOutputs

LINES, NUMBERS = 24, 3


def normal_model(seed, size=6):
    """A covariance, what each line measures of an image, and a linear task."""
    rng = np.random.default_rng([23, seed])
    root = rng.normal(size=(size, size))
    return root, rng.normal(size=(LINES, NUMBERS, size)), rng.normal(size=size)


def spread_of(root, operators, task, noise):
    """Return the covariance of a symmetric set of samples."""
    deviations = np.concatenate([root, -root], axis=1).T
    deviations *= np.sqrt((len(deviations) - 1) / 2)
    contents = np.einsum("lni,ji->ljn", operators, deviations)
    p = len(deviations)
    grams = np.einsum("ljn,lkn->ljk", contents, contents)[None] / (p - 1)
    z = deviations @ task
    return _GramCovariance(grams, np.outer(z, z)[None] / (p - 1), np.array([noise]))


def posterior_variance(root, operators, task, noise, lines):
    """The closed form: the variance of aᵀx given the lines, by precisions."""
    covariance = root @ root.T
    seen = operators[lines].reshape(-1, len(root))
    total = seen @ covariance @ seen.T + noise * np.eye(len(seen))
    gained = covariance @ seen.T @ np.linalg.solve(total, seen @ covariance)
    return task @ (covariance - gained) @ task


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.05, 2.0])
def test_remaining_variance_is_the_exact_posterior_variance(seed, noise):
    model = normal_model(seed)
    lines = [3, 0, 17, 8][: seed % 5]

    exact = posterior_variance(*model, noise, lines)
    assert np.isclose(spread_of(*model, noise).left(lines), exact, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_each_line_has_the_largest_exact_reduction(seed):
    model, noise = normal_model(seed), 3.0
    lines, gains = spread_of(*model, noise).greedy(5, np.zeros(LINES, dtype=bool))
    for k, (line, gain) in enumerate(zip(lines, gains, strict=True)):
        before = posterior_variance(*model, noise, lines[:k])
        after = [posterior_variance(*model, noise, [*lines[:k], one]) for one in range(LINES)]
        after = [np.inf if one in lines[:k] else left for one, left in enumerate(after)]
        assert line == int(np.argmin(after))
        assert np.isclose(gain, before - min(after), rtol=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_scalar_and_gram_covariance_agree(seed):
    rng = np.random.default_rng([24, seed])
    values, z = rng.normal(size=(3, LINES, 9)), rng.normal(size=(3, 9, 2))
    noise = rng.uniform(0.1, 2, 3)
    scalar = _ScalarCovariance(values, z, noise)
    whole = _GramCovariance(values[..., None] * values[..., None, :], z @ z.swapaxes(1, 2), noise)
    measured = np.arange(LINES) == 5
    assert np.isclose(scalar.left([3, 8]), whole.left([3, 8]))
    (lines, gains), (others, expected) = (one.greedy(6, measured) for one in (scalar, whole))
    assert lines == others
    assert np.allclose(gains, expected)


@settings(max_examples=20)
@given(st.integers(0, 40), st.integers(1, 4))
def test_cases_have_equal_weights_in_any_order(seed, cases):
    each = [spread_of(*normal_model(seed + k), 1.0 + k) for k in range(cases)]
    both = [stack_cases(order) for order in (each, each[::-1])]
    assert np.isclose(both[0].left([1, 2]), np.mean([one.left([1, 2]) for one in each]))
    assert (
        both[0].greedy(3, np.zeros(LINES, bool))[0] == both[1].greedy(3, np.zeros(LINES, bool))[0]
    )


def test_without_gain_the_line_of_largest_variance_is_next():
    values = np.random.default_rng(0).normal(size=(1, LINES, 5))
    gram = _GramCovariance(
        values[..., None] * values[..., None, :], np.zeros((1, 5, 5)), np.ones(1)
    )
    own = np.square(values).sum(axis=(0, 2))
    for settled in (gram, _ScalarCovariance(values, np.zeros((1, 5, 1)), np.ones(1))):
        lines, gains = settled.greedy(3, np.zeros(LINES, bool))
        assert lines == np.argsort(-own)[:3].tolist()
        assert gains == [0.0] * 3


def test_equal_samples_have_the_noise_of_the_ridge():
    assert _noise_variance(np.array([0.0, 2.0]), 0.1) == pytest.approx([0.1, 0.2])


def test_impossible_choices_are_refused():
    for count in (-1, LINES + 1):
        with refused("value.invalid", str(count)):
            spread_of(*normal_model(0), 1.0).greedy(count, np.zeros(LINES, bool))
    with refused("value.invalid"):
        _noise_variance(np.ones(1), 0.0)
    values = np.full((1, LINES, 4), np.nan)
    with refused("value.nonfinite"):
        _ScalarCovariance(values, np.ones((1, 4, 1)), np.ones(1)).greedy(1, np.zeros(LINES, bool))


def test_lines_are_chosen_given_those_chosen_before():
    """Two lines measure the same: given one, the other is not chosen."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((1, 3, 6))
    values[0, 1] = values[0, 0]
    outputs = (values[:, 0] + 0.3 * values[:, 2])[..., None]
    noise = np.full(1, 1e-3)
    grams = values[..., None] * values[..., None, :]
    measured = np.array([True, False, False])
    for expected in (
        _ScalarCovariance(values, outputs, noise),
        _GramCovariance(grams, outputs @ outputs.swapaxes(1, 2), noise),
    ):
        assert expected.greedy(1, measured)[0] == [1]
        assert expected.greedy(1, measured, known=[0])[0] == [2]
        one, both = expected.greedy(2, np.zeros(3, dtype=bool)), expected.left([0, 2])
        (line,), (gain,) = expected.greedy(1, measured, known=[0])
        assert one[0] == [0, line]
        assert one[1][1] == pytest.approx(gain)
        assert gain == pytest.approx(expected.left([0]) - both)


def test_line_values_are_those_of_the_scanner():
    system, generator = scanner(), torch.Generator().manual_seed(1)
    # A phase that turns once along the columns: the measured centre shows it.
    turning = torch.exp(2j * torch.pi * torch.arange(SIZE) / SIZE)
    maps = torch.stack([0.6 * turning, torch.full((SIZE,), 0.8j)])[:, None].expand(2, SIZE, SIZE)
    scan = system.measure_lines(maps, 8.0, center_lines(SIZE, 4))
    images = torch.rand(3, SIZE, SIZE, generator=generator)
    held = system.line_values(images, scan)
    measured = torch.stack(
        [system.measure_lines(x * maps, 1.0, np.ones(SIZE, bool)).kspace for x in images]
    )
    columns = measured.permute(3, 0, 1, 2).flatten(2)
    assert torch.allclose(held @ held.mH, columns @ columns.mH, atol=1e-4)


def test_view_values_are_those_of_the_scanner():
    ct, images = ParallelBeamCT(8, 12, (4.0, 2.0)), torch.rand(3, 8, 8)
    held = ct.line_values(images, ct(images[0], 4.0))
    assert torch.equal(held.transpose(0, 1), ct(images, 1.0).projections)
    assert ct.initial_lines(3).nonzero()[0].tolist() == [0, 4, 8]


def test_linear_task_has_one_variance_by_gradient_and_by_outputs():
    system, image = scanner(), patients(1)[0]
    first = center_lines(SIZE, 2)
    scan = system.measure_lines(image, 8.0, first)
    drawn = Draws()(scan, samples=5, seed=0)

    def linear(x):
        return torch.stack([x[:, 3].mean(1), 2 * x[:, :, 4].sum(1)], dim=1)

    by = {
        a: line_covariance(system, scan, drawn, linear, first, objective=a)
        for a in ("gradient", "outputs")
    }
    assert np.isclose(by["gradient"].left([]), by["outputs"].left([]), rtol=1e-4)
    assert np.isclose(by["outputs"].left([]), linear(drawn).var(0).sum(), rtol=1e-4)


def stationary(size=8):
    """Symmetric samples with exactly a stationary covariance, it, and a linear task."""
    f = np.fft.fftfreq(size)
    power = 1 / (0.02 + f[:, None] ** 2 + f[None] ** 2)
    waves = np.fft.fft2(np.eye(size**2).reshape(-1, size, size), norm="ortho").reshape(size**2, -1)
    root = np.real(waves.conj().T @ np.diag(np.sqrt(power.ravel())) @ waves)
    p = 2 * size**2
    samples = np.concatenate([root, -root]) * np.sqrt((p - 1) / 2)
    task = np.random.default_rng(4).normal(size=size**2)
    return samples.reshape(p, size, size), root @ root, task


@pytest.mark.parametrize("lines", [[], [2], [2, 6], [0, 3, 7], [1, 2, 3, 5]])
def test_independent_lines_have_the_exact_posterior_variance(lines):
    samples, covariance, a = stationary()
    system = MultiCoilMRI(np.ones((1, 8), bool), (1.0,))
    first = center_lines(8, 1)
    scan = system.measure_lines(torch.ones(1, 8, 8) + 0j, 8.0, first)
    weights = torch.as_tensor(a.reshape(8, 8))
    spread = line_covariance(
        system, scan, torch.as_tensor(samples), lambda x: (x * weights).sum((1, 2)), first,
        regularisation=1e-9,
    )  # fmt: skip
    columns = np.fft.fftshift(np.fft.fft(np.eye(64).reshape(64, 8, 8), norm="ortho"), axes=-1)
    seen = columns[:, :, lines].reshape(64, -1).T
    seen = np.concatenate([seen.real, seen.imag])
    gained = seen @ covariance
    exact = a @ covariance @ a
    if lines:
        exact -= a @ gained.T @ np.linalg.pinv(seen @ covariance @ seen.T, 1e-9) @ gained @ a
    assert np.isclose(spread.left(lines), exact, rtol=1e-5, atol=1e-6 * (a @ covariance @ a))


def test_tasks_without_gradient_and_too_few_samples_are_refused():
    system, first = scanner(), center_lines(SIZE, 2)
    scan = system.measure_lines(patients(1)[0], 8.0, first)
    drawn = Draws()(scan, samples=3, seed=0)
    with refused("component.invalid"):
        line_covariance(system, scan, drawn, lambda x: corner(x.detach()), first)
    with refused("samples.mismatch", "at least 2"):
        line_covariance(system, scan, drawn[:1], corner, first)
    with refused("samples.mismatch", "at least 3"):
        line_covariance(system, scan, drawn[:2], corner, first, objective="outputs")
    with refused("choice.unknown"):
        line_covariance(system, scan, drawn, corner, first, objective="colour")


def test_random_lines_are_new_and_counted():
    rng = np.random.default_rng(0)
    for system in (scanner(), ParallelBeamCT(8, 12, RATES)):
        lines = system.initial_lines(3)
        more = system.add_random_lines(lines, 6, rng)
        assert (more >= lines).all()
        assert more.sum() == 9
        assert system.add_random_lines(more, 0, rng).tolist() == more.tolist()
        assert system.add_random_lines(more, system.n_lines - 9, rng).all()


CASES = patients(5, seed=3)
NAMES = list("abcde")


def rule(**options) -> AdaptiveLines:
    return AdaptiveLines(scanner(), scanner().masks, RATES, **options)


def run(recover, store=None, measure=None, **options):
    pipeline = tq.Pipeline(measure or rule(), recover, corner)
    return pipeline.run(
        CASES, accelerations=RATES, samples=6, seed=0, store=store, case=NAMES, progress=False,
        **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return run(Draws())


def test_rounds_are_nested_with_the_same_start(table):
    assert (table.sampled_lines[1:] >= table.sampled_lines[:-1]).all()
    assert np.array_equal(table.sampled_lines.sum(axis=2), np.tile([[2], [4], [8]], 5))
    assert (table.sampled_lines[0] == scanner().masks[0]).all()


def test_outputs_belong_to_the_stored_lines(table):
    for k, R in enumerate(RATES):
        for i, image in enumerate(CASES):
            scan = scanner().measure_lines(image, R, table.sampled_lines[k, i])
            drawn = Draws()(scan, samples=6, seed=case_seed(0, NAMES[i], R))
            assert np.allclose(corner(drawn), table.outputs[k, i], atol=1e-6)


def test_share_of_adaptive_lines(table):
    masks = scanner().masks
    none, half = (run(Draws(), measure=rule(adaptive_fraction=share)) for share in (0.0, 0.5))
    assert (none.sampled_lines == masks[:, None]).all()
    outside = [(t.sampled_lines & ~masks[:, None]).sum(axis=2) for t in (none, half, table)]
    added = np.diff(masks.sum(axis=1))
    assert (np.diff(outside[1], axis=0) <= np.ceil(added / 2)[:, None]).all()
    assert 0 < outside[1].sum() < outside[2].sum()
    assert (half.sampled_lines.sum(axis=2) == masks.sum(axis=1)[:, None]).all()
    assert len({rule(adaptive_fraction=share).fingerprint for share in (0.0, 0.5, 1.0)}) == 3
    assert rule(adaptive_fraction=1.0).fingerprint == rule().fingerprint
    with refused("value.invalid", "adaptive_fraction"):
        rule(adaptive_fraction=1.5)


def test_lookahead_limits_the_lines(table):
    masks = scanner().masks.copy()
    masks[1] = masks[0]
    masks[1, np.flatnonzero(masks[2] & ~scanner().masks[1])[:2]] = True  # not the best of them
    rules = [AdaptiveLines(scanner(), masks, RATES, lookahead=ahead) for ahead in (0, 1)]
    now, later = (run(Draws(), measure=rule) for rule in rules)
    assert (now.sampled_lines == masks[:, None]).all()
    assert (later.sampled_lines[1] <= masks[2]).all()
    assert (later.sampled_lines[1] != masks[1]).any()
    # In the last round the masks' lines are measured.
    assert (later.sampled_lines[2] == masks[2]).all()
    assert (later.sampled_lines.sum(axis=2) == masks.sum(axis=1)[:, None]).all()
    every = [
        rule(lookahead=ahead, adaptive_fraction=share)
        for ahead in (None, 0, 1)
        for share in (0.5, 1)
    ]
    assert len({one.fingerprint for one in every}) == 6
    with refused("value.invalid", "ahead"):
        rule(lookahead=-1)


@pytest.mark.parametrize("options", [{}, {"batch": 3}])
def test_lines_do_not_depend_on_the_batch(table, options):
    assert np.array_equal(run(DrawsTogether(), **options).sampled_lines, table.sampled_lines)


def test_killed_run_resumes_with_the_same_lines(table, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Draws(fails_at=8), tmp_path / "t")
    assert np.array_equal(run(Draws(), tmp_path / "t").sampled_lines, table.sampled_lines)


@pytest.mark.parametrize("name", ["folder", "table.npz"])
def test_table_keeps_its_lines(table, tmp_path, name):
    table.save(tmp_path / name)
    assert np.array_equal(TaskOutputs.load(tmp_path / name).sampled_lines, table.sampled_lines)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (np.zeros((3, 5, SIZE)), "shape.mismatch"),
        (np.zeros((2, 5, SIZE), bool), "shape.mismatch"),
        (np.ones((3, 5, SIZE), bool) & (np.arange(3) < 2)[:, None, None], "rounds.invalid"),
    ],
)
def test_impossible_lines_are_refused(table, lines, code):
    with refused(code):
        TaskOutputs(table.outputs, table.targets, RATES, sampled_lines=lines)


class Forgetful(AdaptiveLines):
    """A rule that gives up a line it has measured."""

    def next_lines(self, round, measurement, recoveries, task, lines):
        lines[np.flatnonzero(lines)[0]] = False
        return lines


def test_rule_that_drops_a_line_is_refused():
    executor = CaseExecutor(
        Forgetful(scanner(), scanner().masks, RATES), Executor(Draws(), corner, 0), RATES, 3
    )
    with refused("component.invalid"):
        executor.run(CASES[:1], ["a"])
