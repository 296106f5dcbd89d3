"""Names, files and descriptions made to harm: nothing is executed, followed, sent to the terminal or waited for."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

_ORDERS = "\x1b]0;taken\x07\x1b[31mred"
_MARKUP = "[bold red]x[/x]"
_SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
_NAMES = {"orders to the terminal": _ORDERS, "markup": _MARKUP, "script": _SCRIPT, "formula": "=cmd|' /C calc'!A0"}


class Parsed(HTMLParser):
    """Whether a page runs anything."""

    def __init__(self) -> None:
        super().__init__()
        self.is_running = False

    def handle_starttag(self, tag, attrs):
        self.is_running |= tag in ("script", "iframe", "object") or any(name.startswith("on") for name, _ in attrs)


class Planted:
    """Pickled, it makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", _NAMES)
def test_names_of_classes_and_data_sets_are_text_and_nothing_else(command, own_msd, often, trials, tmp_path, kind):
    path = own_msd / "dataset.json"
    values = json.loads(path.read_text())
    values["name"] = values["labels"]["1"] = values["modality"]["0"] = _NAMES[kind]
    path.write_text(json.dumps(values))
    with trials.one(kind):
        ended = command("train", own_msd, "-o", tmp_path / "run", "--device", "cpu", *often)
        assert "\x1b]" not in ended.out + ended.err
        assert "\x1b[31mred" not in ended.out + ended.err
        if ended.status == 0:
            page = Parsed()
            page.feed((tmp_path / "run" / "report.html").read_text())
            assert not page.is_running
            table = (tmp_path / "run" / "metrics.csv").read_text()
            assert not any(cell.startswith("=") for line in table.splitlines() for cell in line.split(","))
        else:
            assert ended.status == 2


@pytest.mark.parametrize(
    "name", [f"scan{_ORDERS}.nii.gz", "scan[red]x[bold].nii.gz", "-rf.nii.gz", "a\nb.nii.gz", "'\".nii.gz"]
)
def test_names_of_scans_and_folders_are_text_and_nothing_else(
    voxelocity, undisturbed, tiny_msd, trials, tmp_path, name
):
    scans, out = tmp_path / "scans [/x]", tmp_path / "out [/b]q"
    scans.mkdir(parents=True)
    (scans / name).write_bytes((tiny_msd / "imagesTr" / "case_0.nii.gz").read_bytes())
    with trials.one(repr(name)):
        ended = voxelocity("predict", undisturbed.run, scans, "-o", out, "--device", "cpu").succeeded()
        assert (out / name).read_bytes() == undisturbed.predictions["case_0.nii.gz"]
        assert "\x1b" not in ended.out + ended.err


@pytest.mark.parametrize(
    "path", ["../../../../etc/passwd", "/etc/passwd", "imagesTr/../../../etc/passwd", "imagesTr/\x00.nii.gz", ""]
)
def test_paths_that_leave_a_data_set_are_refused(voxelocity, own_msd, trials, path):
    description = own_msd / "dataset.json"
    values = json.loads(description.read_text())
    values["training"][0]["image"] = path
    description.write_text(json.dumps(values))
    with trials.one(repr(path)):
        ended = voxelocity("plan", own_msd, "--device", "cpu")
        assert ended.status == 2
        assert "Traceback" not in ended.err
        assert "root:" not in ended.out + ended.err


def planted_files(target):
    """Files of several formats that make `target` when something in them is executed."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Planted(target), protocol=2))
        file.writestr("archive/version", "3\n")
    slices = io.BytesIO()
    np.savez(slices, slices=np.array([Planted(target)], dtype=object))
    return {
        "pickle": pickle.dumps(Planted(target)),
        "torch": archive.getvalue(),
        "npz": slices.getvalue(),
        "yaml": f"!!python/object/apply:os.mkdir ['{target}']\n".encode(),
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("pickle", "checkpoints/step_000000006.pt"), ("torch", "checkpoints/step_000000006.pt"),
        ("pickle", "model.safetensors"), ("torch", "model.safetensors"), ("yaml", "run.yaml"), ("npz", "slices.npz"),
        ("yaml", "model.json"), ("yaml", "scores.json"), ("pickle", "events.jsonl"),
    ],
)  # fmt: skip
def test_nothing_in_the_files_of_a_run_is_executed(
    voxelocity, undisturbed, damaged, tiny_msd, trials, tmp_path, kind, name
):
    target = tmp_path / "executed"
    run = damaged(undisturbed.run, name, lambda old: planted_files(target)[kind])
    image = tiny_msd / "imagesTr" / "case_0.nii.gz"
    with trials.one(f"{kind} as {name}"):
        for command in (
            ("report", run),
            ("train", tiny_msd, "-o", run, "--resume", "--device", "cpu"),
            ("predict", run, image, "-o", tmp_path / "out", "--device", "cpu"),
        ):
            ended = voxelocity(*command)
            assert "Traceback" not in ended.err
            assert ended.status == 0 or ended.err.startswith("voxelocity:")
            assert not target.exists()


def test_values_of_the_command_line_are_not_executed(voxelocity, tiny_msd, trials, tmp_path):
    target = tmp_path / "executed"
    for value in (f"!!python/object/apply:os.mkdir ['{target}']", f"__import__('os').mkdir('{target}')"):
        with trials.one(value):
            ended = voxelocity("plan", tiny_msd, "--device", "cpu", "--set", f"seed={value}")
            assert ended.status == 2
            assert not target.exists()


def header(**fields):
    """A NIfTI header of a scan of 20 x 22 x 18 voxels with some of its fields changed."""
    made = nib.Nifti1Header()
    made.set_data_shape((20, 22, 18))
    made.set_data_dtype(np.float32)
    made["magic"], made["vox_offset"] = b"n+1", 352
    content = bytearray(made.binaryblock)
    places = {
        "dim": (40, "<8h"),
        "vox_offset": (108, "<f"),
        "datatype": (70, "<h"),
        "pixdim": (76, "<8f"),
        "slope": (112, "<2f"),
    }
    for name, values in fields.items():
        at, form = places[name]
        struct.pack_into(form, content, at, *(values if isinstance(values, tuple) else (values,)))
    return bytes(content) + bytes(4)


_VOXELS = np.zeros(20 * 22 * 18, np.float32).tobytes()
_SCANS = {
    "35 TB": header(dim=(3, 32767, 32767, 8192, 1, 1, 1, 1)) + _VOXELS,
    "negative axes": header(dim=(3, -20, 22, 18, 1, 1, 1, 1)) + _VOXELS,
    "no axes": header(dim=(0, 20, 22, 18, 1, 1, 1, 1)) + _VOXELS,
    "infinite offset": header(vox_offset=float("inf")) + _VOXELS,
    "offset of 1e30": header(vox_offset=1e30) + _VOXELS,
    "offset that is not a number": header(vox_offset=float("nan")) + _VOXELS,
    "negative offset": header(vox_offset=-1e9) + _VOXELS,
    "spacing of 1e30": header(pixdim=(1, 1e30, 1e30, 1e30, 1, 1, 1, 1)) + _VOXELS,
    "spacing of 0": header(pixdim=(1, 0, 0, 0, 1, 1, 1, 1)) + _VOXELS,
    "spacing that is not a number": header(pixdim=(1, *[float("nan")] * 3, 1, 1, 1, 1)) + _VOXELS,
    "infinite slope": header(slope=(float("inf"), 0)) + _VOXELS,
    "unknown type": header(datatype=31999) + _VOXELS,
    "no voxels": header(),
    "a bomb behind the voxels": header() + _VOXELS + bytes(300_000_000),
}


@pytest.mark.parametrize("kind", _SCANS)
def test_scans_made_to_harm_are_refused_and_the_others_predicted(
    voxelocity, undisturbed, tiny_msd, files_of, trials, tmp_path, kind
):
    scans = tmp_path / "scans"
    scans.mkdir()
    (scans / "bad.nii.gz").write_bytes(gzip.compress(_SCANS[kind], 1))
    (scans / "case_0.nii.gz").write_bytes((tiny_msd / "imagesTr" / "case_0.nii.gz").read_bytes())
    with trials.one(kind):
        ended = voxelocity("predict", undisturbed.run, scans, "-o", tmp_path / "out", "--device", "cpu")
        assert files_of(tmp_path / "out")["case_0.nii.gz"] == undisturbed.predictions["case_0.nii.gz"]
        # A slope that is not finite means none, as nibabel reads it.
        assert ended.status == (kind != "infinite slope"), ended.out
        assert "bad" in ended.err + ended.out


@pytest.mark.parametrize("which", ["scan", "model.json", "dataset.json", "run.yaml"])
def test_pipes_are_refused_and_not_waited_for(command, undisturbed, own_msd, copy_of, trials, tmp_path, which):
    run = copy_of(undisturbed.run)
    place = {
        "scan": own_msd / "imagesTr" / "case_0.nii.gz", "model.json": run / "model.json",
        "dataset.json": own_msd / "dataset.json", "run.yaml": run / "run.yaml",
    }[which]  # fmt: skip
    place.unlink()
    os.mkfifo(place)
    predict = ("predict", run, own_msd / "imagesTr", "-o", tmp_path / "out", "--device", "cpu")
    commands = {
        "scan": [predict, ("plan", own_msd, "--device", "cpu")], "model.json": [predict],
        "dataset.json": [("plan", own_msd, "--device", "cpu")], "run.yaml": [("report", run)],
    }[which]  # fmt: skip
    for arguments in commands:
        with trials.one(f"{which}, {arguments[0]}"):
            assert command(*arguments).status in (1, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("widths", [10**6, 10**6]), ("widths", [0, -1]), ("strides", [[10**9] * 3]), ("window", [100_000] * 3),
        ("window", [1, 1, 1]), ("batch_size", 10**9), ("channels", ["x"] * 10**5), ("labels", {"0": "a", "70000": "b"}),
    ],
)  # fmt: skip
def test_models_made_to_take_all_memory_are_refused(
    voxelocity, undisturbed, copy_of, tiny_msd, trials, tmp_path, key, value
):
    run = copy_of(undisturbed.run)
    spec = json.loads((run / "model.json").read_text())
    if key == "window":
        spec["window"]["shape_voxel"] = value
    elif key == "batch_size":
        spec["window"]["batch_size"] = value
    elif key in ("widths", "strides"):
        spec["network"][key] = value
    else:
        spec[key] = value
    (run / "model.json").write_text(json.dumps(spec))
    with trials.one(f"{key} = {str(value)[:40]}"):
        image = tiny_msd / "imagesTr" / "case_0.nii.gz"
        ended = voxelocity("predict", run, image, "-o", tmp_path / "out", "--device", "cpu")
        assert ended.status == 2, ended.err
        assert "model.json" in ended.err


def test_links_in_the_place_of_files_are_not_written_through(command, tiny_msd, often, trials, tmp_path):
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.write_text("untouched")
    run.mkdir()
    for name in (".run.yaml.1", ".events.jsonl", ".model.safetensors.1"):
        (run / name).symlink_to(victim)
    with trials.one("hidden names"):
        assert command("train", tiny_msd, "-o", run, "--device", "cpu", *often).status == 0
        assert victim.read_text() == "untouched"
