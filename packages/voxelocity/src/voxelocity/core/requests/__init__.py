"""What users ask for, one frozen value for each command: built once, checked once, passed on whole.

`request` has the base and how fields are written on the command line and in Python; `plan`, `train`, `predict`, `tune`,
`evaluate` and `diagnose` have the requests. None of them imports torch, so `--help` can be made from their fields.
"""
