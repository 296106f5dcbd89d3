"""What nnU-Net found to improve its predictions after a cross-validation, read as data.

It writes this twice: as `postprocessing.pkl`, which is code and is not run, and as `postprocessing.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from voxelocity.infer.model import Kept, PredictionSpec
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.nnunet_plans import KnownKeys, parse_keys
from voxelocity_observe.core.plain import shortened

_NAME, _CODE = "postprocessing.json", "postprocessing.pkl"
_KEEP_LARGEST = "remove_all_but_largest_component_from_segmentation"
_MOST_STEPS = 1024


class _Postprocessing(KnownKeys):
    functions: tuple[str, ...] = Field(validation_alias="postprocessing_fns", max_length=_MOST_STEPS)
    arguments: tuple[dict[str, Any], ...] = Field(validation_alias="postprocessing_kwargs", max_length=_MOST_STEPS)


def read_postprocessing(
    folder: Path, folds: Sequence[str], spec: PredictionSpec
) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
    """The classes of which predictions keep the largest component, and doubts about what is left out.

    Args:
        folder: of the results.
        folds: names of the folders of the folds that predict; what nnU-Net found holds for these together.
        spec: of the model.

    Raises:
        InputError: the file is damaged.
    """
    where = folder / f"crossval_results_folds_{'_'.join(fold.removeprefix('fold_') for fold in folds)}"
    if not (where / _NAME).is_file():
        if not (where / _CODE).is_file():
            return (), ()
        return (), (
            f"{where} holds {_CODE} without {_NAME}: the first is code and is not run, so predictions keep all "
            "components; nnUNetv2_determine_postprocessing writes both",
        )
    found = parse_keys(_Postprocessing, read_json(where / _NAME), where / _NAME)
    kept, doubts = [], []
    for number, function in enumerate(found.functions):
        arguments = found.arguments[number] if number < len(found.arguments) else {}
        names = _names(arguments, spec) if function == _KEEP_LARGEST else ()
        if names:
            kept.append(names[0] if len(names) == 1 else names)
        else:
            doubts.append(
                f"{where / _NAME} asks for {shortened(function)} with {shortened(arguments)}, which is not applied; "
                "nnUNetv2_apply_postprocessing does it"
            )
    return tuple(kept), tuple(doubts)


def _names(arguments: Mapping[str, Any], spec: PredictionSpec) -> tuple[str, ...]:
    """The classes of one step, which are taken as one; none if they are not those of the model."""
    labels = arguments.get("labels_or_regions")
    flat = [label for part in _listed(labels) for label in _listed(part)]
    is_known = all(isinstance(label, int) and label > 0 and label in spec.labels for label in flat)
    if not is_known or arguments.get("background_label", 0) != 0:
        return ()
    return tuple(spec.labels[label] for label in dict.fromkeys(flat))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
