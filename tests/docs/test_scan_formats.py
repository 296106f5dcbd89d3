"""The documents list the formats of the table in `core.scan_formats`, and no others."""

import re
from pathlib import Path

from voxelocity.core.scan_formats import OUTPUTS, SCAN_FORMATS, ScanFormat
from voxelocity_observe.diagnose.doctor.software_checks import GIVES

DOCS = Path(__file__).resolve().parents[2] / "docs"


def row_of(entry: ScanFormat) -> str:
    files = ", ".join(f"`{ending}`" for ending in entry.endings) if entry.is_named else "a series, by content"
    library = f"{entry.package} (`voxelocity[{entry.extra}]`)" if entry.extra else entry.package
    cells = (entry.name, files, f"`{entry.output}`" * bool(entry.output), library, entry.checked)
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def test_the_table_of_formats_has_a_row_for_each():
    _, _, below = (DOCS / "data-sets.md").read_text().partition("| format | files | as predictions |")
    rows = below.partition("\n\n")[0].splitlines()[2:]
    assert rows == [row_of(entry) for entry in SCAN_FORMATS]


def test_the_formats_of_predictions_are_those_that_can_be_chosen():
    listed = re.findall(r"^\| `([\w.-]+)` \| `CASE(\.[\w.]+)` \|", (DOCS / "inference.md").read_text(), re.MULTILINE)
    assert dict(listed) == {name: entry.written[0] for name, entry in OUTPUTS.items()}


def test_the_doctor_names_the_formats_of_the_extra():
    words = GIVES["formats"].partition(";")[0]
    assert [entry.name for entry in SCAN_FORMATS if entry.extra == "formats" and entry.name not in words] == []
