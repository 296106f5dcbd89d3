"""The device tier, on the CPU as device where there is no other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from shared.raising import raising
from voxelocity.core.contracts import ResidentVolume, StoredVolume, Tier
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.cache.device import DeviceTier
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


def volume(case_id="a", dtype="int16", shape=(5, 6, 7), label=True):
    image = np.random.default_rng(0).integers(0, 200, (2, *shape)).astype(dtype)
    return Volume(
        case_id=case_id,
        image=image,
        label=(image[0] % 3).astype(np.uint8) if label else None,
        grid=Grid.of(image.shape, np.diag([1.0, 2.0, 3.0, 1.0])),
        scaling=(Scaling(0.5, 1.0), Scaling(2.0, -1.0)),
        trace=({"step": "crop"},),
        foreground={1: np.array([3, 9], np.int32)},
    )


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float16", "float32"])
def test_what_is_put_comes_back_voxel_for_voxel(device, dtype):
    tier, given = DeviceTier(10_000, device), volume(dtype=dtype)
    assert isinstance(tier, Tier)
    assert tier.get("k") is None
    tier.put("k", given)
    kept = tier.get("k")
    assert isinstance(kept, StoredVolume)
    assert isinstance(kept, ResidentVolume)
    loaded = kept.load()
    np.testing.assert_array_equal(loaded.image, given.image)
    np.testing.assert_array_equal(loaded.label, given.label)
    assert loaded.image.dtype == given.image.dtype
    assert (loaded.grid, loaded.scaling, loaded.trace) == (given.grid, given.scaling, given.trace)
    assert (kept.spec, kept.renamed("b").case_id) == (given.spec, "b")
    box = Region((1, 2, 3), (4, 6, 5))
    image, label = kept.read(box)
    np.testing.assert_array_equal(image, given.image[(slice(None), *box.slices)])
    np.testing.assert_array_equal(label, given.label[box.slices])


def test_a_box_is_found_where_it_is_said_to_lie(device):
    tier = DeviceTier(10_000, device)
    tier.put("first", volume("a", "uint8", (3, 3, 3)))
    given = volume("b", "int16").with_(image=np.asfortranarray(volume().image))
    tier.put("second", given)
    found = tier.get("second").locate(Region((1, 2, 3), (4, 6, 5)))
    voxels = torch.as_strided(
        found.memory.view(torch.int16), (2, *found.shape), found.image_steps, found.image_offset
    ).cpu()
    label = torch.as_strided(found.memory, found.shape, found.label_steps, found.label_offset).cpu()
    np.testing.assert_array_equal(voxels.numpy(), given.image[:, 1:4, 2:6, 3:5])
    np.testing.assert_array_equal(label.numpy(), given.label[1:4, 2:6, 3:5])


def test_bytes_are_counted_and_never_exceed_the_budget(device):
    # 2 channels x 210 voxels x 2 bytes and 210 of the label, each rounded up to 16: 848 and 224.
    tier = DeviceTier(2500, device)
    tier.put("a", volume())
    tier.put("a", volume())
    tier.put("b", volume(label=False))
    assert tier._num_bytes == tier.get("a").num_bytes + tier.get("b").num_bytes == 1072 + 848
    with pytest.raises(CacheFullError, match=r"no space for case 'c' of 0\.0 MB, 0\.0 MB of 0\.0 MB are left; raise"):
        tier.put("c", volume("c"))
    with pytest.raises(
        EntryTooLargeError, match=r"case 'd' takes .* MB, the whole tier is .* raise data\.cache\.device_max_bytes"
    ):
        tier.put("d", volume("d", shape=(10, 10, 20)))
    assert tier.get("c") is None
    assert tier._num_bytes == 1920


@pytest.mark.parametrize("dtype", ["float64", ">i2"])
def test_a_dtype_that_kernels_do_not_read_is_refused_by_name(dtype):
    tier = DeviceTier(10_000, "cpu")
    with pytest.raises(
        CacheError, match=r"case 'a' is stored as .*, a device keeps int16, uint8, float16, float32; set"
    ):
        tier.put("a", volume(dtype=dtype))
    assert tier._num_bytes == 0


def test_a_label_of_more_classes_than_a_byte_holds_is_refused():
    tier, wide = DeviceTier(10_000, "cpu"), volume()
    with pytest.raises(CacheError, match=r"case 'a' has more than 256 classes.*device_max_bytes to 0"):
        tier.put("a", wide.with_(label=wide.label.astype(np.uint16)))
    assert tier._num_bytes == 0


def test_a_dropped_entry_is_gone_and_what_was_handed_out_stays():
    tier, given = DeviceTier(10_000, "cpu"), volume()
    tier.put("a", given)
    held = tier.get("a")
    tier.drop("a")
    tier.drop("a")
    assert tier.get("a") is None
    np.testing.assert_array_equal(held.load().image, given.image)


def test_room_of_a_copy_that_failed_is_used_again(monkeypatch):
    size = volume().image.nbytes + volume().label.nbytes
    tier = DeviceTier(2 * size + 64, "cpu")
    with monkeypatch.context() as patched:
        patched.setattr(tier, "_copy", raising(RuntimeError("the device does not answer")))
        for _ in range(3):
            with pytest.raises(RuntimeError, match="does not answer"):
                tier.put("a", volume())
    tier.put("a", volume())
    tier.put("b", volume("b"))
    np.testing.assert_array_equal(tier.get("a").load().image, volume().image)
    np.testing.assert_array_equal(tier.get("b").load().label, volume().label)


@pytest.mark.gpu
def test_volumes_are_whole_on_the_streams_of_other_threads():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    tier, matrix = DeviceTier(2**26, "cuda"), torch.zeros(4096, 4096, device="cuda")
    given = [volume(str(number), shape=(60 + number, 50, 40)) for number in range(8)]

    def put(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(4):
                matrix @ matrix
            tier.put(str(number), given[number])
        return number

    def load(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            return tier.get(str(number)).load()

    with ThreadPoolExecutor(4) as putting, ThreadPoolExecutor(4) as loading:
        loaded = list(loading.map(load, putting.map(put, range(8))))
    for found, wanted in zip(loaded, given, strict=True):
        np.testing.assert_array_equal(found.image, wanted.image)
        np.testing.assert_array_equal(found.label, wanted.label)
