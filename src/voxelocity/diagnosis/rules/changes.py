"""Changes written with the program's own names: a call from its source with other arguments."""

from __future__ import annotations

import ast


def changed_call(call: str, variable: str, **arguments: str) -> str:
    """The program's call with these keyword arguments, assigned to its variable; "" if the source is not known.

    Args:
        call: source of the call, "DataLoader(data, batch_size=2)".
        variable: that the call is assigned to; "" for none.
        arguments: keyword to the source of its value; "" drops the keyword.
    """
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(tree, ast.Call):
        return ""
    kept = [one for one in tree.keywords if one.arg not in arguments]
    new = [ast.keyword(name, ast.parse(value, mode="eval").body) for name, value in arguments.items() if value]
    unpacked = [one for one in kept if one.arg is None]
    if unpacked and new:
        # The mapping may hold the same keywords, and a call accepts each keyword only once.
        names = ast.Dict(
            keys=[*[None] * len(unpacked), *(ast.Constant(one.arg) for one in new)],
            values=[*(one.value for one in unpacked), *(one.value for one in new)],
        )
        kept, new = [one for one in kept if one.arg is not None], [ast.keyword(None, names)]
    tree.keywords = [*kept, *new]
    text = ast.unparse(tree)
    return f"{variable} = {text}" if variable else text


def renamed_call(call: str, variable: str, name: str) -> str:
    """The program's call with another function or class name; "" if the source is not known."""
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(tree, ast.Call):
        return ""
    tree.func = ast.Name(name)
    return f"{variable} = {ast.unparse(tree)}" if variable else ast.unparse(tree)
