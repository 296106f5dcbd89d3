"""The main use case: plan, cache, train, validate, report, resume."""

from voxelocity.training.entry import train
from voxelocity.training.folds import FoldsResult, train_folds

__all__ = ["FoldsResult", "train", "train_folds"]
