from ._arrays import ArrayDataset, NpzData, read_npz
from ._atlas import Atlas, LesionDistribution, PatientDistribution
from ._chest import ChestPhantom, air_fraction
from ._dataset import Case, Dataset, Split, load_split, save_split, split_by_group, split_groups
from ._fastmri import FastMRIDataset
from ._folder import ImageFolder
from ._readers import READERS, DataConfig, open_all, open_data, simulate_coil_dataset
from ._synthetic_fastmri import make_fastmri
from ._volume import AnnotationLabels, FastMRIPreprocessing, read_annotations, read_file_list

__all__ = [
    "READERS",
    "AnnotationLabels",
    "ArrayDataset",
    "Atlas",
    "Case",
    "ChestPhantom",
    "DataConfig",
    "Dataset",
    "FastMRIDataset",
    "FastMRIPreprocessing",
    "ImageFolder",
    "LesionDistribution",
    "NpzData",
    "PatientDistribution",
    "Split",
    "air_fraction",
    "load_split",
    "make_fastmri",
    "open_all",
    "open_data",
    "read_annotations",
    "read_file_list",
    "read_npz",
    "save_split",
    "simulate_coil_dataset",
    "split_by_group",
    "split_groups",
]
