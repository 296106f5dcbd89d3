"""Crafted records that `voxelocity report` reads: of runs, monitors and diagnoses."""

from __future__ import annotations

import json
import random
from pathlib import Path

from monitor.test_files import write as write_monitor

from shared.crafted import Kind, Trial, as_json, mutated_bytes
from shared.diagnoses import NAMES, example


def _monitors(folder: Path) -> Trial:
    from voxelocity_observe.monitor.page import draw_again

    write_monitor(folder)
    (folder / "spans-5.jsonl").write_text('{"name": "fit", "start_s": 101.0, "seconds": 2.0}\n')
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}

    def trial(numbers: random.Random) -> None:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        name = numbers.choice(sorted(contents))
        content = contents[name]
        is_json = name.endswith(".json") and numbers.random() < 0.6
        (folder / name).write_bytes(
            as_json(numbers, json.loads(content)) if is_json else mutated_bytes(numbers, content)
        )
        draw_again(folder)

    return trial


def _diagnoses(folder: Path) -> Trial:
    from voxelocity_observe.diagnose.result import FILE_NAME
    from voxelocity_observe.diagnose.session import draw_again, write_all

    write_all(example(NAMES[0]), folder)
    values = json.loads((folder / FILE_NAME).read_text())

    def trial(numbers: random.Random) -> None:
        (folder / FILE_NAME).write_bytes(as_json(numbers, values))
        draw_again(folder)

    return trial


RECORDS = (Kind("records of monitors", 80, _monitors), Kind("records of diagnoses", 60, _diagnoses))
