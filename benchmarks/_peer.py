"""Intervals of one other library, split by split, in the environment that has it.

python benchmarks/_peer.py NAME DATA.npz       prints one line of JSON

It needs NumPy and the library only: some conflict with taskuq (puncc needs an older NumPy).
``benchmarks/peers.py`` calls it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import textwrap
import time
import types
import warnings
from collections.abc import Callable
from fractions import Fraction
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ALPHA, SPLIT, SCORES = 0.05, 0.7, ("ar", "lwr", "cqr")
# For how long a score is timed, and the smallest number of splits.
SECONDS, FEWEST = 1.0, 3
Split = tuple[np.ndarray, np.ndarray]


class Cases:
    """Inputs of the libraries: summaries of the samples, which none of them accepts.

    Arguments:
        outputs: Outputs on samples, (case, sample).
        targets: Targets, (case,).
    """

    def __init__(self, outputs: np.ndarray, targets: np.ndarray) -> None:
        self.outputs, self.z = outputs, targets
        for score in SCORES:
            self.summarise(score)

    def summarise(self, score: str) -> None:
        """Compute the summaries of samples that a score needs."""
        if score == "cqr":
            self.low, self.high = np.quantile(self.outputs, [ALPHA / 2, 1 - ALPHA / 2], axis=1)
        else:
            self.mean = self.outputs.mean(axis=1)
        if score == "lwr":
            self.spread = self.outputs.std(axis=1)


class Columns:
    """Trained model whose prediction is a column of its input."""

    def __init__(self, column: int = 0) -> None:
        self.column = column

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X[:, self.column]


def mapie(x: Cases, score: str, split: Split, alpha: float) -> Split:
    from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
    from sklearn.base import BaseEstimator, RegressorMixin

    class Model(RegressorMixin, BaseEstimator):
        fitted_ = True

        def __init__(self, column: int = 0) -> None:
            self.column = column

        def fit(self, X: np.ndarray, y: np.ndarray) -> Model:
            return self

        def predict(self, X: np.ndarray) -> np.ndarray:
            return X[:, self.column]

    fold, test = split
    if score == "cqr":
        X = np.stack([x.low, x.high, (x.low + x.high) / 2], axis=1)
        models = [Model(0), Model(1), Model(2)]
        cqr = ConformalizedQuantileRegressor(models, confidence_level=1 - alpha, prefit=True)
        cqr.conformalize(X[fold], x.z[fold])
        ends = cqr.predict_interval(X[test], symmetric_correction=True)[1]
        return ends[:, 0, 0], ends[:, 1, 0]
    # LWR is AR of targets in units of the spread, which spares MAPIE a model of it.
    scale = x.spread if score == "lwr" else np.ones_like(x.mean)
    X = (x.mean / scale)[:, None]
    model = SplitConformalRegressor(Model(), confidence_level=1 - alpha, prefit=True)
    model.conformalize(X[fold], x.z[fold] / scale[fold])
    ends = model.predict_interval(X[test])[1] * scale[test, None, None]
    return ends[:, 0, 0], ends[:, 1, 0]


def crepes(x: Cases, score: str, split: Split, alpha: float) -> Split:
    from crepes import ConformalRegressor

    fold, test = split
    sigmas = x.spread if score == "lwr" else np.ones_like(x.mean)
    model = ConformalRegressor().fit(x.z[fold] - x.mean[fold], sigmas=sigmas[fold])
    ends = model.predict_int(x.mean[test], sigmas=sigmas[test], confidence=1 - alpha)
    return ends[:, 0], ends[:, 1]


def puncc(x: Cases, score: str, split: Split, alpha: float) -> Split:
    from deel.puncc.api.prediction import BasePredictor, DualPredictor, MeanVarPredictor
    from deel.puncc.regression import CQR, LocallyAdaptiveCP, SplitCP

    fold, test = split
    X = np.stack([x.mean, x.spread, x.low, x.high], axis=1)
    trained = [True, True]
    if score == "ar":
        model = SplitCP(BasePredictor(Columns(0), is_trained=True), train=False)
    elif score == "lwr":
        predictor = MeanVarPredictor([Columns(0), Columns(1)], is_trained=trained)
        model = LocallyAdaptiveCP(predictor, train=False)
    else:
        model = CQR(DualPredictor([Columns(2), Columns(3)], is_trained=trained), train=False)
    model.fit(X_calib=X[fold], y_calib=x.z[fold])
    _, low, high = model.predict(X[test], alpha=alpha)
    return low, high


def torchcp(x: Cases, score: str, split: Split, alpha: float) -> Split:
    """Scores and quantile of TorchCP; its predictors need a torch model and a data loader."""
    import torch
    from torchcp.regression.score import ABS, CQR
    from torchcp.utils.common import calculate_conformal_value

    fold, test = split
    given, rule = ([x.mean], ABS()) if score == "ar" else ([x.low, x.high], CQR())
    X, z = torch.from_numpy(np.stack(given, axis=1)), torch.from_numpy(x.z)
    q = calculate_conformal_value(rule(X[fold], z[fold]), alpha)
    ends = rule.generate_intervals(X[test], torch.as_tensor(q).reshape(1)).numpy()
    return ends[:, 0, 0], ends[:, 0, 1]


def _regression_of_torchcp() -> None:
    """Import its regression only; other parts need further packages."""
    if "torchcp" not in sys.modules:
        spec = importlib.util.find_spec("torchcp")
        if spec is None:
            raise ModuleNotFoundError("No module named 'torchcp'")
        package = types.ModuleType("torchcp")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["torchcp"] = package


def authors(x: Cases, score: str, split: Split, alpha: float) -> Split:
    """Code of the paper's authors, from a copy of their repository (TASKUQ_AUTHORS)."""
    code = _authors_code()
    method = {"ar": "residual", "lwr": "studentized_residual", "cqr": "cqr"}[score]
    given = x.mean if score == "ar" else x.outputs
    fold, test = split
    q = code.conformal_calibration(given, x.z, fold, alpha=alpha, conformal_method=method)
    low, high, _ = code.conformal_inference(given[test], q, alpha=alpha, conformal_method=method)
    return low, high


def _authors_code() -> Any:
    folder = os.environ.get("TASKUQ_AUTHORS", "")
    path = Path(folder) / "conformal/conformal_utils.py"
    if not folder or not path.exists():
        raise ModuleNotFoundError("set TASKUQ_AUTHORS to a copy of the authors' repository")
    sys.path.insert(0, str(path.parent))
    return importlib.import_module("conformal_utils")


def deepinv(x: Cases, score: str, split: Split, alpha: float) -> Split:
    """Check that deepinv is installed; it draws samples and makes no intervals."""
    if importlib.util.find_spec("deepinv") is None:
        raise ModuleNotFoundError("No module named 'deepinv'")
    return x.z[:0], x.z[:0]


# The package of each, the function, and the scores that are offered: crepes takes no pair of
# quantiles, and TorchCP's locally weighted score trains a model of the spread, and takes none.
PEERS: dict[str, tuple[str, Callable[..., Split], tuple[str, ...]]] = {
    "MAPIE": ("mapie", mapie, SCORES),
    "crepes": ("crepes", crepes, ("ar", "lwr")),
    "puncc": ("puncc", puncc, SCORES),
    "TorchCP": ("torchcp", torchcp, ("ar", "cqr")),
    "deepinv": ("deepinv", deepinv, ()),
    "authors' code": ("", authors, SCORES),
}


def lines_of(peer: Callable[..., Any]) -> int:
    """Return the number of lines of a function, formatted by Python, without comments.

    Imports are counted; the line that defines the function, docstrings, comments, empty lines and
    the way in which long lines are broken are not.
    """
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(peer))).body
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1 if ast.get_docstring(function) else 0 :]
    written = "\n".join(map(ast.unparse, body)).splitlines()
    return sum(bool(line.strip()) for line in written)


def timed(
    peer: Callable[..., Split], x: Cases, score: str, *, takes_samples: bool = False
) -> dict[str, Any]:
    """Return the CPU seconds of a split and of the summaries of samples, or an error."""
    rng, times, covered, widths = np.random.default_rng(1), [], [], []
    start = time.process_time()
    for _ in range(10):
        x.summarise(score)
    summary = 0.0 if takes_samples else (time.process_time() - start) / 10
    n, begin = int(SPLIT * len(x.z)), time.perf_counter()
    while len(times) < FEWEST + 1 or time.perf_counter() - begin < SECONDS:
        order = rng.permutation(len(x.z))
        start = time.process_time()
        try:
            low, high = peer(x, score, (order[:n], order[n:]), ALPHA)
        except Exception as error:
            return {"why": f"fails ({type(error).__name__}: {str(error)[:80]})"}
        times.append(time.process_time() - start)
        z = x.z[order[n:]]
        covered.append(float(np.mean((low <= z) & (z <= high))))
        widths.append(float(np.mean(high - low)))
    return {
        "seconds": median(times[1:]), "summary": summary, "splits": len(times) - 1,
        "coverage": float(np.mean(covered)), "width": float(np.mean(widths)),
    }  # fmt: skip


def quantile_of(peer: Callable[..., Split], n: int, alpha: float) -> float:
    """Return the half-width of a library for calibration scores 1, 2, ..., n."""
    x = Cases(np.zeros((n + 2, 2)), np.arange(1.0, n + 3))
    x.spread = np.ones(n + 2)
    low, high = peer(x, "ar", (np.arange(n), np.array([n, n + 1])), alpha)
    return float(np.ravel(high)[0] - np.ravel(low)[0]) / 2


def ranks(peer: Callable[..., Split]) -> dict[str, Any]:
    """Count correct and too small quantiles, and the result if none exists."""
    right = narrow = asked = 0
    for alpha in ("0.01", "0.02", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"):
        for n in range(3, 204, 8):
            k = ceil((1 - Fraction(alpha)) * (n + 1))
            if k <= n:
                asked += 1
                with contextlib.suppress(Exception):  # a refusal is not the right quantile
                    q = quantile_of(peer, n, float(alpha))
                    right, narrow = right + (abs(q - k) < 1e-9), narrow + (q < k - 1e-9)
    try:
        found = quantile_of(peer, 5, 0.1)
        short = "infinite" if found == inf else f"finite ({found:g} where scores end at 5)"
    except Exception as error:
        short = f"refuses ({type(error).__name__})"
    return {"right": right, "narrow": narrow, "asked": asked, "short": short}


def main(name: str, data: str) -> None:
    """Print the results of one library as JSON."""
    package, peer, offered = PEERS[name]
    given = np.load(data)
    x = Cases(given["outputs"], given["targets"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if peer is torchcp:
                _regression_of_torchcp()
            peer(x, "ar", (np.arange(100), np.arange(100, 110)), ALPHA)
        except ModuleNotFoundError as error:
            print(json.dumps({"missing": str(error)}))
            return
        found: dict[str, Any] = {"scores": {}}
        for score in SCORES:
            takes_samples = peer is authors and score != "ar"
            found["scores"][score] = (
                timed(peer, x, score, takes_samples=takes_samples)
                if score in offered
                else {"why": "not offered"}
            )
        if "seconds" in found["scores"]["ar"]:
            found |= ranks(peer)
    found["version"] = importlib.metadata.version(package) if package else ""
    found["glue"] = lines_of(peer)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
