"""Models on disk, each format read as data: no code in a model's folder is run unless the user names it."""

from typing import TYPE_CHECKING

from voxelocity.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity.infer.models.kinds import runs_without_torch
    from voxelocity.infer.models.open import open_model, open_models, split_models
    from voxelocity.infer.models.run import WEIGHTS_NAME, load_model, save_keep_largest, save_model
    from voxelocity.infer.models.spec import SPEC_NAME, ModelSpec

__all__ = [
    "SPEC_NAME",
    "WEIGHTS_NAME",
    "ModelSpec",
    "load_model",
    "open_model",
    "open_models",
    "runs_without_torch",
    "save_keep_largest",
    "save_model",
    "split_models",
]

__getattr__ = first_use(
    __name__,
    {
        "kinds": ("runs_without_torch",),
        "open": ("open_model", "open_models", "split_models"),
        "run": ("WEIGHTS_NAME", "load_model", "save_keep_largest", "save_model"),
        "spec": ("SPEC_NAME", "ModelSpec"),
    },
)
