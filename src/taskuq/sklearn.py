"""Conformal regressors for scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import align_cases
from taskuq.conformal import calibrate
from taskuq.errors import InputError, import_extra
from taskuq.interval import FloatArray, Interval

import_extra("sklearn", "taskuq[sklearn]")

from sklearn.base import BaseEstimator, RegressorMixin  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

__all__ = ["SampleConformalRegressor", "coverage_score", "width_score", "wrap"]


class SampleConformalRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # untyped
    """Conformal intervals from posterior samples or from the members of an ensemble.

    By default, the features ``X`` are posterior samples, (case, sample). If ``estimator`` is a
    fitted ensemble, the predictions of its members are used as samples. ``fit`` only calibrates:
    call it with cases on which the ensemble was not trained.

    The class passes ``check_estimator`` of scikit-learn. Without an ensemble it has the tag
    ``poor_score``, because it cannot predict from features that are not samples of the target.

    Args:
        alpha: Error rate in (0, 1).
        conformity_score: Name or object of a score, as in :func:`taskuq.calibrate`.
        side: 'two', 'upper', 'lower' or 'each', as in :func:`taskuq.calibrate`.
        cases: Cases of a new group that are covered, as in :func:`taskuq.calibrate`.
        estimator: Fitted ensemble with members ``estimators_``, such as a random forest.

    Example:
        >>> truth = rng.random(300)
        >>> samples = truth[:, None] + 0.1 * rng.standard_normal((300, 16))
        >>> model = SampleConformalRegressor(alpha=0.1).fit(samples[:200], truth[:200])
        >>> model.predict_interval(samples[200:]).contains(truth[200:]).mean() > 0.8
        np.True_
    """

    def __init__(
        self,
        alpha: float = 0.05,
        conformity_score: str = "mlwr",
        side: str = "two",
        cases: float | str = "random",
        estimator: Any = None,
    ) -> None:
        self.alpha = alpha
        self.conformity_score = conformity_score
        self.side = side
        self.cases = cases
        self.estimator = estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self.estimator is None
        return tags

    def fit(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None
    ) -> SampleConformalRegressor:
        """Calibrate intervals on targets and samples (features if ``estimator`` is given).

        Targets and groups of pandas and polars are matched to ``X`` by the ids of the cases.

        Args:
            X: Samples (case, sample); with ``estimator``, features (case, feature).
            y: Targets (case,).
            groups: Group of each case; the guarantee is then for a new group.

        Raises:
            InputError: If arrays do not fit together or values are not finite.
        """
        _, y, groups = align_cases({"X": X, "y": y, "groups": groups}).values()
        checked, targets = validate_data(
            self, X, y, y_numeric=True, dtype=float, order="C", ensure_min_samples=2
        )
        self.bound_ = calibrate(
            self._samples(checked), targets, alpha=self.alpha, group=groups,
            score=self.conformity_score, side=self.side, cases=self.cases,  # type: ignore[arg-type]  # checked by calibrate
        )  # fmt: skip
        return self

    def predict(self, X: ArrayLike) -> FloatArray:
        """Return the sample mean of each case as a point prediction, (case,)."""
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype=float, order="C")
        return np.asarray(self._samples(checked).mean(axis=1))

    def predict_interval(self, X: ArrayLike) -> Interval:
        """Return the calibrated intervals, which unpack into lower and upper ends."""
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype=float, order="C")
        return self.bound_.predict(self._samples(checked))

    def _samples(self, X: FloatArray) -> FloatArray:
        if self.estimator is None:
            return X
        check_is_fitted(self.estimator)
        members = getattr(self.estimator, "estimators_", None)
        if members is None:
            name = type(self.estimator).__name__
            message = f"{name} has no members estimators_; pass an ensemble, or samples"
            raise InputError(message, code="component.invalid")
        return np.stack([one.predict(X) for one in np.ravel(members)], axis=1)


def wrap(
    estimator: Any, *, alpha: float = 0.05, conformity_score: str = "mlwr"
) -> SampleConformalRegressor:
    """Return a conformal regressor whose samples are the predictions of a fitted ensemble.

    Args:
        estimator: Fitted ensemble with members ``estimators_``, such as a random forest.
        alpha: Error rate in (0, 1).
        conformity_score: Name of a score, as in :func:`taskuq.calibrate`.
    """
    return SampleConformalRegressor(
        alpha=alpha, conformity_score=conformity_score, estimator=estimator
    )


def coverage_score(estimator: SampleConformalRegressor, X: ArrayLike, y: ArrayLike) -> float:
    """Return the fraction of targets inside their intervals, for use in ``cross_val_score``."""
    return float(estimator.predict_interval(X).contains(y).mean())


def width_score(estimator: SampleConformalRegressor, X: ArrayLike, y: ArrayLike) -> float:
    """Return the negative mean interval width, so that larger is better."""
    return -float(estimator.predict_interval(X).width.mean())
