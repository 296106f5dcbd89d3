"""The main use case: plan, cache, train, validate, report, resume."""

from voxelocity.training.entry import train
from voxelocity.training.run import RunResult

__all__ = ["RunResult", "train"]
