"""How large the prepared cases will be and how long they take to make, before any of them is made."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxelocity.planning.facts import Facts

Vector = npt.NDArray[np.float64]


def prepared_spacing_mm(facts: Facts) -> Vector:
    """Spacing of the prepared cases: as settled, or the median if each case keeps its own."""
    spacing = facts.settled["data"]["prepare"]["spacing_mm"]
    return np.array(facts.data.spacing_mm.median if spacing == "keep" else spacing, dtype=np.float64)


def prepared_bytes(facts: Facts) -> float:
    """Bytes of all prepared cases, image channels and label; for "smallest", the most they can take."""
    bytes_per_value = 4 if facts.settled["data"]["prepare"].get("dtype") == "float32" else 2
    spacing = prepared_spacing_mm(facts)
    crop = facts.settled["data"]["prepare"].get("crop", "none")
    voxels = float((np.array(facts.data.extent_mm.median) / spacing).prod())
    voxels *= facts.data.crop_share if crop == "nonzero" else 1.0
    return facts.data.num_cases * voxels * (len(facts.data.channels) * bytes_per_value + 1)


def build_s(facts: Facts) -> float:
    """Seconds that preparing all cases takes with all cores, extrapolated from the sampled cases."""
    seconds = facts.data.prepare_s / max(1, facts.data.sampled_voxels) * facts.data.num_voxels
    return seconds * len(facts.data.channels) / max(1, facts.machine.num_cpus)
