"""The shape of the code base, as far as it can be counted, and its picture."""

import ast
import re

import pytest

from harness import ROOT, source_folders
from house import MOST_PARAMETERS, figures, num_parameters, parse_sources
from house_picture import PAGE, draw_picture, replace_picture

_MORE_PARAMETERS = {
    # Loops and kernels, and what launches a kernel: an object would be taken apart before each call.
    r"/(native|triton)_\w+\.py": "kernels",
    # Signatures of MONAI, which these replace.
    r"/monai/(window|datasets/\w+)\.py": "MONAI's names",
    r"/monai/lower/lowering\.py": "a decorator that lists the array forms of MONAI's transforms",
    r"/step/dynunet\.py": "MONAI's DynUNet",
}


def test_no_import_cycles_no_name_of_two_classes_nouns_in_loops_and_at_most_eight_parameters():
    # One test, as all of it needs the same trees.
    counted = figures(ROOT)
    assert counted["modules in import cycles"] == 0
    assert counted["public names of several classes"] == 0
    assert counted["loop variables without a noun"] == 0
    files, parsed = parse_sources(tuple(source_folders(ROOT)))
    assert len(parsed) > 500
    found = [
        f"{files[name].relative_to(ROOT)}:{node.lineno} {node.name} takes {num_parameters(node)}"
        for name, nodes in parsed.items()
        if not any(re.search(pattern, str(files[name])) for pattern in _MORE_PARAMETERS)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and num_parameters(node) > MOST_PARAMETERS
    ]
    assert found == []


def test_the_architecture_shows_the_house_as_it_is_imported_and_stays_short():
    page = PAGE.read_text()
    assert replace_picture(page, draw_picture(ROOT)) == page, "run python benchmarks/house_picture.py"
    assert len(page.split()) <= 1000


def test_a_room_is_drawn_with_what_it_stands_on_and_not_with_what_follows_from_that(tmp_path):
    contract = '[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["{}"]\nlayers = {}\n'
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\ntype = "layers"\nlayers = ["house"]\n'
        + contract.format("house", '["roof", "wall | door", "ground"]')
        + contract.format("house.wall", '["paint", "brick"]')
    )
    modules = {
        "roof": "from house.wall import brick\nfrom house import ground",
        "wall/brick": "import house.ground",
        "door": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import house.ground",
        "ground": "",
    }
    for name, text in modules.items():
        path = tmp_path / "src" / "house" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    assert draw_picture(tmp_path).splitlines() == [
        "house",
        "   3  roof   -> wall",
        "   2  wall   -> ground",
        "      door",
        "   1  ground",
        "      inside wall",
        "        paint",
        "        brick",
    ]


def test_the_docstring_of_a_room_names_nothing_that_is_gone():
    gone = {}
    rooms = {path.name for source in source_folders() for path in source.glob("*/*")}
    for init in (path for source in source_folders() for path in source.rglob("__init__.py")):
        named = re.findall(r"`([a-z_0-9]+[a-z0-9])`", ast.get_docstring(ast.parse(init.read_text())) or "")
        room = init.parent
        known = {path.stem for path in room.rglob("*")} | rooms
        texts = "".join(path.read_text() for path in room.rglob("*.py") if path != init)
        if lost := [name for name in named if name not in known and not re.search(rf"\b{name}\b", texts)]:
            gone[str(room)] = lost
    assert not gone


def test_a_page_without_the_place_for_the_picture_is_an_error():
    with pytest.raises(ValueError, match="once each"):
        replace_picture("no markers", "picture")
