"""Prepared cases that record what is done with them, and helpers for tests of faults."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shared.batches import batch_digest
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.pipeline import CachingFacts, DataConfig, Feed, PreparedCases


class NotedCases(PreparedCases):
    """Cases of two classes, in the cache of a configuration.

    Attributes:
        prepared: the ids of the cases that were prepared, in order.
        warnings: the warnings, in order.
    """

    def __init__(self, refs: Sequence[VolumeRef], config: DataConfig) -> None:
        self.prepared: list[str] = []
        self.warnings: list[str] = []
        super().__init__(
            refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=self.warnings.append
        )

    def _prepare(self, index: int) -> Volume:
        self.prepared.append(self.refs[index].case_id)
        return super()._prepare(index)


def fill(cases: PreparedCases, num_threads: int = 2) -> CachingFacts:
    """Puts every case into its cache."""
    return cases.fill(num_threads=num_threads, on_case=lambda case_id, num_bytes: None, should_stop=lambda: False)


def assert_whole(cases: PreparedCases, wanted: Sequence[Volume]) -> None:
    """Asserts that the cases hold these voxels and foreground indices."""
    for index, volume in enumerate(wanted):
        got = cases[index].load()
        assert got.label is not None
        assert volume.label is not None
        np.testing.assert_array_equal(got.image, volume.image)
        np.testing.assert_array_equal(got.label, volume.label)
        np.testing.assert_array_equal(got.foreground[1], volume.foreground[1])


def drawn(cases: PreparedCases, config: DataConfig, num_steps: int = 6, *, start_step: int = 0) -> list[str]:
    """Digests of the first batches, or of those from a later step on."""
    with Feed(cases, config, seed=3, start_step=start_step) as feed:
        return [batch_digest(batch) for batch in itertools.islice(feed, num_steps)]
