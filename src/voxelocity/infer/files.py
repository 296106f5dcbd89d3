"""Files in, files out: which scans a command names, and predictions written beside their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from voxelocity.core.errors import InputError, OutputError
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import HOW_TO_CONVERT, read_header, write_scan
from voxelocity.infer.model import ModelSpec, load_model
from voxelocity.infer.predictor import Predictor

_NIFTI = re.compile(r"(?P<stem>.+?)(?P<ending>\.nii(\.gz)?)$", re.IGNORECASE)
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})$")


def find_scans(inputs: Sequence[Path], *, num_channels: int) -> tuple[VolumeRef, ...]:
    """The scans that files and folders name, sorted by case.

    A network of one channel takes each file as one scan. A network of several takes nnU-Net's names
    (`CASE_0000.nii.gz`, `CASE_0001.nii.gz`, ...) as one scan, and any other file as a scan with all channels in it.
    A file that is named twice, or by itself and by its folder, is taken once. No file is opened.

    Raises:
        InputError: a path does not exist, is no NIfTI file, a channel is missing, or two scans share a name.
    """
    files = [file for path in inputs for file in _files_of(path)]
    by_case: dict[str, dict[int, Path]] = {}
    for file in files:
        stem = _stem(file)
        match = _CHANNEL.match(stem) if num_channels > 1 else None
        case, channel = (match["case"], int(match["channel"])) if match else (stem, 0)
        channels = by_case.setdefault(case, {})
        if channel in channels and channels[channel].samefile(file):
            continue
        if channel in channels:
            raise InputError(
                f"predict: {channels[channel]} and {file} would both be written as {case}.nii.gz; "
                "predict them into different folders"
            )
        channels[channel] = file
    refs = []
    for case, channels in sorted(by_case.items()):
        if len(channels) > 1 and sorted(channels) != list(range(num_channels)):
            raise InputError(
                f"predict: case '{case}' has the channels {sorted(channels)}, but the network takes 0 to "
                f"{num_channels - 1}; add the missing files next to {next(iter(channels.values()))}"
            )
        refs.append(VolumeRef(case_id=case, images=tuple(channels[k] for k in sorted(channels))))
    return tuple(refs)


def predict_files(
    run: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    device: torch.device,
    num_threads: int,
    on_case: Callable[[str, Path], None],
) -> tuple[Path, ...]:
    """Writes `out/<case>.nii.gz` for each scan: class values as in the training labels, on the scan's own grid.

    Args:
        run: the folder of a finished run.
        inputs: NIfTI files, or folders of them.
        out: made if it does not exist; a prediction of the same name is replaced, each file at once, a scan never.
        device: where the network runs.
        num_threads: scans decoded ahead.
        on_case: told each case and the file written for it.

    Raises:
        InputError: there is no model, an input is missing or cannot be used, or `out` cannot be written. What names,
            headers and `out` can tell is told before the first scan is predicted; of a scan whose voxels turn out to be
            broken, when the predictions of those before it are written.
    """
    network, spec = load_model(run)
    refs = find_scans(inputs, num_channels=len(spec.channels))
    _check_no_scan_is_replaced(refs, out)
    _check_headers(refs, spec)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"predict: cannot make the folder {out} ({error.strerror}); choose another with -o") from None
    values = np.array(spec.label_values)
    values = values.astype(np.uint8 if values.max() < 256 else np.uint16)
    predictor = Predictor(network, spec, device=device)
    written = []
    for scan, prediction in predictor.stream(refs, num_threads=num_threads):
        path = _prediction_path(out, scan.case_id)
        write_scan(path, values[prediction], scan.grid)
        written.append(path)
        on_case(scan.case_id, path)
    return tuple(written)


def _prediction_path(out: Path, case_id: str) -> Path:
    return out / f"{case_id}.nii.gz"


def _check_no_scan_is_replaced(refs: Sequence[VolumeRef], out: Path) -> None:
    scans = {_identity(file): file for ref in refs for file in ref.images}
    for ref in refs:
        path = _prediction_path(out, ref.case_id)
        identity = _identity(path)
        if identity is not None and identity in scans:
            raise OutputError(
                f"predict: the prediction of case '{ref.case_id}' would be written as {path}, over the scan "
                f"{scans[identity]}; choose another folder with -o"
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path leads to, links followed and whatever its spelling; None where there is none to be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_headers(refs: Sequence[VolumeRef], spec: ModelSpec) -> None:
    for ref in refs:
        num_channels = sum(read_header(file).num_channels for file in ref.images)
        spec.check_channels(num_channels, where=f"predict: case '{ref.case_id}' ({', '.join(map(str, ref.images))})")


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if _NIFTI.match(file.name) and not file.name.startswith("."))
        if not files:
            raise InputError(f"predict: the folder {path} holds no .nii or .nii.gz file; name one that does")
        return files
    if not path.exists():
        raise InputError(f"predict: {path} does not exist; name NIfTI files or folders of them")
    return [path]


def _stem(file: Path) -> str:
    match = _NIFTI.match(file.name)
    if match is None:
        raise InputError(f"predict: {file} is not named .nii or .nii.gz; {HOW_TO_CONVERT}")
    return match["stem"]
