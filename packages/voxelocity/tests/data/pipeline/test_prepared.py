import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from shared.dicom_series import write_series
from shared.raising import raising
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import DiskTier
from voxelocity.data.decode import read_header, write_contours
from voxelocity.data.pipeline import PreparedCases
from voxelocity.data.pipeline import prepared as prepared_module
from voxelocity.data.pipeline.prepared import MemoryBudget
from voxelocity.testing.tier_contract import assert_same
from voxelocity_observe.core.errors import CacheError, ScanError


def prepared(refs, config, warnings=None):
    warn = warnings.append if warnings is not None else pytest.fail
    return PreparedCases(refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=warn)


def fill(cases, **options):
    names = []
    facts = cases.fill(
        num_threads=2, on_case=lambda case_id, _: names.append(case_id), should_stop=options.get("stop", lambda: False)
    )
    return facts, names


def test_filling_prepares_each_case_once_and_finds_it_afterwards(blob_refs, data_config):
    config = data_config("disk")
    facts, names = fill(prepared(blob_refs, config))
    assert (facts.num_prepared, facts.num_found, sorted(names)) == (5, 0, [f"case_{i}" for i in range(5)])
    again, _ = fill(prepared(blob_refs, config))
    assert (again.num_prepared, again.num_found, again.num_bytes) == (0, 5, facts.num_bytes)


def test_one_changed_slice_of_a_series_prepares_the_case_again(data_config, tmp_path):
    voxels = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)
    files = write_series(tmp_path / "ct", voxels)
    ref, config = VolumeRef(case_id="a", images=(tmp_path / "ct",)), data_config("disk")
    before = prepared([ref], config)[0].image.copy()
    assert fill(prepared([ref], config))[0].num_found == 1
    content = files[2].read_bytes()
    files[2].write_bytes(content[:-2] + b"\x00\x01")
    cases = prepared([ref], config)
    assert fill(cases)[0].num_prepared == 1
    assert (np.asarray(cases[0].image) != before).any()
    write_series(tmp_path / "ct", voxels[:1] + 1, places=[4], name="more")
    with pytest.raises(ScanError, match="2 series"):
        prepared([ref], config)[0].load()


@pytest.mark.filterwarnings("ignore:.*refers to another series:UserWarning")
def test_series_and_structures_in_one_folder_are_cases_of_their_own(data_config, tmp_path):
    noise, folder = np.random.default_rng(0).integers(0, 900, (2, 6, 5, 4), dtype=np.int16), tmp_path / "export"
    images = [write_series(folder, voxels, name=f"series_{number}")[0] for number, voxels in enumerate(noise)]
    header, labels = read_header(images[0]), [folder / "one.dcm", folder / "two.dcm"]
    for number, path in enumerate(labels):
        classes = np.zeros(header.grid.shape, np.uint8)
        classes[number : number + 2] = 1
        write_contours(path, classes, header, ["organ"])
    refs = [
        VolumeRef(case_id=f"{image.stem} {label.stem}", images=(image,), label=label, structures=(("organ", 1),))
        for image in images
        for label in labels
    ]
    kept, wanted = (prepared(refs, data_config(tier)) for tier in ("disk", "none"))
    for index in range(4):
        assert_same(kept[index].load(), wanted[index].load())
    assert fill(kept)[0].num_found == 4


def test_a_case_larger_than_the_budget_leaves_the_others_their_cache(blob_refs, data_config):
    config = data_config("memory")
    sizes = [prepared(blob_refs, config)[i].num_bytes for i in range(5)]
    assert len(set(sizes)) > 1
    warnings = []
    cases = prepared(blob_refs, data_config("memory", cache={"max_bytes": max(sizes) - 1, "folder": ""}), warnings)
    small = [i for i, size in enumerate(sizes) if size < max(sizes)][:1]
    for index in range(5):
        assert cases[index].image.any()
    assert cases[small[0]].image is cases[small[0]].image
    assert len(warnings) == 1
    assert "cases as large as this are prepared again" in warnings[0]


def test_an_entry_that_cannot_be_read_is_reported_and_the_case_prepared(blob_refs, data_config, monkeypatch):
    config = data_config("disk")
    fill(prepared(blob_refs, config))
    monkeypatch.setattr(DiskTier, "get", raising(CacheError("cache: entry x cannot be read (Input/output error)")))
    warnings = []
    assert prepared(blob_refs, config, warnings)[0].image.any()
    assert warnings == [
        "cache: entry x cannot be read (Input/output error); cases that cannot be read are prepared again each time "
        "they are used"
    ]


@pytest.mark.parametrize("tier", ["memory", "disk", "disk blosc2", "lmdb"])
def test_many_threads_that_ask_for_one_case_prepare_it_once(blob_refs, data_config, monkeypatch, tier):
    reads = []
    read = prepared_module.read_case
    monkeypatch.setattr(prepared_module, "read_case", lambda ref, **o: (reads.append(1), read(ref, **o))[1])
    cases = prepared(blob_refs, data_config(tier))
    with ThreadPoolExecutor(8) as pool:
        volumes = list(pool.map(lambda _: cases[0], range(8)))
    assert len(reads) == 1
    assert all(np.array_equal(volume.load().image, volumes[0].load().image) for volume in volumes)


def test_a_file_that_changes_before_it_is_read_is_not_kept_under_its_old_key(blob_refs, data_config, tmp_path):
    image = Path(shutil.copy(blob_refs[0].images[0], tmp_path / "image.nii.gz"))
    before, config = image.read_bytes(), data_config("disk")
    ref = VolumeRef(case_id="a", images=(image,), label=blob_refs[0].label)
    stat = image.stat()
    cases = prepared([ref], config)
    scan = nib.load(image)
    nib.save(nib.Nifti1Image(np.asarray(scan.dataobj)[::-1].copy(), scan.affine), image)
    os.utime(image, ns=(1, 1))
    changed = cases[0].image.copy()
    image.write_bytes(before)
    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not np.array_equal(prepared([ref], config)[0].image, changed)


def test_filling_stops_between_cases_when_asked(blob_refs, data_config):
    asked = iter([False, False, True, True, True, True, True])
    facts, _ = fill(prepared(blob_refs, data_config("disk")), stop=lambda: next(asked, True))
    assert 0 < facts.num_prepared < 5


def test_a_case_takes_at_most_what_its_headers_say(data_config, tmp_path):
    scan = nib.Nifti1Image(np.arange(4096, dtype=np.uint8).reshape(16, 16, 16), np.eye(4))
    scan.header.set_slope_inter(0.5, 3.0)
    nib.save(scan, tmp_path / "scaled.nii.gz")
    nib.save(nib.Nifti1Image(np.zeros((16, 16, 16), np.uint8), np.eye(4)), tmp_path / "label.nii.gz")
    ref = VolumeRef(case_id="a", images=(tmp_path / "scaled.nii.gz",), label=tmp_path / "label.nii.gz")
    cases = prepared([ref], data_config("none"))
    assert cases[0].num_bytes <= cases.most_bytes(0)


def test_a_scan_whose_header_makes_it_huge_is_refused_by_its_case(data_config, tmp_path):
    for name in ("image", "label"):
        nib.save(
            nib.Nifti1Image(np.ones((20, 20, 20), np.uint8), np.diag([900, 900, 900, 1])), tmp_path / f"{name}.nii"
        )
    ref = VolumeRef(case_id="in_um", images=(tmp_path / "image.nii",), label=tmp_path / "label.nii")
    cases = prepared([ref], data_config("none"))
    for ask in (cases.__getitem__, cases.most_bytes, cases.shape):
        with pytest.raises(
            ScanError, match=r"^prepare: case 'in_um': the scan would have 18000 x .* check the spacing"
        ):
            ask(0)


def test_a_part_shares_the_cache_of_the_whole(blob_refs, data_config):
    whole = prepared(blob_refs, data_config("memory"))
    fill(whole)
    part = whole.part([4, 1])
    assert [part[i].case_id for i in range(len(part))] == ["case_4", "case_1"]
    assert part[0].image is whole[4].image


def test_when_memory_is_low_filling_continues_behind_it_and_says_so_once(blob_refs, data_config, monkeypatch):
    monkeypatch.setattr("voxelocity.data.cache.choose.memory_floor_bytes", lambda: 2**60)
    warnings, config = [], data_config("memory")
    cases = prepared(blob_refs, config, warnings)
    facts, _ = fill(cases)
    assert (facts.num_prepared, facts.num_kept) == (5, 5)
    assert fill(cases)[0].num_found == 5
    assert len(DiskTier(Path(config.cache.folder)).keys()) == 5
    again = prepared(blob_refs, data_config("none"))
    for index in range(5):
        np.testing.assert_array_equal(cases[index].image, again[index].image)
    assert len(warnings) == 1
    assert f"the cache continues in the disk tier in {config.cache.folder}" in warnings[0]


def test_an_entry_that_cannot_be_removed_does_not_end_the_run(blob_refs, data_config, monkeypatch):
    cases = prepared(blob_refs, data_config("disk"))
    cases[0]
    with monkeypatch.context() as patched:
        patched.setattr(DiskTier, "drop", raising(PermissionError(13, "Permission denied")))
        cases.drop(0)
    assert fill(cases.part([0]))[0].num_found == 1
    cases.drop(0)
    assert fill(cases.part([0]))[0].num_found == 0


@pytest.mark.parametrize("source_mode", [0o600, 0o640])
def test_sources_for_their_owner_alone_in_a_cache_for_a_group_are_reported_once(
    blob_refs, data_config, tmp_path, source_mode
):
    config = data_config("disk")
    folder = Path(config.cache.folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o770)
    refs = []
    for number, ref in enumerate(blob_refs[:2]):
        image = Path(shutil.copy(ref.images[0], tmp_path / f"{number}.nii.gz"))
        image.chmod(source_mode)
        refs.append(VolumeRef(case_id=ref.case_id, images=(image,), label=ref.label))
    messages = []
    fill(prepared(refs, config, messages))
    assert len(messages) == (source_mode == 0o600)
    assert all(str(folder) in text and "only their owner may read" in text for text in messages)


def test_work_waits_for_room_and_work_larger_than_the_budget_for_all_of_it(monkeypatch):
    room, has_room = MemoryBudget(100), []
    with monkeypatch.context() as patched:
        patched.setattr(room._changed, "wait_for", lambda predicate: has_room.append(predicate()))
        with room.taking(40), room.taking(40), room.taking(40):
            pass
        with room.taking(500), room.taking(600):
            pass
    assert has_room == [True, True, False, True, False]


def test_room_is_given_back_to_those_who_wait_also_when_the_work_fails():
    room, done = MemoryBudget(100), []

    def work(size):
        with contextlib.suppress(ValueError), room.taking(size):
            done.append(size)
            raise ValueError("broken")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [40, 500] * 4))
    assert sorted(done) == [40] * 4 + [500] * 4


def test_the_budget_counts_all_of_a_file_of_which_a_case_takes_one_volume(tmp_path, data_config, monkeypatch):
    image = np.random.default_rng(0).integers(0, 99, (8, 9, 7, 5)).astype(np.int16)
    nib.save(nib.Nifti1Image(image, np.eye(4)), tmp_path / "a.nii")
    nib.save(nib.Nifti1Image(image[..., 1], np.eye(4)), tmp_path / "b.nii")
    taking, taken = MemoryBudget.taking, []
    monkeypatch.setattr(MemoryBudget, "taking", lambda self, num: taken.append(num) or taking(self, num))
    for name in "ab":
        ref = VolumeRef(case_id=name, images=(tmp_path / f"{name}.nii",), volume=2 if name == "a" else None)
        prepared([ref], data_config("none"))[0].load()
    whole, one = taken
    assert whole - one == image.nbytes * 4 // 5
