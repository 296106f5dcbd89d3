"""The page of each finding, kept next to the code: `voxelocity explain` prints it, docs/findings lists it.

Reads only the pages and imports no rule: explaining a code needs neither torch nor a recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

from voxelocity_observe.core.errors import InputError

_FOLDER = "../../packages/voxelocity-observe/src/voxelocity_observe/diagnose/findings"
_FAMILIES = {
    "VX1": "Data: making batches and reading files",
    "VX2": "The GPU, copies and waits",
    "VX3": "Computing: the network, its formats and the loop around it",
    "VX4": "Validation and saving",
    "VX5": "The machine",
    "VX6": "Several ranks",
}


def codes() -> Sequence[str]:
    """Codes of all findings, in order."""
    return sorted(entry.name.removesuffix(".md") for entry in _folder().iterdir() if entry.name.endswith(".md"))


def page(code: str) -> str:
    """The page of a finding as Markdown. The code may be in lower case or without its VX.

    Raises:
        InputError: there is no such finding; the message names the nearest ones.
    """
    wanted, known = _normal(code), codes()
    if wanted not in known:
        near = _nearest(wanted, known)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(f"explain: there is no finding {code!r}; {meant}`voxelocity explain` lists all of them")
    return (_folder() / f"{wanted}.md").read_text(encoding="utf-8")


def title(code: str) -> str:
    """The heading of a finding's page, without its code.

    Raises:
        InputError: there is no such finding.
    """
    return page(code).partition("\n")[0].partition(": ")[2]


def index() -> str:
    """The list of all findings by family, as Markdown: docs/findings/README.md."""
    lines = [
        "# Findings of `voxelocity diagnose`",
        "",
        "Each page explains what a finding means, how it was detected, why it costs time, what to change, and when "
        "not to.",
        "`voxelocity explain CODE` prints the same pages offline. A code never changes its meaning.",
    ]
    for prefix, name in _FAMILIES.items():
        lines += ["", f"## {name}", "", "| code | finding |", "|---|---|"]
        lines += [f"| [{code}]({_FOLDER}/{code}.md) | {title(code)} |" for code in codes() if code.startswith(prefix)]
    return "\n".join(lines) + "\n"


def _folder() -> Traversable:
    return files("voxelocity_observe.diagnose.findings")


def _nearest(wanted: str, known: Sequence[str]) -> Sequence[str]:
    """Up to three codes that share the most characters by position, at least three of five."""
    equal = {code: sum(a == b for a, b in zip(wanted, code, strict=False)) for code in known}
    return sorted((code for code in known if equal[code] >= 3), key=lambda code: (-equal[code], code))[:3]


def _normal(code: str) -> str:
    text = code.strip().upper()
    return f"VX{text}" if text.isdigit() else text
