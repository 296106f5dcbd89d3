"""The configuration of a MONAI bundle as plain data: references are followed, harmless expressions are computed, and
all others are refused (`bundle_expressions`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity.infer.models.bundle_expressions import ExpressionError, Sources, call_of, evaluate, plain_reference
from voxelocity.infer.models.foreign_files import read_checkpoint
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import excerpt, parse_yaml, shortened
from voxelocity_observe.core.whole_file import check_is_file

_NAMES = ("inference.json", "inference.yaml", "inference.yml")
_WEIGHTS = Path("models") / "model.pt"
_LOADER = "CheckpointLoader"
_MAX_REFERENCES = 20
# A bundle of the model zoo has a few hundred; a kilobyte of references to references could make 10^12.
_MAX_VALUES = 20_000
# The largest of the zoo has 20 kB.
_MOST_BYTES = 4 << 20
_NETWORKS = "monai.networks.nets."
# Classes of bundles' own code whose effect is known here; they are named, and never run.
_KNOWN_CODE = ("scripts.inferer.Vista3dInferer",)
_NO_ARGUMENTS = ("_target_", "_desc_", "_requires_", "_disabled_")


class BundleConfig:
    """`configs/inference.json` or `.yaml` of a bundle.

    Raises:
        InputError: there is none, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        found = [path for name in _NAMES if (path := folder / "configs" / name).is_file()]
        if not found:
            raise InputError(f"infer: {folder / 'configs'} holds none of {', '.join(_NAMES)}; copy the bundle again")
        self.path, self._folder = found[0], folder
        if (num_bytes := self.path.stat().st_size) > _MOST_BYTES:
            raise InputError(
                f"infer: {self.path} has {num_bytes:,} bytes, more than any configuration needs; copy the bundle again"
            )
        try:
            # Every JSON text is also a YAML text.
            values = parse_yaml(check_is_file(self.path).read_text(encoding="utf-8"))
        # Brackets within brackets are read by functions that call themselves.
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"infer: {self.path} is damaged ({excerpt(error)}); copy it again") from None
        if not isinstance(values, dict):
            raise InputError(f"infer: {self.path} is damaged (it holds no keys and values); copy it again")
        # MONAI's users name it on the command line.
        self._values = {**values, "bundle_root": "."}
        self._num_resolved = 0
        self._loaded: dict[Path, dict[str, Any]] = {}

    def error(self, where: str, why: str) -> InputError:
        """The error for a part of this file."""
        return InputError(f"infer: {self.path}: {where} {why}; run the bundle with MONAI itself")

    def resolved(self, value: Any, where: str, *, num_references: int = 0) -> Any:
        """The value with references replaced by what they name, and harmless expressions by their values.

        Raises:
            InputError: something in it is another expression, or a reference leads nowhere.
        """
        value, where, num_references = self._follow(value, where, num_references)
        if isinstance(value, Mapping):
            return {key: self.resolved(item, f"{where}::{key}", num_references=num_references)
                    for key, item in value.items()}  # fmt: skip
        if isinstance(value, list):
            return [self.resolved(item, f"{where}::{index}", num_references=num_references)
                    for index, item in enumerate(value)]  # fmt: skip
        return value

    def component(self, value: Any, where: str) -> Component:
        """The object that a value describes with `_target_`, or makes as a network of MONAI.

        Its arguments are not resolved yet.
        """
        value, where, _ = self._follow(value, where, makes_networks=True)
        if not isinstance(value, Mapping) or not isinstance(value.get("_target_"), str):
            raise self.error(where, f"is {shortened(value)}, not an object with _target_")
        arguments = {key: argument for key, argument in value.items() if key not in _NO_ARGUMENTS}
        is_disabled = self.resolved(value.get("_disabled_", False), f"{where}::_disabled_")
        module, _, name = value["_target_"].rpartition(".")
        if module.split(".")[0] not in ("", "monai") and value["_target_"] not in _KNOWN_CODE:
            raise self.error(where, f"is made by {value['_target_']}, which is not MONAI's")
        return Component(self, where, name, arguments, is_disabled in (True, "true", "True"))

    def components(self, where: str) -> list[Component]:
        """The transforms of a `Compose` at this id, without those that are disabled."""
        chain = self.component(f"@{where}", where)
        if chain.name != "Compose":
            raise self.error(where, f"is made by {chain.name}, not by Compose")
        transforms, place, _ = self._follow(chain.arguments.get("transforms", []), f"{where}::transforms")
        if not isinstance(transforms, list):
            raise self.error(place, f"is {shortened(transforms)}, not a list of transforms")
        found = [self.component(transform, f"{place}::{index}") for index, transform in enumerate(transforms)]
        return [component for component in found if not component.is_disabled]

    def weights_path(self) -> Path:
        """Where the bundle's `CheckpointLoader` finds the weights, if that is in the bundle; else `models/model.pt`."""
        try:
            handlers, _, _ = self._follow(self._values.get("handlers", []), "handlers")
            loader, _, _ = self._follow(self._values.get("checkpointloader"), "checkpointloader")
            for described in (loader, *(handlers if isinstance(handlers, list) else ())):
                if isinstance(described, Mapping) and str(described.get("_target_")).rpartition(".")[2] == _LOADER:
                    return self._inside(self.resolved(described.get("load_path"), _LOADER), _LOADER)
        # What names it may be code, or the file of another machine.
        except InputError:
            pass
        return self._folder / _WEIGHTS

    def _follow(
        self, value: Any, where: str, num_references: int = 0, *, makes_networks: bool = False
    ) -> tuple[Any, str, int]:
        """What a value leads to by references and expressions, where that stands, and over how many of them.

        With `makes_networks`, a call of a network of MONAI is the object that it describes.
        """
        self._num_resolved += 1
        if self._num_resolved > _MAX_VALUES:
            raise self.error(where, f"makes, with its references, more than {_MAX_VALUES} values of this file")
        while isinstance(value, str) and value[:1] in ("@", "%", "$"):
            num_references += 1
            if num_references > _MAX_REFERENCES:
                raise self.error(
                    where, f"follows more than {_MAX_REFERENCES} references, the last is {shortened(value)}"
                )
            reference = plain_reference(value[1:]) if value.startswith("$") else value
            call = call_of(value[1:]) if makes_networks and value.startswith("$") else None
            if reference:
                value, where = self._at(reference[1:], where), reference[1:]
            elif call and call[0].startswith(_NETWORKS):
                value = {"_target_": call[0], **{key: f"${text}" for key, text in call[1].items()}}
            else:
                value = self._computed(value, where, num_references)
        return value, where, num_references

    def _computed(self, value: str, where: str, num_references: int) -> Any:
        def follow(inner: Any) -> Any:
            return self._follow(inner, where, num_references)[0]

        try:
            return evaluate(value[1:], Sources(follow=follow, load=lambda text: self._load(text, where)))
        except ExpressionError as error:
            why = f"is the expression {shortened(value)}, which is code and is not evaluated ({excerpt(error)})"
            raise self.error(where, why) from None

    def _load(self, text: str, where: str) -> dict[str, Any]:
        path = self._inside(text, where)
        if not path.is_file():
            raise InputError(f"infer: {path} is missing, which {self.path}: {where} reads; copy it too")
        if path not in self._loaded:
            self._loaded[path] = read_checkpoint(path, with_arrays=True)
        return self._loaded[path]

    def _inside(self, text: Any, where: str) -> Path:
        """The file of the bundle that a text names."""
        path = Path(text) if isinstance(text, str) else Path("..")
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise self.error(where, f"names the file {shortened(text)}, which is not in the bundle")
        return self._folder / path

    def _at(self, identifier: str, where: str) -> Any:
        value: Any = self._values
        for part in identifier.replace("#", "::").split("::"):
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and len(part) < 10 and int(part) < len(value):
                value = value[int(part)]
            else:
                raise self.error(where, f"refers to '{excerpt(identifier, 80)}', which is not there")
        return value


@dataclass(frozen=True)
class Component:
    """An object of a bundle: MONAI's name of its class, and its arguments as written."""

    config: BundleConfig
    where: str
    name: str
    arguments: Mapping[str, Any]
    is_disabled: bool = False

    def take(self, defaults: Mapping[str, Any], *, without_effect: Collection[str] = ()) -> dict[str, Any]:
        """The arguments named in `defaults`, resolved.

        Args:
            defaults: of MONAI.
            without_effect: arguments that do not change the result; they may be expressions.

        Raises:
            InputError: there are other arguments.
        """
        for key in self.arguments:
            if key not in defaults and key not in without_effect:
                raise self.error(f"has the argument {excerpt(key, 80)}, which is not supported")
        return {
            key: self.config.resolved(self.arguments[key], f"{self.where}::{key}") if key in self.arguments else value
            for key, value in defaults.items()
        }

    def error(self, why: str) -> InputError:
        """The error for this object."""
        return self.config.error(f"{self.where} ({self.name})", why)
