import gc
import os

import numpy as np
import pytest

from voxelocity.data.cache.entry_files import map_file


def test_mapped_bytes_are_those_of_the_file_and_read_only(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 100)
    view = map_file(file)
    assert bytes(view) == file.read_bytes()
    array = np.frombuffer(view, np.uint8)
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_empty_file_maps_to_no_bytes(tmp_path):
    (tmp_path / "file").touch()
    assert len(map_file(tmp_path / "file")) == 0


@pytest.fixture
def no_collection():
    """What earlier tests left to be collected is not closed meanwhile."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files can be counted on Linux only")
def test_mappings_hold_no_file_descriptors_and_end_with_their_last_view(tmp_path, no_collection):
    file = tmp_path / "a_name_to_look_for"
    file.write_bytes(b"x" * 5000)
    num_open = len(os.listdir("/proc/self/fd"))
    views = [map_file(file)[:10] for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == num_open
    with open("/proc/self/maps") as maps:
        assert sum(file.name in line for line in maps) >= 1
    file.unlink()
    assert bytes(views[7]) == b"x" * 10
    del views
    with open("/proc/self/maps") as maps:
        assert not any(file.name in line for line in maps)
