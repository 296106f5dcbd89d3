"""Where a recipe writes what it predicts: into the run's folder, or for other data into a folder of that data there."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from voxelocity.training.run_folder import RunFolder
from voxelocity_lab.recipes.call import Call
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.links import check_links
from voxelocity_observe.core.plain import read_mapping
from voxelocity_observe.core.whole_file import put_in_place

_SOURCE = "data.json"


def find_training_data(run: Path) -> Path | None:
    """The data set that `run.yaml` names; None where there is no record, or it names none."""
    record = RunFolder(run).record
    if not record.is_file():
        return None
    found = read_mapping(record, where="recipe", holds="the record of a run")
    dataset = found.get("dataset")
    data = dataset.get("path") if isinstance(dataset, dict) else found.get("data")
    return Path(data) if isinstance(data, str) and data else None


def is_same(data: Path, other: Path | None) -> bool:
    """Whether both are one place; also where the other is not known."""
    return other is None or os.path.realpath(data) == os.path.realpath(other)


def name_of(data: Path) -> str:
    """Its own name, also where it was given as "." or by a link."""
    return os.path.basename(os.path.realpath(data))


def open_results(call: Call, trained: Path | None) -> Call:
    """The call, writing into `call.out` if its data is what the run was trained on, else into `predicted_NAME` there.

    So the results of other data never replace those of the run.

    Raises:
        ConfigError: that folder has the results of yet another data set of this name, which are not to be replaced.
        OutputError: that folder, or something in it, is a link to elsewhere.
    """
    if is_same(call.data, trained):
        return call
    place = os.path.realpath(call.data)
    folder = call.out / f"predicted_{name_of(call.data)}"
    check_links(call.out, (folder.name,), where="recipe")
    source = folder / _SOURCE
    before = (
        read_mapping(source, where="recipe", holds="the source of results").get("data") if source.exists() else None
    )
    if before not in (None, place) and not call.overwrite:
        raise ConfigError(
            f"recipe: {folder} holds the results of {before}, and {place} has the same name; replace them with "
            "--overwrite, or rename one of the two"
        )
    folder.mkdir(parents=True, exist_ok=True)
    put_in_place(source, (json.dumps({"data": place}) + "\n").encode())
    call.console.print(
        f"{call.data} is not the data that this run was trained on ({trained}), so its results go into {folder}",
        highlight=False,
        soft_wrap=True,
    )
    return replace(call, out=folder)
