"""Notebooks as pages: their cells run in this process, and what they show stands below each.

No Jupyter is needed: a cell is plain Python. Its last expression is shown as a notebook shows it, and so is each figure
of matplotlib. A page that was made before is kept in `.cache` until the notebook or a package changes.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import html
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
_CACHE = ROOT / ".cache" / "notebooks"
_DOWNLOAD = "[Download this notebook]({name})"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell with what running it showed.

    Attributes:
        kind: "markdown" or "code".
        source: its text.
        printed: what it printed.
        shown: HTML of its last expression and its figures.
    """

    kind: str
    source: str
    printed: str = ""
    shown: str = ""


def run_notebook(path: Path, *, change: Callable[[str], str] = lambda source: source) -> Iterator[Cell]:
    """The cells of a notebook, each after it has run, in a folder of its own that is removed afterwards.

    Args:
        path: the notebook.
        change: of the source of a cell before it runs, such as to a shorter training.

    Raises:
        Exception: what a cell raises.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    # A run records what started it.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), mock.patch("sys.argv", [path.name]):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                yield _run(change(source), names)
            else:
                yield Cell(kind="markdown", source=source)


def _run(source: str, names: dict[str, Any]) -> Cell:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    value = None if source.rstrip().endswith(";") else value
    return Cell(kind="code", source=source, printed=printed.getvalue(), shown=_as_html(value) + _figures())


def _as_html(value: Any) -> str:
    if value is None:
        return ""
    as_html = getattr(value, "_repr_html_", None)
    return as_html() if as_html is not None else f"<pre><code>{html.escape(repr(value))}</code></pre>"


def _figures() -> str:
    from matplotlib import pyplot

    found = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png", dpi=80, bbox_inches="tight")
        found.append(f'<img alt="figure" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">')
    pyplot.close("all")
    return "".join(found)


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the page of each notebook."""
    from mkdocs.structure.files import File

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_markdown(path)))
    return files


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """The page with what its cells showed, which Markdown would change."""
    for number, shown in enumerate(_outputs.get(page.file.src_uri, ())):
        content = content.replace(f"<p>{_mark(number)}</p>", f'<div class="shown">{shown}</div>')
    return content


_outputs: dict[str, list[str]] = {}


def _mark(number: int) -> str:
    return f"SHOWN-BY-CELL-{number}-"


def _markdown(path: Path) -> str:
    parts, outputs = [], []
    for cell in _cells(path):
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```{{.text .printed}}\n{cell.printed.rstrip()}\n```")
        if cell.shown:
            parts.append(_mark(len(outputs)))
            outputs.append(cell.shown)
    parts.insert(1, _DOWNLOAD.format(name=path.name))
    _outputs[f"notebooks/{path.stem}.md"] = outputs
    return "\n\n".join(parts) + "\n"


def _cells(path: Path) -> list[Cell]:
    """The cells as they ran, now or when this notebook was last made into a page."""
    sources = [path, *sorted(ROOT.glob("packages/*/src/**/*.py"))]
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    kept = _CACHE / f"{path.stem}-{state}.json"
    if not kept.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        for outdated in _CACHE.glob(f"{path.stem}-*.json"):
            outdated.unlink()
        os.environ.setdefault("MPLBACKEND", "agg")
        kept.write_text(json.dumps([vars(cell) for cell in run_notebook(path)]))
    return [Cell(**values) for values in json.loads(kept.read_text())]
