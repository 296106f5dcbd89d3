"""A trained network applied: sliding window, models on disk, scans in and predictions out."""

from typing import TYPE_CHECKING

from voxelocity.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity.infer.components import keep_largest
    from voxelocity.infer.division import CaseDivision, held_out_cases
    from voxelocity.infer.files import predict_files
    from voxelocity.infer.job import PredictionJob, plan_job
    from voxelocity.infer.model import PredictionSpec, TrainedOn
    from voxelocity.infer.models.kinds import runs_without_torch
    from voxelocity.infer.models.open import open_model, split_models
    from voxelocity.infer.models.run import WEIGHTS_NAME, load_model, save_keep_largest, save_model
    from voxelocity.infer.models.spec import SPEC_NAME, ModelSpec
    from voxelocity.infer.outputs import OutputFormat
    from voxelocity.infer.predictor import Predictor
    from voxelocity.infer.scans import find_scans
    from voxelocity.infer.sinks import ClassIndices
    from voxelocity.infer.window_config import WindowConfig
    from voxelocity.infer.writing import PredictedScan

__all__ = [
    "SPEC_NAME",
    "WEIGHTS_NAME",
    "CaseDivision",
    "ClassIndices",
    "ModelSpec",
    "OutputFormat",
    "PredictedScan",
    "PredictionJob",
    "PredictionSpec",
    "Predictor",
    "TrainedOn",
    "WindowConfig",
    "find_scans",
    "held_out_cases",
    "keep_largest",
    "load_model",
    "open_model",
    "plan_job",
    "predict_files",
    "runs_without_torch",
    "save_keep_largest",
    "save_model",
    "split_models",
]

__getattr__ = first_use(
    __name__,
    {
        "components": ("keep_largest",),
        "division": ("CaseDivision", "held_out_cases"),
        "files": ("predict_files",),
        "writing": ("PredictedScan",),
        "job": ("PredictionJob", "plan_job"),
        "model": ("PredictionSpec", "TrainedOn"),
        "models.kinds": ("runs_without_torch",),
        "models.open": ("open_model", "split_models"),
        "models.run": ("WEIGHTS_NAME", "load_model", "save_keep_largest", "save_model"),
        "models.spec": ("SPEC_NAME", "ModelSpec"),
        "outputs": ("OutputFormat",),
        "predictor": ("Predictor",),
        "scans": ("find_scans",),
        "sinks": ("ClassIndices",),
        "window_config": ("WindowConfig",),
    },
)
