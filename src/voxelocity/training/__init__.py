"""The main use case: plan, cache, train, validate, report, resume."""

from voxelocity.training.entry import RunResult, train

__all__ = ["RunResult", "train"]
