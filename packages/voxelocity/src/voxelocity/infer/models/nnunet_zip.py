"""Models in an archive of `nnUNetv2_export_model_to_zip`, read as data.

Only the files of a model that are needed are unpacked, under names of our own, into a temporary folder that is gone
once the network is in memory. What an entry is called decides which file of a model it is, never where it is written.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from voxelocity.infer.model import Model
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.kinds import PLANS, nnunet_archive
from voxelocity.infer.models.nnunet import CHECKPOINTS, open_nnunet
from voxelocity.infer.models.nnunet_plans import DATASET, Plans, inherited_keys, parse_keys
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import excerpt
from voxelocity_observe.core.quantities import bytes_text

# The largest checkpoints of nnU-Net have 3 GB; weights hardly get smaller by compression, their logs do.
_MOST_JSON_BYTES, _MOST_CHECKPOINT_BYTES, _MOST_BYTES = 64 << 20, 16 << 30, 64 << 30
_MOST_RATIO, _UNCHECKED_BYTES = 200, 64 << 20
_MOST_ENTRIES = 1_000_000
_PIECE_BYTES = 1 << 20
_FOLD = r"fold_(\d{1,4}|all)"
_POSTPROCESSING = r"crossval_results_folds_\w{1,200}/postprocessing\.json"
_NEEDED = re.compile(rf"{re.escape(PLANS)}|{re.escape(DATASET)}|{_POSTPROCESSING}|{_FOLD}/({'|'.join(CHECKPOINTS)})")
_RESULTS = re.compile(r"\w[\w.+-]*__\w[\w.+-]*__\w[\w.+-]*")


@dataclass(frozen=True)
class _Archive:
    """An archive that is open, and the files of each results folder in it, by their names there."""

    path: Path
    zip: zipfile.ZipFile
    models: Mapping[str, Mapping[str, zipfile.ZipInfo]]


def open_nnunet_zip(path: Path) -> Model:
    """The model in an archive.

    Args:
        path: of the archive; followed by the name of the results folder if it holds several, and by that of a fold if
            one is wanted: `MODELS.zip/TRAINER__PLANS__3d_fullres/fold_0`.

    Raises:
        InputError: the archive is damaged or larger than models are, holds no such model, or several and none is named;
            or as `open_nnunet`.
    """
    archive, inner = nnunet_archive(path)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            folder, fold = _unpack_model(archive, inner, Path(temporary))
            model = open_nnunet(folder / fold if fold else folder)
        except InputError as error:
            raise InputError(str(error).replace(temporary, str(archive))) from None
    said = (doubt.replace(temporary, str(archive)) for doubt in model.doubts)
    return replace(model, folder=path, doubts=tuple(said))


def _unpack_model(path: Path, inner: PurePosixPath, temporary: Path) -> tuple[Path, str]:
    """The results folder that is meant, unpacked with the first of its cascade, and the fold; "" for all folds."""
    try:
        with zipfile.ZipFile(path) as file:
            archive = _Archive(path, file, _models_of(file, path))
            name, fold = _choose(archive, inner)
            folder = _unpack(archive, name, temporary, fold)
            for earlier in _earlier_stages(folder):
                neighbor = f"{name.rpartition('__')[0]}__{earlier}"
                if neighbor in archive.models:
                    _unpack(archive, neighbor, temporary, fold)
    except InputError:
        raise
    # What zlib and zipfile raise for damaged bytes, for passwords, and for compressions that are not known.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise InputError(f"infer: {path} is damaged ({excerpt(error)}); copy the archive again") from None
    except OSError as error:
        raise InputError(
            f"infer: {path} cannot be unpacked ({error.strerror or error}); check that it may be read, and that the "
            "temporary folder ($TMPDIR) has space"
        ) from None
    return folder, fold


def _models_of(file: zipfile.ZipFile, path: Path) -> dict[str, dict[str, zipfile.ZipInfo]]:
    """The files of each results folder, by their names in it; folders by their path in the archive."""
    if len(file.infolist()) > _MOST_ENTRIES:
        raise InputError(f"infer: {path} has {len(file.infolist()):,} entries, more than a model; unpack it yourself")
    found: dict[str, dict[str, zipfile.ZipInfo]] = {}
    for entry in file.infolist():
        parts = PurePosixPath(entry.filename.replace("\\", "/")).parts
        index = next((index for index, part in enumerate(parts) if _RESULTS.fullmatch(part)), None)
        if index is None or ".." in parts:
            continue
        inside = "/".join(parts[index + 1 :])
        if _NEEDED.fullmatch(inside):
            found.setdefault("/".join(parts[: index + 1]), {})[inside] = entry
    return {folder: files for folder, files in found.items() if PLANS in files}


def _choose(archive: _Archive, inner: PurePosixPath) -> tuple[str, str]:
    """The results folder and the fold that are meant; "" for all folds."""
    fold = inner.name if re.fullmatch(_FOLD, inner.name) else ""
    wanted = (inner.parent if fold else inner).parts
    fitting = [name for name in archive.models if not wanted or PurePosixPath(name).parts[-len(wanted) :] == wanted]
    if len(fitting) == 1:
        return fitting[0], fold
    names = ", ".join(PurePosixPath(name).name for name in archive.models)
    if not names:
        raise InputError(
            f"infer: {archive.path} holds no model of nnU-Net v2: no TRAINER__PLANS__CONFIGURATION/{PLANS}; name the "
            "archive that nnUNetv2_export_model_to_zip wrote"
        )
    raise InputError(f"infer: {archive.path} holds the models {excerpt(names)}; name one as {archive.path}/MODEL")


def _unpack(archive: _Archive, folder: str, temporary: Path, fold: str) -> Path:
    """The results folder with the files that are needed: of each fold, or of one, the first checkpoint that it has."""
    files = archive.models[folder]
    chosen = {name: entry for name, entry in files.items() if not name.endswith(CHECKPOINTS)}
    folds = {name.partition("/")[0] for name in files if name.endswith(CHECKPOINTS)}
    for of_fold in folds if not fold else folds & {fold}:
        name = next(f"{of_fold}/{name}" for name in CHECKPOINTS if f"{of_fold}/{name}" in files)
        chosen[name] = files[name]
    _check_sizes(archive.path, chosen.values(), temporary)
    target = temporary / PurePosixPath(folder).name
    for name, entry in chosen.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Reading ends at the size that the entry states, and its checksum is compared.
        with archive.zip.open(entry) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, _PIECE_BYTES)
    return target


def _check_sizes(path: Path, entries: Iterable[zipfile.ZipInfo], temporary: Path) -> None:
    total = 0
    for entry in entries:
        most = _MOST_CHECKPOINT_BYTES if entry.filename.endswith(CHECKPOINTS) else _MOST_JSON_BYTES
        is_swollen = entry.file_size > max(_UNCHECKED_BYTES, _MOST_RATIO * entry.compress_size)
        if entry.file_size > most or is_swollen:
            raise InputError(
                f"infer: {excerpt(entry.filename)} in {path} has {bytes_text(entry.file_size)} unpacked from "
                f"{bytes_text(entry.compress_size)}, more than any model file; if you trust it, unpack it yourself"
            )
        total += entry.file_size
    room = min(_MOST_BYTES, shutil.disk_usage(temporary).free)
    if total > room:
        raise InputError(
            f"infer: the model in {path} has {bytes_text(total)} unpacked, and {bytes_text(room)} are there for it; "
            "set TMPDIR to a folder with more space, or unpack it yourself"
        )


def _earlier_stages(folder: Path) -> list[str]:
    """The configuration before that of a results folder, if it is the second network of a cascade."""
    plans = parse_keys(Plans, read_json(folder / PLANS), folder / PLANS)
    name = folder.name.rpartition("__")[2]
    if name not in plans.configurations:
        return []
    earlier = inherited_keys(plans, name, str(folder / PLANS)).get("previous_stage")
    return [earlier] if isinstance(earlier, str) and earlier else []
