"""One file per claim; defaults are the paper's values."""
