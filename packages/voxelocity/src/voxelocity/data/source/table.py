"""A table of cases: its columns are `image` (or `image_0`, `image_1`, ...) and `OPTIONAL_COLUMNS`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.description import Description, read_text, source_error, whole_number
from voxelocity.data.source.listing import case_id_of, check_refs
from voxelocity.data.source.splits import assign_folds
from voxelocity_observe.core.errors import nearest_name
from voxelocity_observe.core.plain import excerpt, shortened, text_of_cell

DELIMITERS = (",", ";", "\t")
OPTIONAL_COLUMNS = ("label", "case", "patient", "fold", "image_volume")


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The cells of one row by column, and its line in the file."""

    line: int
    cells: Mapping[str, str]


def read_table(path: Path, *, root: Path, num_folds: int, description: Description | None = None) -> Cases:
    """The cases of a table; an empty `label` makes a case to predict, an empty `fold` one that is never held out.

    The delimiter is the one of comma, semicolon and tab that gives the header an image column; case and order of the
    columns do not matter, and other columns are ignored. Relative paths start at the table's folder; they and
    absolute ones may lead anywhere, because a table is written by hand for files that already have a place.
    Without a `case` column a case is named after its first image file; without a `patient` column the names decide
    which cases belong to one patient. Of images that hold several volumes, `image_volume` takes one, counted from 1.

    Args:
        path: of the table.
        root: what the user opened.
        num_folds: folds to make where none are declared.
        description: names of channels and classes, from a `dataset.json` that lists no cases; without it channels are
            named after their columns, and `labels` is empty.

    Raises:
        DatasetError: the table is malformed, contradicts itself or the description, or lists files that do not exist.
    """
    rows, columns = _read_rows(path)
    image_columns = _image_columns(path, columns)
    _check_spelling(path, columns)
    if not rows:
        raise source_error(path, "the table has a header and no rows; add one row per case")
    refs = check_refs([_ref(path, row, image_columns) for row in rows], listing=path)
    refs, num_folds = assign_folds(refs, num_folds=num_folds)
    labeled = description if description is not None and "labels" in description.values else None
    return Cases(
        name=path.stem if description is None or "name" not in description.values else description.name,
        root=root,
        layout="csv",
        channels=_channels(description, path, image_columns),
        labels={} if labeled is None else labeled.labels,
        refs=refs,
        num_folds=num_folds,
        regions={} if labeled is None else labeled.regions,
        region_values=() if labeled is None else labeled.region_values,
        ignore_value=None if labeled is None else labeled.ignore_value,
    )


def _channels(description: Description | None, path: Path, image_columns: tuple[str, ...]) -> tuple[str, ...]:
    if description is None or not {"channel_names", "modality"} & description.values.keys():
        return image_columns
    channels = description.channels
    # One column may hold files of several channels; this is checked when the first is opened.
    if len(image_columns) > 1 and len(channels) != len(image_columns):
        raise description.error(
            f"it names {len(channels)} channel(s), but {path.name} has {len(image_columns)} image columns; "
            "name one channel for each column"
        )
    return channels


def _read_rows(path: Path) -> tuple[list[_Row], list[str]]:
    text = read_text(path, how="the table as CSV in UTF-8")
    if not text.strip():
        raise source_error(path, "the table is empty; write a header with the column 'image' and one row per case")
    delimiter = _delimiter(path, text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    rows = []
    try:
        for line in reader:
            cells = [text_of_cell(cell.strip()) for cell in line]
            if not any(cells):
                continue
            if not columns:
                # nnU-Net counts channels with four digits.
                columns = [re.sub(r"\Aimage_0+(?=\d)", "image_", cell.lower()) for cell in cells]
                continue
            if len(cells) != len(columns):
                raise source_error(
                    path,
                    f"line {reader.line_num} has {len(cells)} cells, the header has {len(columns)}; "
                    "add or remove cells, or put quotation marks around a cell that holds a delimiter",
                )
            rows.append(_Row(line=reader.line_num, cells=dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise source_error(
            path, f"line {reader.line_num} is not readable ({excerpt(error)}); check the quotation marks from there on"
        ) from None
    return rows, columns


def _delimiter(path: Path, text: str) -> str:
    """The delimiter that gives the header an image column, else the one that gives the most columns."""
    widths: dict[str, int] = {}
    for delimiter in DELIMITERS:
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            header = next((line for line in lines if any(cell.strip() for cell in line)), [])
        except csv.Error:
            # With a wrong delimiter, a quotation mark ends in the middle of a cell.
            continue
        if any(_is_image(name.strip().lower()) for name in header):
            return delimiter
        widths[delimiter] = len(header)
    if not widths:
        raise source_error(path, "the header is not readable; check its quotation marks and delimiters")
    return max(widths, key=lambda delimiter: widths[delimiter])


def _is_image(column: str) -> bool:
    return column == "image" or (column.startswith("image_") and column.removeprefix("image_").isdecimal())


def _image_columns(path: Path, columns: Sequence[str]) -> tuple[str, ...]:
    found = [column for column in columns if _is_image(column)]
    if not found:
        raise source_error(
            path,
            f"no column 'image' among the columns {excerpt(', '.join(map(repr, columns)))}; "
            "name the column of image paths 'image', or 'image_0', 'image_1', ... with one per channel",
        )
    twice = next((name for name in (*found, *OPTIONAL_COLUMNS) if columns.count(name) > 1), None)
    if twice is not None:
        raise source_error(path, f"the column '{twice}' appears twice in the header; remove or rename one")
    if found == ["image"]:
        return ("image",)
    expected = tuple(f"image_{channel}" for channel in range(len(found)))
    if set(found) != set(expected):
        raise source_error(
            path,
            f"the image columns are {excerpt(', '.join(map(repr, found)))}; "
            "name them 'image_0', 'image_1', ... without gaps, or 'image' alone",
        )
    return expected


def _check_spelling(path: Path, columns: Sequence[str]) -> None:
    """Refuses a misspelled optional column, because ignoring it would silently drop labels or folds."""
    others = [column for column in columns if column not in OPTIONAL_COLUMNS and not _is_image(column)]
    for wanted in OPTIONAL_COLUMNS:
        near = nearest_name(wanted, others) if wanted not in columns else None
        if near:
            raise source_error(
                path, f"the column {shortened(near)} is not known; did you mean '{wanted}'? If not, rename it"
            )


def _ref(path: Path, row: _Row, image_columns: tuple[str, ...]) -> VolumeRef:
    for column in image_columns:
        if not row.cells[column]:
            raise source_error(
                path, f"line {row.line} has an empty '{column}'; write the path of the image or remove the row"
            )
    images = tuple(path.parent / row.cells[column] for column in image_columns)
    label = path.parent / row.cells["label"] if row.cells.get("label") else None
    case_id = row.cells["case"] if "case" in row.cells else case_id_of(images, label)
    if not case_id:
        raise source_error(path, f"line {row.line} has an empty 'case'; name the case, or leave the whole column out")
    # Without a name in it, the row is a separate patient.
    patient = (row.cells["patient"] or case_id) if "patient" in row.cells else None
    return VolumeRef(
        case_id=case_id,
        images=images,
        label=label,
        fold=_number(path, row, "fold", least=0),
        patient=patient,
        volume=_number(path, row, "image_volume", least=1),
    )


def _number(path: Path, row: _Row, column: str, *, least: int) -> int | None:
    text = row.cells.get(column, "")
    if not text:
        return None
    number = whole_number(text)
    if number is None or number < least:
        raise source_error(
            path,
            f"line {row.line} has the {column} {shortened(text)}; write a whole number from {least}, or leave it empty",
        )
    return number
