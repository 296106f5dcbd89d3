"""The kernels of the window engine give what torch gives: on a GPU, or on a CPU in Triton's interpreter."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare import Preparation, PrepareConfig, Restoration, resize_record
from voxelocity.infer import PredictionSpec, Predictor, WindowConfig, arrays
from voxelocity.infer.device_restore import DeviceRestoration
from voxelocity.infer.mirrored import Mirrored, add_weighted, as_float32_copy, part_of
from voxelocity.infer.sinks import ClassMap, ScanLabels
from voxelocity.infer.window import stitch_volumes
from voxelocity.step.fused import set_fused

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
HERE = Path(__file__).parent
by_kernels = pytest.mark.gpu

WINDOW = (10, 9, 35)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "least"),
    [("some", 15), pytest.param("", 30, marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def test_kernels_agree_with_torch_in_tritons_interpreter(which, least):
    # A process of its own: Triton decides when a kernel is defined whether it will be interpreted.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", which, "-p", "no:cacheprovider", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "REQUIRE_GPU": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least


@pytest.mark.slow
def test_kernels_are_compiled_once_whatever_the_sizes_of_windows_and_tiles():
    # A process of its own, as Triton has one driver a process.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, HERE / "count_compiles.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # Windows in two orders of memory, alone and as a pair of mirrorings.
    # Tiles on their own grid, and tiles that are restored.
    once = {"find_not_finite": 1, "classify": 2, "restore_classes": 1}
    assert json.loads(done.stdout) == {"add_window": 4, **once}


@pytest.fixture(autouse=True)
def kernels(request, monkeypatch):
    if "gpu" not in request.keywords:
        return
    if not IS_INTERPRETED and not torch.cuda.is_available():
        pytest.skip("no CUDA device, and not in Triton's interpreter")
    monkeypatch.setattr(arrays, "_KERNEL_DEVICES", frozenset((DEVICE.type,)))


@pytest.fixture
def torch_path():
    """Switches the kernels off and on."""
    yield lambda is_off: set_fused("window", not is_off)
    set_fused("window", True)


def some(*values):
    """A parameter of the quick selection."""
    return pytest.param(*values, id="-".join(["some", *map(str, values)]))


def logits(num_classes, dtype, layout, *, seed=0, shape=WINDOW):
    values = np.random.default_rng(seed).standard_normal((1, num_classes, *shape)).astype(np.float32)
    tensor = torch.from_numpy(values).to(DEVICE, dtype)
    return tensor.contiguous(memory_format=getattr(torch, layout))[0]


FORMATS = [
    some(3, "bfloat16", "channels_last_3d"),
    some(17, "float16", "contiguous_format"),
    *(
        (k, d, m)
        for k in (1, 2, 14)
        for d in ("float32", "bfloat16")
        for m in ("contiguous_format", "channels_last_3d")
    ),
    (105, "bfloat16", "channels_last_3d"),
    (105, "bfloat16", "contiguous_format"),
]
MIRRORED_FORMATS = [(3, "bfloat16", "channels_last_3d"), (17, "float16", "contiguous_format"), FORMATS[-1]]
BOXES = [Region((0, 0, 0), WINDOW), Region((3, 2, 5), (10, 3, 34)), Region((0, 8, 31), (1, 9, 35))]


@by_kernels
@pytest.mark.parametrize(("num_classes", "dtype", "layout"), FORMATS)
def test_a_part_of_a_window_is_weighted_and_added_as_by_torch(num_classes, dtype, layout):
    values = logits(num_classes, getattr(torch, dtype), layout)
    weights = torch.rand(WINDOW, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for box in BOXES:
        whole = logits(num_classes, torch.float32, "contiguous_format", seed=2, shape=(12, 11, 40))
        before = whole.clone()
        place = (slice(None), *box.shifted((1, 2, 3)).slices)
        arrays.add_weighted(whole[place], values[:, *box.slices], weights[box.slices])
        expected = before.clone()
        expected[place] += values[:, *box.slices].float() * weights[box.slices]
        torch.testing.assert_close(whole, expected, atol=1e-6, rtol=1e-6)
        # Nothing around the part was touched.
        before[place] = whole[place]
        assert torch.equal(whole, before)


@by_kernels
@pytest.mark.parametrize(
    ("axes", "num_classes", "dtype", "layout", "has_swap"),
    [
        some((0,), 3, "bfloat16", "channels_last_3d", False),
        some((0, 1, 2), 17, "float16", "contiguous_format", True),
        some((1,), 17, "float16", "contiguous_format", False),
        *(
            (axes, *form, has_swap)
            for axes in ((0,), (0, 1, 2), (1,), (2,), (0, 2))
            for form in MIRRORED_FORMATS
            for has_swap in (False, True)
        ),
    ],
)
def test_a_mirrored_window_is_turned_back_and_its_classes_swapped(axes, num_classes, dtype, layout, has_swap):
    first, last = (logits(num_classes, getattr(torch, dtype), layout, seed=seed) for seed in (0, 1))
    order = torch.arange(num_classes)
    order[1:3] = torch.tensor([2, 1])
    swapped = order.to(DEVICE) if has_swap else None
    mean = (first.float() + last.float().flip([1 + axis for axis in axes])[order if has_swap else slice(None)]) / 2
    pair = Mirrored(first, last, axes, swapped, 0.5)
    assert torch.equal(as_float32_copy(pair), mean)
    assert torch.equal(torch.stack([pair.of_class(index) for index in range(num_classes)]), mean)
    weights = torch.rand(WINDOW, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for box in BOXES:
        total = torch.zeros((num_classes, *box.shape), device=DEVICE)
        add_weighted(total, part_of(pair, box), weights[box.slices])
        expected = mean[:, *box.slices] * weights[box.slices]
        torch.testing.assert_close(total, expected, atol=1e-6, rtol=1e-6)


@by_kernels
@pytest.mark.parametrize(
    ("num_classes", "order"), [some(3, ()), some(3, (1, 3, 2)), (1, ()), (105, ()), (4, (2, 1, 4, 3))]
)
def test_classes_are_those_of_the_largest_value_or_of_the_last_above_zero(num_classes, order):
    # Whole numbers, so that values are often equal.
    sums = (logits(num_classes, torch.float32, "contiguous_format", shape=(9, 7, 70)) * 2).round()[:, 1:8, :5, 2:68]
    classes = torch.full((9, 9, 80), 255, dtype=torch.uint8, device=DEVICE)
    sink = ClassMap((9, 9, 80), region_order=order)
    sink._classes = classes
    sink.take(sums, None, Region((1, 3, 4), (8, 8, 70)))
    expected = torch.full_like(classes, 255)
    place = expected[1:8, 3:8, 4:70]
    if order:
        place[...] = 0
        for index, name in enumerate(order):
            place[sums[index] > 0] = name
    else:
        place[...] = torch.from_numpy(sums.cpu().numpy().argmax(axis=0)).to(DEVICE)
    assert torch.equal(sink.result(), expected)


@by_kernels
@pytest.mark.parametrize("value", [some("nan"), "inf", "-inf"])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(value):
    whole = logits(6, torch.float32, "contiguous_format", shape=(6, 5, 41))
    assert bool(arrays.is_finite(whole / whole.abs().max() * 1e38))
    inside = whole[:, 1:5, :4, 3:40]
    for place in ((0, 0, 0, 0), (5, 3, 3, 36), (2, 1, 2, 31)):
        broken = whole.clone()
        broken[:, 1:5, :4, 3:40][place] = float(value)
        assert not bool(arrays.is_finite(broken[:, 1:5, :4, 3:40]))
        broken[:, 1:5, :4, 3:40] = inside
        broken[0, 0, 0, 0] = float(value)
        assert bool(arrays.is_finite(broken[:, 1:5, :4, 3:40])), "beyond the part that is asked for"


class Sides(torch.nn.Module):
    """A network that writes every answer into one buffer, in bfloat16 and in a memory format."""

    def __init__(self, num_classes, layout):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = torch.nn.Conv3d(1, num_classes, 3, padding=1)
        self.layout, self.buffer = layout, None

    def forward(self, windows):
        found = (self.network(windows).tanh() * 4).to(torch.bfloat16)
        found = found.contiguous(memory_format=getattr(torch, self.layout))
        self.buffer = found if self.buffer is None or len(self.buffer) != len(found) else self.buffer.copy_(found)
        return self.buffer


class Logits:
    """A sink that keeps the blended logits."""

    def __init__(self, num_classes, shape):
        self.whole = torch.zeros((num_classes, *shape), device=DEVICE)

    def take(self, sums_kxyz, weights_xyz, box):
        self.whole[:, *box.slices] = sums_kxyz if weights_xyz is None else sums_kxyz / weights_xyz


@by_kernels
@pytest.mark.usefixtures("no_volume_is_small")
@pytest.mark.parametrize(
    ("mirror_axes", "num_classes", "layout", "shape"),
    [
        some((), 3, "channels_last_3d", (13, 7, 7)),
        some((0,), 5, "contiguous_format", (13, 6, 9)),
        ((), 3, "channels_last_3d", (13, 7, 12)),
        ((0, 2), 5, "channels_last_3d", (13, 7, 12)),
        ((0, 1, 2), 3, "contiguous_format", (11, 9, 15)),
        ((0,), 3, "channels_last_3d", (5, 4, 6)),
    ],
)
def test_a_volume_gets_the_same_logits_and_classes(mirror_axes, num_classes, layout, shape, torch_path):
    network = Sides(num_classes, layout).to(DEVICE)
    # One end is constant, so that an answer is used again.
    image = torch.from_numpy(np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32))
    image[:, : shape[0] // 2 + 4] = -1.0
    config = WindowConfig(shape_voxel=(8, 6, 7), overlap=0.5, batch_size=3, mirror_axes=mirror_axes)
    found = []
    for is_off in (False, True):
        torch_path(is_off)
        sinks = Logits(num_classes, shape), ClassMap(shape)
        both = ((image, sink) for sink in sinks)
        swapped = tuple(range(num_classes))[::-1]
        for stitched in stitch_volumes(network, both, config, device=DEVICE, swapped_classes=swapped):
            stitched.check()
        found.append((sinks[0].whole, sinks[1].result()))
    (ours, our_classes), (theirs, their_classes) = found
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0.0)
    top = theirs.topk(2, dim=0).values
    is_clear = top[0] - top[1] > 1e-5
    assert torch.equal(our_classes[is_clear], their_classes[is_clear])
    # Where the image is constant, classes that change places are equal.
    assert is_clear.float().mean() > 0.5


RESTORED = [
    some((10, 9, 50), (7, 6, 33), 3, "probabilities", (), True),
    some((6, 11, 40), (9, 8, 30), 3, "logits", (), False),
    some((10, 9, 50), (7, 7, 33), 3, "logits", (2, 3, 1), True),
    *(
        (*form, has_weights)
        for form in (
            ((20, 9, 50), (13, 6, 33), 3, "probabilities", ()),
            ((12, 11, 40), (13, 8, 30), 3, "logits", ()),
            ((20, 9, 50), (13, 7, 33), 3, "logits", (2, 3, 1)),
            ((9, 9, 9), (17, 20, 23), 5, "probabilities", ()),
            ((12, 10, 33), (6, 13, 40), 105, "probabilities", ()),
            ((7, 3, 1), (4, 3, 1), 1, "logits", (1,)),
        )
        for has_weights in (False, True)
    ),
]


@by_kernels
@pytest.mark.parametrize(("before", "after", "num_classes", "restored", "order", "has_weights"), RESTORED)
def test_scores_restored_on_the_device_give_the_classes_of_the_reference(
    before, after, num_classes, restored, order, has_weights
):
    rng = np.random.default_rng(0)
    smooth = np.cumsum(rng.standard_normal((num_classes, *after)), axis=3) * 0.7
    weights = rng.uniform(0.5, 2.0, after) if has_weights else None
    sums = torch.from_numpy((smooth * (1 if weights is None else weights)).astype(np.float32)).to(DEVICE)
    weights = None if weights is None else torch.from_numpy(weights.astype(np.float32)).to(DEVICE)
    options = {"is_softmax": restored == "probabilities" and not order, "region_order": order}
    reference = Restoration(trace := [resize_record(before, after)], after, **options, engine="numpy")
    reference.add(sums.cpu().numpy(), weights_xyz=None if weights is None else weights.cpu().numpy())
    expected = reference.result()
    ours = Restoration(trace, after, **options)
    on_device = DeviceRestoration(ours, DEVICE, **options)
    # Each tile begins with the last plane of the one before.
    cuts = sorted({0, *(cut for cut in (4, 8) if cut < after[0] - 1), after[0] - 1})
    for begin, stop in itertools.pairwise(cuts) if len(cuts) > 1 else [(0, 0)]:
        tile = slice(begin, stop + 1)
        on_device.add(sums[:, tile], None if weights is None else weights[tile], start=(begin, 0, 0))
    found = ours.result(on_device.result())
    assert found.shape == before
    assert (found != expected).mean() <= 2e-4, (found != expected).sum()
    assert len(np.unique(expected)) > 1 or num_classes == 1


@by_kernels
def test_tiles_that_found_no_room_on_the_device_are_restored_in_main_memory(monkeypatch):
    before, after = (20, 11, 30), (13, 8, 20)
    sums = logits(4, torch.float32, "contiguous_format", shape=after)
    spec = PredictionSpec.parse(
        {
            "channels": ["CT"],
            "labels": dict(enumerate("abcd")),
            "window": {"shape_voxel": [8, 8, 8]},
            "precision": {"compute": "float32"},
        }
    )
    found = []
    for is_half_full in (False, True):
        labels = ScanLabels(after, [resize_record(before, after)], spec, num_threads=1)
        labels.take(sums[:, :6], None, Region((0, 0, 0), (6, 8, 20)))
        if is_half_full:
            monkeypatch.setattr(arrays, "_KERNEL_DEVICES", frozenset())
        labels.take(sums[:, 5:], None, Region((5, 0, 0), after))
        found.append(labels.result())
    assert (found[0] != found[1]).mean() < 1e-3
    assert (found[1][-3:] > 0).any()


@by_kernels
@pytest.mark.parametrize(
    ("spacing_mm", "mirror_axes", "more"),
    [
        some("keep", (), {}),
        some((1.4, 1.0, 1.3), (0,), {}),
        ((1.4, 1.0, 1.3), (0, 1), {"restored": "logits"}),
        ((1.0, 1.6, 1.0), (), {"region_order": (2, 1, 3)}),
    ],
)
def test_a_predictor_gives_the_classes_that_it_gives_without_kernels_on_a_cpu(spacing_mm, mirror_axes, more):
    num_classes = 3 if "region_order" in more else 4
    spec = PredictionSpec.parse(
        {
            "channels": ["CT"],
            "labels": {0: "background", 1: "a", 2: "eye_L", 3: "eye_R"},
            "window": {
                "shape_voxel": [8, 8, 8],
                "mirror_axes": mirror_axes,
                "batch_size": 3,
                "swap_pairs": [] if "region_order" in more else [["eye_L", "eye_R"]],
            },
            "precision": {"compute": "float32"},
            **more,
        }
    )
    preparation = Preparation(
        PrepareConfig.parse({"intensity": {"mode": "none"}, "dtype": "float32", "spacing_mm": spacing_mm})
    )
    # The interpreter runs few launches a second.
    shape = (1, 9, 8, 13) if IS_INTERPRETED else (1, 15, 13, 17)
    image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    scan = Volume(case_id="x", image=image, label=None, grid=Grid.of(image.shape[1:], np.eye(4)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.Conv3d(1, num_classes, 5, padding=2).eval()
    found = []
    for device, is_on in ((torch.device("cpu"), False), (DEVICE, True)):
        set_fused("window", is_on)
        try:
            found.append(Predictor(network, spec, preparation, device=device).predict(scan))
        finally:
            set_fused("window", True)
    assert found[0].shape == image.shape[1:]
    assert len(np.unique(found[0])) > 2
    # Where two classes are equal but for roundings; TF32 rounds more on a device.
    assert (found[0] != found[1]).mean() <= (2e-3 if IS_INTERPRETED else 1e-2)
