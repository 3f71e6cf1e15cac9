"""From images to the table: the one place where measurement, recovery and task meet."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
