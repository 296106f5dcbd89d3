"""The window engine: the same numbers as MONAI and as the plain reference, and no forward pass too many."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.inferers import sliding_window_inference

from voxelocity.infer import WindowConfig, arrays, tiling
from voxelocity.infer.accumulator import Accumulators, unnamed_file
from voxelocity.infer.blending import importance
from voxelocity.infer.sinks import ClassMap
from voxelocity.infer.stitched import Stitched
from voxelocity.infer.tiling import tiling_of
from voxelocity.infer.window import stitch_volumes
from voxelocity.testing.window_reference import reference_probabilities
from voxelocity_observe.core.errors import InputError, ScanError

CPU = torch.device("cpu")
WINDOW = (8, 6, 4)


pytestmark = pytest.mark.usefixtures("no_volume_is_small")


class Counting:
    """A convolution whose answer depends on the position in the window; counts its calls and their windows."""

    def __init__(self, num_channels: int = 1, num_classes: int = 3) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = torch.nn.Conv3d(num_channels, num_classes, 3, padding=1)
        self.batches: list[int] = []

    def __call__(self, windows: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(windows))
        return self.network(windows).tanh() * 4.0


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Probabilities:
    """Keeps every tile, and checks that along each axis it begins with the last plane of the tile before."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.whole, self.num_tiles = shape, None, 0

    def take(self, sums_kxyz: torch.Tensor, weights_xyz, box) -> None:
        logits_kxyz = sums_kxyz if weights_xyz is None else sums_kxyz / weights_xyz
        if self.whole is None:
            self.whole = torch.full((len(logits_kxyz), *self.shape), torch.nan, device=logits_kxyz.device)
        target = self.whole[:, *box.slices]
        assert target.shape == logits_kxyz.shape
        for axis, start in enumerate(box.start):
            if start > 0:
                first = (1 + axis, 0, 1)
                torch.testing.assert_close(target.narrow(*first), logits_kxyz.narrow(*first), equal_nan=True)
        target.copy_(logits_kxyz)
        self.num_tiles += 1

    def result(self) -> torch.Tensor:
        return self.whole.softmax(dim=0)


def with_sinks(images, sink=Probabilities):
    """The images with their sinks, and the sinks."""
    both = [(volume, sink(tuple(volume.shape[1:]))) for volume in images]
    return both, [taken for _, taken in both]


def predict_volumes(forward, images, config, **options):
    sinks = []

    def both():
        for volume in images:
            sinks.append(Probabilities(tuple(volume.shape[1:])))
            yield volume, sinks[-1]

    for number, stitched in enumerate(stitch_volumes(forward, both(), config, **options)):
        stitched.check()
        yield sinks[number].result()


def predict_volume(forward, image_cxyz, config, **options):
    return next(predict_volumes(forward, (image_cxyz,), config, **options))


def one_by_one(network, images, config):
    return [predict_volume(network, volume, config, device=CPU) for volume in images]


@pytest.mark.parametrize("blend", ["gaussian", "uniform"])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.7])
@pytest.mark.parametrize("shape", [(8, 6, 4), (13, 10, 5), (5, 3, 3), (5, 14, 4)])
def test_probabilities_equal_monai(shape, overlap, blend):
    network, volume = Counting(num_channels=2), image(2, *shape)
    config = WindowConfig(shape_voxel=WINDOW, overlap=overlap, blend=blend, batch_size=3)
    ours = predict_volume(network, volume, config, device=CPU)
    with torch.no_grad():
        theirs = sliding_window_inference(
            volume[None], WINDOW, 3, network, overlap, mode="gaussian" if blend == "gaussian" else "constant"
        )[0].softmax(dim=0)
    assert ours.shape == (3, *shape)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0.0)


@settings(max_examples=20)
@given(
    shape=st.tuples(*[st.integers(1, 9)] * 3),
    window=st.tuples(*[st.integers(2, 6)] * 3),
    overlap=st.sampled_from([0.0, 0.3, 0.5]),
    blend=st.sampled_from(["gaussian", "uniform"]),
    sigma_scale=st.sampled_from([0.125, 0.3]),
    batch_size=st.integers(1, 5),
    mirror_axes=st.lists(st.integers(0, 2), unique=True).map(tuple),
)
def test_probabilities_equal_the_reference(shape, window, overlap, blend, sigma_scale, batch_size, mirror_axes):
    network, volume = Counting(), image(1, *shape)
    chosen = {"overlap": overlap, "blend": blend, "sigma_scale": sigma_scale, "mirror_axes": mirror_axes}
    config = WindowConfig(shape_voxel=window, batch_size=batch_size, **chosen)
    ours = predict_volume(network, volume, config, device=CPU)
    reference = reference_probabilities(network, volume, shape_voxel=window, **chosen)
    np.testing.assert_allclose(ours.numpy(), reference, atol=1e-5)


@pytest.mark.parametrize("overlap", [0.0, pytest.param(0.5, marks=pytest.mark.nightly), 0.7])
@pytest.mark.parametrize(
    ("shape", "window", "num_axes"),
    [
        *(((41, 7, 7), 5, 1), ((7, 41, 7), 5, 1), ((7, 7, 41), 5, 1), ((24, 29, 26), 8, 2)),
        pytest.param((48, 13, 60), 12, 2, marks=pytest.mark.nightly),
    ],
)
def test_tiles_leave_early_and_give_what_the_reference_gives(shape, window, num_axes, overlap):
    both, (sink,) = with_sinks([image(1, *shape)])
    config = WindowConfig(shape_voxel=(window,) * 3, overlap=overlap)
    list(stitch_volumes(Counting(), both, config, device=CPU))
    assert sink.num_tiles > 5
    if overlap == 0.5:
        assert len(tiling_of(shape, (window,) * 3, overlap).axes) == num_axes
    reference = reference_probabilities(
        Counting(), image(1, *shape), shape_voxel=(window,) * 3, overlap=overlap, blend="gaussian", sigma_scale=0.125,
        mirror_axes=(),
    )  # fmt: skip
    np.testing.assert_allclose(sink.result().numpy(), reference, atol=1e-5)


def test_a_small_volume_is_one_tile_with_the_same_result(monkeypatch):
    config = WindowConfig(shape_voxel=(5, 5, 5), overlap=0.5)
    tiled = predict_volume(Counting(), image(1, 19, 13, 12), config, device=CPU)
    monkeypatch.setattr(tiling, "_SMALL_VOXELS", 1 << 19)
    both, (sink,) = with_sinks([image(1, 19, 13, 12)])
    list(stitch_volumes(Counting(), both, config, device=CPU))
    assert sink.num_tiles == 1
    torch.testing.assert_close(sink.result(), tiled, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(("mirror_axes", "num_passes"), [((), 1), ((0,), 2), ((0, 2), 4), ((2, 1, 0), 8), ((1, 1), 2)])
def test_volume_of_one_window_costs_one_pass_a_mirroring(mirror_axes, num_passes):
    network = Counting()
    config = WindowConfig(shape_voxel=WINDOW, batch_size=4, mirror_axes=mirror_axes)
    predict_volume(network, image(1, 8, 5, 4), config, device=CPU)
    assert network.batches == [1] * num_passes


def left_and_right(windows: torch.Tensor) -> torch.Tensor:
    """Logits of a network that names bright voxels by their side: class 1 below the middle of x, class 2 above it."""
    is_bright, middle = windows[:, 0] > 0.0, windows.shape[2] // 2
    logits = torch.zeros((len(windows), 4, *windows.shape[2:]))
    logits[:, 1, :middle] = 8.0 * is_bright[:, :middle]
    logits[:, 2, middle:] = 8.0 * is_bright[:, middle:]
    logits[:, 3] = 1.0
    return logits


@pytest.mark.parametrize("mirror_axes", [(0,), (0, 1), (0, 1, 2)])
def test_mirroring_agrees_with_a_network_that_knows_left_from_right(mirror_axes):
    volume, plain = image(1, 8, 6, 4), WindowConfig(shape_voxel=WINDOW)
    wanted = predict_volume(left_and_right, volume, plain, device=CPU)
    mirrored = plain.model_copy(update={"mirror_axes": mirror_axes})
    torch.testing.assert_close(
        predict_volume(left_and_right, volume, mirrored, device=CPU, swapped_classes=(0, 2, 1, 3)), wanted
    )
    confused = predict_volume(left_and_right, volume, mirrored, device=CPU)
    assert (confused - wanted).abs().max() > 0.3


def test_windows_mirrored_along_other_axes_swap_no_classes():
    config = WindowConfig(shape_voxel=WINDOW, mirror_axes=(1, 2))
    volume = image(1, 8, 6, 4)
    wanted = predict_volume(left_and_right, volume, config, device=CPU)
    swapped = predict_volume(left_and_right, volume, config, device=CPU, swapped_classes=(0, 2, 1, 3))
    assert torch.equal(swapped, wanted)


@pytest.mark.parametrize(
    ("batch_size", "passes"),
    # The volume of 16 windows, more than four passes of 3, shares none with the one behind it.
    [(1, [1] * 23), (3, [3] * 7 + [1, 1]), (100, [23])],
)
def test_volumes_of_any_size_come_back_in_order_and_equal_the_one_by_one_result(batch_size, passes):
    shapes = [(5, 6, 3), (20, 6, 4), (8, 6, 4), (9, 9, 9), (4, 4, 4)]
    images = [image(1, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    network = Counting()
    config = WindowConfig(shape_voxel=WINDOW, batch_size=batch_size, mirror_axes=(1,))
    together = list(predict_volumes(network, iter(images), config, device=CPU))
    assert network.batches[::2] == passes
    for ours, alone in zip(together, one_by_one(network, images, config), strict=True):
        torch.testing.assert_close(ours, alone, atol=1e-5, rtol=0.0)


def test_images_are_taken_only_when_needed():
    taken = []

    def images():
        for number in range(5):
            taken.append(number)
            yield image(1, *WINDOW)

    results = predict_volumes(Counting(), images(), WindowConfig(shape_voxel=WINDOW, batch_size=2), device=CPU)
    assert taken == []
    next(results)
    assert taken == [0, 1]
    assert len(list(results)) == 4


def test_network_that_writes_every_answer_into_one_buffer_gives_the_same():
    """As a CUDA graph does."""
    network = Counting()
    buffer = torch.empty(2, 3, *WINDOW)

    def into_buffer(windows: torch.Tensor) -> torch.Tensor:
        buffer[: len(windows)].copy_(network(windows))
        return buffer[: len(windows)]

    images = [image(1, *shape, seed=seed) for seed, shape in enumerate([(8, 6, 4), (5, 5, 4), (12, 6, 4), (7, 6, 4)])]
    config = WindowConfig(shape_voxel=WINDOW, batch_size=2, mirror_axes=(0,))
    together = list(predict_volumes(into_buffer, images, config, device=CPU))
    buffer.fill_(torch.nan)
    for ours, alone in zip(together, one_by_one(network, images, config), strict=True):
        torch.testing.assert_close(ours, alone, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("shape", [(8, 6, 4), (20, 9, 5), (5, 14, 4)])
@pytest.mark.parametrize("piece_values", [1, 100, 1 << 24])
def test_classes_are_those_of_the_largest_probability(monkeypatch, shape, piece_values):
    monkeypatch.setattr("voxelocity.infer.sinks._PIECE_VALUES", piece_values)
    network, config, volume = Counting(), WindowConfig(shape_voxel=WINDOW), image(1, *shape)
    both, (classes,) = with_sinks([volume], ClassMap)
    (stitched,) = stitch_volumes(network, both, config, device=CPU)
    stitched.check()
    classes = classes.result()
    assert (classes.dtype, classes.shape) == (torch.uint8, shape)
    assert torch.equal(classes.long(), predict_volume(network, volume, config, device=CPU).argmax(0))


def test_edges_of_zero_are_those_of_each_volume():
    network = Counting()
    config = WindowConfig(shape_voxel=(0, 0, 0), batch_size=4, reuse_constant=False)
    images = [image(1, *shape) for shape in ((8, 6, 4), (5, 9, 3), (5, 9, 3))]
    for volume, found in zip(images, predict_volumes(network, images, config, device=CPU), strict=True):
        torch.testing.assert_close(found, (network.network(volume[None])[0].tanh() * 4.0).softmax(0))
    assert network.batches == [1, 1, 1]
    assert WindowConfig(shape_voxel=(0, 6, 4)).within((7, 9, 9)).shape_voxel == (7, 6, 4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_answer_that_is_not_finite_is_an_error_of_its_volume_alone(value):
    network = Counting()

    def answer(windows):
        logits = network(windows)
        logits[windows[:, :1].expand_as(logits) > 50.0] = value
        return logits

    images = [image(1, 20, 6, 4, seed=seed) for seed in range(3)]
    images[1][0, 15, 2, 2] = 99.0
    config = WindowConfig(shape_voxel=WINDOW, batch_size=2)
    both, sinks = with_sinks(images)
    first, second, third = stitch_volumes(answer, both, config, device=CPU)
    for stitched, sink, volume in ((first, sinks[0], images[0]), (third, sinks[2], images[2])):
        stitched.check()
        torch.testing.assert_close(sink.result(), predict_volume(network, volume, config, device=CPU))
    with pytest.raises(ScanError, match=r"the network returned NaN or infinity .* float16"):
        second.check()


def test_volumes_before_an_error_of_the_images_are_given_first():
    network, config = Counting(), WindowConfig(shape_voxel=WINDOW, batch_size=7)
    volumes = [image(1, 9, 6, 4, seed=seed) for seed in range(2)]

    def lose():
        yield from volumes
        raise OSError("lost")

    results = predict_volumes(network, lose(), config, device=CPU)
    for alone in one_by_one(network, volumes, config):
        torch.testing.assert_close(next(results), alone, atol=1e-5, rtol=0.0)
    with pytest.raises(OSError, match="lost"):
        next(results)


def test_passes_that_do_not_fit_are_cut_and_give_the_same():
    network, warnings = Counting(), []

    def small(windows):
        if len(windows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return network(windows)

    images = [image(1, 20, 9, 4, seed=seed) for seed in range(2)]
    config = WindowConfig(shape_voxel=WINDOW, batch_size=7)
    results = list(predict_volumes(small, images, config, device=CPU, warn=warnings.append))
    assert max(network.batches) == 2
    assert [text.split(": ")[1].split(" at once")[0] for text in warnings] == ["7 windows", "4 windows"]
    assert network.batches.count(1) <= 2, "later passes are small from the start"
    for ours, alone in zip(results, one_by_one(network, images, config), strict=True):
        torch.testing.assert_close(ours, alone, atol=1e-5, rtol=0.0)


def test_a_full_device_gets_smaller_passes_then_sums_elsewhere(monkeypatch):
    network, messages, moved = Counting(), [], []
    monkeypatch.setattr(Stitched, "move_off_device", lambda stitched: not moved and not moved.append(stitched))

    def full_until_moved(windows):
        if len(network.batches) >= 1 and not moved:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return network(windows)

    volume, config = image(1, 20, 9, 4), WindowConfig(shape_voxel=WINDOW, batch_size=4)
    ours = predict_volume(full_until_moved, volume, config, device=CPU, warn=messages.append)
    assert len(moved) == 1
    assert [text.split("; ")[1] for text in messages] == [f"{num} are predicted at once from here on" for num in (2, 1)]
    assert messages[-1].endswith("set window.batch_size to 1 next time")
    assert set(network.batches) == {4, 1}
    torch.testing.assert_close(ours, predict_volume(network, volume, config, device=CPU), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("name", ["add_weighted", "zeros_like", "is_finite"])
def test_a_device_too_full_for_what_is_next_to_the_sums_is_helped_out_by_main_memory(name, monkeypatch):
    volume, config = image(1, 20, 9, 4), WindowConfig(shape_voxel=WINDOW, batch_size=4)
    expected = predict_volume(Counting(), volume, config, device=CPU)
    works, messages, calls = getattr(arrays, name), [], []

    def full_at_the_third(*values):
        calls.append(name)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return works(*values)

    monkeypatch.setattr(arrays, name, full_at_the_third)
    ours = predict_volume(Counting(), volume, config, device=CPU, warn=messages.append)
    assert len(calls) > 3
    assert len(messages) == 1
    assert "too small for a scan and the logits of its classes; they are kept in main memory" in messages[0]
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=0.0)


def test_a_tile_that_finds_no_room_on_its_way_to_the_sink_is_an_error_of_its_volume_alone(monkeypatch):
    class Full(Probabilities):
        def take(self, sums_kxyz, weights_xyz, box):
            if self.shape[0] == 21:
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().take(sums_kxyz, weights_xyz, box)

    def no_room(self, total):
        raise ScanError("there is no room")

    monkeypatch.setattr(Accumulators, "move_off_device", no_room)
    both, sinks = with_sinks([image(1, side, 6, 4) for side in (20, 21, 20)], Full)
    first, second, third = stitch_volumes(Counting(), both, WindowConfig(shape_voxel=WINDOW, batch_size=3), device=CPU)
    first.check()
    third.check()
    assert sinks[2].result().isfinite().all()
    with pytest.raises(ScanError, match="there is no room"):
        second.check()


def air(*, value=-1.0, second=-1.0):
    """A scan of which one end holds a single value, and the other a second one."""
    volume = image(2, 60, 9, 4)
    volume[:, :28], volume[:, 48:] = value, second
    return volume


@pytest.mark.parametrize("mirror_axes", [(), (0, 2)])
@pytest.mark.parametrize("second", [-1.0, 0.5])
@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_windows_of_one_value_are_predicted_once_with_the_same_result(second, batch_size, mirror_axes):
    config = WindowConfig(shape_voxel=WINDOW, batch_size=batch_size, mirror_axes=mirror_axes)
    every, once = Counting(num_channels=2), Counting(num_channels=2)
    volumes = [air(second=second), image(2, 9, 9, 4), air(second=second)]
    plain = config.model_copy(update={"reuse_constant": False})
    expected = list(predict_volumes(every, volumes, plain, device=CPU))
    found = list(predict_volumes(once, volumes, config, device=CPU))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0.0)
    num_passes = 2 ** len(mirror_axes)
    num_constant = 2 * (6 * 2 + 2 * 2)  # windows along x within the ends, times two along y
    num_values = 1 if second == -1.0 else 2
    assert sum(every.batches) - sum(once.batches) == num_passes * (num_constant - num_values)


def test_an_answer_too_large_to_keep_is_asked_for_again(monkeypatch):
    monkeypatch.setattr("voxelocity.infer.window._MOST_KEPT_BYTES", 10)
    network, config = Counting(num_channels=2), WindowConfig(shape_voxel=WINDOW)
    expected = predict_volume(network, air(), config.model_copy(update={"reuse_constant": False}), device=CPU)
    torch.testing.assert_close(predict_volume(network, air(), config, device=CPU), expected, atol=1e-5, rtol=0.0)


def test_a_window_that_does_not_fit_is_an_error_of_its_volume_alone():
    network = Counting()

    def too_small(windows):
        if (windows > 50.0).any():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return network(windows)

    images = [image(1, 20, 6, 4, seed=seed) for seed in range(3)]
    images[1][0, 2, 2, 2] = 99.0
    both, sinks = with_sinks(images)
    messages, config = [], WindowConfig(shape_voxel=WINDOW, batch_size=3)
    first, second, third = stitch_volumes(too_small, both, config, device=CPU, warn=messages.append)
    first.check()
    third.check()
    assert sinks[0].result().shape == sinks[2].result().shape == (3, 20, 6, 4)
    with pytest.raises(ScanError, match=r"one window of 8 x 6 x 4 voxels does not fit .* predict with --device cpu"):
        second.check()


def test_another_error_of_the_network_is_not_taken_for_a_full_memory():
    def broken(windows):
        raise RuntimeError("sizes do not match")

    with pytest.raises(RuntimeError, match="sizes do not match"):
        predict_volume(broken, image(1, *WINDOW), WindowConfig(shape_voxel=WINDOW), device=CPU)


def without_memory(monkeypatch, *, disk_bytes):
    monkeypatch.setattr("voxelocity.infer.accumulator.available_memory_bytes", lambda: 3 * 5 * 6 * 4 * 4)
    monkeypatch.setattr("voxelocity.infer.accumulator.free_disk_bytes", lambda folder: disk_bytes)


def test_scores_that_nothing_can_hold_are_an_error_with_all_figures(monkeypatch, tmp_path):
    without_memory(monkeypatch, disk_bytes=10)
    both, sinks = with_sinks([image(1, *shape) for shape in ((200, 6, 4), (20, 7, 4), (5, 6, 4))])
    config = WindowConfig(shape_voxel=WINDOW)
    long, large, last = stitch_volumes(Counting(), both, config, device=CPU, folder=tmp_path)
    long.check()
    last.check()
    assert sinks[0].result().shape == (3, 200, 6, 4), "no more than a tile of it is made at once"
    text = rf"3 classes for 5 x 7 x 4 .* take 0\.0 GB of memory, and 0\.0 GB are free; a file in {tmp_path} cannot hold"
    with pytest.raises(ScanError, match=text + r".*0\.0 GB are free there.*: free some memory or disk space"):
        large.check()


def test_scores_that_memory_cannot_hold_are_kept_in_a_file_that_leaves_no_trace(monkeypatch, tmp_path):
    without_memory(monkeypatch, disk_bytes=1 << 30)
    network, messages, config = Counting(), [], WindowConfig(shape_voxel=WINDOW)
    volume = image(1, 20, 7, 4)
    ours = predict_volume(network, volume, config, device=CPU, folder=tmp_path, warn=messages.append)
    assert f"kept in a file in {tmp_path}" in messages[0]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    torch.testing.assert_close(ours, predict_volume(network, volume, config, device=CPU))


def test_a_folder_in_main_memory_is_no_way_out(monkeypatch, tmp_path):
    without_memory(monkeypatch, disk_bytes=1 << 30)
    monkeypatch.setattr("voxelocity.infer.accumulator.file_system_of", lambda folder: "tmpfs")
    both, _ = with_sinks([image(1, 20, 7, 4)])
    (stitched,) = stitch_volumes(Counting(), both, WindowConfig(shape_voxel=WINDOW), device=CPU, folder=tmp_path)
    with pytest.raises(
        ScanError, match=rf"a file in {tmp_path} cannot hold them either \(that folder is in main memory"
    ):
        stitched.check()


class InMainMemory(Probabilities):
    """Notes where the tiles came from."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.devices = set()

    def take(self, sums_kxyz: torch.Tensor, weights_xyz, box) -> None:
        self.devices.add(sums_kxyz.device.type)
        super().take(sums_kxyz.cpu(), None if weights_xyz is None else weights_xyz.cpu(), box)


class Scaled(torch.nn.Module):
    """A network without convolutions, whose workspaces on a device take what they find, or make do with little."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("scales", torch.linspace(-2.0, 2.0, num_classes).view(1, -1, 1, 1, 1))

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        return (windows * self.scales).sin_()


@pytest.mark.gpu
def test_a_full_device_is_helped_out_by_main_memory():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    network, messages, device = Scaled(40), [], torch.device("cuda")
    volume, config = image(1, 160, 160, 160), WindowConfig(shape_voxel=(32, 32, 32), batch_size=4, overlap=0.25)
    host = predict_volume(network, volume, config, device=CPU)
    network.cuda()

    def on_the_device(sum_on="auto"):
        """The sink, and the most that the process held of the device: what its limit counts."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        images, [taken] = with_sinks([volume], InMainMemory)
        chosen = config.model_copy(update={"sum_on": sum_on})
        for stitched in stitch_volumes(network, images, chosen, device=device, warn=messages.append):
            stitched.check()
        torch.cuda.synchronize()
        return taken, torch.cuda.max_memory_reserved()

    # Kernels, weights of windows and libraries are made once.
    on_the_device()
    without_sums, least_bytes = on_the_device("memory")
    with_sums, most_bytes = on_the_device()
    assert (without_sums.devices, with_sums.devices) == ({"cpu"}, {"cuda"})
    window_bytes = 4 * 40 * 32**3 * config.batch_size
    assert most_bytes - least_bytes > 4 * window_bytes, "smaller passes alone cannot make room for the sums"
    assert not messages
    torch.cuda.empty_cache()
    room_bytes = (least_bytes + most_bytes) / 2
    torch.cuda.set_per_process_memory_fraction(room_bytes / torch.cuda.get_device_properties(0).total_memory)
    try:
        taken, held_bytes = on_the_device()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert messages
    assert held_bytes <= room_bytes
    assert "cpu" in taken.devices
    for found in (with_sums, without_sums, taken):
        torch.testing.assert_close(found.result(), host, atol=1e-4, rtol=0.0)


def test_half_precision_answers_are_blended_in_float32():
    network, volume = Counting(), image(1, 17, 6, 9)
    config = WindowConfig(shape_voxel=WINDOW, mirror_axes=(0,))
    ours = predict_volume(lambda w: network(w).to(torch.bfloat16), volume, config, device=CPU)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, predict_volume(network, volume, config, device=CPU), atol=0.02, rtol=0.0)


def test_image_is_left_as_it_is_and_no_gradients_are_kept_or_switched_off():
    network, volume = Counting(), image(1, 17, 6, 9).requires_grad_()
    before = volume.detach().clone()
    results = predict_volumes(network, [volume], WindowConfig(shape_voxel=WINDOW), device=CPU)
    result = next(results)
    assert not result.requires_grad
    assert torch.is_grad_enabled()
    assert torch.equal(volume.detach(), before)


def test_importance_is_made_once_and_serves_inside_and_outside_inference_mode():
    importance.cache_clear()
    config, volume = WindowConfig(shape_voxel=WINDOW), image(1, 17, 6, 9)
    with torch.inference_mode():
        first = predict_volume(Counting(), volume, config, device=CPU)
    second = predict_volume(Counting(), volume, config, device=CPU)
    assert torch.equal(first, second)
    assert importance.cache_info().misses == 1
    assert not importance(WINDOW, "gaussian", 0.125, CPU).is_inference()


@pytest.mark.gpu
@pytest.mark.parametrize("sum_on", ["auto", "memory"])
def test_device_probabilities_equal_host_probabilities(sum_on):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    network, volume = Counting(), image(1, 20, 13, 9)
    config = WindowConfig(shape_voxel=WINDOW, batch_size=4, mirror_axes=(2,), sum_on=sum_on)
    host = predict_volume(network, volume, config, device=CPU)
    network.network.cuda()
    device = predict_volume(network, volume, config, device=torch.device("cuda"))
    assert device.is_cuda or sum_on == "memory"
    torch.testing.assert_close(device.cpu(), host, atol=2e-3, rtol=0.0)


def test_image_without_channels_is_refused():
    with pytest.raises(InputError, match=r"an image has shape \(4, 4, 4\); it must have the axes \(c, x, y, z\)"):
        predict_volume(Counting(), image(4, 4, 4), WindowConfig(shape_voxel=WINDOW), device=CPU)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda windows: windows[..., ::2], r"returned \(1, 1, 8, 6, 2\) for windows of \(1, 1, 8, 6, 4\)"),
        (lambda windows: [windows], r"returned list for windows of \(1, 1, 8, 6, 4\); it must return logits"),
        (lambda windows: windows[:, None], r"returned \(1, 1, 1, 8, 6, 4\)"),
    ],
)
def test_answer_of_another_shape_is_refused(answer, named):
    with pytest.raises(InputError, match=named):
        predict_volume(answer, image(1, *WINDOW), WindowConfig(shape_voxel=WINDOW), device=CPU)


def test_sums_are_where_the_configuration_says():
    # A device on which nothing is computed.
    device = torch.device("meta")
    places = {
        on_device: Accumulators(device, None, print, on_device=on_device).zeros((2, 3, 4, 5)).device.type
        for on_device in (True, False)
    }
    assert places == {True: "meta", False: "cpu"}


def test_a_file_for_sums_is_reserved_where_the_system_has_no_call_for_it(tmp_path, monkeypatch):
    """As on macOS."""
    monkeypatch.delattr("os.posix_fallocate")
    monkeypatch.setattr("voxelocity.infer.accumulator._WRITTEN_BYTES", 100)
    sums = unnamed_file(tmp_path, (3, 5, 7), np.float32)
    assert (sums == 0.0).all()
    sums[...] = 1.0
    assert sums.sum() == 3 * 5 * 7
    assert list(tmp_path.iterdir()) == []
