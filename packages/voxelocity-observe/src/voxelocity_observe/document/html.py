"""A document as one HTML file that explains itself, works offline and runs no script."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from voxelocity_observe.core.whole_file import write_whole

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from voxelocity_observe.document.blocks import Document

_BEFORE_UNIT_OR_SMALLER_PART = re.compile(
    r"(?<=\d) (?=(?:%|ms|s|min|h|d|mm|times|[KMGT]iB)(?!\w))|(?<=\d min) (?=\d+ s\b)|(?<=\d h) (?=\d+ min\b)"
)
# Of a frame in a notebook: title and verdict, a line of a table, and what most screens have room for.
_HEAD_PX, _ROW_PX, _MOST_PX = 220, 32, 640
_BETWEEN_NAMES = re.compile(r"(?<=\w[./_])(?=[A-Za-z])|(?<=/)(?=[A-Za-z])")


def write_page(document: Document, path: str | Path) -> Path:
    """The path, which now holds the document. The same document gives the same bytes.

    Bytes of names of files that are not UTF-8 are shown as escapes.

    Args:
        document: to show.
        path: file to write; it is replaced in one move.

    Raises:
        OutputError: the file cannot be written.
    """
    text = _page(document)
    # The name of a file may have bytes that are not UTF-8; a page must not.
    return write_whole(path, text.encode("utf-8", "backslashreplace"))


def write_figures(document: Document, path: str | Path) -> Path:
    """The path, which now holds the document's figures as JSON, for programs.

    Raises:
        OutputError: the file cannot be written.
    """
    return write_whole(path, (json.dumps(document.to_plain(), indent=1, allow_nan=False) + "\n").encode())


def embedded(document: Document) -> str:
    """HTML that shows the document in a cell of a notebook: the page in a frame, apart from the notebook's styles."""
    from markupsafe import Markup

    cell = '<iframe srcdoc="{}" title="{}" sandbox style="width:100%;height:{}px;border:0;resize:vertical"></iframe>'
    return str(Markup(cell).format(_page(document), document.title, _frame_px(document)))


def _frame_px(document: Document) -> int:
    """Height of a frame around the document: all of a short one; a long one scrolls."""
    blocks = [block for section in document.sections for block in section.blocks]
    sizes = [len(getattr(block, "rows", range(8))) for block in blocks]
    return min(_HEAD_PX + _ROW_PX * (sum(sizes) + 3 * len(sizes)), _MOST_PX)


def _page(document: Document) -> str:
    return _environment().get_template("document.html.j2").render(page=document)


def unbroken(text: str) -> str:
    """The text with its numbers tied to their units, so that no line ends between them."""
    return _BEFORE_UNIT_OR_SMALLER_PART.sub("\N{NO-BREAK SPACE}", text)


def breakable(text: str) -> Markup:
    """The text as HTML in which paths and dotted names may be broken between their parts, and nowhere else."""
    from markupsafe import Markup

    return Markup("<wbr>").join(_BETWEEN_NAMES.split(text))


def with_code(text: str) -> Markup:
    """The text as HTML, with what stands between backticks as code; numbers are tied to their units."""
    from markupsafe import Markup

    words = [Markup("<code>{}</code>").format(part) if n % 2 else Markup.escape(unbroken(part))
             for n, part in enumerate(text.split("`"))]  # fmt: skip
    return Markup("").join(words)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("voxelocity_observe.document"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["unbroken"] = unbroken
    environment.filters["breakable"] = breakable
    environment.filters["with_code"] = with_code
    return environment
