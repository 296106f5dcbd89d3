"""What `benchmarks/tables.py` writes: result files to tables, one module a subject."""
