"""Each mistake ends with status 2 and one line with the place, the value and the cure, and leaves nothing behind."""

from __future__ import annotations

import errno
import gzip
import json
import os
import struct
from functools import partial

import nibabel as nib
import numpy as np
import pytest
import torch

from shared import refused
from voxelocity.data.cache import DiskTier
from voxelocity_observe.core.errors import CacheFullError

IMAGE, LABEL = "imagesTr/case_3.nii.gz", "labelsTr/case_3.nii.gz"
_PIXDIM_X = 80
assert_refused = partial(refused.assert_refused, most_lines=2)


def rewrite(path, change, *, affine=None):
    """The same file with `change` made to its voxels."""
    image = nib.load(path)
    voxels = change(np.asarray(image.dataobj).copy())
    nib.save(nib.Nifti1Image(voxels, image.affine if affine is None else affine), path)


def put(value):
    def change(voxels):
        voxels[3, 4, 5] = value
        return voxels

    return change


def set_pixdim(path, value):
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[_PIXDIM_X : _PIXDIM_X + 4] = struct.pack("<f", value)
    path.write_bytes(gzip.compress(bytes(content)))


def shift_affine(path):
    affine = np.eye(4)
    affine[0, 3] = 5.0
    rewrite(path, lambda voxels: voxels, affine=affine)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-400])


BROKEN_DATA = {
    "empty dataset.json": (lambda data: (data / "dataset.json").write_text(""), ["dataset.json is empty"]),
    "dataset.json with nothing in it": (lambda data: (data / "dataset.json").write_text("{}"), ["an empty object"]),
    "malformed dataset.json": (
        lambda data: (data / "dataset.json").write_text('{"labels": {"0" "background"}}'),
        ["dataset.json", "not valid JSON at line 1, column 17", "correct it there"],
    ),
    "listed file missing": (
        lambda data: (data / IMAGE).unlink(),
        ["1 of 12 files are missing", IMAGE, "correct the list"],
    ),
    "truncated file": (lambda data: cut_off(data / IMAGE), ["case_3", IMAGE, "truncated", "again"]),
    "no NIfTI": (lambda data: (data / IMAGE).write_bytes(b"a text about a scan" * 100), [IMAGE]),
    "gzip of something else": (lambda data: (data / IMAGE).write_bytes(gzip.compress(b"no scan" * 100)), [IMAGE]),
    "empty file": (lambda data: (data / IMAGE).write_bytes(b""), [IMAGE]),
    "shapes differ": (
        lambda data: rewrite(data / LABEL, lambda voxels: voxels[:-1]),
        ["case_3", "differ in shape", "(20, 22, 18)", "(19, 22, 18)", "resample"],
    ),
    "affines differ": (lambda data: shift_affine(data / LABEL), ["case_3", "5 mm apart", "copy the affine"]),
    "NaN": (
        lambda data: rewrite(data / IMAGE, put(np.nan)),
        ["case_3", IMAGE, "1 voxel is NaN", "(3, 4, 5)", "numpy.nan_to_num"],
    ),
    "infinity": (lambda data: rewrite(data / IMAGE, put(-np.inf)), ["case_3", IMAGE, "-inf at", "numpy.nan_to_num"]),
    "undeclared label": (
        lambda data: rewrite(data / LABEL, put(9)),
        ["case_3", LABEL, "9 (1 voxels)", "declared are 0, 1, 2", "add them to the labels"],
    ),
    "zero spacing": (lambda data: set_pixdim(data / IMAGE, 0.0), [IMAGE, "spacing on x is 0.0 mm", "set the true"]),
    "negative spacing": (
        lambda data: set_pixdim(data / IMAGE, -1.0),
        [IMAGE, "spacing on x is -1.0 mm", "set the true"],
    ),
}


@pytest.fixture
def train(voxelocity, tiny_sets):
    """`voxelocity train` with the tiny plan."""

    def call(data, out, *more):
        return voxelocity("train", data, "-o", out, "--device", "cpu", *tiny_sets, *more)

    return call


@pytest.mark.parametrize("name", BROKEN_DATA)
def test_broken_data_is_named_before_the_run_begins(train, own_msd, tmp_path, name):
    breaks, texts = BROKEN_DATA[name]
    breaks(own_msd)
    assert_refused(train(own_msd, tmp_path / "run"), *texts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tier", "breaks", "texts"),
    [
        ("memory", lambda data: rewrite(data / IMAGE, put(np.nan)), ["case_3", "NaN"]),
        ("disk", lambda data: cut_off(data / LABEL), ["case_3", "truncated"]),
    ],
)
def test_a_scan_found_broken_while_caching_can_be_mended_and_the_same_command_goes_on(
    train, own_msd, tmp_path, monkeypatch, breaks, texts, tier
):
    # Planning then looks at the voxels of the first and the last case alone, as it does with eight of a large set.
    monkeypatch.setattr("voxelocity.planning.make._NUM_SAMPLED", 2)
    sets = ("--set", f"data.cache.tier={tier}", "--set", f"data.cache.folder={tmp_path / 'cache'}")
    good = {name: (own_msd / name).read_bytes() for name in (IMAGE, LABEL)}
    breaks(own_msd)
    assert_refused(train(own_msd, tmp_path / "run", *sets), *texts)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    for name, content in good.items():
        (own_msd / name).write_bytes(content)
    mended = train(own_msd, tmp_path / "run", *sets).succeeded()
    assert "resuming the unfinished run" in mended.out
    assert (tmp_path / "run" / "report.html").exists()


WRONG_OPTIONS = {
    "fold without cases": (["--fold", "4"], ["fold 4 holds zero of the 6", "[0, 1, 2]", "--fold all"]),
    "fold no number": (["--fold", "first"], ["--fold first: neither a number", "'all'"]),
    "unknown key": (["--set", "data.batchsize=2"], ["unknown key 'data.batchsize'", "did you mean 'data.batch_size'"]),
    "key like no other": (["--set", "foo=1"], ["unknown key 'foo'; the configuration has seed, planner, data,"]),
    "key like no other of its section": (["--set", "train.q=1"], ["'train.q'; train has train.steps, train.time_"]),
    "section": (["--set", "train=5"], ["train = 5 is not valid: it is a section; set one of its keys"]),
    "window of a volume": (["--set", "window.shape_voxel=[0,0,0]"], ["window.shape_voxel (0, 0, 0) must have no 0"]),
    "too few values": (["--set", "window.shape_voxel=[16,16]"], ["[16, 16] is not valid: give 3 values, such as 1,"]),
    "keys that do not fit together": (["--set", "train.steps=0"], ["plan: train: steps and time_budget_s are both 0"]),
    "out of range": (["--set", "data.batch_size=0"], ["data.batch_size = 0", "greater than or equal to 1"]),
    "wrong type": (["--set", "train.steps=many"], ["train.steps = 'many'", "integer"]),
    "no equals sign": (["--set", "train.steps"], ["'train.steps' has no '='", "key=value"]),
    "no YAML": (["--set", "train.steps=[1"], ["train.steps", "'[1'", "not a YAML value"]),
    "patch that does not fit": (["--set", "data.patch.shape_voxel=[15,16,16]"], ["15", "multiple of (2, 2, 2)"]),
    "missing config": (["--config", "nowhere.yaml"], ["cannot read nowhere.yaml", "No such file"]),
    "no budget": (["--time-budget", "soon"], ["'soon' is not a duration", "5m"]),
    "no time at all": (["--time-budget", "0s"], ["'0s' is not a duration"]),
    "unknown device": (["--device", "tpu"], ["--device tpu", "auto, cpu or cuda"]),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_a_wrong_option_is_named_with_its_cure(train, tiny_msd, tmp_path, name):
    options, texts = WRONG_OPTIONS[name]
    assert_refused(train(tiny_msd, tmp_path / "run", *options), *texts)
    assert not (tmp_path / "run").exists()


def test_a_run_in_the_place_of_a_data_set_and_a_folder_without_a_run_are_named(voxelocity, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text("dataset: {path: /data}\n")
    for command in (["plan", tmp_path / "run"], ["train", tmp_path / "run", "-o", tmp_path / "other"]):
        assert_refused(voxelocity(*command), "is the folder of a run", "run.yaml as dataset.path", "train --resume")
    assert_refused(voxelocity("train", "--resume", tmp_path / "none"), "none holds no run to resume")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a: [1", "is not YAML"),
        (b"\xff\xfe\x00\x80", "is not YAML"),
        (b"", "must hold keys and values"),
        (b"- a\n- b", "must hold keys and values"),
        (b"data: {batch_sise: 3}", "unknown key 'data.batch_sise'; did you mean 'data.batch_size'"),
    ],
)
def test_a_wrong_config_file_is_named(train, tiny_msd, tmp_path, content, text):
    config = tmp_path / "plan.yaml"
    config.write_bytes(content)
    named = [text] if "unknown" in text else [text, str(config)]
    assert_refused(train(tiny_msd, tmp_path / "run", "--config", config), *named)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("command", ["train", "plan"])
def test_cuda_without_cuda_is_refused(voxelocity, tiny_msd, tmp_path, command):
    out = ["-o", tmp_path / "run"] if command == "train" else []
    assert_refused(voxelocity(command, tiny_msd, *out, "--device", "cuda"), "sees no CUDA device", "--device cpu")
    assert not (tmp_path / "run").exists()


def test_a_file_that_may_not_grow_is_told_apart_from_a_full_disk(voxelocity, own_msd, tmp_path, monkeypatch):
    """Of a run, the last checkpoint is kept, and --resume continues from it."""

    def fail(*_, **__):
        raise OSError(number, os.strerror(number), "big.pt")

    monkeypatch.setattr("voxelocity.data.source.open_cases", fail)
    for number, texts in (
        (
            errno.EFBIG,
            [
                "`ulimit -f` does not allow a file of this size, while writing big.pt",
                "raise the limit or choose another",
            ],
        ),
        (errno.ENOSPC, ["no space left on the disk, while writing big.pt", "free some space", "with --resume"]),
    ):
        ended = voxelocity("plan", own_msd)
        assert ended.status == 1
        assert all(text in ended.err for text in texts)
        assert ("free some space" in ended.err) == (number == errno.ENOSPC)


def test_a_data_set_that_is_not_there_is_named(train, tmp_path):
    assert_refused(train(tmp_path / "nowhere", tmp_path / "run"), str(tmp_path / "nowhere"), "does not exist")
    assert not (tmp_path / "run").exists()


def test_a_folder_below_a_file_cannot_take_a_run(train, tiny_msd, tmp_path):
    (tmp_path / "file").write_text("in the way")
    ended = train(tiny_msd, tmp_path / "file" / "run")
    assert_refused(ended, "cannot write into the folder", str(tmp_path / "file"), "choose another with -o")
    assert_refused(train(tiny_msd, tmp_path / "file"), "is a file", "choose another with -o")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_a_folder_with_something_else_in_it_is_left_alone(train, tiny_msd, tmp_path, more):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    assert_refused(train(tiny_msd, tmp_path / "run", *more), str(tmp_path / "run"), "not empty and holds no run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_predict_needs_a_run_that_holds_a_model(voxelocity, tiny_msd, tmp_path):
    (tmp_path / "run").mkdir()
    for run, lacks in ((tmp_path / "run", "model.json"), (tmp_path / "nowhere", "does not exist")):
        ended = voxelocity("predict", run, tiny_msd / "imagesTr", "-o", tmp_path / "out", "--device", "cpu")
        assert_refused(ended, str(run), lacks, "name the folder of a finished run")
    assert not (tmp_path / "out").exists()


def wrong_inputs(folder):
    (folder / "empty").mkdir()
    (folder / "photo.png").write_bytes(b"\x89PNG")
    (folder / "text.nii.gz").write_bytes(b"a text about a scan" * 100)
    return {
        folder / "nowhere.nii.gz": "does not exist",
        folder / "empty": "holds no NIfTI, Analyze, NRRD, MHA, MGZ or MINC file",
        folder / "photo.png": "convert it to .nii.gz",
        folder / "text.nii.gz": "NIfTI",
    }


def test_predict_names_an_input_it_cannot_use(voxelocity, finished_run, tmp_path):
    for path, text in wrong_inputs(tmp_path).items():
        ended = voxelocity("predict", finished_run, path, "-o", tmp_path / "out", "--device", "cpu")
        assert_refused(ended, str(path), text)
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_predict_names_a_folder_it_cannot_write(voxelocity, finished_run, tiny_msd, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        ended = voxelocity("predict", finished_run, tiny_msd / IMAGE, "-o", out, "--device", "cpu")
        assert_refused(ended, str(out), "choose another with -o")


def test_predict_names_a_damaged_model(voxelocity, finished_run, tiny_msd, tmp_path):
    for name, content in (("model.json", "{"), ("model.json", "{}"), ("model.safetensors", "weights")):
        run = tmp_path / f"{name}{len(content)}"
        run.mkdir()
        for part in ("model.json", "model.safetensors"):
            (run / part).write_bytes((finished_run / part).read_bytes())
        (run / name).write_text(content)
        ended = voxelocity("predict", run, tiny_msd / IMAGE, "-o", tmp_path / "out", "--device", "cpu")
        assert_refused(ended, str(run / name))


def test_report_needs_a_run(voxelocity, tmp_path):
    assert_refused(voxelocity("report", tmp_path), str(tmp_path / "run.yaml"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("max_bytes", "said"),
    [
        (2**30, "continuing in memory, up to data.cache.max_bytes; the next run prepares those cases again"),
        (0, "continuing without more: cases not in the cache are prepared again"),
    ],
)
def test_a_full_disk_costs_the_cache_and_not_the_run(train, tiny_msd, tmp_path, monkeypatch, max_bytes, said):
    def full(tier, key, volume):
        raise CacheFullError(f"cache.disk: no space for case '{volume.case_id}'; free some space")

    monkeypatch.setattr(DiskTier, "put", full)
    cache = ("--set", "data.cache.tier=disk", "--set", f"data.cache.folder={tmp_path / 'cache'}")
    ended = train(tiny_msd, tmp_path / "run", *cache, "--set", f"data.cache.max_bytes={max_bytes}").succeeded()
    assert " ".join(ended.out.split()).count(said) == 1
    assert ("in the disk cache" in ended.out) == (max_bytes > 0), "what memory took counts as kept"
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    warning, of_steps = [event["text"] for event in events if event["event"] == "warning"]
    assert "no space for case" in warning
    assert "this training has no score" in of_steps


def test_a_cache_folder_below_a_file_is_named(train, tiny_msd, tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = ("--set", "data.cache.tier=disk", "--set", f"data.cache.folder={tmp_path / 'file' / 'cache'}")
    assert_refused(train(tiny_msd, tmp_path / "run", *cache), str(tmp_path / "file"), "set data.cache.folder")


def test_labels_that_hold_nothing_but_background_are_told_before_training(train, own_msd, tmp_path):
    for path in (own_msd / "labelsTr").iterdir():
        scan = nib.load(path)
        nib.save(nib.Nifti1Image(np.zeros(scan.shape, np.uint8), scan.affine), path)
    ended = train(own_msd, tmp_path / "run", "--set", "data.cache.tier=memory")
    assert_refused(ended, "none of the 6 labels of", "contains anything but background", "are these the right label")


def test_a_warning_of_ours_is_a_line_without_its_place_in_the_code():
    import warnings

    from voxelocity.data.source import remote
    from voxelocity_observe.cli import main

    shown = warnings.formatwarning
    with main._warnings_in_words():
        ours = warnings.formatwarning("the server\x1b[2J is away", UserWarning, remote.__file__, 7)
        others = warnings.formatwarning("about numpy", UserWarning, "/lib/numpy/core.py", 7)
    assert ours.startswith("warning: the server")
    assert "\x1b" not in ours
    assert others.startswith("/lib/numpy/core.py:7: UserWarning: about numpy")
    assert warnings.formatwarning is shown


@pytest.mark.parametrize("words", [["init", "data"], ["predict", "run", "scan.nii.gz", "-o", "out"]])
def test_a_deleted_working_folder_is_named(voxelocity, tmp_path, monkeypatch, words):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert_refused(voxelocity(*words), "the working folder was deleted; change to one that exists")


@pytest.mark.parametrize("words", [["init", "NAME"], ["evaluate", "NAME", "NAME", "-o", "out"]])
def test_a_name_that_is_too_long_for_the_file_system_is_named(voxelocity, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    end = voxelocity(*("x" * 5000 if word == "NAME" else word for word in words))
    assert_refused(end, "characters, more than the file system takes (xxx", "shorten it")
    assert len(end.err) < 400
