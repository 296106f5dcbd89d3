"""What users ask for, one frozen value for each command: built once, checked once, passed on whole.

`plan`, `train`, `predict`, `export`, `tune` and `evaluate` have the requests; their base and how fields are written on
the command line and in Python is in `voxelocity_observe.core.request`. None of them imports torch, so `--help` can be
made from their fields.
"""
