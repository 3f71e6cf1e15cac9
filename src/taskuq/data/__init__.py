"""Data sets: fastMRI, image folders, arrays, and the bundled atlas and chest phantom."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
