"""Prediction intervals with guaranteed coverage for tasks on reconstructed images."""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

# The menu is __init__.pyi: names are loaded on first use, so that help needs no NumPy.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
