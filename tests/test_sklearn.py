"""The conformal regressor keeps the conventions of scikit-learn and the guarantee of calibrate."""

import numpy as np
import pandas as pd
import pytest

import taskuq as tq

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from taskuq.sklearn import SampleConformalRegressor, coverage_score, width_score, wrap


def samples_of(rng, cases=200, samples=8):
    truth = rng.random(cases)
    return truth[:, None] + 0.1 * rng.standard_normal((cases, samples)), truth


def test_estimator_passes_the_checks_of_scikit_learn():
    failed = {
        result["check_name"]
        for result in check_estimator(SampleConformalRegressor(), on_fail=None, on_skip=None)
        if result["status"] == "failed"
    }
    assert not failed


def test_intervals_are_those_of_calibrate():
    rng = np.random.default_rng(0)
    outputs, truth = samples_of(rng)
    group = np.repeat(np.arange(40), 5)
    model = SampleConformalRegressor(0.1, "lwr").fit(outputs, truth, groups=group)
    bound = tq.calibrate(outputs, truth, alpha=0.1, score="lwr", group=group)
    assert model.bound_.quantile == bound.quantile
    np.testing.assert_array_equal(model.predict_interval(outputs), bound.predict(outputs))
    np.testing.assert_allclose(model.predict(outputs), outputs.mean(axis=1))
    again = clone(model)
    assert again.get_params() == model.get_params()
    with pytest.raises(Exception, match="not fitted"):
        again.predict(outputs)


def test_shuffled_targets_are_matched_by_their_index():
    outputs, truth = samples_of(np.random.default_rng(3))
    frame = pd.DataFrame(outputs, index=[f"p{i}" for i in range(len(truth))]).add_prefix("s")
    shuffled = pd.Series(truth, frame.index).sample(frac=1, random_state=0)
    model = SampleConformalRegressor(alpha=0.1).fit(frame, shuffled)
    assert model.bound_.quantile == tq.calibrate(outputs, truth, alpha=0.1).quantile
    assert model.feature_names_in_[0] == "s0"


def test_scorers_work_in_cross_validation():
    outputs, truth = samples_of(np.random.default_rng(1))
    model, group = SampleConformalRegressor(alpha=0.2), np.repeat(np.arange(20), 10)
    kwargs = {"groups": group, "cv": GroupKFold(4)}
    coverage = cross_val_score(model, outputs, truth, scoring=coverage_score, **kwargs)
    width = cross_val_score(model, outputs, truth, scoring=width_score, **kwargs)
    assert (coverage > 0.5).all()
    assert (width < 0).all()


def test_trees_of_a_forest_are_samples():
    rng = np.random.default_rng(2)
    X = rng.random((300, 3))
    y = X.sum(axis=1) + 0.1 * rng.standard_normal(300)
    forest = RandomForestRegressor(20, random_state=0).fit(X[:150], y[:150])
    model = wrap(forest, alpha=0.1).fit(X[150:250], y[150:250])
    trees = np.stack([tree.predict(X[250:]) for tree in forest.estimators_], axis=1)
    np.testing.assert_array_equal(model.predict_interval(X[250:]), model.bound_.predict(trees))
    with pytest.raises(tq.InputError) as caught:
        wrap(forest.estimators_[0]).fit(X, y)
    assert caught.value.code == "component.invalid"
