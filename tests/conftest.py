"""Repeatable examples, and the optional deepinv package."""

import warnings
from importlib.util import find_spec

import pytest
from hypothesis import settings

from browsing import axe, browser, keep, open_page

# Property-based tests try the same examples on every run: none may fail by chance.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

__all__ = ["axe", "browser", "keep", "open_page"]


@pytest.fixture(scope="session")
def deepinv():
    """The deepinv package, where it is installed; it has an environment of its own."""
    if find_spec("deepinv") is None:
        pytest.skip("deepinv is not installed; it is tested in an environment of its own")
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    # A torchvision built for another torch lacks its compiled operators; deepinv needs only
    # that they can be named.
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepinv
    return deepinv
