"""`predictions.csv`: a row for each prediction, written as soon as its file is complete."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from voxelocity.core.records import PREDICTIONS_TABLE
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.plain import table_cell, text_of_cell
from voxelocity_observe.core.whole_file import put_in_place

_CASE = "case"


class PredictionTable:
    """The table in a folder. Rows of earlier commands stay until their case has a new one, as predictions do.

    Raises:
        OutputError: the table cannot be read or written, or is not one of ours.
    """

    def __init__(self, folder: Path, *, columns: Collection[str]) -> None:
        self._path = folder / PREDICTIONS_TABLE
        self._num_rows = 0
        rows, kept_columns = self._read()
        self._columns = list(dict.fromkeys([_CASE, *columns, *kept_columns]))
        self._replace(rows)

    def add(self, case_id: str, row: Mapping[str, object]) -> None:
        """Appends the row of a case.

        Raises:
            OutputError: the table cannot be written.
        """
        columns = self._read_columns()
        if missing := [name for name in self._columns if name not in columns]:
            rows, columns = self._read()
            self._columns = [*columns, *missing]
            self._replace(rows)
        # In the order of the file: another command, of another model, may have replaced the table meanwhile.
        self._columns = columns + missing
        self._write(_append, self._text([{_CASE: case_id, **row}]))

    def finish(self) -> None:
        """Leaves one row of each case, whatever other commands have appended meanwhile.

        Raises:
            OutputError: the table cannot be read or written.
        """
        rows, self._columns = self._read()
        if self._num_rows > len(rows):
            self._replace(rows)

    def _read_columns(self) -> list[str]:
        """The columns that the file has now; none if there is none."""
        try:
            with self._path.open(encoding="utf-8", newline="") as file:
                return [text_of_cell(name) for name in next(csv.reader(file), ())]
        except (OSError, UnicodeDecodeError, csv.Error):
            return []

    def _read(self) -> tuple[list[dict[str, str]], list[str]]:
        if not self._path.exists():
            return [], []
        try:
            with self._path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                reader.fieldnames = [text_of_cell(name) for name in reader.fieldnames or ()]
                # A killed process may have left the last row incomplete.
                found = [
                    {key: text_of_cell(cell) for key, cell in row.items()}
                    for row in reader
                    if None not in row and None not in row.values()
                ]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise OutputError(f"predict: {self._path} cannot be read ({error}); move it away") from None
        columns = list(reader.fieldnames or ())
        if _CASE not in columns:
            raise OutputError(
                f"predict: {self._path} has no column '{_CASE}', so it is another table; move it away, or choose "
                "another folder with -o"
            )
        # Of a case that two commands predicted at once, the row that was written last.
        rows = list({row[_CASE]: row for row in found}.values())
        self._num_rows = len(found)
        return rows, columns

    def _replace(self, rows: Sequence[Mapping[str, object]]) -> None:
        self._write(put_in_place, self._text([dict(zip(self._columns, self._columns, strict=True)), *rows]))

    def _text(self, rows: Sequence[Mapping[str, object]]) -> bytes:
        text = io.StringIO()
        safe = ({key: table_cell(value) for key, value in row.items()} for row in rows)
        csv.DictWriter(text, self._columns, restval="", lineterminator="\n").writerows(safe)
        return _stored(text.getvalue())

    def _write(self, how: Callable[[Path, bytes], None], content: bytes) -> None:
        try:
            how(self._path, content)
        except OSError as error:
            raise OutputError(
                f"predict: cannot write {self._path} ({error.strerror}); make space or choose another folder with -o"
            ) from None


def _stored(text: str) -> bytes:
    # The name of a file may have bytes that are not UTF-8; a table must not.
    return text.encode("utf-8", "backslashreplace")


def _append(path: Path, content: bytes) -> None:
    # In one call, so that two processes that predict into one folder do not mix their rows. Where the disk has no space
    # for all of it, the call writes a part, and only the next one fails.
    with path.open("ab", buffering=0) as file:
        while content:
            content = content[file.write(content) :]
