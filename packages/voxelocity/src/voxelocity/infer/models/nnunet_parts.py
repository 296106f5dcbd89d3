"""Results folders of nnU-Net that are the parts of one model, as TotalSegmentator stores its weights.

Each part has classes of its own. Their values are counted on from part to part, in the order of the data sets' numbers:
that is TotalSegmentator's own map of classes (`total`, `total_mr`), and names are those of each part's `dataset.json`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from voxelocity.infer.model import Model
from voxelocity.infer.models.kinds import is_nnunet, nnunet_parts
from voxelocity.infer.models.nnunet import open_nnunet
from voxelocity.infer.parts import MOST_CLASSES
from voxelocity_observe.core.errors import InputError

_LISTED = 3


def open_nnunet_parts(folder: Path) -> Model:
    """The model whose parts are in a folder, each in the results folder of a data set.

    Args:
        folder: which holds `Dataset291_NAME_part1_...`, `Dataset292_NAME_part2_...` and so on.

    Raises:
        InputError: parts of several models are there, or those of one do not fit together; or as `open_nnunet`.
    """
    families = nnunet_parts(folder)
    if len(families) > 1:
        raise InputError(
            f"infer: {folder} holds the parts of {len(families)} models, {', '.join(families)}; make a folder with "
            "links to the parts of one, and name that"
        )
    ((name, parts),) = families.items()
    if any(not re.search(rf"_part{number}(_|$)", part.name) for number, part in enumerate(parts, start=1)):
        raise InputError(
            f"infer: {folder} lacks a part of {name} before {parts[-1].name}, and class values continue from part to "
            "part; copy all parts, or name the results folder of one"
        )
    models = tuple(open_nnunet(_results_in(part)) for part in parts)
    labels = {0: "background"}
    for part, model in zip(parts, models, strict=True):
        _check_fits(part, model, models[0], [*labels.values()])
        labels.update({len(labels) + index: name for index, name in enumerate(model.spec.class_names[1:])})
    if len(labels) > MOST_CLASSES:
        raise InputError(f"infer: the parts in {folder} have {len(labels)} classes, more than {MOST_CLASSES}")
    kept = tuple(entry for model in models for entry in model.spec.keep_largest)
    return replace(
        models[0],
        folder=folder,
        spec=models[0].spec.model_copy(update={"labels": labels, "keep_largest": kept}),
        doubts=tuple(doubt for model in models for doubt in model.doubts),
        parts=models,
    )


def _results_in(part: Path) -> Path:
    found = sorted(path for path in part.glob("*__*__*") if is_nnunet(path))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"infer: the part {part} holds the models {names}; remove all but one, or name one of them")
    return found[0]


def _check_fits(part: Path, model: Model, first: Model, names: Sequence[str]) -> None:
    """Refuses a part of another model, by the first one and the names of the classes before it."""
    twice = [name for name in model.spec.class_names[1:] if name in names]
    if model.spec.channels != first.spec.channels:
        why = f"takes the channels {model.spec.channels}, and the first part {first.spec.channels}"
    elif model.spec.region_order:
        why = "has overlapping classes"
    elif twice:
        why = f"has {', '.join(twice[:_LISTED])}, as a part before it"
    else:
        return
    raise InputError(f"infer: {part} {why}, so these are not parts of one model; name the results folder of one")
