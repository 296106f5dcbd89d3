"""Predictions as files: which format suits the scans, where they may be written, and how one is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from voxelocity.core.records import PREDICTIONS_TABLE
from voxelocity.core.scan_formats import DICOM, NIFTI, OUTPUTS, in_words
from voxelocity.core.volume import Array, VolumeRef
from voxelocity.data.decode import (
    ScanHeader,
    SeriesHeader,
    can_write_segmentations,
    format_of,
    source_files,
    what_segmentation_lacks,
    write_scan,
    write_segmentation,
)
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.sinks import ClassIndices
from voxelocity_observe.core.errors import InputError, OutputError, ScanError
from voxelocity_observe.core.links import check_links
from voxelocity_observe.core.whole_file import remove_abandoned

# Writing one prediction takes seconds: an older file was left by a process that was killed.
_ABANDONED_S = 3_600.0
_LISTED = 3
_INSTALL = "pip install 'voxelocity[formats]'"


@dataclass(frozen=True, kw_only=True)
class Output:
    """How every prediction of a command is stored.

    Attributes:
        format: of all but those that are `as_nifti`.
        as_nifti: ids of the series of which no DICOM SEG can be made.
    """

    format: str
    as_nifti: frozenset[str] = frozenset()

    def file_name(self, case_id: str) -> str:
        """Of the prediction of a case."""
        return case_id + (NIFTI if case_id in self.as_nifti else OUTPUTS[self.format]).written[0]

    def write(self, path: Path, prediction: ClassIndices, header: ScanHeader, spec: PredictionSpec) -> None:
        """Writes one prediction: the values of the training labels in a volume, or one segment for each class.

        A file that exists is replaced in one piece.

        Raises:
            OutputError: the file cannot be written.
            ScanError: as `write_segmentation`.
        """
        if path.name.endswith(DICOM.written):
            assert isinstance(header, SeriesHeader), "checked before the first prediction"
            write_segmentation(path, prediction, header, spec.class_names[1:])
            return
        values = np.array(spec.label_values)
        stored: Array = prediction
        if not np.array_equal(values, np.arange(len(values))):
            stored = values.astype(np.uint8 if values.max() < 256 else np.uint16)[prediction]
        write_scan(path, stored, header.grid, placement=header.placement)


def choose_output(format: str, refs: Sequence[VolumeRef], warn: Callable[[str], None]) -> Output:
    """The output in this format. "auto" follows the scans: that of all of them, if it is written, else NIfTI.

    Args:
        format: as the user chose it: a key of `core.scan_formats.OUTPUTS`, or "auto".
        refs: the scans; of several files for one scan, the first decides.
        warn: called if DICOM SEG would be chosen but cannot be written.

    Raises:
        InputError: the format is not known, or DICOM SEG is asked for and a scan is not a DICOM series.
        OutputError: DICOM SEG is asked for, and highdicom is not installed.
    """
    if format not in ("auto", *OUTPUTS):
        raise InputError(f"predict: --format {format!r} is not known; choose one of {', '.join(('auto', *OUTPUTS))}")
    found = {ref.case_id: format_of(ref.images[0]) for ref in refs}
    if format == DICOM.output:
        other = next((ref for ref in refs if found[ref.case_id] is not DICOM), None)
        if other is not None:
            others = in_words(name for name in OUTPUTS if name != DICOM.output)
            raise InputError(
                f"predict: a DICOM SEG refers to the slices of its scan, and case '{other.case_id}' "
                f"({other.images[0]}) is not a DICOM series; choose --format {others}, or name the series"
            )
        if not can_write_segmentations():
            raise OutputError(f"predict: --format dicom-seg needs highdicom, which is not installed; {_INSTALL}")
    if format != "auto":
        return Output(format=format)
    formats = set(found.values())
    shared = formats.pop() if len(formats) == 1 else NIFTI
    if shared is DICOM and not can_write_segmentations():
        warn(
            f"predict: predictions of DICOM series are written as .nii.gz, because highdicom is not installed; for "
            f"DICOM SEG: {_INSTALL}"
        )
        shared = NIFTI
    return Output(format=shared.output or NIFTI.output)


def check_segmentations(
    output: Output, headers: Mapping[str, ScanHeader], warn: Callable[[str], None], *, is_chosen: bool
) -> Output:
    """The same output, but series of which no DICOM SEG can be made are written as .nii.gz.

    Args:
        output: as `choose_output` gives it.
        headers: of the scans, by case id.
        warn: called if a series is written as .nii.gz, with the reasons.
        is_chosen: whether the user asked for DICOM SEG.

    Raises:
        InputError: the user asked for DICOM SEG, and it cannot be made of a series; what is missing is named.
    """
    if output.format != DICOM.output:
        return output
    series = {case_id: header for case_id, header in headers.items() if isinstance(header, SeriesHeader)}
    reasons = {case_id: reason for case_id, header in series.items() if (reason := what_segmentation_lacks(header))}
    if not reasons:
        return output
    listed = [f"{case_id} ({series[case_id].path}): {reason}" for case_id, reason in list(reasons.items())[:_LISTED]]
    listed += ["..."] if len(reasons) > _LISTED else []
    found = f"no DICOM SEG can be made of {len(reasons)} of {len(series)} series: {'; '.join(listed)}"
    if is_chosen:
        raise InputError(f"predict: {found}; choose --format nii.gz, or complete the attributes of the files")
    warn(f"predict: {found}; written as .nii.gz instead")
    return replace(output, as_nifti=frozenset(reasons))


def make_folder(out: Path, refs: Sequence[VolumeRef], output: Output, *, inside: Sequence[str] = ()) -> None:
    """Makes the folder of the predictions and those `inside`, and removes what a killed process left half-written.

    Raises:
        OutputError: it cannot be made, a link in it leads elsewhere, or two predictions would be one file there.
    """
    check_links(out, (PREDICTIONS_TABLE, *inside), where="predict", deep=False)
    for folder in (out, *(out / name for name in inside)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"predict: cannot make the folder {folder} ({error.strerror}); choose another with -o"
            ) from None
        remove_abandoned(folder, names=tuple(f"{ref.case_id}." for ref in refs), older_than_s=_ABANDONED_S)
    twins: dict[str, str] = {}
    for ref in refs:
        other = twins.setdefault(ref.case_id.casefold(), ref.case_id)
        if other != ref.case_id and _ignores_case(out):
            raise OutputError(
                f"predict: the predictions of '{other}' and '{ref.case_id}' would be one file, because names in {out} "
                "are not case-sensitive; rename one of the scans, or choose another folder with -o"
            )


def _ignores_case(folder: Path) -> bool:
    name = folder.resolve()
    return any(
        other != name and other.exists() and other.samefile(name)
        for other in (name.with_name(name.name.lower()), name.with_name(name.name.upper()))
        if name.name
    )


def check_no_scan_is_replaced(refs: Sequence[VolumeRef], out: Path, output: Output) -> None:
    """Returns if no prediction would be written over one of the scans.

    Raises:
        OutputError: one would.
    """
    scans = {_identity(file): file for ref in refs for image in ref.images for file in _files_of(image)}
    for ref in refs:
        path = out / output.file_name(ref.case_id)
        identity = _identity(path)
        if identity is not None and identity in scans:
            raise OutputError(
                f"predict: the prediction of case '{ref.case_id}' would be written as {path}, over the scan "
                f"{scans[identity]}; choose another folder with -o"
            )


def _files_of(image: Path) -> tuple[Path, ...]:
    try:
        return source_files(image)
    except ScanError:
        # Reading its header says what is wrong.
        return (image,)


def _identity(path: Path) -> tuple[int, int] | None:
    """The file that a path leads to, following links and ignoring spelling; None if no file is found."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_nothing_is_replaced(refs: Sequence[VolumeRef], out: Path, output: Output) -> None:
    """Returns if none of the predictions exists.

    Raises:
        OutputError: some do.
    """
    there = [path for ref in refs if os.path.lexists(path := out / output.file_name(ref.case_id))]
    if there:
        raise OutputError(
            f"predict: {len(there)} of {len(refs)} predictions already exist, the first is {there[0]}; replace "
            "them with --overwrite, predict only the others with --resume, or choose another folder with -o"
        )
