"""Transforms of tensors on a device against MONAI: there with a GPU, in Triton's interpreter without one.

In the interpreter, tensors of the CPU take the way of those on a device.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from monai.data import list_data_collate
from monai.data.meta_tensor import MetaTensor

from parity.case import item_of
from parity.table import cases, row_of
from shared.lowered import check_lowered_alike
from voxelocity.monai.chain.chain import Chain
from voxelocity.monai.difference import differences_of
from voxelocity.monai.lower import PendingTensor, lowerings, on_device
from voxelocity.monai.lower.crop import positions
from voxelocity.monai.lower.pending import why_not_pending
from voxelocity.monai.lower.spatial import sampling
from voxelocity.monai.lower.walk import Walker

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SMALL_SIDE = 16
ALL = [
    # Of the small items, a shuffled box would be empty.
    small if IS_INTERPRETED and small[0].transform is not mt.RandCoarseShuffled else large
    for small, large in zip(cases(side=SMALL_SIDE), cases(side=24), strict=True)
]
# The quick selection takes the first and the last case of a transform; the others take the same kernels.
_NAMES = [case.transform.__name__ for case, _ in ALL]
FAR_IDS = [
    f"{name}-{number}" + "-some" * (name not in _NAMES[:number] or name not in _NAMES[number + 1 :])
    for number, name in enumerate(_NAMES)
]
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="needs TRITON_INTERPRET=1, as another test sets it")
needs_gpu = pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def cpu_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU are treated as those of a CUDA device."""
    monkeypatch.setattr(on_device, "is_far", lambda device: True)
    for part in ("spatial.gather", "intensity.change"):
        monkeypatch.setattr(f"voxelocity.monai.steps.{part}.step_engine", lambda engine, device: "triton")


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    positions._kept.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "least"),
    [
        # The chain has crops about labels, moves, warps and changes of intensity.
        ("guides_chain or (far and some and (RandZoomd or RandGaussianNoised))", 5),
        pytest.param("far", len(ALL), marks=pytest.mark.nightly),
    ],
    ids=["some", "all"],
)
def test_lowered_transforms_equal_monai_in_tritons_interpreter(which: str, least: int) -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", which, "-p", "no:cacheprovider", Path(__file__)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least  # type: ignore[index]


@interpreted
@pytest.mark.parametrize("number", range(len(ALL)), ids=FAR_IDS)
def test_each_case_is_as_equal_on_a_far_device(number: int, cpu_is_far: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.table._times", lambda *_: (0.0, 0.0))
    case, lowering = ALL[number]
    row = row_of(case, lowering, num_draws=1)
    assert (row.words, row.num_label_voxels) == ("", 0 if "label" in case.keys else None)
    assert row.largest <= row.tolerance
    assert row.is_equal


@interpreted
def test_the_guides_chain_equals_monai_on_a_far_device(cpu_is_far: None) -> None:
    theirs, ours = (_guide_batches(is_ours, "cpu", 12) for is_ours in (False, True))
    _check_equal(theirs, ours)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda n: f"{ALL[n][0].transform.__name__}-{n}")
def test_each_case_is_as_equal_on_the_gpu_as_on_the_cpu(number: int) -> None:
    """Where matrix products of float32 are not made of TF32. MONAI's convolutions are made without it here."""
    case, lowering = ALL[number]
    if case.is_seeded:
        pytest.skip("compared in distribution, on the CPU")
    item = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in case.item(3).items()}
    exact = set(case.label_keys)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # type: ignore[no-untyped-call]
        theirs, ours = case.made(3)(dict(item)), Walker([case.made(3)], lowerings={case.transform: lowering})(item)
    for difference in differences_of(_near(theirs), _near(ours)):
        assert difference.words == "", difference
        is_label = any(difference.key.endswith(key) for key in exact)
        limit = 0.0 if is_label else max(case.tolerance, 1e-4) * max(1.0, difference.scale)
        assert difference.largest <= limit, difference


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("stream", [False, True])
def test_the_guides_chain_equals_monai_on_the_gpu(stream: bool) -> None:
    own = torch.cuda.Stream() if stream else torch.cuda.current_stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        theirs, ours = (_guide_batches(is_ours, "cuda:0", 48) for is_ours in (False, True))
    torch.cuda.synchronize()
    _check_equal(theirs, ours)


@pytest.mark.gpu
@needs_gpu
def test_a_batch_of_the_guides_chain_waits_for_nothing() -> None:
    from voxelocity.monai import CacheDataset, DataLoader

    dataset = CacheDataset(_items(48, num=2), mt.Compose(_guide("cuda:0", 24)), progress=False)
    loader = DataLoader(dataset, batch_size=2)
    # Finds the voxels to crop about, and compiles.
    for _ in range(3):
        list(loader)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = list(loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert batches[0]["image"].is_cuda
    assert not [note for note in dataset.plan().notes if "with MONAI's code" in note]


def _items(side: int, num: int = 3) -> list[dict[str, Any]]:
    return [item_of(seed, shape=(side, side + 3, side - 2), empty_share=0.3) for seed in range(num)]


def _guide(device: str, size: int) -> list[Any]:
    """MONAI's guide on fast training, and the changes that its tutorials add."""
    keys = ("image", "label")
    return [
        mt.ScaleIntensityRanged("image", 0.0, 100.0, 0.0, 1.0, clip=True),
        mt.EnsureTyped(keys),
        mt.ToDeviced(keys, device=device),
        mt.RandCropByPosNegLabeld(keys, "label", (size,) * 3, 1, 1, 4, image_key="image", image_threshold=0.0),
        mt.RandFlipd(keys, 0.5, 0),
        mt.RandRotate90d(keys, 0.5, 3),
        mt.RandAffined(keys, prob=0.5, rotate_range=(0.3, 0.2, 0.1), scale_range=0.1, mode=("bilinear", "nearest")),
        mt.RandShiftIntensityd("image", 0.1, prob=0.5),
        mt.RandScaleIntensityd("image", 0.1, prob=0.5),
        mt.RandAdjustContrastd("image", 0.3),
    ]


def _guide_batches(is_ours: bool, device: str, side: int) -> list[Any]:
    import monai.data

    import voxelocity.monai

    source: Any = voxelocity.monai if is_ours else monai.data
    chain = mt.Compose(_guide(device, side // 2))
    dataset = source.CacheDataset(_items(side), chain, progress=False)
    # MONAI's loader draws the seed of its transforms from torch.
    torch.manual_seed(7)
    return [batch for _ in range(2) for batch in source.ThreadDataLoader(dataset, batch_size=2, num_workers=0)]


def _check_equal(theirs: list[Any], ours: list[Any]) -> None:
    assert len(theirs) == len(ours) == 4
    for expected, actual in zip(theirs, ours, strict=True):
        assert torch.equal(expected["label"].as_tensor(), actual["label"].as_tensor())
        assert expected["image"].device == actual["image"].device
        torch.testing.assert_close(expected["image"].as_tensor(), actual["image"].as_tensor(), rtol=0, atol=1e-4)
        assert torch.allclose(expected["image"].affine, actual["image"].affine)


def _near(value: Any) -> Any:
    if isinstance(value, list):
        return [_near(item) for item in value]
    if isinstance(value, dict):
        return {key: _near(item) for key, item in value.items()}
    return value.cpu() if isinstance(value, torch.Tensor) else value


def test_positions_of_a_far_label_are_found_once_while_it_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "is_far", lambda device: True)
    found: list[int] = []
    plain = positions._binary_positions
    monkeypatch.setattr(positions, "_binary_positions", lambda *a, **k: (found.append(1), plain(*a, **k))[1])
    label = torch.zeros((1, 4, 5, 6), dtype=torch.int16)
    label[0, 1, 2, 3] = 1
    foreground, background = positions.binary_positions(label, None, 0.0)
    assert [foreground[number] for number in range(len(foreground))] == [1 * 30 + 2 * 6 + 3]
    assert len(background) == 119
    again, _ = positions.binary_positions(label.as_subclass(torch.Tensor).view(1, 4, 5, 6), None, 0.0)
    assert (again is foreground, len(found)) == (True, 1)
    positions.binary_positions(label, None, 0.5)
    positions.binary_positions(label, label.float(), 0.0)
    assert len(found) == 3
    label[0, 0, 0, 0] = 1
    assert len(positions.binary_positions(label, None, 0.0)[0]) == 2
    assert len(positions._kept) == 2, "the older positions of the label are gone, and those of the image that is gone"
    del label
    positions.binary_positions(torch.ones((1, 2, 2, 2)), None, 0.0)
    assert len(positions._kept) == 1
    with torch.inference_mode():
        positions.binary_positions(torch.ones((1, 2, 2, 2)), None, 0.0)
    assert len(positions._kept) == 1


@pytest.mark.parametrize("num_classes", [1, 4])
def test_positions_of_a_far_label_are_those_of_a_near_one(monkeypatch: pytest.MonkeyPatch, num_classes: int) -> None:
    rng = np.random.default_rng(0)
    label = torch.from_numpy(rng.integers(0, 3, (1, 5, 6, 7)).astype(np.int16))
    image = torch.from_numpy(rng.normal(size=(2, 5, 6, 7)).astype(np.float32))
    near = [*positions.binary_positions(label, image, 0.1), *positions.class_positions(label, num_classes, image, 0.1)]
    monkeypatch.setattr(on_device, "is_far", lambda device: True)
    far = [*positions.binary_positions(label, image, 0.1), *positions.class_positions(label, num_classes, image, 0.1)]
    for near_list, far_list in zip(near, far, strict=True):
        assert [near_list[number] for number in range(len(near_list))] == [
            far_list[number] for number in range(len(far_list))
        ]


class _OnCuda(torch.Tensor):
    """Says that it lies on a CUDA device."""

    device = torch.device("cuda:0")  # type: ignore[assignment]


def test_what_lies_on_a_cuda_device_is_lowered_unless_that_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros((1, 4, 4, 4)).as_subclass(_OnCuda)
    assert why_not_pending(tensor) == ""
    monkeypatch.setenv("VOXELOCITY_MONAI_CUDA", "0")
    assert why_not_pending(tensor) == "it was on cuda:0, where nothing is lowered"
    assert not on_device.is_lowered_on(torch.device("xpu"))


def test_what_cannot_be_equalled_on_a_device_runs_by_monai_and_the_plan_says_why() -> None:
    known, device = lowerings(), torch.device("cuda:0")
    pending = PendingTensor.of(torch.zeros((1, 4, 4, 4)))
    pending.source = pending.source.as_subclass(_OnCuda)
    elastic = mt.Rand3DElasticd("image", (1, 2), (1, 2))
    reason = known[mt.Rand3DElasticd].why_not_data(elastic, {"image": pending})
    assert reason == f"its deformation is smoothed and turned on {device}, where sums round in another order"
    assert known[mt.RandFlipd].why_not_data(mt.RandFlipd("image"), {"image": pending}) == ""
    assert known[mt.RandFlipd].why_not_data(mt.RandFlipd("image"), {"image": torch.zeros(3)}) != ""


def test_the_plan_names_each_transform_that_ran_by_monai() -> None:
    chain = Chain(mt.Compose([mt.RandShiftIntensityd("image", 0.5, prob=1.0), mt.RandFlipd("label", 1.0, 0)]))
    chain.make(chain.defer({"image": torch.ones((1, 4)), "label": torch.ones((1, 4, 4, 4))}))
    (note,) = [note for note in chain.plan().notes if "with MONAI's code" in note]
    assert note == (
        "RandShiftIntensityd ran with MONAI's code on some data: it was not a dense array of channels and two or "
        "three spatial "
        "axes."
    )


def test_a_devices_rounding_of_rotations_is_found_by_whole_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    found = sampling.rotation_is_fused(2, cpu)
    assert found == sampling.affine_grid_is_fused(2)
    plain = sampling._grid_by_monai
    monkeypatch.setattr(sampling, "_grid_by_monai", lambda *a: plain(*a) * (1 + 1e-6))
    sampling._rotation_is_fused.cache_clear()
    assert sampling.rotation_is_fused(2, cpu) is None
    sampling._rotation_is_fused.cache_clear()


def test_a_devices_rounding_is_found_where_a_program_uses_torchs_newer_settings() -> None:
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError, match="legacy and new APIs"):
            torch.get_float32_matmul_precision()
        assert sampling.rotation_why_not_on(torch.device("cpu")) == ""
    finally:
        matmul.fp32_precision = before


def test_batches_of_a_far_device_are_made_at_once_and_as_by_monai(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from voxelocity.monai.chain import loading

    calls: list[int] = []
    monkeypatch.setattr(on_device, "is_far", lambda device: True)
    plain = loading.run
    monkeypatch.setattr(loading, "run", lambda pieces: (calls.append(len(pieces)), plain(pieces))[1])
    chain = [mt.RandSpatialCropSamplesd(("image", "label"), (4, 4, 4), 2, random_size=False)]
    items = [Walker([transform.set_random_state(1) for transform in chain], lowerings=lowerings()).defer(_items(8)[0])]
    with ThreadPoolExecutor(1) as pool:
        made = loading.start_batch(items, pool).result()
    wanted = list_data_collate([chain[0].set_random_state(1)(_items(8)[0])][0])
    assert calls == [4]
    assert torch.equal(made["image"].as_tensor(), wanted["image"].as_tensor())
    assert isinstance(made["label"], MetaTensor)


@dataclass(frozen=True)
class _Stream:
    """As torch's, without a device."""

    name: str
    device: torch.device = field(default_factory=lambda: torch.device("cuda:0"))
    waited: list[str] = field(default_factory=list, compare=False)

    def wait_stream(self, other: _Stream) -> None:
        self.waited.append(other.name)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """CUDA with one device, each thread's current stream being the attribute `now`, the default one at first."""
    own, default = threading.local(), _Stream("default")

    @contextlib.contextmanager
    def entered(stream: _Stream) -> Iterator[None]:
        before, own.now = getattr(own, "now", default), stream
        yield
        own.now = before

    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda number: contextlib.nullcontext(),
        "default_stream": lambda device: default,
        "current_stream": lambda device: getattr(own, "now", default),
        "stream": entered,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return own


class _Batch(torch.Tensor):
    """A batch on a CUDA device."""

    device, is_cuda = torch.device("cuda:0"), True  # type: ignore[assignment]


def test_a_batch_is_made_on_the_stream_where_its_loop_began(
    streams: threading.local, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(stream.name))
    monkeypatch.setattr(torch.Tensor, "as_subclass", lambda tensor, kind: tensor)
    streams.now = training = _Stream("training")
    held, seen = on_device.Streams(), []

    def make() -> None:
        with held.current():
            seen.append(streams.now.name)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert seen == ["training"]
    assert training.waited == ["default"], "a cache is filled there"
    batch = {"image": _Batch(), "name": ["a"]}
    assert held.hand_over(batch) is batch
    assert (training.waited, recorded) == (["default"], []), "used on the stream that made it"
    streams.now = other = _Stream("other")
    held.hand_over([batch])
    assert (other.waited, recorded) == (["training"], ["other"])


def test_an_epoch_ends_as_ever_on_a_stream(streams: threading.local) -> None:
    held = on_device.Streams()
    with pytest.raises(StopIteration), held.current():
        next(iter(()))


def test_a_transform_alone_equals_monai() -> None:
    check_lowered_alike(mt.RandFlipd(("image", "label"), 1.0, 0).set_random_state(0), _items(8)[0])
