"""Cases that stay on a device are those that were prepared, as long as there is room."""

import numpy as np
import pytest
import torch

from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.infer import PredictionSpec, Predictor
from voxelocity.infer.resident import HeldOutVolume, Residents

CPU = torch.device("cpu")


def volume(dtype=np.int16, shape=(7, 6, 5)):
    rng = np.random.default_rng(0)
    # In the order of NIfTI files, and read-only, as the cache gives it.
    image = np.asfortranarray((rng.standard_normal((2, *shape)) * 100).astype(dtype))
    image.flags.writeable = False
    label = rng.integers(0, 3, shape).astype(np.uint8)
    scaling = (Scaling(slope=0.013, inter=-1.7), Scaling(slope=0.1, inter=3.3))
    return Volume(case_id="a", image=image, label=label, grid=Grid.of(shape, np.eye(4)), scaling=scaling)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32])
def test_a_case_on_a_device_has_the_intensities_of_the_prepared_one(dtype):
    prepared, loaded = volume(dtype), []
    residents = Residents(CPU, free_and_total_bytes=lambda: (1 << 20, 1 << 20))
    for _ in range(2):
        kept = residents.volume("a", lambda: loaded.append(1) or prepared)
        assert isinstance(kept, HeldOutVolume)
        assert np.array_equal(kept.intensities().numpy(), prepared.intensities())
        assert np.array_equal(kept.label.numpy(), prepared.label)
    assert len(loaded) == 1


def test_cases_that_find_no_room_and_those_of_a_cpu_are_loaded_each_time():
    prepared = volume()
    num_bytes = prepared.image.nbytes + prepared.label.nbytes
    room = Residents(CPU, free_and_total_bytes=lambda: (100 * num_bytes, 15 * num_bytes))
    assert isinstance(room.volume("a", lambda: prepared), HeldOutVolume)
    assert room.volume("b", lambda: prepared) is prepared, "a tenth of the device is taken"
    full = Residents(CPU, free_and_total_bytes=lambda: (3 * num_bytes, 1 << 30))
    assert full.volume("a", lambda: prepared) is prepared
    assert Residents(CPU).volume("a", lambda: prepared) is prepared
    assert room.volume("c", lambda: volume(np.int32)).image.dtype == np.int32


@pytest.mark.parametrize("most_queued", [0, 1])
def test_prepared_and_resident_cases_are_predicted_alike(most_queued):
    spec = PredictionSpec.parse(
        {
            "channels": ["a", "b"],
            "labels": {0: "background", 1: "x", 2: "y"},
            "window": {"shape_voxel": [7, 6, 5], "batch_size": 1},
            "precision": {"compute": "float32"},
        }
    )
    predictor = Predictor(torch.nn.Conv3d(2, 3, 1).eval(), spec, lambda scan: scan, device=CPU)
    residents = Residents(CPU, free_and_total_bytes=lambda: (1 << 20, 1 << 20))
    expected = next(predictor.predict_prepared([volume()]))[1]
    predictor._most_queued, taken = most_queued, []

    def cases():
        for number in range(3):
            taken.append(number)
            yield residents.volume(number, volume) if number else volume()

    for number, (_, classes) in enumerate(predictor.predict_prepared(cases())):
        assert torch.equal(classes, expected)
        assert len(taken) >= min(3, number + 1 + most_queued)
    assert number == 2
