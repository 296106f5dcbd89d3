"""Tables of the README and of the pages in docs, and the README's picture, made only from the result files.

python benchmarks/tables.py          # rewrite them
python benchmarks/tables.py --check  # status 1 if they are not what the result files say
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import ROOT
from tables_of import comparisons, inference, layouts, monai, nnunet, ranks, recipes, starts, tuning, watching
from tables_of.concepts import TABLE_OF, page_tables
from tables_of.measured import measured_page
from tables_of.races import readme_table, target_picture

README, DOCS = ROOT / "README.md", ROOT / "docs"
_NOT_MEASURED = "Not measured yet: run the commands above, then `python packages/voxelocity-lab/benchmarks/tables.py`."
_BEGIN = "<!-- figures: made by tables.py -->"
_END = "<!-- /figures -->"
_NAMED_TABLES: Mapping[str, Mapping[str, Callable[[], list[str]]]] = {
    "auto3dseg.md": {"the curves": tuning.auto3dseg_curve_lines, "the two searches": tuning.auto3dseg_lines},
    "bench.md": {"the settings": comparisons.switch_lines},
    "data-sets.md": {"the layouts": layouts.layout_lines, "the lists": layouts.list_lines},
    "diagnose.md": {
        "the checkpoints": watching.checkpoint_lines,
        "the held-out programs": watching.diagnosed_lines,
        "the idioms of guides": watching.guide_lines,
    },
    "inference.md": {
        "MONAI's bundles": inference.bundle_lines,
        "nnU-Net's folders": inference.nnunet_lines,
        "nnU-Net's kinds of models": inference.nnunet_kind_lines,
        "the runtimes": inference.runtime_lines,
        "the surroundings of the network": inference.around_lines,
    },
    "monai.md": {"the chains": monai.chain_lines, "the curves": monai.curve_lines},
    "monai-transforms.md": {"the random transforms": monai.parity_lines},
    "names.md": {"the guides": watching.guide_row_lines},
    "nnunet.md": {
        "the rates": nnunet.rate_lines,
        "the iterations": nnunet.iteration_lines,
        "the preprocessing": nnunet.preprocess_lines,
        "the batches": nnunet.batch_lines,
        "the trainings": nnunet.learning_lines,
    },
    "plan.md": {"the memory": tuning.memory_lines},
    "recipes/brain.md": {
        "the ranks": recipes.brain_lines,
        "the memory": recipes.brain_memory_lines,
        "the race": recipes.brain_race_lines,
    },
    "recipes/spleen.md": {"the race": recipes.spleen_lines},
    "runs.md": {"the starts": starts.start_lines},
    "recipes/tractography.md": {
        "the streamlines": recipes.tract_lines,
        "the streamlines led by an image": recipes.tract_image_lines,
    },
    "recipes/pathology.md": {"the tiles": recipes.pathology_lines, "the slide": recipes.slide_lines},
    "scale.md": {"the ranks": ranks.rank_lines},
    "spans.md": {"the own cost": watching.own_cost_lines},
    "tune.md": {"the data sets": tuning.tune_lines},
}


def _filled(text: str, tables: str, *, where: str, name: str = "") -> str:
    """The page's text with these tables between its two marks, or between those of this name."""
    begin, end = (mark.replace("figures", f"figures of {name}") if name else mark for mark in (_BEGIN, _END))
    assert text.count(begin) == text.count(end) == 1, f"{where} needs the marks {begin} and {end}, once each"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{tables}\n{end}{rest.split(end)[1]}"


def _page(path: Path, tables: str) -> str:
    return _filled(path.read_text(), tables, where=str(path))


def _named_page(path: Path, tables: Mapping[str, Callable[[], list[str]]]) -> str:
    """A page with several tables, each between marks of its own."""
    text = path.read_text()
    for name, lines in tables.items():
        text = _filled(text, "\n".join(lines() or [_NOT_MEASURED]), where=str(path), name=name)
    return text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    pages = {README: _page(README, readme_table()), DOCS / "measured.md": measured_page()}
    pages[DOCS / "pictures" / "time-to-dice.svg"] = target_picture()
    pages |= {DOCS / name: _page(DOCS / name, page_tables(name)) for name in TABLE_OF}
    pages |= {DOCS / name: _named_page(DOCS / name, tables) for name, tables in _NAMED_TABLES.items()}
    stale = [path.name for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if check:
        sys.exit(f"not what the result files say: {', '.join(stale)}; run benchmarks/tables.py" if stale else 0)
    for path, text in pages.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
