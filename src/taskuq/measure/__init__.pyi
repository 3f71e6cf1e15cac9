from ._adaptive import AdaptiveConfig, AdaptiveLines
from ._coils import rss, simulate_coils
from ._fourier import fft2c, ifft2c, project_measured
from ._masks import gro_mask, nested_masks, published_masks, read_masks, save_masks
from ._mri import MaskConfig, MRIMeasurement, MultiCoilMRI, SimulatedMRIScanner
from ._systems import SYSTEMS, CallableMeasure
from ._tomography import (
    ParallelBeamCT,
    PhotonNoise,
    Radon,
    TomographyConfig,
    filtered_back_projection,
    landweber_update,
    stack_sinograms,
)

__all__ = [
    "SYSTEMS",
    "AdaptiveConfig",
    "AdaptiveLines",
    "CallableMeasure",
    "MRIMeasurement",
    "MaskConfig",
    "MultiCoilMRI",
    "ParallelBeamCT",
    "PhotonNoise",
    "Radon",
    "SimulatedMRIScanner",
    "TomographyConfig",
    "fft2c",
    "filtered_back_projection",
    "gro_mask",
    "ifft2c",
    "landweber_update",
    "nested_masks",
    "project_measured",
    "published_masks",
    "read_masks",
    "rss",
    "save_masks",
    "simulate_coils",
    "stack_sinograms",
]
