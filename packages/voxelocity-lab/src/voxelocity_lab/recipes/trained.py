"""A recipe's trained model in a run's folder: weights, and in words which recipe made them and how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from voxelocity.infer import SPEC_NAME, WEIGHTS_NAME
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.whole_file import put_in_place


def write_trained(
    folder: Path, recipe: str, version: int, weights: Mapping[str, torch.Tensor], description: Mapping[str, Any]
) -> None:
    """Writes a model into a run's folder; the description comes last, as the mark of a whole model.

    Raises:
        OSError: a file cannot be written.
    """
    put_in_place(folder / WEIGHTS_NAME, save({name: weight.contiguous() for name, weight in weights.items()}))
    plain = {"format": version, "recipe": recipe, **description}
    put_in_place(folder / SPEC_NAME, (json.dumps(plain, indent=1) + "\n").encode())


def read_trained(folder: Path, recipe: str, version: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The description of the model of a finished run, and its weights.

    Raises:
        InputError: the folder holds none, a damaged one, or one of another recipe or version.
    """
    try:
        found = json.loads((folder / SPEC_NAME).read_text())
        weights = load((folder / WEIGHTS_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{recipe}: {folder} holds no finished run ({SPEC_NAME}, {WEIGHTS_NAME}); train one first"
        ) from None
    except (ValueError, SafetensorError) as error:
        raise InputError(f"{recipe}: the model in {folder} is damaged ({error}); train it again") from None
    if not isinstance(found, dict) or found.get("recipe") != recipe or found.get("format") != version:
        raise InputError(
            f"{recipe}: the model in {folder} is not one of this recipe, or of another version; train it again"
        )
    return found, weights
