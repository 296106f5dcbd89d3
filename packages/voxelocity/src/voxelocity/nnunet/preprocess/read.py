"""One raw case as nnU-Net's readers give it: arrays with the axes (z, y, x), and what they note of its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voxelocity.core.volume import Array, VolumeRef
from voxelocity.data.decode import read_scan
from voxelocity.infer.models.nnunet_labels import Int16
from voxelocity.infer.models.nnunet_prepare import Float32
from voxelocity.nnunet.preprocess.raw import RawDataset
from voxelocity_observe.core.errors import ConfigError, InputError, ScanError

Reader = Literal["SimpleITKIO", "NibabelIO"]
"""nnU-Net's names of the readers whose notes are made here."""
_FOUR_AXES = 4


@dataclass(frozen=True, kw_only=True)
class ReadCase:
    """The voxels of a case.

    Attributes:
        image: (c, z, y, x) float32, in C order.
        label: (z, y, x) int16, in C order.
        properties: what nnU-Net's reader notes of the image, its "spacing" along (z, y, x) in mm among it.
    """

    image: Float32
    label: Int16
    properties: dict[str, Any]


def choose_reader(raw: RawDataset) -> Reader:
    """The reader that nnU-Net takes for a data set.

    Raises:
        ConfigError: it is one that has no counterpart here.
    """
    named = raw.description.get("overwrite_image_reader_writer", "None")
    if named != "None":
        if named not in _NOTES:
            raise _not_here(raw, f"the reader {named}")
        return "SimpleITKIO" if named == "SimpleITKIO" else "NibabelIO"
    ending = raw.ending.lower()
    if ending in (".nii.gz", ".nrrd", ".mha"):
        with contextlib.suppress(RuntimeError):
            _notes_of_itk(raw.refs[0].images[0])
            return "SimpleITKIO"
    # SimpleITK refuses axes that are not at right angles.
    if ending in (".nii.gz", ".nii"):
        return "NibabelIO"
    raise _not_here(raw, f"files that end in {ending}")


def read_notes(path: Path, reader: Reader) -> dict[str, Any]:
    """What nnU-Net's reader notes of an image. Reads its header alone.

    Raises:
        ScanError: the header cannot be read.
    """
    try:
        return _NOTES[reader](path)
    except InputError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        line = str(error).strip().splitlines()[-1]
        raise ScanError(
            f"nnunet: {path}: {reader} cannot read its header ({line:.200}); export the file again"
        ) from None


def read_case(ref: VolumeRef, reader: Reader) -> ReadCase:
    """The case. Threads may read several at once.

    Raises:
        ScanError: a file cannot be read, has another shape or spacing than the others, or holds NaN, or a label that is
            not a whole number.
    """
    assert ref.label is not None, "raw data sets have labels"
    parts = [_turned(path) for path in ref.images]
    notes = [read_notes(path, reader) for path in ref.images]
    for path, part, note in zip(ref.images[1:], parts[1:], notes[1:], strict=True):
        if part.shape != parts[0].shape or note["spacing"] != notes[0]["spacing"]:
            raise ScanError(
                f"nnunet: {path} has the shape {part.shape[1:]} and spacing {_text(note)}, but {ref.images[0]} "
                f"{parts[0].shape[1:]} and {_text(notes[0])} along (z, y, x); resample the channels to one grid"
            )
    image = np.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), dtype=np.float32)
    first = 0
    while parts:
        part = parts.pop(0)
        image[first : first + len(part)] = part
        first += len(part)
    if np.isnan(image.min()):
        raise ScanError(f"nnunet: the image of {ref.case_id} holds NaN; replace these voxels, or leave the case out")
    return ReadCase(image=image, label=_label(ref.label, image.shape[1:]), properties=notes[0])


def _turned(path: Path) -> Array:
    """The voxels (c, z, y, x), as they are in the file."""
    return read_scan(path)[0].transpose(0, 3, 2, 1)


def _label(path: Path, shape: tuple[int, ...]) -> Int16:
    label = _turned(path)
    if label.shape != (1, *shape):
        raise ScanError(
            f"nnunet: {path} has the shape {label.shape[1:]}, but its image {shape} along (z, y, x)"
            f"{'' if len(label) == 1 else f', and {len(label)} channels'}; resample the label to the grid of the image"
        )
    low, high = label.min(), label.max()
    most = np.iinfo(np.int16).max
    # NaN is not within the limits either.
    if not (low >= 0 and high <= most):
        raise ScanError(
            f"nnunet: {path} holds labels from {low} to {high}; nnU-Net stores 0 to {most}: correct the file"
        )
    whole: Int16 = label[0].astype(np.int16)
    if label.dtype.kind == "f" and not np.array_equal(whole, label[0]):
        raise ScanError(f"nnunet: {path} holds labels that are not whole numbers; correct the file")
    return whole


def _text(notes: Mapping[str, Any]) -> str:
    return " x ".join(f"{length:g}" for length in notes["spacing"])


def _notes_of_itk(path: Path) -> dict[str, Any]:
    """Those of `SimpleITKIO`."""
    try:
        import SimpleITK
    except ImportError:
        raise ConfigError(
            "nnunet: nnU-Net's SimpleITKIO stores SimpleITK's version of each header, and SimpleITK is not installed; "
            "pip install 'voxelocity[formats]'"
        ) from None
    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    spacing, num_axes = reader.GetSpacing(), reader.GetDimension()
    if num_axes not in (3, _FOUR_AXES) or reader.GetNumberOfComponents() > 1:
        raise ScanError(
            f"nnunet: {path} has {num_axes} axes and {reader.GetNumberOfComponents()} values a voxel, and only volumes "
            "of one value, or with channels on the fourth axis, are read here; preprocess with nnU-Net itself"
        )
    # As in an image that was read, no zero is negative.
    origin, direction = (tuple(n + 0.0 for n in numbers) for numbers in (reader.GetOrigin(), reader.GetDirection()))
    return {
        "sitk_stuff": {"spacing": spacing, "origin": origin, "direction": direction},
        "spacing": list(np.abs(spacing[:3][::-1])),
    }


def _notes_of_nibabel(path: Path) -> dict[str, Any]:
    """Those of `NibabelIO`."""
    import nibabel

    image = nibabel.load(path)
    return {
        "nibabel_stuff": {"original_affine": image.affine},
        "spacing": [float(length) for length in image.header.get_zooms()[:3][::-1]],
    }


_NOTES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "SimpleITKIO": _notes_of_itk,
    "NibabelIO": _notes_of_nibabel,
}


def _not_here(raw: RawDataset, what: str) -> ConfigError:
    return ConfigError(
        f"nnunet: {raw.folder} has {what}, which only nnU-Net itself supports; preprocess with nnUNetv2_preprocess, "
        "or convert the files to .nii.gz"
    )
