"""Intervals of one peer library, computed split by split in the environment that has it.

python benchmarks/_peer.py NAME DATA.npz       prints one line of JSON

The script needs only NumPy and the library, because some libraries conflict with taskuq (puncc
needs an older NumPy). ``benchmarks/peers.py`` runs it.
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
from functools import cached_property
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ALPHA, SPLIT, SCORES = 0.05, 0.7, ("ar", "lwr", "cqr")
# For how long a score is timed, and the smallest number of splits.
SECONDS, FEWEST = 1.0, 3
Ends = Any  # lower and upper ends
Recipe = Callable[..., Ends]


class Cases:
    """Outputs (case, sample), targets (case,), and the sample summaries that most libraries use."""

    def __init__(self, outputs: Any, targets: Any) -> None:
        self.outputs, self.z = outputs, targets

    @cached_property
    def mean(self) -> Any:
        return np.asarray(self.outputs).mean(axis=1)

    @cached_property
    def spread(self) -> Any:
        return np.asarray(self.outputs).std(axis=1)

    @cached_property
    def ends(self) -> Any:
        return np.quantile(self.outputs, [ALPHA / 2, 1 - ALPHA / 2], axis=1).T


def taskuq(score: str) -> Recipe:
    def recipe(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
        import taskuq as tq

        return tq.calibrate(x.outputs[fold], x.z[fold], alpha=alpha, score=score)(x.outputs[test])

    return recipe


def mapie_ar(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from mapie.regression import SplitConformalRegressor
    from sklearn.linear_model import LinearRegression

    identity = LinearRegression().fit([[0], [1]], [0, 1])
    model = SplitConformalRegressor(identity, confidence_level=1 - alpha, prefit=True)
    model.conformalize(x.mean[fold, None], x.z[fold])
    return model.predict_interval(x.mean[test, None])[1][..., 0].T


def mapie_lwr(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from mapie.regression import SplitConformalRegressor
    from sklearn.linear_model import LinearRegression

    # AR of targets in units of the spread, which spares MAPIE a model of it.
    X = (x.mean / x.spread)[:, None]
    identity = LinearRegression().fit([[0], [1]], [0, 1])
    model = SplitConformalRegressor(identity, confidence_level=1 - alpha, prefit=True)
    model.conformalize(X[fold], x.z[fold] / x.spread[fold])
    return model.predict_interval(X[test])[1][..., 0].T * x.spread[test]


def mapie_cqr(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from mapie.regression import ConformalizedQuantileRegressor
    from sklearn.base import clone
    from sklearn.linear_model import LinearRegression

    column = LinearRegression(fit_intercept=False)
    models = [clone(column).fit(np.eye(2), y) for y in ([1, 0], [0, 1], [0.5, 0.5])]
    model = ConformalizedQuantileRegressor(models, confidence_level=1 - alpha, prefit=True)
    model.conformalize(x.ends[fold], x.z[fold])
    return model.predict_interval(x.ends[test], symmetric_correction=True)[1][..., 0].T


def crepes_ar(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from crepes import ConformalRegressor

    model = ConformalRegressor().fit(x.z[fold] - x.mean[fold])
    return model.predict_int(x.mean[test], confidence=1 - alpha).T


def crepes_lwr(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from crepes import ConformalRegressor

    model = ConformalRegressor().fit(x.z[fold] - x.mean[fold], sigmas=x.spread[fold])
    return model.predict_int(x.mean[test], sigmas=x.spread[test], confidence=1 - alpha).T


class Column:
    """Model whose prediction is one column of the features."""

    def __init__(self, column: int = 0) -> None:
        self.column = column

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X[:, self.column]


def puncc_ar(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from deel.puncc.api.prediction import BasePredictor
    from deel.puncc.regression import SplitCP

    model = SplitCP(BasePredictor(Column(), is_trained=True), train=False)
    model.fit(X_calib=x.mean[fold, None], y_calib=x.z[fold])
    return model.predict(x.mean[test, None], alpha=alpha)[1:]


def puncc_lwr(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from deel.puncc.api.prediction import MeanVarPredictor
    from deel.puncc.regression import LocallyAdaptiveCP

    X = np.stack([x.mean, x.spread], axis=1)
    predictor = MeanVarPredictor([Column(0), Column(1)], is_trained=[True, True])
    model = LocallyAdaptiveCP(predictor, train=False)
    model.fit(X_calib=X[fold], y_calib=x.z[fold])
    return model.predict(X[test], alpha=alpha)[1:]


def puncc_cqr(x: Cases, fold: Any, test: Any, alpha: float) -> Ends:
    from deel.puncc.api.prediction import DualPredictor
    from deel.puncc.regression import CQR

    predictor = DualPredictor([Column(0), Column(1)], is_trained=[True, True])
    model = CQR(predictor, train=False)
    model.fit(X_calib=x.ends[fold], y_calib=x.z[fold])
    return model.predict(x.ends[test], alpha=alpha)[1:]


def torchcp(x: Cases, score: str, fold: Any, test: Any, alpha: float) -> Ends:
    """Return intervals from TorchCP's score and quantile functions, which need no torch model."""
    import torch
    from torchcp.regression.score import ABS, CQR
    from torchcp.utils.common import calculate_conformal_value

    X, rule = (x.mean[:, None], ABS()) if score == "ar" else (x.ends, CQR())
    X, z = torch.from_numpy(X), torch.from_numpy(x.z)
    q = calculate_conformal_value(rule(X[fold], z[fold]), alpha)
    return rule.generate_intervals(X[test], torch.as_tensor(q).reshape(1)).numpy()[:, 0].T


def authors(x: Cases, score: str, fold: Any, test: Any, alpha: float) -> Ends:
    """Return intervals computed by the code of the paper's authors in the folder TASKUQ_AUTHORS."""
    folder = Path(os.environ.get("TASKUQ_AUTHORS", "")) / "conformal"
    if not (folder / "conformal_utils.py").exists():
        raise ModuleNotFoundError("set TASKUQ_AUTHORS to a copy of the authors' repository")
    sys.path.insert(0, str(folder))
    code = importlib.import_module("conformal_utils")
    method = {"ar": "residual", "lwr": "studentized_residual", "cqr": "cqr"}[score]
    given = x.mean if score == "ar" else x.outputs
    q = code.conformal_calibration(given, x.z, fold, alpha=alpha, conformal_method=method)
    return code.conformal_inference(given[test], q, alpha=alpha, conformal_method=method)[:2]


# The package of each, and its recipe for each score that it offers: crepes takes no pair of
# quantiles, and TorchCP's locally weighted score trains a model of the spread, and takes none.
PEERS: dict[str, tuple[str, dict[str, Recipe]]] = {
    "taskuq": ("taskuq", {score: taskuq(score) for score in SCORES}),
    "MAPIE": ("mapie", {"ar": mapie_ar, "lwr": mapie_lwr, "cqr": mapie_cqr}),
    "crepes": ("crepes", {"ar": crepes_ar, "lwr": crepes_lwr}),
    "puncc": ("puncc", {"ar": puncc_ar, "lwr": puncc_lwr, "cqr": puncc_cqr}),
    "TorchCP": ("torchcp", {s: lambda x, *a, s=s: torchcp(x, s, *a) for s in ("ar", "cqr")}),
    "authors' code": ("", {s: lambda x, *a, s=s: authors(x, s, *a) for s in SCORES}),
}


def lines_of(recipe: Recipe) -> int:
    """Return the number of lines of code that a recipe needs, after uniform formatting.

    Imports are counted. The ``def`` line, docstrings, comments, empty lines, breaks of long lines,
    and the computation of sample means, spreads and quantiles are not.
    """
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(recipe))).body
    assert isinstance(function, ast.FunctionDef)
    written = "\n".join(map(ast.unparse, function.body)).splitlines()
    return sum(bool(line.strip()) for line in written)


def timed(recipe: Recipe, given: Cases) -> dict[str, float]:
    """Return the CPU seconds of one split, and of the sample summaries that the library needs."""
    rng, times = np.random.default_rng(1), []
    x, n, begin = Cases(given.outputs, given.z), int(SPLIT * len(given.z)), time.perf_counter()
    while len(times) < FEWEST + 1 or time.perf_counter() - begin < SECONDS:
        order = rng.permutation(len(x.z))
        start = time.process_time()
        recipe(x, order[:n], order[n:], ALPHA)
        times.append(time.process_time() - start)
    used, start = vars(x).keys() & {"mean", "spread", "ends"}, time.process_time()
    for name in used:
        getattr(Cases(given.outputs, given.z), name)
    return {"seconds": median(times[1:]), "summary": time.process_time() - start}


def quantile_of(recipe: Recipe, n: int, alpha: float) -> float:
    """Return the half-width of a library's intervals for calibration scores 1, 2, ..., n."""
    x = Cases(np.zeros((n + 2, 2)), np.arange(1.0, n + 3))
    low, high = recipe(x, np.arange(n), np.array([n, n + 1]), alpha)
    return float(np.ravel(high)[0] - np.ravel(low)[0]) / 2


def ranks(recipe: Recipe) -> dict[str, Any]:
    """Count tested, correct and too small conformal quantiles; also test too small a sample."""
    right = narrow = asked = 0
    for alpha in ("0.01", "0.02", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"):
        for n in range(3, 204, 8):
            k = ceil((1 - Fraction(alpha)) * (n + 1))
            if k <= n:
                asked += 1
                with contextlib.suppress(Exception):  # a refusal is not the right quantile
                    q = quantile_of(recipe, n, float(alpha))
                    right, narrow = right + (abs(q - k) < 1e-9), narrow + (q < k - 1e-9)
    try:
        found = quantile_of(recipe, 5, 0.1)
        short = "infinite" if found == inf else f"finite ({found:g} where scores end at 5)"
    except Exception as error:
        short = f"refused ({type(error).__name__})"
    return {"right": right, "narrow": narrow, "asked": asked, "short": short}


def mistakes(recipe: Recipe) -> dict[str, str]:
    """Return the library's reaction to each kind of wrong input: error, warning or neither."""
    rng = np.random.default_rng(0)
    z = rng.random(60)
    outputs = z[:, None] + 0.1 * rng.standard_normal((60, 4))
    far = np.where(np.arange(60) == 3, 1e3, z)
    fold = np.arange(60) < 40
    given = {
        "nan": (outputs, np.where(far > 10, np.nan, z), ALPHA),
        "masked": (outputs, np.ma.masked_greater(far, 10), ALPHA),
        "percent": (outputs, z, 5),
    }
    with contextlib.suppress(ImportError):
        import pandas as pd

        frame = pd.DataFrame(outputs, index=[f"p{i}" for i in range(60)])
        given["index"] = frame, pd.Series(z, frame.index).sample(frac=1, random_state=0), ALPHA
    found = {}
    for name, (x, targets, alpha) in given.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                recipe(Cases(x, targets), fold, ~fold, alpha)
                found[name] = "warned" if caught else "accepted"
            except Exception as error:
                found[name] = f"refused ({type(error).__name__})"
    return found


def main(name: str, data: str) -> None:
    """Print the results of one library as JSON."""
    package, recipes = PEERS[name]
    given = np.load(data)
    x, cases = Cases(given["outputs"], given["targets"]), np.arange(200)
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if name == "TorchCP":
                _regression_of_torchcp()
            recipes["ar"](x, cases[:100], cases[100:], ALPHA)
            found["first"] = time.process_time()  # with the start of Python and all imports
        except ModuleNotFoundError as error:
            print(json.dumps({"missing": str(error)}))
            return
        found["scores"] = {score: timed(recipe, x) for score, recipe in recipes.items()}
        found |= ranks(recipes["ar"]) | mistakes(recipes["ar"])
    found["version"] = importlib.metadata.version(package) if package else ""
    print(json.dumps(found))


def _regression_of_torchcp() -> None:
    """Import only the regression part of TorchCP; other parts need further packages."""
    spec = importlib.util.find_spec("torchcp")
    if spec is None:
        raise ModuleNotFoundError("No module named 'torchcp'")
    package = types.ModuleType("torchcp")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["torchcp"] = package


if __name__ == "__main__":
    main(*sys.argv[1:])
