"""Property-based tests try the same examples on every run: none may fail by chance."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
