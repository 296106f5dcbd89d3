"""`voxelocity init`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of scans and labels that no dataset.json or table describes.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for the table and dataset.json; default: FOLDER.")
    ] = None,
    are_masks: Annotated[
        bool, typer.Option("--merge-masks", help="Each label file is the mask of one class: merge those of a case.")
    ] = False,
    raters: Annotated[
        str,
        typer.Option(
            "--raters",
            metavar="NAME",
            help="If a case has several label files: majority, or a part of the name of the one to use.",
        ),
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            "--image", metavar="PATTERN", help="Which files are images: 'img/{case}_{channel}.nii.gz', * for anything."
        ),
    ] = "",
    label: Annotated[
        str,
        typer.Option(
            "--label",
            metavar="PATTERN",
            help="Which files are labels: 'seg/{case}.nii.gz', or '{case}/{class}.nii.gz'.",
        ),
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a table and a dataset.json.")] = False,
) -> None:
    """List the scans in FOLDER in a table of cases for `plan` and `train`; check the table before you train."""
    from voxelocity.data.pipeline import FolderHints, describe_folder, write_description
    from voxelocity.report import found_document
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.host import cpu_budget
    from voxelocity_observe.document import document_view

    console = PlainConsole()
    with console.status("reading the label files"):
        hints = FolderHints(are_masks=are_masks, raters=raters, image=image, label=label)
        found = describe_folder(folder, num_threads=cpu_budget(), hints=hints)
    rows = [(case.case_id, tuple(case.images.values()), case.label) for case in found.cases]
    console.print(document_view(found_document(found.channels, found.labels, rows, found.left_out, found.guesses)))
    with console.status("writing"):
        table, description, overlaps = write_description(
            found, folder if out is None else out, overwrite=overwrite, num_threads=cpu_budget()
        )
    if twice := {case_id: num for case_id, num in overlaps.items() if num}:
        worst = max(twice, key=lambda case_id: twice[case_id])
        console.print(
            f"\nwarning: masks overlap in {len(twice)} of {len(overlaps)} cases, most in {worst} ({twice[worst]:,} "
            "voxels); the class with the larger value is taken there",
            soft_wrap=True,
        )
    console.print(
        f"\nwrote {table} and {description}; check them, then: voxelocity plan {shlex.quote(str(table.parent))}",
        soft_wrap=True,
    )
