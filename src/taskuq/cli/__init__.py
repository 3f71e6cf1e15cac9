"""Command line of taskuq."""
