"""Which parts of which slides there are, with what is known of them and the fold in which they are held out."""

from __future__ import annotations

import csv
import difflib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.splits import assign_folds
from voxelocity_lab.recipes.division import Part, content_of, visible_in
from voxelocity_lab.recipes.pathology.annotations import Annotation
from voxelocity_lab.recipes.pathology.slides import SLIDES, Blocks, Box, Slide, checked_micrometers
from voxelocity_observe.core.errors import DatasetError, InputError

TABLE = "slides.csv"
_NUM_FOLDS = 4
# Of the letters of two names, so that one is taken for a misspelled other: patient_id, Folds.
_LIKE = 0.75
# For pixels of masks, of all slides together.
_MASK_CACHE_BYTES = 2**28


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A rectangle of a slide.

    Attributes:
        name: unique.
        slide: the file.
        annotation: what is tumor; None if that is not known.
        box: in pixels of the finest level; None for the whole slide.
        fold: in which it is held out.
        patient: whose it is, as far as names tell.
        micrometers: width of a pixel of the finest level, if a table says so; else None.
    """

    name: str
    slide: Path
    annotation: Path | None
    box: Box | None
    fold: int
    patient: str = ""
    micrometers: float | None = None


class OpenPieces:
    """The slides of some pieces, each opened once.

    Raises:
        InputError: a slide or an annotation cannot be used, or a piece lies outside of its slide.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)
        self._slides: dict[Path, Slide] = {}
        self._annotations: dict[tuple[Path, Path], Annotation] = {}
        blocks = Blocks(_MASK_CACHE_BYTES)
        for piece in pieces:
            if piece.slide not in self._slides:
                self._slides[piece.slide] = Slide(piece.slide)
            slide = self._slides[piece.slide]
            slide.micrometers = piece.micrometers or slide.micrometers
            _check_inside(piece, slide)
            if piece.annotation is not None and (piece.slide, piece.annotation) not in self._annotations:
                annotation = Annotation(piece.annotation, slide, blocks)
                self._annotations[piece.slide, piece.annotation] = annotation

    def slide(self, piece: Piece) -> Slide:
        """The piece's slide."""
        return self._slides[piece.slide]

    def annotation(self, piece: Piece) -> Annotation | None:
        """What is tumor there."""
        return None if piece.annotation is None else self._annotations[piece.slide, piece.annotation]

    def micrometers(self, level: int) -> tuple[float, ...]:
        """The least and the largest width of a pixel of this level; empty where no slide says one."""
        slides = self._slides.values()
        known = [slide.micrometers * slide.downsample_of(level) for slide in slides if slide.micrometers]
        return (min(known), max(known)) if known else ()

    def box(self, piece: Piece) -> Box:
        """Where the piece is, within its slide."""
        height, width = self.slide(piece).shapes[0]
        return Box(y=0, x=0, height=height, width=width) if piece.box is None else piece.box.clip(height, width)


def _check_inside(piece: Piece, slide: Slide) -> None:
    box, (height, width) = piece.box, slide.shapes[0]
    if box is None:
        return
    inside = box.clip(height, width)
    if not (inside.height and inside.width):
        raise InputError(
            f"pathology: the piece {piece.name} (x {box.x}, y {box.y}, {box.width} x {box.height} pixels) has no pixel "
            f"of {slide.path}, which has {width} x {height}; give x, y, width and height in pixels of the finest level"
        )


def find_pieces(data: Path) -> tuple[Piece, ...]:
    """The pieces of a folder of slides, or the slide itself.

    A folder has one of:
        `slides.csv`: columns slide and annotation, and if wanted name, fold, patient, micrometers (of a pixel), x, y,
            width, height. Without folds, slides are dealt to them as scans are (`data.source`): all of one patient to
            one fold.
        `index.csv` with id and fold, `images` and `masks`: photographs, as the CAMELYON tiles.
        `slide.tiff`, `tumour_mask.tiff` and `tiles.csv` with row, col, x, y: tiles of one slide; each is a fold, in
            the order of rows and columns.
        slides without annotations.

    Raises:
        DatasetError: there are none, or a table lacks a column or has a value that cannot be used.
    """
    if data.is_file():
        return (Piece(name=data.stem, slide=data, annotation=None, box=None, fold=0),)
    if not data.is_dir():
        raise DatasetError(f"pathology: {data} does not exist; name a folder of slides, or a slide")
    for table, make in ((TABLE, _of_table), ("index.csv", _of_index), ("tiles.csv", _of_tiles)):
        if (data / table).is_file():
            pieces = tuple(make(data, data / table))
            break
    else:
        files = [path for path in visible_in(data) if path.suffix.lower() in SLIDES]
        pieces = tuple(Piece(name=path.stem, slide=path, annotation=None, box=None, fold=0) for path in files)
    if not pieces:
        raise DatasetError(
            f"pathology: {data} holds no slides ({', '.join(sorted(SLIDES))}), nor a table {TABLE} that names some"
        )
    names = [piece.name for piece in pieces]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise DatasetError(f"pathology: {data} has two pieces called '{doubled[0]}'; names must differ")
    return pieces


def identify(pieces: Sequence[Piece]) -> dict[str, Part]:
    """The pieces by name, as a training keeps them: by the content of their slides.

    Raises:
        ScanError: a slide cannot be read.
    """
    contents = {slide: content_of(slide) for slide in {piece.slide for piece in pieces}}
    return {
        piece.name: Part(
            name=piece.name,
            content=contents[piece.slide],
            patient=piece.patient or piece.slide.stem,
            box=() if piece.box is None else (piece.box.y, piece.box.x, piece.box.height, piece.box.width),
        )
        for piece in pieces
    }


def check_annotated(data: Path, pieces: Sequence[Piece]) -> None:
    """Returns if there is something to learn from.

    Raises:
        InputError: no piece has an annotation, or the first slide cannot be opened.
    """
    if any(piece.annotation is not None for piece in pieces):
        return
    # A slide that cannot be opened needs no annotation.
    slide = Slide(pieces[0].slide).path
    folder = slide.parent if data.is_file() else data
    raise DatasetError(
        f"pathology: none of the {len(pieces)} pieces of {data} has an annotation, needed for training; name masks "
        f"or outlines (ASAP's XML, or JSON) in {folder / TABLE}, one line each:\n    slide,annotation\n"
        f"    {slide.relative_to(folder)},ANNOTATION OF THIS SLIDE\nand give the folder {folder}; see "
        "docs/recipes/pathology.md"
    )


def _rows(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, Mapping[str, str]]]:
    # Spreadsheets write a byte-order mark, and in some countries semicolons; a line may end before its last columns.
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DatasetError(f"pathology: {path} is not text in UTF-8; save the table as CSV in UTF-8") from None
    separator = max(",;\t", key=text.partition("\n")[0].count)
    table = csv.DictReader(io.StringIO(text, newline=""), restval="", delimiter=separator)
    heads = table.fieldnames or ()
    missing = sorted({*needed, *optional} - set(heads))
    for head in set(heads) - {*needed, *optional}:
        if optional and (meant := difflib.get_close_matches(head.strip().lower(), missing, n=1, cutoff=_LIKE)):
            raise DatasetError(
                f"pathology: {path} has a column '{head}', which is unknown; call it '{meant[0]}' if that is meant, "
                "or choose a less similar name"
            )
    if lacking := [name for name in missing if name in needed]:
        raise DatasetError(f"pathology: {path} has no column '{lacking[0]}'; it must have {', '.join(needed)}")
    for line, row in enumerate(table, start=2):
        if None in row:
            raise DatasetError(
                f"pathology: line {line} of {path} has more cells than the table has columns; put a name with a "
                f"'{separator}' in quotes"
            )
        yield line, row


def _whole(row: Mapping[str, str], column: str, path: Path, line: int) -> int:
    try:
        return int(row[column])
    except ValueError:
        raise DatasetError(
            f"pathology: line {line} of {path}: {column} is '{row[column]}'; it must be a whole number"
        ) from None


def _fold(row: Mapping[str, str], path: Path, line: int) -> int | None:
    """That a line gives; None where it gives none."""
    if not row.get("fold"):
        return None
    fold = _whole(row, "fold", path, line)
    if fold < 0:
        raise DatasetError(f"pathology: line {line} of {path}: fold is {fold}; folds are numbered from 0")
    return fold


def _micrometers(row: Mapping[str, str], path: Path, line: int) -> float | None:
    text = row.get("micrometers")
    if not text:
        return None
    try:
        return checked_micrometers(float(text))
    except ValueError:
        raise DatasetError(
            f"pathology: line {line} of {path}: micrometers is '{text}'; it must be the width of a pixel of the finest "
            "level, 0.25 for example"
        ) from None


def _of_table(data: Path, path: Path) -> Iterator[Piece]:
    sides = ("x", "y", "width", "height")
    rows = list(_rows(path, ("slide", "annotation"), ("name", "fold", "patient", "micrometers", *sides)))
    folds = _dealt(data, path, rows)
    for line, row in rows:
        name = os.path.normpath(row["slide"])
        slide = data / name
        given = [side for side in sides if row.get(side)]
        if given and len(given) < len(sides):
            raise DatasetError(
                f"pathology: line {line} of {path} has {', '.join(given)} only; a piece needs x, y, width and height"
            )
        x, y, width, height = (_whole(row, side, path, line) for side in sides) if given else (0, 0, 0, 0)
        dealt, patient = folds[name]
        fold = _fold(row, path, line)
        yield Piece(
            name=row.get("name") or (f"{slide.stem}_x{x}_y{y}" if given else slide.stem),
            slide=slide,
            annotation=data / row["annotation"] if row["annotation"] else None,
            box=Box(y=y, x=x, height=height, width=width) if given else None,
            fold=dealt if fold is None else fold,
            patient=patient,
            micrometers=_micrometers(row, path, line),
        )


def _dealt(data: Path, path: Path, rows: Sequence[tuple[int, Mapping[str, str]]]) -> dict[str, tuple[int, str]]:
    """The fold and the patient of each slide of a table."""
    refs: dict[str, VolumeRef] = {}
    lines: dict[str, int] = {}
    for line, row in rows:
        if not row["slide"]:
            raise DatasetError(f"pathology: line {line} of {path} names no slide; name its file, or remove the line")
        name = os.path.normpath(row["slide"])
        before = refs.get(name)
        patient = row.get("patient") or None
        if before is not None and patient and before.patient not in (None, patient):
            raise DatasetError(
                f"pathology: line {line} of {path} gives {name} the patient '{patient}', and a line above "
                f"'{before.patient}'; a slide is of one patient"
            )
        fold = _fold(row, path, line)
        label = data / row["annotation"] if row["annotation"] else None
        lines.setdefault(name, line)
        refs[name] = VolumeRef(
            case_id=os.path.splitext(name)[0],
            images=(data / name,),
            label=label if before is None or before.label is None else before.label,
            patient=patient if before is None or before.patient is None else before.patient,
            fold=fold if before is None or before.fold is None else before.fold,
        )
    _check_patients(path, rows, refs)
    names = sorted(refs)
    found, _ = assign_folds([refs[name] for name in names], num_folds=_NUM_FOLDS)
    # Where the table gives some slides a fold, the others of the patient share it.
    given = {ref.patient: ref.fold for ref in found if ref.fold is not None and ref.patient is not None}
    for name, ref in zip(names, found, strict=True):
        if ref.label is not None and ref.fold is None and ref.patient not in given:
            raise DatasetError(
                f"pathology: line {lines[name]} of {path}: {name} has an annotation and no fold, which other slides "
                "have; give it one, or remove the column"
            )
    return {
        name: (given.get(ref.patient or "", 0) if ref.fold is None else ref.fold, ref.patient or ref.case_id)
        for name, ref in zip(names, found, strict=True)
    }


def _check_patients(path: Path, rows: Sequence[tuple[int, Mapping[str, str]]], refs: Mapping[str, VolumeRef]) -> None:
    """Refuses a table that names patients and gives one of them two folds."""
    first: dict[str, tuple[int, int]] = {}
    for line, row in rows:
        patient, fold = refs[os.path.normpath(row["slide"])].patient, _fold(row, path, line)
        if patient is None or fold is None:
            continue
        before, before_line = first.setdefault(patient, (fold, line))
        if fold != before:
            raise DatasetError(
                f"pathology: {path} gives the patient '{patient}' fold {before} in line {before_line} and fold {fold} "
                f"in line {line}, so that networks would be scored on their training patients; give each patient one "
                "fold, or remove the column fold"
            )


def _of_index(data: Path, path: Path) -> Iterator[Piece]:
    for line, row in _rows(path, ("id", "fold")):
        yield Piece(
            name=row["id"],
            slide=data / "images" / f"{row['id']}.jpg",
            annotation=data / "masks" / f"{row['id']}.png",
            box=None,
            fold=_whole(row, "fold", path, line),
        )


def _of_tiles(data: Path, path: Path) -> Iterator[Piece]:
    side = 640
    rows = list(_rows(path, ("row", "col", "x", "y")))
    positions = [tuple(_whole(row, name, path, line) for name in ("row", "col")) for line, row in rows]
    for position, (line, row) in zip(positions, rows, strict=True):
        yield Piece(
            name=f"r{row['row']}c{row['col']}",
            slide=data / "slide.tiff",
            annotation=data / "tumour_mask.tiff",
            box=Box(y=_whole(row, "y", path, line), x=_whole(row, "x", path, line), height=side, width=side),
            fold=sorted(positions).index(position),
        )
