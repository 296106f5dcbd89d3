import pytest

from shared.onnx_traces import traced_once
from voxelocity.infer import tiling


@pytest.fixture(scope="module")
def traces_once():
    with traced_once():
        yield


@pytest.fixture(scope="module")
def no_volume_is_small():
    """So that volumes of tests are cut into tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "_SMALL_VOXELS", 0)
        patch.setattr(tiling, "_LARGE_BYTES", 0)
        yield
