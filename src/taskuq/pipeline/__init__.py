"""Pipeline from images to a table of task outputs: measurement, recovery and task."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
