"""The base of every configuration model: frozen, rejects unknown keys, "auto" leaves a value to the rules."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from voxelocity_observe.core.errors import ConfigError, did_you_mean
from voxelocity_observe.core.plain import excerpt, shortened
from voxelocity_observe.core.quantities import read_printed, sequence_length

Auto = Literal["auto"]
AUTO: Auto = "auto"

# How pydantic names the alternatives of a union in the location of an error.
_UNION_BRANCH = r"(literal|tuple|list|dict|function-\w+)\[.*\]|constrained-\w+|float|int|str|bool"


class Config(BaseModel):
    """A frozen set of named values. Data only: it can be written to YAML and read back unchanged."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "config") -> Self:
        """The model for these values.

        Raises:
            ConfigError: a key is unknown (the nearest valid one is named) or a value is out of range.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_in_words(cls, error, where)) from None

    def to_plain(self) -> dict[str, Any]:
        """The values as plain types that YAML and JSON support."""
        return self.model_dump(mode="json")


def set_value(values: dict[str, Any], dotted_key: str, value: Any) -> None:
    """Sets `value` at `a.b.c` in nested dictionaries, creating missing ones."""
    *parents, last = dotted_key.split(".")
    for parent in parents:
        inner = values.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"config: '{dotted_key}' goes below '{parent}', which holds the value {inner!r}")
        values = inner
    values[last] = value


def valid_keys(model: type[Config], prefix: str = "") -> list[str]:
    """Every dotted key of a model, leaves and sections."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        inner = _config_inside(field.annotation)
        if inner is not None:
            keys.extend(valid_keys(inner, f"{prefix}{name}."))
    return keys


def check_key(model: type[Config], key: str) -> None:
    """Returns if `key` is one of the model's dotted keys.

    Raises:
        ConfigError: it is not; the nearest valid key is named.
    """
    keys = valid_keys(model)
    if key not in keys:
        raise ConfigError(f"config: unknown key '{excerpt(key, 80)}'{_nearest(key, keys)}")


def _nearest(key: str, keys: Sequence[str]) -> str:
    """The valid key that may be meant, else all that the section has."""
    section = key.rpartition(".")[0]
    while section and section not in keys:
        section = section.rpartition(".")[0]
    names = [name for name in keys if name.rpartition(".")[0] == section]
    meant = did_you_mean(key, [name for name in keys if name != section])
    return meant or f"; {section or 'the configuration'} has {', '.join(names or keys)}"


def check_value(model: type[Config], key: str, value: Any) -> Any:
    """The value of one dotted key as its field keeps it, in plain types.

    Raises:
        ConfigError: the value is out of range or of the wrong type.
    """
    *parents, last = key.split(".")
    for parent in parents:
        inner = _config_inside(model.model_fields[parent].annotation)
        assert inner is not None, "check_key has seen this key"
        model = inner
    field = model.model_fields[last]
    # The field alone, so that checks across fields wait until the rules have settled the others.
    annotation: Any = field.annotation
    for constraint in field.metadata:
        annotation = Annotated[annotation, constraint]
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    length = sequence_length(field.annotation)
    try:
        return adapter.dump_python(adapter.validate_python(read_printed(value, field.annotation, key)), mode="json")
    except ValidationError as error:
        reasons = list(dict.fromkeys(_reason(e) for e in error.errors()))
        if length and (not isinstance(value, list | tuple) or len(value) != length):
            reasons = [f"give {length} values, such as {', '.join('1' * length)}"]
        raise ConfigError(f"config: {key} = {shortened(value)} is not valid: {'; or: '.join(reasons)}") from None


def flatten(model: type[Config], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as dotted keys, as deep as the model has sections. Keys that are already dotted stay unchanged."""
    flat: dict[str, Any] = {}
    sections = {key for key in valid_keys(model) if _section(model, key) is not None}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (key in sections or key not in valid_keys(model)):
            flat |= flatten(model, value, f"{key}.")
        else:
            flat[key] = value
    return flat


def find_factory(named: str, *, key: str) -> Callable[..., Any]:
    """The function or class of the user's that `named` names, imported.

    Args:
        named: package.module:name. Modules in the current folder are found too.
        key: of the configuration, for messages.

    Raises:
        ConfigError: there is no such module, or it does not have this name.
    """
    where, _, name = named.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        # As with `python -m`; an installed command does not search the folder in which it is called.
        sys.path.append(here)
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{key.partition('.')[0]}: {key} {shortened(named)} cannot be imported ({excerpt(error)}); write "
            "package.module:name of a module that Python finds from here or on PYTHONPATH"
        ) from None
    return factory


def _section(model: type[Config], key: str) -> type[Config] | None:
    found: type[Config] | None = model
    for part in key.split("."):
        assert found is not None
        found = _config_inside(found.model_fields[part].annotation)
    return found


def _in_words(model: type[Config], error: ValidationError, where: str) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not _is_union_branch(str(part)))
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key '{excerpt(key, 80)}'{_nearest(key, valid_keys(model))}"
    messages = (_reason(e) for e in error.errors() if e["loc"][:1] == first["loc"][:1])
    reasons = "; or: ".join(dict.fromkeys(messages))
    # The input of a check across keys is all that they hold, and of a missing value all that is there.
    if first["type"] in ("value_error", "missing") and isinstance(first["input"], Mapping):
        return f"{where}: {key}{': ' if key else ''}{reasons}"
    return f"{where}: {key} = {shortened(first['input'])} is not valid: {reasons}"


def _reason(error: Any) -> str:
    if error["type"] == "model_type":
        return "it is a section; set one of its keys"
    if error["type"] == "missing" and isinstance(error["loc"][-1], int):
        return "a list in it has too few values"
    return str(error["msg"]).removeprefix("Value error, ")


def _is_union_branch(part: str) -> bool:
    # Matches the whole name, because a field may be called "intensity".
    return re.fullmatch(_UNION_BRANCH, part) is not None


def _config_inside(annotation: Any) -> type[Config] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Config) else None
