import pytest

from voxelocity.infer import tiling
from voxelocity.infer.runtimes import program


@pytest.fixture(scope="module")
def traces_once():
    """Networks of equal weights are traced once for ONNX, which takes a second or two."""
    kept, trace = {}, program.to_onnx

    def to_onnx(network, task, *, is_half=False):
        weights = tuple(value.sum().item() for value in network.state_dict().values())
        key = (weights, task.batch_shape[1:], is_half)
        if key not in kept:
            kept[key] = trace(network, task, is_half=is_half)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "to_onnx", to_onnx)
        yield


@pytest.fixture(scope="module")
def no_volume_is_small():
    """So that volumes of tests are cut into tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "_SMALL_VOXELS", 0)
        patch.setattr(tiling, "_LARGE_BYTES", 0)
        yield
