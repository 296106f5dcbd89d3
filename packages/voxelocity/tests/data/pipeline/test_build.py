import contextlib
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

from shared.batches import assert_equal_batches
from shared.noted_cases import NotedCases
from voxelocity.core.batch import PLAIN, ImageFormat
from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.pipeline import DataConfig, Feed, build, compile_kernels
from voxelocity_observe.core.errors import ConfigError, DatasetError
from voxelocity_observe.spans import SpanRecorder


def prepared(refs, config):
    cases = NotedCases(refs, config)
    assert not cases.warnings
    return cases


def take(refs, config, count, **options):
    with Feed(prepared(refs, config), config, seed=3, **options) as feed:
        return list(itertools.islice(feed, count))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_patches_grow_as_the_training_comes_on(blob_refs, data_config, num_threads):
    config = data_config("memory", num_threads)
    growth = [{"until_share": 0.5, "shape_voxel": [4, 8, 8]}]
    grown = DataConfig.parse({**config.to_plain(), "patch": {**config.patch.to_plain(), "growth": growth}})
    batches = take(blob_refs, grown, 4, progress=lambda step: step / 4)
    assert [batch.image.shape[2:] for batch in batches] == [(4, 8, 8)] * 2 + [(8, 12, 20)] * 2
    assert [batch.label.shape[1:] for batch in batches] == [(4, 8, 8)] * 2 + [(8, 12, 20)] * 2
    plain = take(blob_refs, config, 4)
    assert_equal_batches(batches[2:], plain[2:])
    assert [batch.draws for batch in batches] == [batch.draws for batch in plain]
    assert_equal_batches(take(blob_refs, grown, 4), plain)


def test_scans_that_keep_their_spacing_are_rotated_in_millimeters(blob_refs, data_config, tmp_path):
    files = []
    for path in blob_refs[0].files:
        files.append(tmp_path / path.name)
        nib.save(nib.Nifti1Image(np.asarray(nib.load(path).dataobj), np.diag([1.0, 1.0, 4.0, 1.0])), files[-1])
    thick = [VolumeRef(case_id="thick", images=(files[0],), label=files[1])]
    config = data_config(affine_probability=1.0, rotation_share=1.0)
    at_its_own, kept = (
        config.model_copy(update={"prepare": config.prepare.model_copy(update={"spacing_mm": spacing_mm})})
        for spacing_mm in ((1.0, 1.0, 4.0), "keep")
    )
    assert_equal_batches(take(thick, kept, 2), take(thick, at_its_own, 2))


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


@pytest.mark.parametrize(("engine", "device"), [("auto", "cpu"), ("torch", "cuda:0"), ("native", "cuda:0")])
def test_no_kernel_is_compiled_where_none_is_launched(data_config, engine, device):
    kinds = {"num_channels": 1, "dtypes": ["int16"], "class_names": ()}
    assert compile_kernels(data_config(engine=engine), **kinds, device=torch.device(device)) is None


class SecondGpu:
    """As if the caller's thread had chosen CUDA device 1 of several: memory of the host, with a note of each use."""

    def __init__(self, monkeypatch):
        self.used = set()
        self._caller = threading.current_thread()
        self._own = threading.local()
        empty, to = torch.empty, torch.Tensor.to
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "is_available", lambda: True)
        monkeypatch.setattr(cuda, "current_device", self.current)
        monkeypatch.setattr(cuda, "device", self.entered)
        monkeypatch.setattr(cuda, "Stream", self.stream)
        monkeypatch.setattr(cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(cuda, "current_stream", lambda device: self.note("current stream", device))
        monkeypatch.setattr(cuda, "mem_get_info", lambda device: self.note("free", device) or (2**30, 2**30))
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)

        def make(*shape, device="cpu", pin_memory=False, **options):
            if pin_memory:
                # Page-locked memory belongs to the current device.
                self.note("page-locked", torch.device("cuda"))
            if torch.device(device).type == "cuda":
                self.note("memory", torch.device(device))
            return empty(*shape, **options)

        def copy(tensor, target, *rest, **options):
            if isinstance(target, torch.device) and target.type == "cuda":
                self.note("copy", target)
                return tensor.clone()
            return to(tensor, target, *rest, **options)

        monkeypatch.setattr(torch, "empty", make)
        monkeypatch.setattr(torch.Tensor, "to", copy)

    def current(self):
        return getattr(self._own, "index", 1 if threading.current_thread() is self._caller else 0)

    @contextlib.contextmanager
    def entered(self, device):
        before, self._own.index = self.current(), torch.device(device).index
        yield
        self._own.index = before

    def stream(self, device, priority=0):
        self.note("stream", device)
        return type("Stream", (), {"synchronize": lambda stream: None})()

    def note(self, what, device):
        self.used.add((what, self.current() if device.index is None else device.index))


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("engine", ["auto", "native"])
def test_threads_of_the_feed_use_the_device_that_was_current_where_it_was_made(
    blob_refs, data_config, monkeypatch, engine, num_threads
):
    """Filled on the device, next to cases that stay there, and on the CPU with a copy."""
    config = data_config(num_threads=num_threads, cache={"device_max_bytes": 2**20 * (engine == "auto")}, engine=engine)
    if engine == "auto":
        monkeypatch.setattr(build, "chosen_engine", lambda engine, device: "triton")
        monkeypatch.setattr(build, "filling_device", lambda engine, device: device)
        monkeypatch.setattr(build, "augment", lambda *_, **__: None)
    gpu = SecondGpu(monkeypatch)
    with Feed(prepared(blob_refs, config), config, seed=3, device="cuda") as feed:
        list(itertools.islice(feed, 4))
    uses = {"auto": ("free", "memory"), "native": ("page-locked", "copy")}[engine]
    assert gpu.used == {(what, 1) for what in (*uses, "stream", "current stream")}


def test_a_feed_for_a_missing_device_is_refused_before_any_batch(blob_refs, data_config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="'cuda' was requested"):
        Feed(prepared(blob_refs, data_config()), data_config(), device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("device_max_bytes", [0, 2**24, 40_000])
def test_batches_made_on_the_device_agree_with_those_made_on_the_cpu(blob_refs, data_config, device_max_bytes):
    """From the host's memory, from the device's, and from both."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    made = []
    for engine, max_bytes in (("triton", device_max_bytes), ("native", 0)):
        config = data_config(num_threads=2, cache={"device_max_bytes": max_bytes}, engine=engine)
        with Feed(NotedCases(blob_refs, config), config, seed=3, device="cuda") as feed:
            made.append(list(itertools.islice(feed, 6)))
    for ours, theirs in zip(*made, strict=True):
        assert (ours.step, ours.draws, ours.regions) == (theirs.step, theirs.draws, theirs.regions)
        assert ours.image.is_cuda
        torch.testing.assert_close(ours.image, theirs.image, rtol=0, atol=5e-3)
        # Places in the middle between two voxels may go either way.
        assert (ours.label != theirs.label).float().mean() < 1e-3


HALF = ImageFormat(dtype="bfloat16", channels_last=True)


def test_images_are_given_out_as_the_network_takes_them_only_where_a_gpu_makes_them(data_config):
    config, gpu = data_config(), torch.device("cuda", 0)
    assert config.given_out(HALF, gpu, 8**3) == HALF
    assert config.given_out(HALF, gpu, 2**31) == replace(HALF, channels_last=False)
    assert config.given_out(HALF, torch.device("cpu"), 8**3) == PLAIN
    off = config.model_copy(update={"feed": config.feed.model_copy(update={"casts_images": False})})
    assert off.given_out(HALF, gpu, 8**3) == PLAIN
    effects = [{"factory": "voxelocity.data.augment.color:ColorAndStain"}]
    assert data_config(effects=effects).given_out(HALF, gpu, 8**3) == PLAIN


@pytest.mark.gpu
def test_images_in_the_networks_format_are_those_of_float32_rounded(blob_refs, data_config):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    plain, half = (take(blob_refs, data_config(), 3, device="cuda", image_format=form) for form in (PLAIN, HALF))
    for wanted, found in zip(plain, half, strict=True):
        assert found.image.is_contiguous(memory_format=torch.channels_last_3d)
        assert torch.equal(found.image, wanted.image.bfloat16())
        assert torch.equal(found.label, wanted.label)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["native", "triton"])
def test_batches_are_whole_though_the_device_is_busy_and_they_are_let_go_before_they_are_read(
    blob_refs, data_config, engine
):
    """Page-locked memory, memory of the device and streams are all used again while work on batches is queued."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    matrix, found = torch.zeros(4096, 4096, device="cuda"), []
    for num_threads in (4, 0):
        config, sums = data_config(num_threads=num_threads, engine=engine), []
        with Feed(prepared(blob_refs, config), config, seed=3, device="cuda") as feed:
            for batch in itertools.islice(feed, 24):
                for _ in range(8 if num_threads else 0):
                    matrix @ matrix
                sums.append(torch.stack([batch.image.double().sum(), batch.label.double().sum()]))
                if num_threads == 0:
                    torch.cuda.synchronize()
                del batch
        found.append(torch.stack(sums))
    assert torch.equal(*found)


@pytest.mark.gpu
@pytest.mark.parametrize("device_max_bytes", [0, 2**24])
@pytest.mark.parametrize("name", ["cuda", "last"])
def test_a_feed_uses_the_device_that_is_current_or_named_and_no_other(blob_refs, data_config, name, device_max_bytes):
    """Looks at one device only where there is no second."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    config = data_config(num_threads=3, cache={"device_max_bytes": device_max_bytes})
    reserved_bytes = torch.cuda.memory_reserved(0)
    with torch.cuda.device(last if name == "cuda" else 0):
        feed = Feed(prepared(blob_refs, config), config, seed=3, device="cuda" if name == "cuda" else last)
        with feed:
            batches = list(itertools.islice(feed, 6))
    assert {batch.image.device for batch in batches} == {batch.label.device for batch in batches} == {last}
    if last.index > 0:
        assert torch.cuda.memory_reserved(0) == reserved_bytes


def test_a_feed_takes_cases_as_they_were_opened(blob_refs, data_config, tmp_path):
    unlabeled = VolumeRef(case_id="x", images=blob_refs[0].images)
    refs = (*blob_refs, unlabeled)
    cases = Cases(name="b", root=tmp_path, layout="csv", channels=("MR",), labels={}, refs=refs)
    config = data_config()
    with Feed(cases, config, seed=3) as feed:
        assert_equal_batches(list(itertools.islice(feed, 3)), take(blob_refs, config, 3))


@pytest.mark.parametrize("option", [{"seed": -1}, {"seed": 2**63}, {"start_step": -2}, {"start_step": 1.0}])
def test_a_seed_or_step_that_no_batch_has_is_refused_as_it_was_written(blob_refs, data_config, option):
    ((name, value),) = option.items()
    with pytest.raises(ConfigError, match=rf"^vx\.Feed\({name}={value}\): give a whole number from 0"):
        Feed(NotedCases(blob_refs, data_config()), data_config(), **option)


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
    names = [record.name for record in records[: [record.name for record in records].index("batch") + 1]]
    assert names == ["decode", "prepare"] * config.batch_size + ["read", "augment", "batch"]
    batch = records[len(names) - 1]
    assert all(record.parent == batch.number for record in records[: len(names) - 1])
    assert {record.thread for record in records} == {"voxelocity-feed-0"}


@pytest.mark.parametrize("num_threads", [0, 2])
def test_effects_of_the_users_own_change_the_batches(blob_refs, data_config, num_threads, tmp_path, monkeypatch):
    (tmp_path / "effects_of_mine.py").write_text(
        "class Dark:\n"
        "    def draw(self, rng, num_channels):\n        return rng.uniform(5.0, 6.0)\n"
        "    def apply(self, image, label, drawn):\n        image -= drawn\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = data_config("memory", num_threads)
    darkened = data_config("memory", num_threads, effects=[{"factory": "effects_of_mine:Dark", "probability": 1.0}])
    for plain, dark in zip(take(blob_refs, config, 2), take(blob_refs, darkened, 2), strict=True):
        lower = (plain.image - dark.image).mean(dim=(1, 2, 3, 4))
        assert ((lower > 5.0) & (lower < 6.0)).all()
        assert torch.equal(plain.label, dark.label)
