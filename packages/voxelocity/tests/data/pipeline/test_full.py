"""A place that gets full while batches are made: the feed says so once and gives the same batches."""

import errno
import itertools
import os

import lmdb
import pytest

from shared.batches import assert_equal_batches
from shared.noted_cases import NotedCases
from voxelocity.data.cache import LmdbTier, entry_files
from voxelocity.data.pipeline import Feed

NUM_KEPT = 2


@pytest.fixture
def full_after(monkeypatch):
    """From now on, this many entries find space; every further write of voxels fails as on a full disk."""

    def limit(tier, num_entries):
        left = iter(range(num_entries))
        if isinstance(tier, LmdbTier):
            monkeypatch.setattr(tier._store, "_environment", FullEnvironment(tier._store, left))
            return
        write, finds_space = os.write, {}

        def limited(descriptor, content):
            # An entry is one file; only its header is small.
            inode = os.fstat(descriptor).st_ino
            if len(content) > 4000:
                if inode not in finds_space:
                    finds_space[inode] = next(left, None) is not None
                if not finds_space[inode]:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, content)

        monkeypatch.setattr(entry_files.os, "write", limited)

    return limit


class FullEnvironment:
    """An LMDB file that takes this many entries."""

    def __init__(self, file, left):
        self._environment, self._left = file._environment, left

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def begin(self, **options):
        if options["write"] and next(self._left, None) is None:
            raise lmdb.DiskError("mdb_put: No space left on device")
        return self._environment.begin(**options)


def take(refs, config, count, full=None):
    cases = NotedCases(refs, config)
    if full is not None:
        full(cases._cache._tiers[0], NUM_KEPT)
    with Feed(cases, config, seed=3) as feed:
        batches = list(itertools.islice(feed, count))
    kept = sum(cases._cache.get(key) is not None for key in cases._keys)
    return batches, cases.warnings, kept


@pytest.mark.parametrize(
    ("tier", "changes", "said", "num_kept"),
    [
        ("disk", {"max_bytes": 0}, ["cache.disk: no space for case", "continuing without more"], NUM_KEPT),
        ("lmdb", {"max_bytes": 0}, ["cache.lmdb: no space in", "continuing without more"], NUM_KEPT),
        ("lmdb", {}, ["cache.lmdb: no space in", "continuing in memory"], 5),
        ("memory", {"folder": ""}, ["cache.shared: no space for case", "continuing without more"], NUM_KEPT),
    ],
)
def test_a_place_that_gets_full_is_reported_and_the_batches_stay_the_same(
    blob_refs, data_config, full_after, tier, changes, said, num_kept
):
    reference, messages, _ = take(blob_refs, data_config("memory"), 6)
    assert messages == []
    batches, messages, kept = take(blob_refs, data_config(tier, num_threads=2, cache=changes), 6, full_after)
    assert_equal_batches(batches, reference)
    assert kept == num_kept
    assert len(messages) == 1
    assert all(words in messages[0] for words in said)
