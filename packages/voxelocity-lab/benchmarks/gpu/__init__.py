"""Questions that only a GPU can answer: one experiment a module, run by `benchmarks/gpu/run.py`."""
