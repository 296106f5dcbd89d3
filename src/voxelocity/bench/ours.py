"""Voxelocity's side of each comparison, through the calls that a training uses."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity.bench.phantom import Kind, PhantomSet, make_phantoms
from voxelocity.core.batch import Batch
from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.cache import CacheConfig
from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases
from voxelocity.data.prepare import PrepareConfig
from voxelocity.observe import cpu_budget

CT_WINDOW_HU = (-1000.0, 1000.0)
AS_MONAI = AugmentConfig.only(
    flip_probability=(0.5, 0.5, 0.5),
    affine_probability=1.0,
    rotation_share=1.0,
    rotation_degrees=(15.0, 15.0, 15.0),
    scale_share=1.0,
    scale_range=(0.9, 1.1),
    noise_probability=1.0,
    noise_std_range=(0.0, 0.1),
    intensity_scale_probability=1.0,
    intensity_scale_range=(0.9, 1.1),
    intensity_shift_probability=1.0,
    intensity_shift_range=(-0.1, 0.1),
)
"""Affine of every patch, three flips, scale, shift and noise: what the peers' chains do."""
AS_NNUNET = AugmentConfig(label_interpolation="vote")
"""nnU-Net's default augmentation; "vote" equals its argmax over interpolated classes."""
NONE = AugmentConfig(enabled=False)
MEMORY = {"tier": "memory", "max_bytes": 2**32}
"""The memory tier as a plan takes it, with room for every case of a scenario."""


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Some cases, with all that is needed to prepare them."""

    refs: Sequence[VolumeRef]
    kind: Kind
    num_classes: int
    words: str = ""

    @classmethod
    def of(cls, phantoms: PhantomSet, folder: Path) -> Cases:
        """Phantoms that are kept in `folder`."""
        refs = make_phantoms(phantoms, folder)
        return cls(refs=refs, kind=phantoms.kind, num_classes=phantoms.num_classes, words=phantoms.words)

    def opened(self, cache: Mapping[str, Any], *, spacing_mm: Any = "keep") -> PreparedCases:
        """The cases behind a cache of these settings; nothing is prepared yet.

        CT is scaled by a fixed window to 0..1, MR to mean 0 and deviation 1 over what is not zero.
        """
        low, high = CT_WINDOW_HU
        intensity = (
            {"mode": "window", "low": low, "high": high}
            if self.kind == "ct"
            else {"mode": "zscore", "nonzero_only": True}
        )
        return PreparedCases(
            self.refs,
            label_values=range(self.num_classes),
            prepare=PrepareConfig.parse({"intensity": intensity, "spacing_mm": spacing_mm}),
            cache=CacheConfig.parse(cache),
            warn=lambda text: warnings.warn(text, stacklevel=2),
        )

    def filled(self, cache: Mapping[str, Any], *, spacing_mm: Any = "keep") -> PreparedCases:
        """The same, all of them in their cache."""
        cases = self.opened(cache, spacing_mm=spacing_mm)
        cases.fill(num_threads=cpu_budget(), on_case=lambda case_id, num_bytes: None, should_stop=lambda: False)
        return cases


@contextlib.contextmanager
def feed_of(
    cases: PreparedCases,
    *,
    patch: Index3,
    batch_size: int,
    augment: AugmentConfig,
    num_threads: int | None = None,
    cache: Mapping[str, Any] | None = None,
) -> Iterator[Iterator[Batch]]:
    """Batches of a feed with a thread for each core. Pass it a cache that rotates; it does not need others."""
    config = DataConfig.parse(
        {
            "prepare": PrepareConfig(),
            "cache": {"tier": "none"} if cache is None else cache,
            "patch": {"shape_voxel": patch},
            "batch_size": batch_size,
            "feed": {"num_threads": cpu_budget() if num_threads is None else num_threads},
            "augment": augment,
        }
    )
    with Feed(cases, config) as feed:
        yield feed
