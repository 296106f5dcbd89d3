"""`dataset_fingerprint.json`: nnU-Net's facts of a raw data set, with its random numbers and its rounding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.data.prepare import nonzero_box
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
        samples: intensities of random foreground voxels of each channel; empty if there are none.
    """

    shape: tuple[int, ...]
    spacing: list[float]
    share: float
    samples: Sequence[npt.NDArray[np.float32]]


def case_facts(raw: RawDataset, index: int, reader: Reader) -> CaseFacts:
    """The facts of one case. Threads may take those of several at once.

    Raises:
        ScanError: the case cannot be read.
    """
    case = read_case(raw.refs[index], reader)
    box = nonzero_box(case.image)
    foreground = case.label[box.slices] > 0
    num = _NUM_SAMPLES // len(raw.refs)
    # Each channel continues the numbers of the one before.
    rng = np.random.RandomState(_SEED)
    samples: list[npt.NDArray[np.float32]] = []
    for channel in case.image:
        voxels = channel[box.slices][foreground]
        samples.append(rng.choice(voxels, num, replace=True) if len(voxels) else voxels)
    return CaseFacts(
        shape=box.shape,
        spacing=case.properties["spacing"],
        share=float(np.prod(box.shape) / np.prod(case.image.shape[1:])),
        samples=samples,
    )


def fingerprint_of(raw: RawDataset, facts: Sequence[CaseFacts]) -> dict[str, Any]:
    """The fingerprint, from the facts of all cases in their order.

    Raises:
        DatasetError: no case has foreground.
    """
    return {
        "spacings": [case.spacing for case in facts],
        "shapes_after_crop": [case.shape for case in facts],
        "foreground_intensity_properties_per_channel": {
            channel: _intensities(raw, facts, channel) for channel in range(len(raw.channels))
        },
        "median_relative_size_after_cropping": float(np.median([case.share for case in facts])),
    }


def _intensities(raw: RawDataset, facts: Sequence[CaseFacts], channel: int) -> dict[str, float]:
    parts = [case.samples[channel] for case in facts]
    values = np.concatenate(parts)
    if not len(values):
        raise DatasetError(f"nnunet: no label of {raw.folder} has a foreground voxel; check that labels are above 0")
    if not all(map(len, parts)):
        # nnU-Net has a list without numbers for such a case, which makes the others float64.
        values = values.astype(np.float64)
    found = {
        "mean": np.mean(values),
        "std": np.std(values),
        "min": np.min(values),
        "max": np.max(values),
    }
    # Last, as it changes the order of the values.
    low, median, high = np.percentile(values, _PERCENTILES, overwrite_input=True)
    found |= {"median": median, "percentile_00_5": low, "percentile_99_5": high}
    return {name: float(value) for name, value in found.items()}


def as_json(fingerprint: dict[str, Any]) -> bytes:
    """The file, as nnU-Net writes it."""
    return json.dumps(fingerprint, sort_keys=True, indent=4).encode()


def peak_bytes(raw: RawDataset) -> int:
    """Memory of the samples of all cases while they are put together."""
    return _NUM_SAMPLES * 4 * (len(raw.channels) + 2)
