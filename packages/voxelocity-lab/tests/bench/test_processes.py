import pytest

import voxelocity
from voxelocity_lab.bench.cache import MONAI_FORMS
from voxelocity_lab.bench.phantom import PhantomSet, make_phantoms
from voxelocity_lab.bench.processes import measure_growth_bytes, run_python
from voxelocity_lab.bench.streams import MEMORY, BenchCases
from voxelocity_observe.core.errors import VoxelocityError

# 24 MB of voxels: well above what processes grow by of themselves.
PHANTOMS = PhantomSet(kind="ct", shape=(256, 256, 128), num_cases=1)


@pytest.mark.nightly
def test_two_processes_over_mapped_entries_take_the_memory_of_one(tmp_path):
    refs = make_phantoms(PHANTOMS, tmp_path)
    cache = {"tier": "disk", "folder": str(tmp_path / "cache")}
    BenchCases.of(PHANTOMS, tmp_path).fill(cache)
    options = {"kind": PHANTOMS.kind, "num_classes": PHANTOMS.num_classes, "cache": cache}
    grown = measure_growth_bytes("ours", refs, num_processes=2, options=options)
    voxel_bytes = 3 * 256 * 256 * 128
    assert voxel_bytes * 0.9 < grown < voxel_bytes * 1.6


@pytest.mark.nightly
@pytest.mark.parametrize("form", MONAI_FORMS.values())
def test_a_cache_dataset_takes_memory_in_every_form_wherever_it_keeps_its_items(form, tmp_path):
    import psutil

    refs = make_phantoms(PHANTOMS, tmp_path)
    options = {"kind": PHANTOMS.kind, "num_classes": PHANTOMS.num_classes, "runtime_cache": form}
    grown = measure_growth_bytes("monai", refs, num_processes=1, options=options)
    # A form that keeps them in a process of its own would else count for nothing.
    # The image as float32 and the label as uint8.
    assert grown > 0.95 * 5 * 256 * 256 * 128
    assert not [child for child in psutil.Process().children(recursive=True) if "hold()" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_a_process_that_fails_is_reported_and_none_is_left(tmp_path):
    (ref,) = make_phantoms(PhantomSet(kind="ct", shape=(16, 16, 16), num_cases=1), tmp_path)
    ref.label.unlink()
    options = {"kind": "ct", "num_classes": 7, "cache": MEMORY}
    with pytest.raises(VoxelocityError, match="bench: a process that should hold cases ended with status 1"):
        measure_growth_bytes("ours", [ref], num_processes=1, options=options)


def test_a_program_that_fails_is_reported_with_its_last_lines():
    with pytest.raises(VoxelocityError, match=r"bench: '-c .*' ended with status 3:\nwhy$"):
        run_python("-c", "import sys; print('why', file=sys.stderr); sys.exit(3)")


def test_a_fresh_python_finds_this_package_and_variables_are_added_to_those_of_this_process(monkeypatch):
    monkeypatch.setenv("OURS", "1")
    code = "import os, voxelocity; print(os.environ['OURS'], os.environ['GIVEN'], voxelocity.__file__)"
    assert run_python("-c", code, environ={"GIVEN": "2"}).split() == ["1", "2", voxelocity.__file__]
