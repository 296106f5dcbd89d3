"""The picture of the house in ARCHITECTURE.md: floors from the import contracts, arrows from the imports themselves.

    python benchmarks/house_picture.py [--check]

Writes the picture between its two markers, or, with `--check`, fails if it would change.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness import ROOT, source_folders
from house import imported_modules

PAGE = ROOT / "ARCHITECTURE.md"
_MARKERS = "<!-- made by house_picture.py -->", "<!-- end -->"


def draw_picture(root: Path) -> str:
    """The floors of each distribution, with what each room stands on there, and those inside some of its rooms."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layered = {contract["containers"][0]: _floors(contract) for contract in contracts if "containers" in contract}
    imports = imported_modules(tuple(source_folders(root)))
    lines: list[str] = []
    for package in _floors(next(contract for contract in contracts if contract["type"] == "layers")):
        lines += ["", package[0], *_floors_of_package(package[0], layered, imports)]
    return "\n".join(lines[1:])


def _floors_of_package(
    package: str, layered: Mapping[str, list[list[str]]], imports: Mapping[str, set[str]]
) -> Iterator[str]:
    floors = layered[package]
    uses = _reduce(_uses_of_rooms(imports, package))
    width = max(len(room) for floor in floors for room in floor)
    for number, floor in reversed([*enumerate(reversed(floors), 1)]):
        for position, room in enumerate(floor):
            arrow = f"-> {', '.join(sorted(uses[room]))}" if uses[room] else ""
            yield f"{'' if position else number:>4}  {room:<{width}} {arrow}".rstrip()
    for container, inner in layered.items():
        if container.startswith(f"{package}."):
            yield f"      inside {container.removeprefix(package + '.')}"
            yield from (f"        {' | '.join(floor)}" for floor in inner)


def replace_picture(page: str, picture: str) -> str:
    """The page with the picture between its markers.

    Raises:
        ValueError: The page does not have both markers once.
    """
    begin, end = _MARKERS
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{PAGE.name} needs the lines {begin!r} and {end!r} once each")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n```\n{picture}\n```\n{end}{rest.partition(end)[2]}"


def _floors(contract: Mapping[str, list[str]]) -> list[list[str]]:
    """The names of each layer, the highest first."""
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def _uses_of_rooms(imports: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    uses: dict[str, set[str]] = {}
    for module, targets in imports.items():
        for room in _room(module, package):
            uses.setdefault(room, set()).update(name for target in targets for name in _room(target, package))
    return {room: targets - {room} for room, targets in uses.items()}


def _room(module: str, package: str) -> Iterator[str]:
    """The folder of the package that a module is in; nothing for the package itself."""
    first, _, inner = module.partition(".")
    if first == package and inner:
        yield inner.partition(".")[0]


def _reduce(uses: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The uses that do not follow from others: what a room uses through another one is left out."""

    def reach(room: str) -> set[str]:
        return {room}.union(*(reach(target) for target in uses[room]))

    return {
        room: {name for name in targets if not any(name in reach(other) for other in targets - {name})}
        for room, targets in uses.items()
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the picture would change")
    options = parser.parse_args()
    page = PAGE.read_text()
    wanted = replace_picture(page, draw_picture(ROOT))
    if options.check and page != wanted:
        print("The picture is out of date: run python benchmarks/house_picture.py", file=sys.stderr)
        return 1
    if not options.check:
        PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
