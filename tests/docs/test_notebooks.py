"""The notebooks run from their first cell to the last, and their cells show what they are for."""

import json
import re
from dataclasses import replace

import pytest
from notebook_pages import NOTEBOOKS, run_notebook

_STEPS = '{"train.steps": 120}'


def shown(name, change=lambda source: source):
    """The cells of code by their source, without the marks where names may be broken."""
    cells = [cell for cell in run_notebook(NOTEBOOKS / name, change=change) if cell.kind == "code"]
    return {cell.source: replace(cell, shown=cell.shown.replace("&lt;wbr&gt;", "")) for cell in cells}


def cell_with(cells, words):
    (found,) = (cell for source, cell in cells.items() if words in source)
    return found


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_code_of_a_notebook_fits_its_page(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [line for cell in cells for line in cell["source"] if len(line.rstrip()) > 80] == []
    assert [cell["id"] for cell in cells if cell["outputs"]] == []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
def test_own_scans_become_predictions(tiny_plan):
    short = {**tiny_plan, "train.steps": 12}
    # A busy machine would use up the budget.
    cells = shown("own-data.ipynb", lambda source: source.replace(_STEPS, repr(short)).replace('time_budget="5m",', ""))
    assert all(text in cell_with(cells, "vx.open").shown for text in ("16 cases", "organ, lesion", "patient_00"))
    assert "data.patch.shape_voxel" in cell_with(cells, "vx.plan").shown
    assert "Learning curves" in cells["run"].shown
    assert re.search("organ.*lesion", cell_with(cells, "vx.predict").shown)
    assert "data:image/png" in cell_with(cells, "imshow").shown
    assert "Scores by class" in cell_with(cells, "vx.evaluate").shown
    assert "Where the time went" in cell_with(cells, "vx.diagnose").shown


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
def test_a_monai_script_has_the_same_losses_with_our_imports():
    cells = shown("monai.ipynb")
    losses = [re.search(r"^[\d. ]+$", cell_with(cells, f"\n{name}, {name}_s").printed, re.MULTILINE)[0]
              for name in ("before", "after")]  # fmt: skip
    assert losses[0] == losses[1]
    assert "RandAffined" in cell_with(cells, "dataset.plan()").printed
    assert "the whole chain" in cell_with(cells, "check(").printed
