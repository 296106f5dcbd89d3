"""What the site has besides the files in `docs`, where its links lead, and that none of them is dead.

- Pages from elsewhere in the repository (`ELSEWHERE`, the findings), and pages made of the code: every command with its
  options, and the keywords of the functions in the Python reference.
- A link to a file that the site does not have leads to the repository if `repo_url` is set, else it is plain text.
- After a build, every link and picture in the built site is followed; a dead one fails the build.
"""

from __future__ import annotations

import importlib
import inspect
import os
import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
_FINDINGS = "packages/voxelocity-observe/src/voxelocity_observe/diagnose/findings"
ELSEWHERE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "tests/README.md": "project/tests.md",
    "README.md": "index.md",
    **{f"{_FINDINGS}/{page.name}": f"findings/{page.name}" for page in sorted((ROOT / _FINDINGS).glob("VX*.md"))},
}
"""Files of the repository outside of `docs`, and the page of the site that stands for each."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_COMMANDS = "<!-- every command -->"
_KEYWORDS = re.compile(r"^<!-- keywords of ([\w.]+) -->$", re.MULTILINE)


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages that do not lie in `docs`."""
    from mkdocs.structure.files import File

    for path, uri in ELSEWHERE.items():
        if uri != "index.md":
            files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with keywords of functions in their places, and with links that lead somewhere on the site."""
    uri = page.file.src_uri
    origin = next((path for path, place in ELSEWHERE.items() if place == uri and uri != "index.md"), f"docs/{uri}")
    known = {file.src_uri for file in files}
    markdown = markdown.replace(_COMMANDS, commands_text()) if _COMMANDS in markdown else markdown
    markdown = _KEYWORDS.sub(lambda found: keyword_table(found[1]), markdown)
    return with_site_links(markdown, origin, uri, known=known, repository=config.repo_url or "")


def on_post_build(*, config: Any) -> None:
    """Fails the build if a link of the site is dead.

    Raises:
        PluginError: names each of them.
    """
    from mkdocs.exceptions import PluginError

    if dead := dead_links(Path(config.site_dir)):
        raise PluginError("dead links in the built site:\n" + "\n".join(dead))


def with_site_links(markdown: str, origin: str, uri: str, *, known: set[str], repository: str) -> str:
    """The text with each link to a file as the site needs it.

    Args:
        markdown: of a page.
        origin: its file in the repository.
        uri: its place on the site.
        known: places of all pages and pictures.
        repository: its address; a link to a file that is not on the site becomes plain text without it.
    """

    def link(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        parts = urlsplit(target)
        if parts.scheme or not parts.path:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), parts.path))
        place = ELSEWHERE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        page_of_notebook = f"{place.removesuffix('.ipynb')}.md"
        place = page_of_notebook if page_of_notebook in known and page_of_notebook != uri else place
        if place in known:
            target = posixpath.relpath(place, posixpath.dirname(uri) or ".")
            return f"{picture}[{text}]({target}{'#' + parts.fragment if parts.fragment else ''})"
        return f"[{text}]({repository.rstrip('/')}/blob/main/{path})" if repository else text

    blocks = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(block if block.startswith("```") else _LINK.sub(link, block) for block in blocks)


def commands_text() -> str:
    """Every command of the command line with its arguments and options, as the command line itself knows them."""
    import typer.main

    from voxelocity_observe.cli.command import PANELS, installed_commands
    from voxelocity_observe.cli.main import app

    group: Any = typer.main.get_command(app)
    lines = list[str]()
    commands = list(installed_commands())
    for panel in PANELS:
        lines += [f"## {panel}", ""]
        for command in (command for command in commands if command.panel == panel):
            lines += _command_lines(f"voxelocity {command.name}", group.commands[command.name])
    return "\n".join(lines) + "\n"


def _command_lines(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    yield from (f"### {name}", "", inspect.cleandoc(command.help or "").replace("\b\n", ""), "")
    arguments = " ".join(
        item.metavar or item.name.upper() for item in command.params if item.param_type_name == "argument"
    )
    if not inner:
        yield from ("```text", f"{name} [OPTIONS] {arguments}".rstrip(), "```", "")
    rows = [
        (", ".join([*item.opts, *item.secondary_opts]), item.help or "")
        for item in command.params
        if item.param_type_name == "option" and not item.hidden
    ]
    if rows:
        yield from ("| option | meaning |", "|---|---|")
        yield from (f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in rows)
        yield ""
    for word, each in inner.items():
        yield from _command_lines(f"{name} {word}", each)


def keyword_table(request: str) -> str:
    """The fields of a request, by its dotted name, as the keywords of the function that takes them."""
    from voxelocity_observe.core.request import request_fields

    module, _, name = request.rpartition(".")
    fields = request_fields(getattr(importlib.import_module(module), name)).values()
    rows = [
        f"| `{field.name}`{_also(field)} | {_default(field)} | {_cell(' '.join(field.text.split()))} |"
        for field in fields
        if field.name != "origin"
    ]
    return "\n".join(["| keyword | default | meaning |", "|---|---|---|", *rows])


def _also(field: Any) -> str:
    """The name that takes a text, such as time_budget for time_budget_s."""
    takes_text = field.option is not None and field.option.read is not None and field.short_name.isidentifier()
    return f", or `{field.short_name}` as text" if takes_text and field.short_name != field.name else ""


def _default(field: Any) -> str:
    import dataclasses

    return "" if field.default is dataclasses.MISSING else f"`{_cell(repr(field.default))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.links += [values[name] for name in ("href", "src") if name in values]


def dead_links(site: Path) -> list[str]:
    """Every link in the pages of a built site that leads to no file, or to no anchor of its page; sorted."""
    pages = {path: _Page() for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        page.feed(path.read_text(encoding="utf-8"))
    dead = set()
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("/"):
                continue
            target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                dead.add(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                dead.add(f"{path.relative_to(site)}: {link} (no such heading)")
    return sorted(dead)
