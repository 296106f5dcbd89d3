"""The layouts of public data sets in `tests/shared/layouts.py`: what `init` and `plan` understand of each.

    python benchmarks/layouts.py

Writes `benchmarks/results/layouts.json`. Status 1 if any is understood otherwise than it should be.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from harness import head, parser_of, write_record
from shared.layouts import LAYOUTS, Found, Layout, found_in
from voxelocity.data.pipeline.masks import NO_HINTS, FolderHints
from voxelocity_observe.core.errors import VoxelocityError


def main() -> None:
    options = parser_of(__doc__, out=True).parse_args()
    record = head("layouts")
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: _understood(layout, Path(folder) / str(number))
            for number, (name, layout) in enumerate(LAYOUTS.items())
        }
    for name, outcome in found.items():
        print(name, outcome)
    print(write_record({**record, "layouts": found}, "layouts", out=options.out))
    sys.exit(not all(outcome["is_right"] for outcome in found.values()))


def _understood(layout: Layout, work: Path) -> dict[str, Any]:
    """Without help, and with the options that the layout needs."""
    data = layout.make(work / "data")
    expected = Found(cases=layout.cases, channels=layout.channels, classes=layout.classes)
    outcomes = {}
    for name, hints in {"alone": NO_HINTS, "helped": layout.hints}.items():
        try:
            outcomes[name] = found_in(data, work / name, hints)
        except VoxelocityError as error:
            outcomes[name] = str(error).replace(str(work), "FOLDER")
    return {
        **asdict(expected),
        "is_right": outcomes["helped"] == expected,
        "options": _options(layout.hints),
        "without_options": "" if outcomes["alone"] == expected else str(outcomes["alone"]),
        "with_options": "" if outcomes["helped"] == expected else str(outcomes["helped"]),
    }


def _options(hints: FolderHints) -> str:
    pairs = (("--raters", hints.raters), ("--image", hints.image), ("--label", hints.label))
    return " ".join(f"{option} {value}" for option, value in pairs if value)


if __name__ == "__main__":
    main()
