"""MRD server and replay, DICOM SR, export of networks."""
