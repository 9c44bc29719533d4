"""Settings of every test: hypothesis draws the same examples at each run and knows no deadline."""

from hypothesis import settings

settings.register_profile("reproducible", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("reproducible")
