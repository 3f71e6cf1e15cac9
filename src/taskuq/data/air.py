"""Share of air in a chest image, computed without a network."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.errors import InputError

# Between lung and fat, on a scale where air is 0 and bone about 1.
THRESHOLD = 0.3


def air_share(images: ArrayLike, threshold: float = THRESHOLD) -> NDArray[np.float64]:
    """Return the share of the body that is air, between 0 and 1, for each image, (image,).

    The body is the largest connected piece of tissue, its holes filled. What is thinner than four
    pixels of 256 or two of 128 (a table, a blanket) does not count; coarser images do not show
    such things. An image without tissue has no body, and a share of 0.
    """
    from scipy import ndimage

    images = np.asarray(images)
    if images.ndim != 3 or images.dtype.kind not in "biuf" or 0 in images.shape:
        raise InputError(
            f"images have shape {images.shape} and type {images.dtype}; give real images (image, "
            "height, width)",
            code="shape.axes",
        )
    # About the same in millimetres whatever the matrix.
    often = round(max(images.shape[1:]) / 128 - 0.1)
    shares = np.zeros(len(images))
    for k, image in enumerate(images):
        tissue = image >= threshold
        if often:
            tissue = ndimage.binary_opening(tissue, iterations=often)
        pieces, count = ndimage.label(tissue)
        if count == 0:
            continue
        largest = 1 + int(np.argmax(np.bincount(pieces.ravel())[1:]))
        body = ndimage.binary_fill_holes(pieces == largest)
        shares[k] = np.mean(image[body] < threshold)
    return shares
