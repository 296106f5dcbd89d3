"""A trained network applied: sliding window, models on disk, scans in and predictions out."""

from voxelocity.infer.components import keep_largest
from voxelocity.infer.files import PredictedScan, predict_files
from voxelocity.infer.job import PredictionJob, plan_job
from voxelocity.infer.model import Model, PredictionSpec, TrainedOn
from voxelocity.infer.models import (
    SPEC_NAME,
    WEIGHTS_NAME,
    ModelSpec,
    load_model,
    open_model,
    save_keep_largest,
    save_model,
    split_models,
)
from voxelocity.infer.outputs import OutputFormat
from voxelocity.infer.predictor import Predictor
from voxelocity.infer.scans import find_scans
from voxelocity.infer.sinks import ClassIndices
from voxelocity.infer.window import WindowConfig

__all__ = [
    "SPEC_NAME",
    "WEIGHTS_NAME",
    "ClassIndices",
    "Model",
    "ModelSpec",
    "OutputFormat",
    "PredictedScan",
    "PredictionJob",
    "PredictionSpec",
    "Predictor",
    "TrainedOn",
    "WindowConfig",
    "find_scans",
    "keep_largest",
    "load_model",
    "open_model",
    "plan_job",
    "predict_files",
    "save_keep_largest",
    "save_model",
    "split_models",
]
