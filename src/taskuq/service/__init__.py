"""MRD server, replay of scans, DICOM SR and export of networks."""
