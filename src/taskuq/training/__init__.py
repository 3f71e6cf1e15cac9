"""Training from a configuration, with exact resume and weights without pickle."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
