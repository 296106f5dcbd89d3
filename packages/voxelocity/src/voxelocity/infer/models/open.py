"""Which kind of model a folder holds, and the one model that several make together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voxelocity.infer.model import Model
from voxelocity.infer.models.kinds import is_bundle, is_export, is_model, is_nnunet
from voxelocity_observe.core.errors import InputError


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
        folder: of a finished run, of an export, of an nnU-Net v2 training (or a fold of it), or of a MONAI bundle.
        factory: as in `load_model`, for a run that trained your own network; or the file of an export whose machine
            code you trust.

    Raises:
        ConfigError: the factory cannot be imported.
        InputError: the folder holds no model, a damaged one, or one that Voxelocity cannot run.
    """
    # Only an export needs no torch, and only a bundle MONAI's configuration.
    if is_nnunet(folder):
        from voxelocity.infer.models.nnunet import open_nnunet

        return open_nnunet(folder)
    if is_bundle(folder):
        from voxelocity.infer.models.bundle import open_bundle

        return open_bundle(folder)
    if is_export(folder):
        from voxelocity.infer.models.exported import open_export

        return open_export(folder, factory=factory)
    if not is_model(folder) and (inside := sorted(each.name for each in folder.glob("*") if is_nnunet(each))):
        raise InputError(f"infer: {folder} holds the nnU-Net models {', '.join(inside)}; name one of these folders")
    from voxelocity.infer.models.run import open_run

    return open_run(folder, factory=factory)


def open_models(folders: Sequence[Path], *, factory: str = "") -> Model:
    """The model in the only folder, or the mean of the models in several. Arguments and errors as `open_model`.

    Raises:
        InputError: the models differ in what they predict or in how volumes are covered.
    """
    models = [open_model(folder, factory=factory) for folder in folders]
    if len(models) == 1:
        return models[0]
    from voxelocity.infer.models.ensemble import mean_of

    return mean_of(models)
