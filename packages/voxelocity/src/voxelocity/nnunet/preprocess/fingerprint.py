"""`dataset_fingerprint.json`: nnU-Net's facts of a raw data set, with its random numbers and its rounding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.prepare import nonzero_box
from voxelocity.infer.models.nnunet_prepare import Float32
from voxelocity.nnunet.preprocess.raw import RawDataset
from voxelocity.nnunet.preprocess.read import Reader, read_case
from voxelocity_observe.core.errors import DatasetError

FINGERPRINT = "dataset_fingerprint.json"
# Of all cases together.
_NUM_SAMPLES = 100_000_000
_SEED = 1234
_PERCENTILES = np.array((0.5, 50.0, 99.5))


@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """What is taken from one case.

    Attributes:
        shape: of the box that is not empty.
        spacing: along (z, y, x) in mm.
        share: of the scan that the box is.
        has_foreground: whether intensities were sampled.
    """

    shape: tuple[int, ...]
    spacing: list[float]
    share: float
    has_foreground: bool


def new_samples(raw: RawDataset) -> Float32:
    """Memory (c, case, n) for the intensities of random foreground voxels."""
    return np.empty((len(raw.channels), len(raw.refs), _NUM_SAMPLES // len(raw.refs)), dtype=np.float32)


def case_facts(raw: RawDataset, index: int, reader: Reader, samples: Float32) -> CaseFacts:
    """The facts of one case; its part of `samples` is filled. Threads may take those of several at once.

    Raises:
        ScanError: the case cannot be read.
    """
    case = read_case(raw.refs[index], reader)
    box = nonzero_box(case.image)
    foreground = case.label[box.slices] > 0
    # Each channel continues the numbers of the one before.
    rng = np.random.RandomState(_SEED)
    for channel, target in zip(case.image, samples[:, index], strict=True):
        voxels = channel[box.slices][foreground]
        if len(voxels):
            # As `choice` draws them.
            np.take(voxels, rng.randint(0, len(voxels), len(target)), out=target, mode="clip")
    return CaseFacts(
        shape=box.shape,
        spacing=case.properties["spacing"],
        share=float(np.prod(box.shape) / np.prod(case.image.shape[1:])),
        has_foreground=bool(foreground.any()),
    )


def fingerprint_of(raw: RawDataset, facts: Sequence[CaseFacts], samples: Float32) -> dict[str, Any]:
    """The fingerprint, from the facts of all cases in their order. Changes the order of `samples`.

    Raises:
        DatasetError: no case has foreground.
    """
    known = [index for index, case in enumerate(facts) if case.has_foreground]
    if not known:
        raise DatasetError(f"nnunet: no label of {raw.folder} has a foreground voxel; check that labels are above 0")
    # nnU-Net has a list without numbers for a case without foreground, which makes the others float64.
    is_whole = len(known) == len(facts)
    found = [channel if is_whole else channel[known].astype(np.float64) for channel in samples]
    return {
        "spacings": [case.spacing for case in facts],
        "shapes_after_crop": [case.shape for case in facts],
        "foreground_intensity_properties_per_channel": {
            channel: _intensities(values.reshape(-1)) for channel, values in enumerate(found)
        },
        "median_relative_size_after_cropping": float(np.median([case.share for case in facts])),
    }


def _intensities(values: Array) -> dict[str, float]:
    found = {"mean": np.mean(values), "std": np.std(values), "min": np.min(values), "max": np.max(values)}
    # Last, as it changes the order of the values.
    low, median, high = np.percentile(values, _PERCENTILES, overwrite_input=True)
    found |= {"median": median, "percentile_00_5": low, "percentile_99_5": high}
    return {name: float(value) for name, value in found.items()}


def as_json(fingerprint: dict[str, Any]) -> bytes:
    """The file, as nnU-Net writes it."""
    return json.dumps(fingerprint, sort_keys=True, indent=4).encode()
