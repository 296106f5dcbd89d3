"""A trained network applied: sliding window, models on disk, scans in and predictions out.

- `model`: a network, its `PredictionSpec` and its preparation, no matter which toolkit trained it. `models` reads each
  format.
- `runtimes`: ways to run a network. `export`, `export_report`: a network written for one of them, compared first.
- `predictor`: from a scan to classes on its own grid. `pending`: cases between their first window and
  their prediction. `switches`, `resident`: as trained; cases kept on the device.
- The window engine: `window` runs the passes, `tiling` orders them and cuts the volume, `stitched` holds the sum that
  windows still change, `accumulator` finds memory for it, `blending` and `mirrored` weight it, `sinks` and
  `probabilities` take finished tiles. `arrays` is what it computes with (torch or NumPy); `device_arrays`,
  `device_restore`, `triton_window`, `triton_restore` and `ahead` are its kernels.
- A command: `job` knows what will be predicted from names and headers (`scans`, `outputs`, `memory`), `files` predicts
  it, `progress` shows how far it is, `sharing` gives scans to several devices, `writing` and `table` write, `pictured`
  chooses slices, `page` shows.
- Judgment: `doubts` (a scan unlike the training scans), `components` (the largest), `division` (held out or not);
  `evaluation` compares predictions on disk with the truth.
"""

from typing import TYPE_CHECKING

from voxelocity_observe.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity.infer.components import keep_largest
    from voxelocity.infer.division import CaseDivision, held_out_cases
    from voxelocity.infer.files import PredictionHooks, predict_files, predict_scans
    from voxelocity.infer.job import PredictionJob, plan_job
    from voxelocity.infer.model import PredictionSpec, TrainedOn
    from voxelocity.infer.models.kinds import runs_without_torch
    from voxelocity.infer.models.open import open_model, split_models
    from voxelocity.infer.models.run import WEIGHTS_NAME, load_model, save_keep_largest, save_model
    from voxelocity.infer.models.spec import SPEC_NAME, ModelSpec
    from voxelocity.infer.predictor import Predictor
    from voxelocity.infer.scans import find_scans
    from voxelocity.infer.window_config import WindowConfig
    from voxelocity.infer.writing import PredictedScan

__all__ = [
    "SPEC_NAME",
    "WEIGHTS_NAME",
    "CaseDivision",
    "ModelSpec",
    "PredictedScan",
    "PredictionHooks",
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
    "predict_scans",
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
        "files": ("PredictionHooks", "predict_files", "predict_scans"),
        "writing": ("PredictedScan",),
        "job": ("PredictionJob", "plan_job"),
        "model": ("PredictionSpec", "TrainedOn"),
        "models.kinds": ("runs_without_torch",),
        "models.open": ("open_model", "split_models"),
        "models.run": ("WEIGHTS_NAME", "load_model", "save_keep_largest", "save_model"),
        "models.spec": ("SPEC_NAME", "ModelSpec"),
        "predictor": ("Predictor",),
        "scans": ("find_scans",),
        "window_config": ("WindowConfig",),
    },
)
