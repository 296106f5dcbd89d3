"""The kinds of models, which of them a folder holds, and the one model that several make together.

Importing it imports no torch: only an export does without, and only a bundle needs MONAI's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.infer.model import Model
from voxelocity.infer.models.kinds import (
    holds_nnunet_parts,
    is_bundle,
    is_export,
    is_nnunet,
    is_nnunet_archive,
    is_run,
)
from voxelocity_observe.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """What wrote a model.

    Attributes:
        name: as users know it.
        holds: whether a path is the folder of such a model, by the names of files alone.
        open: reads the model in a folder. Takes the factory of `open_model` too.
        is_inside: whether users tend to name the folder that several such models are in.
    """

    name: str
    holds: Callable[[Path], bool]
    open: Callable[[Path, str], Model]
    is_inside: bool = False


def _open_nnunet(folder: Path, factory: str) -> Model:
    from voxelocity.infer.models.nnunet import open_nnunet

    return open_nnunet(folder)


def _open_nnunet_zip(folder: Path, factory: str) -> Model:
    from voxelocity.infer.models.nnunet_zip import open_nnunet_zip

    return open_nnunet_zip(folder)


def _open_nnunet_parts(folder: Path, factory: str) -> Model:
    from voxelocity.infer.models.nnunet_parts import open_nnunet_parts

    return open_nnunet_parts(folder)


def _open_bundle(folder: Path, factory: str) -> Model:
    from voxelocity.infer.models.bundle import open_bundle

    return open_bundle(folder)


def _open_export(folder: Path, factory: str) -> Model:
    from voxelocity.infer.models.exported import open_export

    return open_export(folder, factory=factory)


def _open_run(folder: Path, factory: str) -> Model:
    from voxelocity.infer.models.run import open_run

    return open_run(folder, factory=factory)


_RUN = ModelKind(name="run", holds=is_run, open=_open_run)
KINDS = (
    ModelKind(name="nnU-Net", holds=is_nnunet, open=_open_nnunet, is_inside=True),
    ModelKind(name="nnU-Net", holds=is_nnunet_archive, open=_open_nnunet_zip),
    ModelKind(name="nnU-Net", holds=holds_nnunet_parts, open=_open_nnunet_parts),
    ModelKind(name="MONAI bundle", holds=is_bundle, open=_open_bundle),
    ModelKind(name="export", holds=is_export, open=_open_export),
    _RUN,
)
"""The first that holds a folder opens it."""


def is_model(path: Path) -> bool:
    """Whether `path` is the folder of a model, not of scans."""
    return any(kind.holds(path) for kind in KINDS)


def split_models(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The models with which a list of paths begins, at least one, and the scans after them.

    Raises:
        InputError: no scan is named.
    """
    num_models = next((index for index, path in enumerate(paths) if index > 0 and not is_model(path)), len(paths))
    models, scans = list(paths[:num_models]), list(paths[num_models:])
    if not scans:
        raise InputError(
            f"predict: {', '.join(map(str, models))}: these are models, and no scan is named; add scans, or folders of "
            "them"
        )
    return models, scans


def open_model(folder: Path, *, factory: str = "") -> Model:
    """The model in `folder`, whatever wrote it.

    Args:
        folder: of a finished run, of an export, of an nnU-Net v2 training (or a fold of it, or its .zip), of several
            that are parts of one model, or of a MONAI bundle.
        factory: as in `load_model`, for a run that trained your own network; or the file of an export whose machine
            code you trust.

    Raises:
        ConfigError: the factory cannot be imported.
        InputError: the folder holds no model, a damaged one, or one that Voxelocity cannot run.
    """
    kind = next((kind for kind in KINDS if kind.holds(folder)), None)
    if kind is not None:
        return kind.open(folder, factory)
    for kind in KINDS:
        if kind.is_inside and (inside := sorted(path.name for path in folder.glob("*") if kind.holds(path))):
            raise InputError(
                f"infer: {folder} holds the {kind.name} models {', '.join(inside)}; name one of these folders"
            )
    # Which says what is missing.
    return _RUN.open(folder, factory)


def open_models(folders: Sequence[Path], *, factory: str = "", float16_sums: bool = False) -> Model:
    """The model in the only folder, or the models in several as one (`ensemble_of`). Arguments as `open_model`.

    Args:
        folders: of the models.
        factory: as in `open_model`.
        float16_sums: as in `PredictRequest`.

    Raises:
        InputError: as `open_model`, or the models differ in what they predict.
    """
    models = [open_model(folder, factory=factory) for folder in folders]
    model = models[0]
    if len(models) > 1:
        if merged := [model.folder for model in models if model.parts]:
            raise InputError(f"infer: {merged[0]} is a model in parts, which is not averaged; name it alone")
        from voxelocity.infer.models.ensemble import ensemble_of

        model = ensemble_of(models)
    if float16_sums:
        from voxelocity.infer.models.nnunet_sums import with_float16_sums

        model = with_float16_sums(model)
    return model
