"""The base of all requests: checked when they are made, with errors that name what the user wrote."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, ParamSpec, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from voxelocity_observe.core.errors import ConfigError, VoxelocityError, did_you_mean
from voxelocity_observe.core.plain import shortened

P = ParamSpec("P")
T = TypeVar("T")
_UNGIVEN = dataclasses.MISSING
# A class, or a field over one or more lines and its text. With Python's own parser, `--help` takes 20 ms longer.
_FIELD = re.compile(
    r'^class (\w+)|^    (\w+): .*\n(?: {8}.*\n| {4}[\])}].*\n)*    """((?:[^"]|"(?!""))*)"""', re.MULTILINE
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
# What begins messages of rooms that have no command of their name.
_UNKNOWN_TO_USERS = ("config", "infer")
# How messages write options. A whole command is one for Python users too.
_WRITTEN = re.compile(
    r"`?voxelocity [a-z]+ [^`;,]*|--set (?P<key>[\w.]+)=(?P<value>[^\s;,)]*[^\s;,).])"
    r"|(?<!\S)(?P<flag>--?[a-z][a-z-]*)"
    r"(?: (?:(?P<number>\d+)\b|(?P<word>all|cpu|cuda|eager|[\d.]+(?:s|m|h)|\w+(?= out\b)|[\w.]+:[\w.]*\w)\b"
    r"|'(?P<quoted>[^'\n]*)'))?"
)


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field of a request is written on the command line. A field without it is for Python alone.

    Attributes:
        flags: `--name-of-the-field` if there are none. Python takes the name in them too.
        read: makes the value from a text; needed where a text is not the value.
        shown: the default that `--help` shows, where that of the field says less.
        least: the smallest number.
        is_negated: whether the flag, such as --no-page, means False.
    """

    flags: tuple[str, ...] = ()
    read: Callable[[str], Any] | None = None
    shown: Any = None
    least: float | None = None
    is_negated: bool = False


@dataclass(frozen=True, kw_only=True)
class RequestField:
    """A field of a request with all that command line, documentation and checks know of it.

    Attributes:
        name: of the field.
        type: of its values.
        text: what stands under it in the source; the first paragraph is the help of its option.
        default: `dataclasses.MISSING` if it must be given.
    """

    name: str
    type: Any
    option: Option | None
    text: str
    default: Any

    @property
    def help(self) -> str:
        return " ".join(self.text.partition("\n\n")[0].split())

    @property
    def flags(self) -> tuple[str, ...]:
        given = () if self.option is None else self.option.flags
        return given or (f"--{self.name.replace('_', '-')}",)

    @property
    def flag(self) -> str:
        """The one that messages name."""
        return next(flag for flag in self.flags if flag.startswith("--")).partition("/")[0]

    @property
    def short_name(self) -> str:
        """What Python may write in place of the name, such as time_budget for time_budget_s."""
        name = self.flag.removeprefix("--")
        return (name.removeprefix("no-") if self.option and self.option.is_negated else name).replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a request was written, and what exactly.

    Attributes:
        where: "train" on the command line, "vx.train" in Python.
        is_call: whether it was Python.
        written: by field, as in `--seed 4` or `seed=4`; only what the user gave.
    """

    where: str
    is_call: bool
    written: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, written: Mapping[str, str], reason: str) -> ConfigError:
        """The error that refuses what was written, and says what to write in its place."""
        if self.is_call:
            return ConfigError(f"{self.where}({', '.join(written.values())}): {reason}")
        return ConfigError(f"{self.where}: {' and '.join(written.values())}: {reason}")


@dataclass(frozen=True, kw_only=True)
class UserRequest:
    """What a user asks for. Subclasses say what in their fields, each with a text under it."""

    CALL: ClassVar[str] = ""
    """The function of `voxelocity` that makes it from keywords."""

    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Where it was written, for messages; a request that is made from its class names that."""

    def __post_init__(self) -> None:
        for known in request_fields(type(self)).values():
            object.__setattr__(self, known.name, _converted(getattr(self, known.name), known.type))
        self._check()

    def _check(self) -> None:
        """Returns if all values are in range and go together.

        Raises:
            ConfigError: they do not.
        """

    def is_given(self, name: str) -> bool:
        """Whether the user wrote this field, rather than relying on its default."""
        if self.origin is not None:
            return name in self.origin.written
        known = request_fields(type(self))[name]
        return known.default is _UNGIVEN or bool(getattr(self, name) != known.default)

    def spelled(self, name: str) -> str:
        """The field as the user wrote or would write it."""
        if self.origin is not None and name in self.origin.written:
            return self.origin.written[name]
        value, known = getattr(self, name), request_fields(type(self))[name]
        if self.origin is None or self.origin.is_call:
            return f"{name}={shortened(value)}"
        return known.flag if isinstance(value, bool) else f"{known.flag} {value}"

    def refusal(self, reason: str, *names: str) -> ConfigError:
        """The error that names these fields as the user wrote them, and the reason."""
        origin = self.origin or Origin(where=type(self).__name__, is_call=True)
        return origin.refusal({name: self.spelled(name) for name in names}, reason)

    @contextlib.contextmanager
    def errors_as_written(self, *, without: str = "") -> Iterator[None]:
        """Errors from within the block name keywords in place of options, if the request was written in Python.

        Args:
            without: words to leave out then, about a keyword that the call does not have.
        """
        try:
            yield
        except VoxelocityError as error:
            if self.origin is not None and self.origin.is_call:
                rooms = "|".join([self.CALL.rpartition(".")[2], *_UNKNOWN_TO_USERS])
                text = re.sub(f"^(?:{rooms}): ", "", str(error))
                where = "" if text == str(error) else f"{self.origin.where}: "
                text = self._in_keywords(text).replace("the same command", "the same call")
                error.args = (where + text.replace(without, ""),)
            raise

    def _in_keywords(self, text: str) -> str:
        """A message that names options of the command line, with the keywords of a call in their place."""
        by_flag = {flag: known for known in request_fields(type(self)).values() for flag in known.flags}

        def keyword(found: re.Match[str]) -> str:
            if found["key"]:
                value = found["value"] if _NUMBER.fullmatch(found["value"]) else f'"{found["value"]}"'
                return f'overrides={{"{found["key"]}": {value}}}'
            known = by_flag.get(found["flag"] or "")
            if known is None:
                return found[0]
            if isinstance(known.default, bool):
                return f"{known.name}={not known.default}"
            word = found["word"] or found["quoted"]
            # A name without its unit takes a text with one.
            name = known.short_name if known.name.startswith(f"{known.short_name}_") else known.name
            return f"{name}={found['number'] or ('...' if word is None else repr(word))}"

        return _WRITTEN.sub(keyword, text)

    def check_number(self, name: str, cure: str, *, least: float = 0.0, is_whole: bool = False) -> None:
        """Returns if the field is a finite number of at least `least`.

        Raises:
            ConfigError: it is not.
        """
        value = getattr(self, name)
        kind = int if is_whole else int | float
        # Users type these in notebooks, where nothing checks types.
        if not isinstance(value, kind) or isinstance(value, bool) or not least <= value < math.inf:
            raise self.refusal(cure, name)

    def check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        """Returns if the field has one of these values.

        Raises:
            ConfigError: it has not.
        """
        if getattr(self, name) not in choices:
            raise self.refusal(f"not known; choose {', '.join(choices[:-1])} or {choices[-1]}", name)

    def check_one_of(self, reason: str, *names: str) -> None:
        """Returns if at most one of these fields is true.

        Raises:
            ConfigError: several are.
        """
        if sum(bool(getattr(self, name)) for name in names) > 1:
            raise self.refusal(f"{reason}; give one of them", *names)

    @classmethod
    def of_call(cls, options: Mapping[str, Any], *, call: str = "", **values: Any) -> Self:
        """The request that the keywords of a call make.

        Args:
            options: as the user wrote them: by the name of a field, or by that of its option, as `time_budget="5m"`.
            call: how the user's function is called; `CALL` if not given.
            values: of further fields, which the function itself has.

        Raises:
            ConfigError: a keyword is unknown, given twice, or out of range.
        """
        fields, call = request_fields(cls), call or cls.CALL
        by_name = {known.short_name: known for known in fields.values() if known.option is not None} | {**fields}
        given, written = dict(values), {name: f"{name}={shortened(value)}" for name, value in values.items()}
        for word, value in options.items():
            known = by_name.get(word)
            if known is None or known.name == "origin":
                raise ConfigError(f"{call}({word}=...): there is no such option{did_you_mean(word, by_name)}")
            if known.name in given:
                raise ConfigError(f"{call}({written[known.name]}, {word}={shortened(value)}): give one of them")
            text = f"{word}={shortened(value)}"
            if word != known.name and isinstance(value, str) and known.option and known.option.read:
                value = read_text(known, value, Origin(where=call, is_call=True), text)
            given[known.name], written[known.name] = value, text
        return cls(**given, origin=Origin(where=call, is_call=True, written=written))


def read_text(known: RequestField, text: str, origin: Origin, written: str) -> Any:
    """The value of a field from its text.

    Args:
        known: the field.
        text: of its value.
        origin: where it was written.
        written: how, for messages.

    Raises:
        ConfigError: the text is not a value of the field.
    """
    read = None if known.option is None else known.option.read
    assert read is not None, known.name
    try:
        return read(text)
    except ConfigError as error:
        raise origin.refusal({known.name: written}, str(error).removeprefix("config: ")) from None


def _converted(value: Any, type_: Any) -> Any:
    """The value as the field keeps it. A path may be given as text, a tuple as one item or a list, no keys as None."""
    parts = get_args(type_) if isinstance(type_, types.UnionType) or get_origin(type_) is Union else (type_,)
    if isinstance(value, str) and Path in parts:
        return Path(value)
    for part in parts if value is not None else ():
        if get_origin(part) is tuple:
            return tuple(
                _converted(item, get_args(part)[0]) for item in ([value] if isinstance(value, str | Path) else value)
            )
    return {} if value is None and get_origin(type_) is collections.abc.Mapping else value


def request_fields(request: type) -> Mapping[str, RequestField]:
    """The fields of a request by name, in their order."""
    # Mypy takes the hash of a data class for that of its objects.
    key: Any = request
    return _fields(key)


@functools.cache
def _fields(request: type) -> Mapping[str, RequestField]:
    hints, texts = get_type_hints(request, include_extras=True), _texts(request)
    found = {}
    for known in dataclasses.fields(request):
        hint, option = hints[known.name], None
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            option = next((item for item in more if isinstance(item, Option)), None)
        default = known.default if known.default_factory is _UNGIVEN else known.default_factory()
        found[known.name] = RequestField(
            name=known.name, type=hint, option=option, text=texts.get(known.name, ""), default=default
        )
    return found


def context_of(kind: type[T], options: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """What a program hands over besides a request, from the keywords of a call; and the other keywords."""
    names = {known.name for known in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: options[name] for name in options if name in names}), {
        name: options[name] for name in options if name not in names
    }


def documents(
    *kinds: type, leave_out: Sequence[str] = (), name: str = ""
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function whose `**options` are the fields of these classes: its signature and text then list them.

    Its help calls it `name`, if given: what users import it as.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = {name: found for kind in kinds for name, found in request_fields(kind).items()}
        known = {name: found for name, found in known.items() if name not in (*leave_out, "origin")}
        own = [item for item in inspect.signature(function).parameters.values() if item.kind != item.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=found.default, annotation=found.type)
            for name, found in known.items()
        ]
        # Help would show the address of a function.
        shown = [item.replace(default=...) if inspect.isroutine(item.default) else item for item in (*own, *more)]
        function.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        function.__name__ = name or function.__name__
        lines = [f"{field}: {' '.join(found.text.split())}" for field, found in known.items()]
        function.__doc__ = re.sub(
            r"^( +)options: .*\n(\1 +.*\n)*",
            lambda found: "".join(f"{found[1]}{line}\n" for line in lines),
            function.__doc__ or "",
            count=1,
            flags=re.MULTILINE,
        )
        return function

    return decorate


def _texts(request: type) -> dict[str, str]:
    """What stands under each field in the source, by its name."""
    texts: dict[str, str] = {}
    for base in reversed(request.__mro__):
        texts |= _texts_by_class(base.__module__).get(base.__name__, {}) if base not in (object, UserRequest) else {}
    return texts


@functools.cache
def _texts_by_class(module: str) -> dict[str, dict[str, str]]:
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        # Distributed without it.
        return {}
    found: dict[str, dict[str, str]] = {}
    texts: dict[str, str] = {}
    for class_name, name, text in _FIELD.findall(source):
        if class_name:
            texts = found.setdefault(class_name, {})
        else:
            texts[name] = inspect.cleandoc(text)
    return found
