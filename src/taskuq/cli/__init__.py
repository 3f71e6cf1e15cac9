"""Command line: each command calls one function and prints one path."""
