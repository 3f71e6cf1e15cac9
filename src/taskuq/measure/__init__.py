"""Imaging systems: Fourier transform, masks, coils, MRI, tomography, adaptive lines."""

import lazy_loader

# Names are loaded on first use: masks need NumPy only, operators need torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
