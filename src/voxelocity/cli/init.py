"""`voxelocity init`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of scans and labels that no dataset.json or table describes.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for the table and dataset.json, if not FOLDER.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a table and a dataset.json.")] = False,
) -> None:
    """Look at the scans in FOLDER and write the table of cases that `plan` and `train` read, for you to correct."""
    from voxelocity.core.console import PlainConsole
    from voxelocity.data.pipeline import describe_folder, write_description
    from voxelocity.observe import cpu_budget
    from voxelocity.report import document_view, found_document

    console = PlainConsole()
    with console.status("reading the label files"):
        found = describe_folder(folder, num_threads=cpu_budget())
    rows = [(case.case_id, tuple(case.images.values()), case.label) for case in found.cases]
    console.print(document_view(found_document(found.channels, found.labels, rows, found.left_out, found.guesses)))
    table, description = write_description(found, folder if out is None else out, overwrite=overwrite)
    console.print(
        f"\nwrote {table} and {description}; check them, then: voxelocity plan {shlex.quote(str(table.parent))}",
        soft_wrap=True,
    )
