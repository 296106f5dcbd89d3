"""Options of a command that derive from the fields of its request, and the request that they make."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

import typer

from voxelocity_observe.cli.command import METAVARS, is_given
from voxelocity_observe.core.request import Origin, RequestField, UserRequest, read_text, request_fields

R = TypeVar("R", bound=UserRequest)
T = TypeVar("T", bound=UserRequest)


@dataclass(frozen=True, kw_only=True)
class Asked(Generic[R]):
    """What a command was given of its request.

    Attributes:
        kind: of request.
        where: the command.
        values: of those that the user gave.
        written: how, for messages.
    """

    kind: type[R]
    where: str
    values: Mapping[str, Any]
    written: Mapping[str, str]

    def request(self, **more: Any) -> R:
        """The request, with the values of fields that are no options, or that follow from others.

        Raises:
            ConfigError: a value is out of range, or values contradict each other.
        """
        return self.make(self.kind, **more)

    def make(self, kind: type[T], **more: Any) -> T:
        """Another kind of request from the options that it has in common with this one."""
        fields = request_fields(kind)
        given = {name: value for name, value in self.values.items() if name in fields} | more
        return kind(**given, origin=Origin(where=self.where, is_call=False, written=self.written))


def options_of(
    kind: type[R], *, optional: Sequence[str] = (), texts: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command whose first parameter, `asked`, then stands for one option for each field of the request.

    Typer reads the options from the signature: arguments, the folder of the results, options of the request, and the
    function's own.

    Args:
        kind: of request.
        optional: fields that a request must have, but the command can find itself.
        texts: of options that list what a table above `core` has, in place of those of their fields.
    """
    fields = {name: known for name, known in request_fields(kind).items() if known.option is not None}
    fields |= {name: dataclasses.replace(fields[name], default=None) for name in optional}
    fields |= {name: dataclasses.replace(fields[name], text=text) for name, text in (texts or {}).items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        _, *rest = own.parameters.values()

        def run(context: typer.Context, **given: Any) -> None:
            values = {name: given.pop(name) for name in fields}
            command(_read_options(kind, fields, values, context), **given)

        found = [*map(_parameter, fields.values()), *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in rest)]
        context_parameter = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [context_parameter, *sorted(found, key=_place)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        return run

    return decorate


def _place(parameter: inspect.Parameter) -> int:
    """Where `--help` lists it: arguments, the folder of the results, everything else."""
    infos = get_args(parameter.annotation)
    if any(isinstance(info, typer.models.ArgumentInfo) for info in infos):
        return 0
    # In an annotation, typer keeps the first flag as the default.
    return 1 if any(isinstance(info, typer.models.OptionInfo) and info.default == "-o" for info in infos) else 2


def _read_options(
    kind: type[R], fields: Mapping[str, RequestField], found: Mapping[str, Any], context: typer.Context
) -> Asked[R]:
    """What was given, with texts read."""
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    where = context.command.name or ""
    for name, known in fields.items():
        value, option = found[name], known.option
        # An option that is given as an empty text, where that is the default, is as if it were left out.
        if not is_given(context, name) or option is None or value == "" == option.shown:
            continue
        written[name] = _spelling(known, value)
        if option.read is not None:
            value = read_text(known, value, Origin(where=where, is_call=False), written[name])
        values[name] = not value if option.is_negated else value
    return Asked(kind=kind, where=where, values=values, written=written)


def _spelling(known: RequestField, value: Any) -> str:
    if isinstance(value, bool):
        return known.flag if value else known.flags[0].partition("/")[2]
    items = value if isinstance(value, list) else [value]
    return " ".join(f"{known.flag} {shlex.quote(str(item))}" for item in items)


def _parameter(known: RequestField) -> inspect.Parameter:
    option = known.option
    assert option is not None
    kind, default = _plain_type(known), known.default
    if option.shown is not None:
        default = option.shown
    elif option.is_negated:
        default = False
    elif default == () or (default == "auto" and kind not in (str, str | None)):
        default = None
    if default is None:
        kind = kind | None
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    metavar = METAVARS.get(_inner_type(kind))
    info = typer.Option(*known.flags, help=known.help, min=option.least, metavar=metavar)
    return inspect.Parameter(
        known.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _inner_type(kind: Any) -> Any:
    """Of an optional type or a list."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    return _inner_type(parts[0]) if parts else kind


def _plain_type(known: RequestField) -> Any:
    """The type as typer takes it: a text where it is read from one, a list for several values, no literals."""
    assert known.option is not None
    if known.option.read is not None:
        return str
    if get_origin(known.type) is tuple:
        return list[get_args(known.type)[0]]  # type: ignore[misc]
    inner = [part for part in get_args(known.type) if part is not type(None) and get_origin(part) is not Literal]
    return inner[0] if inner else known.type
