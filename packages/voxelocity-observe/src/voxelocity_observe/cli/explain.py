"""`voxelocity explain`."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    code: Annotated[str, typer.Argument(help="Code of a finding, such as VX101; default: list all.")] = "",
    index: Annotated[
        bool, typer.Option("--index", help="Print the list as Markdown, with links to the pages.")
    ] = False,
) -> None:
    """Explain what a finding of `voxelocity diagnose` means, why it costs time, and what to change. Works offline."""
    from rich.markdown import Markdown

    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.diagnose import findings

    if index:
        typer.echo(findings.index(), nl=False)
    elif not code:
        for known in findings.codes():
            typer.echo(f"{known}  {findings.title(known)}")
    else:
        text, console = findings.page(code), PlainConsole()
        if console.is_terminal:
            console.print(Markdown(text))
        else:
            # Unchanged, for pipes and files.
            typer.echo(text, nl=False)
