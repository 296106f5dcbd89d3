"""Crafted files, folders and models of other tools, by the makers of the tests of their readers."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from data.decode.dicom.test_lossless_jpeg import compress
from data.decode.dicom.test_series import deflate, without_mark
from data.decode.dicom.test_volumes import write as write_volumes
from data.decode.dicom.test_volumes import write_mosaics
from infer.models.test_nnunet_kinds import cascade, parts
from recipes.tractography.test_foreign import STEPS, tiny_track, vtk

from shared.crafted import Kind, Trial, as_json, mutated_bytes
from shared.damage import odd_elements, rotten
from shared.dicom_series import write_enhanced, write_series
from shared.layouts import LAYOUTS, found_in
from shared.lists import LISTS, found_in_list

_VOXELS = np.random.default_rng(0).integers(-900, 900, (4, 6, 7)).astype(np.int16)


def _scans(name: str, write: Callable[[Path], None], *, pack: Callable[[bytes], bytes] = bytes) -> Callable[..., Trial]:
    """Rotten bytes of a scan or of its header, packed after they are made rotten."""

    def make(folder: Path) -> Trial:
        from voxelocity.data.decode import read_scan

        path = folder / name
        write(path)
        whole = path.read_bytes()

        def trial(numbers: random.Random) -> None:
            path.write_bytes(pack(rotten(numbers, whole)))
            voxels, grid = read_scan(path)
            assert voxels.shape[1:] == grid.shape

        return trial

    return make


def _nibabel(kind: Any) -> Callable[[Path], None]:
    return lambda path: kind(_VOXELS, np.diag([-1.5, 2.0, 2.5, 1.0])).to_filename(path)


def _minc(path: Path) -> None:
    """A file of nibabel's tests, as it writes no MINC; without them a header alone."""
    source = Path(nib.__file__).parent / "tests" / "data" / "tiny.mnc"
    path.write_bytes(source.read_bytes() if source.exists() else b"CDF\x01" + bytes(200))


def _dicom(write: Callable[[Path], Any]) -> Callable[[Path], Trial]:
    """A series one of whose files has rotten bytes, or odd elements."""

    def make(folder: Path) -> Trial:
        import pydicom

        from voxelocity.data.decode import read_scan

        series = folder / "series"
        write(series)
        contents = {file: file.read_bytes() for file in sorted(series.iterdir())}

        def trial(numbers: random.Random) -> None:
            for file, content in contents.items():
                file.write_bytes(content)
            file = numbers.choice(list(contents))
            if numbers.random() < 0.4:
                file.write_bytes(rotten(numbers, contents[file], start=numbers.choice((0, 132))))
            else:
                dataset = pydicom.dcmread(file, force=True)
                odd_elements(numbers, dataset)
                # Values that pydicom does not write are not files.
                with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, KeyError):
                    dataset.save_as(file)
            voxels, grid = read_scan(series)
            assert voxels.shape[1:] == grid.shape

        return trial

    return make


def _stripped(series: Path) -> None:
    for file in write_series(series, _VOXELS):
        without_mark(file)


def _deflated(series: Path) -> None:
    for file in write_series(series, _VOXELS):
        deflate(file)


_DICOM: dict[str, Callable[[Path], Any]] = {
    "plain DICOM": lambda series: write_series(series, _VOXELS),
    "enhanced DICOM": lambda series: write_enhanced(series / "a.dcm", _VOXELS),
    "DICOM of several volumes": lambda series: write_volumes(series, lambda volume, plane: {"EchoTime": volume + 1}),
    "mosaics": write_mosaics,
    "lossless JPEG in DICOM": lambda series: write_series(
        series, _VOXELS, edit=lambda index, dataset: compress(dataset, _VOXELS[[index]])
    ),
    "DICOM without its mark": _stripped,
    "deflated DICOM": _deflated,
}


def _streamlines(name: str, write: Callable[[Path], Any], *, is_packed: bool) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        from voxelocity_lab.recipes.tractography.files import read_tracts

        path = folder / name
        write(path)
        whole = gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()

        def trial(numbers: random.Random) -> None:
            content = rotten(numbers, whole)
            path.write_bytes(gzip.compress(content, 1) if is_packed else content)
            tracts = read_tracts([path])
            assert tracts.offsets[-1] == len(tracts.points)

        return trial

    return make


def _trk_gz(path: Path) -> None:
    lines = [np.asarray(line, np.float32) for line in STEPS]
    nib.streamlines.save(nib.streamlines.Tractogram(lines, affine_to_rasmm=np.eye(4)), path.with_suffix(""))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    path.with_suffix("").unlink()


def _tables_of_labels(folder: Path) -> Trial:
    """Rotten tables of names, with lines that are long or of one kind of character."""
    from voxelocity.data.decode.label_tables import slicer_table, snap_table
    from voxelocity.data.pipeline.class_names import find_class_names

    labels = {0: "background", 1: "liver", 7: 'left "lung"', 300: "rib 5"}
    segments = "".join(
        f"Segment{value}_Name:={name}\nSegment{value}_LabelValue:={value}\n" for value, name in labels.items()
    )
    tables = {
        "a.label": snap_table(labels), "a.ctbl": slicer_table(labels), "a.txt": slicer_table(labels),
        "a.seg.nrrd": b"NRRD0004\n" + segments.encode() + b"\n",
    }  # fmt: skip
    odd = (
        "1 a" + " " * 99_999,
        "9" * 9_999 + " a 1 2 3 4",
        '1 0 0 0 1 1 1 "' + '"' * 99_999,
        "1" + " 1" * 50_000,
        "\ufffd",
    )

    def trial(numbers: random.Random) -> None:
        for name, content in tables.items():
            content = rotten(numbers, content)
            if numbers.random() < 0.5:
                content += numbers.choice(odd).encode() + b"\n"
            (folder / name).write_bytes(content)
        find_class_names(folder, sorted(tables), [folder / "a.seg.nrrd"], [1, 7, 300])

    return trial


_ODD_NAMES = (
    "a,b.nii.gz", 'a"b.nii.gz', "a\nb.nii.gz", "a b.nii.gz", "é\u0301.nii.gz", ".nii.gz", "-o.nii.gz", "label.nii.gz",
    "x" * 200 + ".nii.gz", "{case}.nii.gz", "0.nii.gz", "A.NII.GZ", "a.nii", "notes.txt", "dataset.json", "a.dcm",
    "\x1b[31m.nii.gz", "imagesTr", "labelsTr", "sub-01_ses-1_T1w.nii.gz", "mask.nii.gz", "a\udcff.nii.gz",
)  # fmt: skip


def _change_folder(numbers: random.Random, folder: Path) -> None:
    """Removes, renames, copies, empties or links one to three of its files and folders."""
    for _ in range(numbers.randint(1, 3)):
        places = sorted(folder.rglob("*"))
        if not places:
            return
        place = numbers.choice(places)
        other = numbers.choice(places).parent / numbers.choice((*_ODD_NAMES, place.name))
        if place in other.parents or other.exists() or other.is_symlink():
            continue
        match numbers.randrange(7):
            case 0 if place.is_dir():
                shutil.rmtree(place)
            case 0:
                place.unlink()
            case 1:
                place.rename(other)
            case 2 if place.is_file():
                shutil.copyfile(place, other)
            case 3 if place.is_file():
                place.write_bytes(numbers.choice((b"", b"x" * 400, place.read_bytes()[:100])))
            case 4:
                other.symlink_to(numbers.choice((place, folder, folder / "gone", other)))
            case 5:
                other.mkdir()
            case _ if place.is_file():
                place.write_bytes(rotten(numbers, place.read_bytes()))


def _layouts(folder: Path) -> Trial:
    """Folders of public data sets, changed."""
    from voxelocity.data.pipeline.masks import FolderHints

    whole = {name: layout.make(folder / "whole" / str(number)) for number, (name, layout) in enumerate(LAYOUTS.items())}

    def trial(numbers: random.Random) -> None:
        name = numbers.choice(list(whole))
        for made in ("data", "lists"):
            shutil.rmtree(folder / made, ignore_errors=True)
        shutil.copytree(whole[name], folder / "data")
        _change_folder(numbers, folder / "data")
        hints = LAYOUTS[name].hints
        if numbers.random() < 0.2:
            hints = FolderHints(raters=numbers.choice(("majority", "mask", "1", "x" * 99, "(")))
        found_in(folder / "data", folder / "lists", hints)

    return trial


_PIECES = (
    "{case}", "{channel}", "{class}", "{case", "case}", "{}", "{x}", "*", "**", "**/", "/", "?", "[", "(", "\\", "..",
    "_", "imagesTr", "labelsTr", ".nii.gz", "p", "1", "\n", "é", "{case:d}", "{0}", "$", "^", "|",
)  # fmt: skip


def _patterns(folder: Path) -> Trial:
    """Patterns of `init`, made of pieces."""
    from voxelocity.data.pipeline.masks import FolderHints

    data = LAYOUTS["KiTS21"].make(folder / "data")

    def pattern(numbers: random.Random, usual: str) -> str:
        pieces = [piece for piece in re.split(r"(\{\w+\}|/)", usual) if piece]
        for _ in range(numbers.choice((0, 0, 1, 1, 2, 5))):
            at = numbers.randint(0, len(pieces))
            pieces[at : at + numbers.randint(0, 1)] = [numbers.choice(_PIECES)]
        return "".join(pieces)

    def trial(numbers: random.Random) -> None:
        shutil.rmtree(folder / "lists", ignore_errors=True)
        image = pattern(numbers, "{case}/imaging.nii.gz")
        label = pattern(numbers, "{case}/segmentations/{class}_annotation-1.nii.gz")
        found_in(data, folder / "lists", FolderHints(image=image, label=label))

    return trial


def _lists(folder: Path) -> Trial:
    """Lists of other tools, or files next to them, changed."""
    made = {name: listed.make(folder / str(number)) for number, (name, listed) in enumerate(LISTS.items())}

    def trial(numbers: random.Random) -> None:
        name = numbers.choice(list(LISTS))
        contents = {**LISTS[name].beside, LISTS[name].name: LISTS[name].content}
        changed = numbers.choice(list(contents))
        for file, content in contents.items():
            text = as_json(numbers, content) if file == changed else json.dumps(content).encode()
            (made[name] / file).write_bytes(text)
        found_in_list(made[name])

    return trial


_TOKENS = (
    "1", "0", "2.5", "'a'", "@a", "@b#0", "@gone", "[", "]", "(", ")", "{", "}", ",", "+", "-", "*", "**", "/", "//",
    "%", " if ", " else ", " and ", " or ", "not ", " in ", "==", "<", "~", ":", "lambda x: ", "len(", "int(", "max(",
    "sum(", "torch.where(x[[0]] > 0, 1, 0)", "torch.load('m.pt')", "torch.device(", "__import__('os')", "np.float32",
    ".system('touch ran')", "monai.utils.CommonKeys.IMAGE", "x", "[0]", "['a']", "9" * 99, " for x in ", ":=",
    "f'{1}'", "None",
)  # fmt: skip


def _expressions(folder: Path) -> Trial:
    """Expressions of bundles, made of pieces; computed as data or refused, and never run."""
    from voxelocity.infer.models.bundle_expressions import ExpressionError, Sources, evaluate, priorities
    from voxelocity_observe.core.errors import InputError

    values: dict[str, Any] = {"@a": 3, "@b#0": [1, "@a"]}

    def load(name: str) -> Any:
        raise InputError(f"{name} is not there")

    sources = Sources(follow=lambda value: values.get(value, value) if isinstance(value, str) else value, load=load)

    def trial(numbers: random.Random) -> None:
        text = "".join(numbers.choices(_TOKENS, k=numbers.choice((1, 2, 3, 5, 9))))
        if numbers.random() < 0.2:
            text = numbers.choice(("-", "(", "[", "not ", "1+", "x.", "lambda:", "~")) * numbers.randint(9, 900) + text
        try:
            if numbers.random() < 0.3:
                priorities(f"lambda x: {text}")
            else:
                evaluate(text, sources)
        except ExpressionError as error:
            raise InputError(str(error)) from None

    return trial


def _models(write: Callable[[Path], Sequence[Path]]) -> Callable[[Path], Trial]:
    """Several folders of nnU-Net that are one model, one of which is changed."""

    def make(folder: Path) -> Trial:
        from voxelocity.infer import open_model

        opened, *described = write(folder / "whole")
        texts = {path: path.read_bytes() for path in described}

        def trial(numbers: random.Random) -> None:
            for path, text in texts.items():
                path.write_bytes(text)
            path = numbers.choice(described)
            content = texts[path]
            path.write_bytes(
                as_json(numbers, json.loads(content)) if path.suffix == ".json" else mutated_bytes(numbers, content)
            )
            open_model(opened)

        return trial

    return make


def _cascade(folder: Path) -> list[Path]:
    _, second = cascade(folder)
    return [second, *sorted(folder.rglob("*.json"))]


def _in_parts(folder: Path) -> list[Path]:
    return [parts(folder), *sorted(folder.rglob("*.json")), *sorted(folder.rglob("*.pth"))]


FOREIGN = (
    Kind("headers of NIfTI pairs", 100, _scans("a.hdr", _nibabel(nib.Nifti1Pair))),
    Kind("headers of Analyze", 100, _scans("a.hdr", _nibabel(nib.AnalyzeImage))),
    Kind("NIfTI-2", 100, _scans("a.nii", _nibabel(nib.Nifti2Image))),
    Kind(
        "NIfTI in bzip2",
        100,
        _scans(
            "a.nii.bz2",
            lambda path: path.write_bytes(nib.Nifti1Image(_VOXELS, np.eye(4)).to_bytes()),
            pack=bz2.compress,
        ),
    ),
    Kind("MGH", 100, _scans("a.mgh", _nibabel(nib.MGHImage))),
    Kind("MINC", 100, _scans("a.mnc", _minc)),
    *(Kind(name, 100, _dicom(write)) for name, write in _DICOM.items()),
    Kind("streamlines in .vtk", 100, _streamlines("a.vtk", vtk, is_packed=False)),
    Kind("streamlines in .tt.gz", 100, _streamlines("a.tt.gz", lambda path: tiny_track(path, STEPS), is_packed=True)),
    Kind("streamlines in .trk.gz", 100, _streamlines("a.trk.gz", _trk_gz, is_packed=True)),
    Kind("tables of labels", 100, _tables_of_labels),
    Kind("folders of public data sets", 300, _layouts),
    Kind("patterns of names", 150, _patterns),
    Kind("lists of other tools", 200, _lists),
    Kind("expressions of bundles", 400, _expressions),
    Kind("cascades of nnU-Net", 80, _models(_cascade)),
    Kind("models of nnU-Net in parts", 80, _models(_in_parts)),
)
