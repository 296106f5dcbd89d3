"""Predictions as files: which format suits the scans, where they may be written, and how one is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from voxelocity.core.records import PREDICTIONS_TABLE
from voxelocity.core.scan_formats import CONTOURS, DICOM, NIFTI, OUTPUTS, in_words
from voxelocity.core.volume import Array, ClassIndices, VolumeRef
from voxelocity.data.decode import (
    ScanHeader,
    SeriesHeader,
    can_write_segmentations,
    format_of,
    source_files,
    what_contours_lack,
    what_segmentation_lacks,
    write_contours,
    write_scan,
    write_segmentation,
)
from voxelocity.infer.mask_files import write_masks
from voxelocity.infer.model import PredictionSpec
from voxelocity_observe.core.errors import InputError, OutputError, ScanError
from voxelocity_observe.core.links import check_links
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.core.whole_file import remove_abandoned

# Writing one prediction takes seconds: an older file was left by a process that was killed.
_ABANDONED_S = 3_600.0
_LISTED = 3
_INSTALL = "pip install 'voxelocity[formats]'"


@dataclass(frozen=True, kw_only=True)
class DicomKind:
    """How predictions become objects of DICOM that refer to their series.

    Attributes:
        words: what messages call one.
        lacks: why none can be made of a series; "" if one can.
        write: writes one.
        needs_highdicom: whether it takes that package, or pydicom alone.
    """

    words: str
    lacks: Callable[[SeriesHeader], str]
    write: Callable[[Path, Array, SeriesHeader, Sequence[str]], None]
    needs_highdicom: bool

    @property
    def is_missing(self) -> bool:
        """Whether its package is not installed."""
        return self.needs_highdicom and not can_write_segmentations()


_DICOM_KINDS = {
    DICOM.output: DicomKind(
        words="DICOM SEG", lacks=what_segmentation_lacks, write=write_segmentation, needs_highdicom=True
    ),
    CONTOURS: DicomKind(words="RTSTRUCT", lacks=what_contours_lack, write=write_contours, needs_highdicom=False),
}


@dataclass(frozen=True, kw_only=True)
class Output:
    """How every prediction of a command is stored.

    Attributes:
        format: of all but those that are `as_nifti`.
        as_nifti: ids of the series of which no object of DICOM can be made.
        masks: with one file a class, their names without ending, by class.
    """

    format: str
    as_nifti: frozenset[str] = frozenset()
    masks: Mapping[str, str] = field(default_factory=dict)

    def file_name(self, case_id: str) -> str:
        """Of the prediction of a case: a file, or a folder of masks."""
        return case_id if self.masks else case_id + self._ending(case_id)

    def files(self, case_id: str) -> list[str]:
        """Every file of a prediction; where the last one exists, the prediction is whole."""
        ending = self._ending(case_id)
        return [f"{case_id}/{name}{ending}" for name in self.masks.values()] or [case_id + ending]

    def _ending(self, case_id: str) -> str:
        return (NIFTI if case_id in self.as_nifti else OUTPUTS[self.format]).written[0]

    def in_words(self, refs: Sequence[VolumeRef]) -> list[str]:
        """What will be written for these scans, a sentence for each kind of file."""
        kind = _DICOM_KINDS.get(self.format)
        groups = {
            "NIfTI" if kind else "": [ref.case_id for ref in refs if ref.case_id in self.as_nifti],
            kind.words if kind else "": [ref.case_id for ref in refs if ref.case_id not in self.as_nifti],
        }
        return [
            f"{count_text(len(ids), 'prediction')}{f' as {words}' if words else ''}, such as {self.files(ids[0])[-1]}"
            + (f", each a folder of {count_text(len(self.masks), 'mask')}" if self.masks else "")
            for words, ids in groups.items()
            if ids
        ]

    def write(
        self,
        path: Path,
        prediction: ClassIndices,
        header: ScanHeader,
        spec: PredictionSpec,
        *,
        also: Mapping[str, bytes] = {},
    ) -> None:
        """Writes one prediction: the values of the training labels in a volume, a mask or a structure for each class.

        A file that exists is replaced in one piece; a new folder of masks appears whole.

        Args:
            path: of the file or the folder of masks.
            prediction: (x, y, z) class indices on the grid of the scan.
            header: of the scan.
            spec: of the model.
            also: other files in the folder of masks, by name.

        Raises:
            OutputError: a file cannot be written.
            ScanError: the files of a series cannot be read, or lack what an object of DICOM must repeat.
        """
        if self.masks:
            ending = OUTPUTS[self.format].written[0]
            names = {name: f"{stem}{ending}" for name, stem in self.masks.items()}
            write_masks(path, prediction, header, spec, names, also=also)
            return
        if path.name.endswith(DICOM.written):
            assert isinstance(header, SeriesHeader), "checked before the first prediction"
            _DICOM_KINDS[self.format].write(path, prediction, header, spec.class_names[1:])
            return
        values = np.array(spec.label_values)
        stored: Array = prediction
        if not np.array_equal(values, np.arange(len(values))):
            stored = values.astype(np.uint8 if values.max() < 256 else np.uint16)[prediction]
        write_scan(path, stored, header.grid, placement=header.placement)


def choose_output(
    format: str, refs: Sequence[VolumeRef], warn: Callable[[str], None], *, masks: Mapping[str, str] = {}
) -> Output:
    """The output in this format. "auto" follows the scans: that of all of them, if it is written, else NIfTI.

    Args:
        format: as the user chose it: a key of `core.scan_formats.OUTPUTS`, or "auto".
        refs: the scans; of several files for one scan, the first decides.
        warn: called if DICOM SEG would be chosen but cannot be written.
        masks: as in `Output`.

    Raises:
        InputError: the format is not known, or one of DICOM is asked for and a scan is not a DICOM series, or classes
            have files of their own.
        OutputError: DICOM SEG is asked for, and highdicom is not installed.
    """
    if format not in ("auto", *OUTPUTS):
        raise InputError(f"predict: --format {format!r} is not known; choose one of {', '.join(('auto', *OUTPUTS))}")
    found = {ref.case_id: format_of(ref.images[0]) for ref in refs}
    if (kind := _DICOM_KINDS.get(format)) is not None:
        if masks:
            raise InputError(
                f"predict: --one-file-per-class writes volumes, and {kind.words} holds all classes in one file; choose "
                "--format nii.gz, or leave --one-file-per-class out"
            )
        other = next((ref for ref in refs if found[ref.case_id] is not DICOM), None)
        if other is not None:
            others = in_words(name for name in OUTPUTS if name not in _DICOM_KINDS)
            raise InputError(
                f"predict: {kind.words} refers to the slices of its scan, and case '{other.case_id}' "
                f"({other.images[0]}) is not a DICOM series; choose --format {others}, or name the series"
            )
        if kind.is_missing:
            raise OutputError(f"predict: --format {format} needs highdicom, which is not installed; {_INSTALL}")
    if format != "auto":
        return Output(format=format, masks=masks)
    formats = set(found.values())
    shared = formats.pop() if len(formats) == 1 else NIFTI
    if shared is DICOM and masks:
        shared = NIFTI
    if shared is DICOM and not can_write_segmentations():
        warn(
            f"predict: predictions of DICOM series are written as .nii.gz, because highdicom is not installed; for "
            f"DICOM SEG: {_INSTALL}"
        )
        shared = NIFTI
    return Output(format=shared.output or NIFTI.output, masks=masks)


def check_segmentations(
    output: Output, headers: Mapping[str, ScanHeader], warn: Callable[[str], None], *, is_chosen: bool
) -> Output:
    """The same output, but series of which no object of DICOM can be made are written as .nii.gz.

    Args:
        output: as `choose_output` gives it.
        headers: of the scans, by case id.
        warn: called if a series is written as .nii.gz, with the reasons.
        is_chosen: whether the user asked for the format.

    Raises:
        InputError: the user asked for the format, and it cannot be made of a series; what is missing is named.
    """
    kind = _DICOM_KINDS.get(output.format)
    if kind is None or output.masks:
        return output
    series = {case_id: header for case_id, header in headers.items() if isinstance(header, SeriesHeader)}
    reasons = {case_id: reason for case_id, header in series.items() if (reason := kind.lacks(header))}
    if not reasons:
        return output
    listed = [f"{case_id} ({series[case_id].path}): {reason}" for case_id, reason in list(reasons.items())[:_LISTED]]
    listed += ["..."] if len(reasons) > _LISTED else []
    found = f"no {kind.words} can be made of {len(reasons)} of {len(series)} series: {'; '.join(listed)}"
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


def check_can_write(out: Path) -> None:
    """Returns if the folder of the predictions can be made and written; makes nothing.

    Raises:
        OutputError: it cannot.
    """
    place = next(folder for folder in (out, *out.absolute().parents) if os.path.lexists(folder))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        problem = "may not be written" if place.is_dir() else "is not a folder"
        raise OutputError(f"predict: {out} cannot hold predictions, because {place} {problem}; choose another with -o")


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
        for path in (out / name for name in output.files(ref.case_id)):
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


def is_written(ref: VolumeRef, out: Path, output: Output) -> bool:
    """Whether the prediction of a scan is there, whole."""
    return os.path.lexists(out / output.files(ref.case_id)[-1])


def check_nothing_is_replaced(refs: Sequence[VolumeRef], out: Path, output: Output) -> None:
    """Returns if none of the predictions exists.

    Raises:
        OutputError: some do.
    """
    there = [out / output.file_name(ref.case_id) for ref in refs if is_written(ref, out, output)]
    if there:
        raise OutputError(
            f"predict: {len(there)} of {len(refs)} predictions already exist, the first is {there[0]}; replace "
            "them with --overwrite, predict only the others with --resume, or choose another folder with -o"
        )
