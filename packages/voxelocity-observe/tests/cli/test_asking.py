"""Options that derive from a request, read back as the request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import parse_duration_s
from voxelocity_observe.core.request import Option, UserRequest


@dataclass(frozen=True, kw_only=True)
class Cooking(UserRequest):
    """A meal."""

    for_s: Annotated[float, Option(flags=("--for",), read=parse_duration_s, shown="")] = 0.0
    """How long: 5m.

    More for readers of the code.
    """
    out: Annotated[Path, Option(flags=("-o", "--out"))]
    """Where it goes."""
    spices: Annotated[tuple[str, ...], Option()] = ()
    """One spice; repeat for more."""
    is_stirred: Annotated[bool, Option(flags=("--no-stirring",), is_negated=True)] = True
    """Leave it alone."""
    portions: Annotated[int, Option(least=1)] = 2
    """People."""
    in_python: int = 7
    """Nothing for the command line."""

    def _check(self) -> None:
        self.check_one_of("burnt twice", "for_s", "spices")


@pytest.fixture
def cook():
    """Calls the command; what it was asked, and the error."""
    app, found = typer.Typer(), []

    @app.command("cook")
    @options_of(Cooking, texts={"portions": "For one or two."})
    def cook(asked: Asked[Cooking], dish: Annotated[str, typer.Argument()], dry: bool = False) -> None:
        """Cook."""
        found.append((dish, dry, asked.request()))

    @app.command("wash")
    def wash() -> None:
        """Wash."""

    def call(*words):
        ended = CliRunner().invoke(app, ["cook", *words], env={"COLUMNS": "200", "TERM": "dumb"})
        return ended if not found else found.pop()

    return call


def test_only_what_was_given_takes_the_place_of_a_default(cook):
    dish, dry, request = cook("soup", "-o", "bowl", "--spices", "salt", "--spices", "mint", "--no-stirring", "--dry")
    assert (dish, dry) == ("soup", True)
    assert request == Cooking(out=Path("bowl"), spices=("salt", "mint"), is_stirred=False)
    assert [name for name in ("out", "spices", "for_s", "portions") if request.is_given(name)] == ["out", "spices"]
    assert cook("soup", "-o", "bowl", "--for", "5m")[2].for_s == 300.0
    assert cook("soup", "-o", "bowl", "--for", "")[2].for_s == 0.0


def test_the_help_has_the_first_paragraph_of_each_text(cook):
    said = cook("--help").output
    assert "How long: 5m." in said
    assert "More for readers" not in said
    assert said.index("--out") < said.index("--for") < said.index("--dry")
    assert "in-python" not in said
    assert "x>=1" in said
    assert "For one or two." in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--for", "5"), "cook: --for 5: '5' has no unit"),
        (
            ("--for", "5m", "--spices", "hot salt"),
            "cook: --for 5m and --spices 'hot salt': burnt twice; give one of them",
        ),
    ],
)
def test_errors_name_what_was_typed(cook, words, said):
    error = cook("soup", "-o", "bowl", *words).exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith(said)
