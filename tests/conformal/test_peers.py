"""Other libraries find the same intervals, wherever they take the right order statistic."""

import warnings

import numpy as np
import pytest

import taskuq as tq

RNG = np.random.default_rng(12)
N = 400
TRUTH = RNG.random(N)
OUTPUTS = TRUTH[:, None] + RNG.uniform(0.02, 0.2, (N, 1)) * RNG.standard_normal((N, 8))
NEW = OUTPUTS[:50] + 0.01
MEAN, SPREAD = OUTPUTS.mean(axis=1), OUTPUTS.std(axis=1)

# Where alpha (n + 1) is a whole number their floats may take the next order statistic, and where
# the rank is n MAPIE raises; elsewhere all must agree.
PAIRS = [(400, 0.05), (400, 0.1), (150, 0.05), (100, 0.45), (60, 0.2), (25, 0.44)]


class Column:
    """An estimator that has learnt to return one column of its input."""

    fitted_ = True

    def __init__(self, column):
        self.column = column

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.asarray(X)[:, self.column]

    def __sklearn_is_fitted__(self):
        return True


def agree(interval, lower, upper):
    np.testing.assert_allclose(interval.lower, lower, rtol=0, atol=1e-12)
    np.testing.assert_allclose(interval.upper, upper, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "alpha"), PAIRS)
def test_mapie_agrees_on_absolute_residuals(n, alpha):
    regression = pytest.importorskip("mapie.regression")
    estimator = _regressor(0)
    theirs = regression.SplitConformalRegressor(estimator, confidence_level=1 - alpha, prefit=True)
    theirs.conformalize(MEAN[:n, None], TRUTH[:n])
    _, interval = theirs.predict_interval(NEW.mean(axis=1)[:, None])

    ours = tq.calibrate(OUTPUTS[:n], TRUTH[:n], alpha=alpha, score="ar")
    agree(ours(NEW), interval[:, 0, 0], interval[:, 1, 0])


@pytest.mark.parametrize(("n", "alpha"), PAIRS)
def test_mapie_agrees_on_quantile_regression(n, alpha):
    regression = pytest.importorskip("mapie.regression")

    def columns(outputs):
        low, middle, high = np.quantile(outputs, [alpha / 2, 0.5, 1 - alpha / 2], axis=1)
        return np.stack([low, high, middle], axis=1)

    theirs = regression.ConformalizedQuantileRegressor(
        [_regressor(0), _regressor(1), _regressor(2)], confidence_level=1 - alpha, prefit=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of crossing quantiles and of its own defaults
        theirs.conformalize(columns(OUTPUTS[:n]), TRUTH[:n])
        _, interval = theirs.predict_interval(columns(NEW), symmetric_correction=True)

    ours = tq.calibrate(OUTPUTS[:n], TRUTH[:n], alpha=alpha, score="cqr")(NEW)
    whole = ~ours.is_empty
    agree(ours[whole], interval[whole, 0, 0], interval[whole, 1, 0])


def _regressor(column):
    base = pytest.importorskip("sklearn.base")
    return type("Prefit", (Column, base.RegressorMixin, base.BaseEstimator), {})(column)


@pytest.mark.parametrize(("n", "alpha"), PAIRS)
@pytest.mark.parametrize("score", ["ar", "lwr"])
def test_crepes_agrees_where_it_takes_the_right_order_statistic(score, n, alpha):
    crepes = pytest.importorskip("crepes")
    spread, new_spread = (SPREAD[:n], NEW.std(axis=1)) if score == "lwr" else (None, None)
    theirs = crepes.ConformalRegressor()
    theirs.fit(residuals=TRUTH[:n] - MEAN[:n], sigmas=spread)
    interval = theirs.predict_int(NEW.mean(axis=1), sigmas=new_spread, confidence=1 - alpha)

    ours = tq.calibrate(OUTPUTS[:n], TRUTH[:n], alpha=alpha, score=score)
    agree(ours(NEW), interval[:, 0], interval[:, 1])
