import gc
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from voxelocity.core.cases import Cases
from voxelocity.core.errors import ConfigError, DatasetError, ScanError
from voxelocity.core.volume import VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases
from voxelocity.observe import SpanRecorder


def prepared(refs, config):
    warnings = []
    cases = PreparedCases(refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=warnings.append)
    assert not warnings
    return cases


def take(refs, config, count, **options):
    with Feed(prepared(refs, config), config, seed=3, **options) as feed:
        return list(itertools.islice(feed, count))


def assert_equal_batches(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert (a.step, a.draws, a.regions) == (b.step, b.draws, b.regions)
        assert torch.equal(a.image, b.image)
        assert torch.equal(a.label, b.label)


@pytest.mark.parametrize(
    ("tier", "num_threads"),
    [("none", 0), ("disk", 0), ("memory", 2), ("disk", 3), ("disk blosc2", 2), ("lmdb", 2), ("lmdb blosc2", 0)],
)
def test_batches_are_the_same_for_any_tier_and_number_of_threads(blob_refs, data_config, tier, num_threads):
    reference = take(blob_refs, data_config("memory", 0), 6)
    assert_equal_batches(take(blob_refs, data_config(tier, num_threads), 6), reference)


def test_a_feed_started_later_goes_on_with_the_same_batches(blob_refs, data_config):
    config = data_config()
    assert_equal_batches(take(blob_refs, config, 3, start_step=4), take(blob_refs, config, 7)[4:])


def test_batches_have_the_shapes_and_dtypes_they_promise(blob_refs, data_config):
    batch = take(blob_refs, data_config(), 1)[0]
    assert batch.image.shape == (3, 1, 8, 12, 20)
    assert batch.label.shape == (3, 8, 12, 20)
    assert (batch.image.dtype, batch.label.dtype) == (torch.float32, torch.uint8)
    assert set(batch.label.unique().tolist()) <= {0, 1}
    assert all(region.shape == (8, 12, 20) for region in batch.regions)


def test_a_feed_swaps_the_classes_that_its_configuration_names(blob_refs, data_config):
    names = {0: "background", 1: "kidney_left", 2: "kidney_right"}
    cases = Cases(name="x", root=Path(), layout="csv", channels=("image",), labels=names, refs=blob_refs)
    augment = {"flip_probability": (1.0, 0.0, 0.0), "swap_pairs": [["kidney_left", "kidney_right"]]}
    with Feed(cases, data_config(**AugmentConfig.only(**augment).to_plain())) as feed:
        labels = next(feed).label
    assert set(labels.unique().tolist()) == {0, 2}, "the balls are of class 1"
    augment["swap_pairs"] = [["kidney_left", "kidney"]]
    with pytest.raises(ConfigError, match="swap_pairs names 'kidney', which is not a class of this data set"):
        Feed(cases, data_config(**AugmentConfig.only(**augment).to_plain()))


def test_sides_of_scans_that_keep_their_orientation_are_refused(data_config):
    values = data_config().to_plain()
    values["prepare"]["orientation"] = "keep"
    values["augment"] |= {"swap_pairs": [["a", "b"]], "flip_probability": [0.5, 0.0, 0.0]}
    with pytest.raises(ConfigError, match=r"swap_pairs needs prepare\.orientation RAS"):
        DataConfig.parse(values)


def test_without_augmentation_a_patch_is_the_voxels_of_its_region(blob_refs, data_config):
    config = data_config(enabled=False)
    cases = prepared(blob_refs, config)
    batch = take(blob_refs, config, 1)[0]
    for row, (draw, region) in enumerate(zip(batch.draws, batch.regions, strict=True)):
        volume = cases[draw.case]
        inside = region.clip(volume.grid.shape)
        before, _ = region.padding(volume.grid.shape)
        target = inside.shifted(tuple(b - a for a, b in zip(inside.start, before, strict=True))).slices
        wanted = torch.tensor(volume.load().intensities()[0][inside.slices])
        torch.testing.assert_close(batch.image[row, 0][target], wanted, rtol=0, atol=1e-6)
        outside = torch.ones(batch.image.shape[2:], dtype=torch.bool)
        outside[target] = False
        assert not batch.image[row, 0][outside].any()
        assert not batch.label[row][outside].any()


def test_an_engine_that_is_not_to_be_had_here_is_refused_before_any_batch(blob_refs, data_config):
    config = data_config(engine="triton")
    with pytest.raises(ConfigError, match="engine 'triton' fills batches on CUDA, not on cpu; choose engine: auto"):
        Feed(prepared(blob_refs, config), config)


@pytest.mark.gpu
@pytest.mark.parametrize("device_max_bytes", [0, 2**24, 40_000])
def test_batches_made_on_the_device_agree_with_those_made_on_the_cpu(blob_refs, data_config, device_max_bytes):
    """From the host's memory, from the device's, and from both."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    made = []
    for engine, max_bytes in (("triton", device_max_bytes), ("numba", 0)):
        config = data_config(num_threads=2, engine=engine)
        config = config.model_copy(update={"cache": config.cache.model_copy(update={"device_max_bytes": max_bytes})})
        cases = PreparedCases(
            blob_refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=lambda _: None
        )
        with Feed(cases, config, seed=3, device="cuda") as feed:
            made.append(list(itertools.islice(feed, 6)))
    for ours, theirs in zip(*made, strict=True):
        assert (ours.step, ours.draws, ours.regions) == (theirs.step, theirs.draws, theirs.regions)
        assert ours.image.is_cuda
        torch.testing.assert_close(ours.image, theirs.image, rtol=0, atol=5e-3)
        # Places in the middle between two voxels may go either way.
        assert (ours.label != theirs.label).float().mean() < 1e-3


def test_a_feed_takes_cases_as_they_were_opened(blob_refs, data_config, tmp_path):
    unlabelled = VolumeRef(case_id="x", images=blob_refs[0].images)
    refs = (*blob_refs, unlabelled)
    cases = Cases(name="b", root=tmp_path, layout="csv", channels=("MR",), labels={}, refs=refs)
    config = data_config()
    with Feed(cases, config, seed=3) as feed:
        assert_equal_batches(list(itertools.islice(feed, 3)), take(blob_refs, config, 3))


def test_every_epoch_visits_every_case_once(blob_refs, data_config):
    draws = [draw for batch in take(blob_refs, data_config(), 5) for draw in batch.draws]
    for epoch in range(3):
        assert sorted(d.case for d in draws if d.epoch == epoch) == list(range(5))


def test_a_forgotten_feed_ends_its_threads(blob_refs, data_config):
    before = set(threading.enumerate())
    config = data_config(num_threads=2)
    feed = Feed(prepared(blob_refs, config), config, seed=3)
    next(feed)
    started = set(threading.enumerate()) - before
    assert started
    del feed
    gc.collect()
    for thread in started:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in started)


def test_a_broken_case_surfaces_where_its_batch_would_be(blob_refs, data_config, tmp_path):
    broken = tmp_path / "broken.nii.gz"
    broken.write_bytes(blob_refs[0].images[0].read_bytes()[:200])
    refs = [type(blob_refs[0])(case_id="broken", images=(broken,), label=blob_refs[0].label)]
    with pytest.raises(ScanError, match=r"broken\.nii\.gz"):
        take(refs, data_config(num_threads=2), 1)


def test_a_case_without_label_is_refused_by_name(blob_refs, data_config):
    config = data_config()
    cases = prepared([*blob_refs[:2], replace(blob_refs[2], label=None)], config)
    with pytest.raises(DatasetError, match="case 'case_2' has no label to learn from; leave it out"):
        Feed(cases, config)


def test_cases_of_different_channels_are_refused_by_name(blob_refs, data_config):
    two = replace(blob_refs[1], images=blob_refs[1].images * 2)
    with pytest.raises(DatasetError, match=r"case 'case_\d' has \d channel\(s\), case 'case_\d' \d; give all cases"):
        take([blob_refs[0], two], data_config(), 4)


def test_the_work_of_the_feed_is_seen_as_spans(blob_refs, data_config):
    config = data_config("none", num_threads=1)
    with SpanRecorder() as recorder, Feed(prepared(blob_refs, config), config, seed=3) as feed:
        next(feed)
    records = recorder.take()
    names = [record.name for record in records[: [record.name for record in records].index("collate") + 1]]
    assert names == ["decode", "prepare"] * config.batch_size + ["read", "augment", "collate"]
    collate = records[len(names) - 1]
    assert all(record.parent == collate.number for record in records[: len(names) - 1])
    assert {record.thread for record in records} == {"voxelocity-feed-0"}
