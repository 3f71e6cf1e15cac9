"""From an image to its measurement: the Fourier transform, masks, coils and operators.

Masks need NumPy alone; everything else needs torch and is imported where it is used, for instance
``from taskuq.measure.fourier import fft2c``.
"""
