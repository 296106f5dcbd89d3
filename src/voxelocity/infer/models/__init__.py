"""Models on disk, each format read as data: no code in a model's folder is run unless the user names it."""

from voxelocity.infer.models.open import open_model, open_models, split_models
from voxelocity.infer.models.run import (
    SPEC_NAME,
    WEIGHTS_NAME,
    ModelSpec,
    load_model,
    open_run,
    save_keep_largest,
    save_model,
)

__all__ = [
    "SPEC_NAME",
    "WEIGHTS_NAME",
    "ModelSpec",
    "load_model",
    "open_model",
    "open_models",
    "open_run",
    "save_keep_largest",
    "save_model",
    "split_models",
]
