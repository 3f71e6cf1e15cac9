"""Runs from configurations, the demo, and experiments on the paper's claims."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
