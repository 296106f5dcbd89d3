"""A model of nnU-Net whose windows and folds are added as nnU-Net's predictor adds them: in float16."""

from __future__ import annotations

from dataclasses import replace

from voxelocity.infer.model import Model
from voxelocity.infer.models.ensemble import MeanLogits
from voxelocity.infer.models.nnunet_cascade import CascadePreparation
from voxelocity.infer.window_config import FLOAT16_SUMS
from voxelocity_observe.core.errors import InputError


def with_float16_sums(model: Model) -> Model:
    """The model with sums in float16, as is the first network of a cascade.

    Raises:
        InputError: it is not a model of nnU-Net.
    """
    if model.parts:
        parts = tuple(map(with_float16_sums, model.parts))
        return replace(model, network=parts[0].network, preparation=parts[0].preparation, parts=parts)
    if not model.spec.window.blend.startswith("nnunet"):
        raise InputError(
            f"predict: {model.folder} is not a model of nnU-Net, whose predictor alone adds in float16; leave "
            "--float16-sums out"
        )
    window = model.spec.window.model_copy(update={"blend": FLOAT16_SUMS})
    preparation = model.preparation
    if isinstance(preparation, CascadePreparation):
        preparation = replace(preparation, earlier=with_float16_sums(preparation.earlier))
    if isinstance(model.network, MeanLogits):
        model.network.is_mean = False
    return replace(model, spec=model.spec.model_copy(update={"window": window}), preparation=preparation)
