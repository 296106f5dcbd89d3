import functools
import os
import pickle
import re
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.transforms import (
    Compose,
    Lambda,
    Lambdad,
    LoadImaged,
    OneOf,
    RandAffined,
    RandAxisFlipd,
    RandFlipd,
    RandGaussianNoised,
    RandSpatialCropSamplesd,
    RandZoomd,
    ScaleIntensityRanged,
    Spacingd,
    Transform,
)

from shared.forked import run_python
from shared.raising import raising
from voxelocity.monai.fingerprint import fingerprint, item_identity, source_facts
from voxelocity.monai.sources import FolderFacts
from voxelocity_observe.core.errors import DatasetError

_FACTOR = 3


def _scaled(values):
    return values * _FACTOR


class Own(Transform):
    shift = 1

    def __init__(self, table=None):
        self.table = table

    def __call__(self, values):
        return _scaled(values) + self.shift


def usual(pixdim=(1.5, 1.5, 2.0), shift=2):
    return Compose(
        [
            LoadImaged("image"),
            Spacingd("image", pixdim=pixdim),
            ScaleIntensityRanged("image", -57, 164, 0, 1, clip=True),
            Lambdad("image", lambda values: _scaled(values) + shift),
        ]
    )


def test_the_same_chain_made_twice_has_one_fingerprint_and_no_doubts():
    assert fingerprint(usual()) == fingerprint(usual())
    assert fingerprint(usual()).doubts == ()


def test_an_argument_a_closed_over_constant_and_the_order_count():
    chains = [usual(), usual(pixdim=(1.5, 1.5, 2.5)), usual(shift=3), Compose(usual().transforms[::-1])]
    assert len({fingerprint(chain).digest for chain in chains}) == len(chains)


def test_a_lambdas_body_a_default_and_a_constant_count():
    bodies = [lambda x: x + 1, lambda x: x - 1, lambda x: x + 2, lambda x, y=1: x + y, lambda x, y=2: x + y]
    assert len({fingerprint(Lambda(body)).digest for body in bodies}) == len(bodies)


def test_a_global_that_a_function_names_counts(monkeypatch):
    before = fingerprint([Lambda(_scaled), Own()])
    monkeypatch.setattr(sys.modules[__name__], "_FACTOR", 4)
    assert fingerprint(Lambda(_scaled)).digest != before.digest
    after = fingerprint([Lambda(_scaled), Own()])
    monkeypatch.undo()
    assert after != before == fingerprint([Lambda(_scaled), Own()])


def test_a_compiled_loop_counts_by_its_function_and_not_by_what_was_compiled():
    class Loop:
        """As Numba's, of which every call changes the state."""

        __module__ = "numba.core.registry"

        def __init__(self, function, **options):
            self.py_func, self.targetoptions, self.lock = function, options, threading.Lock()
            self.compiled = []

        def __call__(self, value):
            self.compiled.append(self)
            return self.py_func(value)

    def chain(fastmath, factor=2):
        loop = Loop(lambda value: value * factor, fastmath=fastmath)
        return Compose([lambda value: loop(value)])

    one = chain(False)
    before = fingerprint(one)
    assert one(3) == 6, "compiles"
    assert fingerprint(one) == before
    assert not before.doubts
    assert before != fingerprint(chain(True))
    assert before != fingerprint(chain(False, factor=3))


def test_the_code_and_the_attributes_of_an_own_class_count(monkeypatch):
    before = fingerprint(Own())
    monkeypatch.setattr(Own, "shift", 2)
    assert fingerprint(Own()) != before
    monkeypatch.undo()
    monkeypatch.setattr(Own, "__call__", lambda self, values: values)
    assert fingerprint(Own()) != before


@pytest.mark.parametrize("make", [np.arange, lambda n: torch.arange(n), lambda n: list(range(n))])
def test_every_value_of_a_table_counts(make):
    changed = make(5000)
    changed[4321] = -1
    assert fingerprint(Own(make(5000))) == fingerprint(Own(make(5000)))
    assert fingerprint(Own(changed)) != fingerprint(Own(make(5000)))


def test_a_partial_counts_with_its_arguments():
    assert fingerprint(functools.partial(_scaled, 1)) != fingerprint(functools.partial(_scaled, 2))


def test_a_file_that_a_transform_names_counts_with_its_size_and_time(tmp_path):
    atlas = tmp_path / "atlas.bin"
    atlas.write_bytes(b"12")
    for named in (atlas, str(atlas)):
        before = fingerprint(Own(named))
        os.utime(atlas, ns=(1, 1))
        assert fingerprint(Own(named)) != before
        atlas.write_bytes(b"12")


def test_a_module_of_ones_own_counts_with_the_modules_it_uses(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "vx_inner_part.py").write_text("OFFSET = 1\n")
    (tmp_path / "vx_outer_part.py").write_text("import vx_inner_part\n")
    import vx_outer_part

    before = fingerprint(Own(vx_outer_part))
    (tmp_path / "vx_inner_part.py").write_text("OFFSET = 2\n")
    assert fingerprint(Own(vx_outer_part)) != before
    assert before.doubts == ()
    assert "the module has no source file" in fingerprint(Own(types.ModuleType("vx_nowhere"))).doubts[0]


def test_a_module_that_is_imported_within_a_function_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "vx_late"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "part.py").write_text("OFFSET = 1\n")
    (folder / "broken.py").write_text("1 / 0\n")
    (tmp_path / "vx_user.py").write_text(
        "def whole(x):\n    import vx_late.part\n    return x + vx_late.part.OFFSET\n"
        "def name(x):\n    def inner():\n        from vx_late import part\n        return part.OFFSET\n"
        "    return x + inner()\n"
        "def missing(x):\n    try:\n        from vx_absent import part\n    except ImportError:\n        return x\n"
        "def installed(x):\n    from scipy import ndimage\n    return ndimage.zoom(x, 2)\n"
        "def broken(x):\n    import vx_late.broken\n    return x\n"
    )
    import vx_user

    functions = (vx_user.whole, vx_user.name, vx_user.missing, vx_user.installed)
    before = [fingerprint(Lambda(function)) for function in functions]
    assert before == [fingerprint(Lambda(function)) for function in functions]
    assert not any(found.doubts for found in before)
    (folder / "part.py").write_text("OFFSET = 2\n")
    after = [fingerprint(Lambda(function)) for function in functions]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True, True]
    assert "it imports vx_late.broken, which fails: division by zero" in fingerprint(Lambda(vx_user.broken)).doubts[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "transform",
    [
        RandFlipd("image", prob=0.5),
        RandAxisFlipd("image", prob=1),
        RandAffined("image", prob=1, rotate_range=1),
        RandZoomd("image", prob=1),
        RandGaussianNoised("image", prob=1),
        RandSpatialCropSamplesd("image", (3, 3, 3), 2),
        OneOf([RandFlipd("image"), RandZoomd("image", prob=1)]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_what_a_random_transform_draws_is_no_content(transform):
    before = fingerprint(transform)
    transform({"image": torch.rand(1, 8, 8, 8)})
    transform.set_random_state(seed=7)
    assert fingerprint(transform) == before
    assert before.doubts == ()


def test_what_cannot_be_read_is_a_doubt_in_words(tmp_path):
    with open(tmp_path / "table.txt", "w") as file:
        found = fingerprint(Compose([Own(), Lambda(file.write)]))
    (doubt,) = found.doubts
    assert doubt.startswith("transform 1 (Lambda).func: a TextIOWrapper has no readable content (cannot pickle")
    state = fingerprint(Own(np.random.RandomState(0)))
    assert state.doubts == ("transform 0 (Own).table: a RandomState has no readable content (it holds a random state)",)


def test_objects_that_are_pickled_in_their_own_way_count():
    assert fingerprint(Own(re.compile("a"))) != fingerprint(Own(re.compile("b")))
    assert fingerprint(Own(re.compile("a"))).doubts == ()


def test_objects_that_hold_each_other_end():
    left, right = Own(), Own()
    left.table, right.table = right, left
    assert fingerprint(left) == fingerprint(right)


def test_processes_with_other_hash_seeds_agree(capsys):
    script = (
        "from monai.transforms import *\n"
        "from voxelocity.monai.fingerprint import fingerprint\n"
        "words = {'spleen', 'liver', 'kidney', 'aorta'}\n"
        "def has(x): return x in {'a', 'b', 'c'} or x in words\n"
        "class Mine(Transform):\n"
        "    names = words\n"
        "    def __call__(self, x): return has(x)\n"
        "chain = Compose([LoadImaged('image'), Mine(), Lambdad('image', lambda x: has(x))])\n"
        "print(fingerprint(chain).digest, hash('spleen'))\n"
    )
    exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
    here, own_hash = capsys.readouterr().out.split()
    there, other_hash = run_python(script).stdout.split()
    assert own_hash != other_hash, "PYTHONHASHSEED is set"
    assert here == there
    assert len(here) == 40


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()))
def test_the_order_of_a_dictionarys_history_is_no_content(values):
    backwards = dict(reversed(list(values.items())))
    assert item_identity(values) == item_identity(backwards)
    assert item_identity({**values, "one more": 1}) != item_identity(values)


def test_an_items_files_count_by_what_their_path_leads_to_size_times_and_inode(tmp_path):
    scan = tmp_path / "scan.nii.gz"
    scan.write_bytes(b"voxels")
    os.utime(scan, ns=(5, 5))
    item = {"image": str(scan), "weight": 1.0}
    before = item_identity(item)
    assert item_identity({"image": str(scan), "weight": 1.0}) == before
    os.utime(scan, ns=(6, 6))
    assert item_identity(item) != before
    status = scan.stat()
    assert source_facts(item) == [f"{scan}:6:6:{status.st_ctime_ns}:{status.st_ino}"]


def test_another_file_of_the_same_size_and_time_is_another_file(tmp_path):
    versions = [tmp_path / "v1.nii", tmp_path / "v2.nii"]
    for scan, content in zip(versions, (b"one", b"two"), strict=True):
        scan.write_bytes(content)
        os.utime(scan, ns=(5, 5))
    item, link = {"image": str(tmp_path / "scan.nii")}, tmp_path / "scan.nii"
    link.symlink_to(versions[0])
    by_link = item_identity(item), source_facts(item)
    link.unlink()
    link.symlink_to(versions[1])
    assert item_identity(item) != by_link[0]
    assert source_facts(item) != by_link[1]
    before = source_facts({"image": str(versions[0])})
    versions[1].replace(versions[0])
    assert source_facts({"image": str(versions[0])}) != before


def test_a_folder_counts_with_every_file_in_it(tmp_path):
    (tmp_path / "series").mkdir()
    (tmp_path / "series" / "1.dcm").write_bytes(b"a")
    before = item_identity(Path(tmp_path / "series")), item_identity(str(tmp_path / "series"))
    (tmp_path / "series" / "2.dcm").write_bytes(b"b")
    assert item_identity(tmp_path / "series") != before[0]
    assert item_identity(str(tmp_path / "series")) != before[1]


DETACHED = {
    "voxels of a MetaImage": ("a.mhd", b"ElementDataFile = other.raw\n", "other.raw"),
    "voxels of an NRRD": ("a.nhdr", b"NRRD0005\ndata file: ./a.raw.gz\n", "a.raw.gz"),
    "voxels of a header with the ending of whole files": ("a.mha", b"ElementDataFile = b.raw\n", "b.raw"),
    "voxels of a pair": ("a.hdr", b"", "a.img"),
    "the header of a pair": ("a.img", b"", "a.hdr"),
    "slices that our reader refuses": ("a.mhd", b"ElementDataFile = LIST\nslice_1.raw\n", "slice_1.raw"),
}


@pytest.mark.parametrize(("named", "content", "other"), DETACHED.values(), ids=DETACHED)
def test_what_belongs_to_a_detached_header_counts_with_it(tmp_path, named, content, other):
    (tmp_path / named).write_bytes(content)
    (tmp_path / other).write_bytes(b"before")
    item = {"image": str(tmp_path / named)}
    before = item_identity(item), source_facts(item)
    assert (item_identity(item), source_facts(item)) == before
    (tmp_path / other).write_bytes(b"changed")
    assert item_identity(item) != before[0]
    assert source_facts(item) != before[1]


def test_a_word_that_names_a_folder_that_may_not_be_listed_is_only_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "scandir", raising(PermissionError(13, "Permission denied")))
    assert source_facts({"home": str(tmp_path)}) == [f"{tmp_path}:13"]


def series_in(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"slice")
    return folder


def test_what_readers_of_a_series_pass_over_is_no_content_of_its_folder(tmp_path):
    series = series_in(tmp_path / "series", "1.dcm", "2.DCM", "3", "1.2.840.4")
    before = source_facts(series)
    assert [fact.split(":")[0] for fact in before] == [str(series / n) for n in ("1.2.840.4", "1.dcm", "2.DCM", "3")]
    for name in (".DS_Store", "notes.txt", "preview.png"):
        (series / name).write_bytes(b"x")
    (series / "segmentations").mkdir()
    assert source_facts(series) == before
    plain = series_in(tmp_path / "plain", "a.nii")
    before = source_facts(plain)
    (plain / ".lock").write_bytes(b"x")
    assert source_facts(plain) == before
    (plain / "b.json").write_bytes(b"x")
    assert source_facts(plain) != before


def test_the_slices_of_a_series_are_looked_at_once(tmp_path, monkeypatch):
    series, folders = series_in(tmp_path / "series", *(f"{n}.dcm" for n in range(20))), FolderFacts()
    first = item_identity(str(series), folders), source_facts(str(series), folders)
    looks, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda *args, **options: looks.append(args) or stat(*args, **options))
    assert (item_identity(str(series), folders), source_facts(str(series), folders)) == first
    assert len(looks) <= 6
    (series / "20.dcm").write_bytes(b"slice")
    assert item_identity(str(series), folders) != first[0]
    assert source_facts(str(series), pickle.loads(pickle.dumps(folders))) != first[1]


def test_arrays_of_an_item_count_by_their_bytes():
    assert item_identity(np.zeros(3, np.float32)) != item_identity(np.zeros(3, np.float64))
    assert item_identity({"a": torch.zeros(2)}) != item_identity({"a": torch.ones(2)})


def test_an_item_that_cannot_be_read_is_refused(tmp_path):
    with open(tmp_path / "x", "w") as file, pytest.raises(DatasetError) as caught:
        item_identity({"image": file})
    assert "item['image']: a TextIOWrapper has no readable content" in str(caught.value)
    assert "put only numbers, strings, arrays and paths into the items" in str(caught.value)
