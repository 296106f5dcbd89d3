"""Figures as findings and verdicts print them, and changes written with the program's own names."""

from __future__ import annotations

import ast
from collections.abc import Sequence


def percent(share: float) -> str:
    """ "61 %", and "3.2 %" below ten."""
    return f"{share * 100:.1f} %" if share < 0.0995 else f"{share * 100:.0f} %"


def shape_text(shape: Sequence[int]) -> str:
    """ "2 × 1 × 96 × 96 × 96"."""
    return " × ".join(str(length) for length in shape)


def at(where: str) -> str:
    """ " at train.py:12", or nothing if the place is not known."""
    return f" at {where}" if where else ""


def clause(title: str) -> str:
    """A title as the end of a sentence; names in capitals and code keep their form."""
    return title if title[1:2].isupper() or not title[:1].isalpha() else title[:1].lower() + title[1:]


def changed_call(call: str, variable: str, **arguments: str) -> str:
    """The program's call with these keyword arguments, assigned to its variable; "" if the source is not known.

    Args:
        call: source of the call, "DataLoader(data, batch_size=2)".
        variable: that the call is assigned to; "" for none.
        arguments: keyword to the source of its value; "" drops the keyword.
    """
    tree = _parsed(call)
    if tree is None:
        return ""
    kept = [keyword for keyword in tree.keywords if keyword.arg not in arguments]
    new = [ast.keyword(name, ast.parse(value, mode="eval").body) for name, value in arguments.items() if value]
    unpacked = [keyword for keyword in kept if keyword.arg is None]
    if unpacked and new:
        # The mapping may hold the same keywords, and a call accepts each keyword only once.
        names = ast.Dict(
            keys=[*[None] * len(unpacked), *(ast.Constant(keyword.arg) for keyword in new)],
            values=[*(keyword.value for keyword in unpacked), *(keyword.value for keyword in new)],
        )
        kept, new = [keyword for keyword in kept if keyword.arg is not None], [ast.keyword(None, names)]
    tree.keywords = [*kept, *new]
    return _assigned(tree, variable)


def renamed_call(call: str, variable: str, name: str) -> str:
    """The program's call with another function or class name; "" if the source is not known."""
    tree = _parsed(call)
    if tree is None:
        return ""
    tree.func = ast.Name(name)
    return _assigned(tree, variable)


def _parsed(call: str) -> ast.Call | None:
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, ast.Call) else None


def _assigned(call: ast.Call, variable: str) -> str:
    return f"{variable} = {ast.unparse(call)}" if variable else ast.unparse(call)
