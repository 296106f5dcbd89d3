"""A JSON description of a data set with its fields checked: a reader gets the type it expects, or a clear error.

Holds what MSD and nnU-Net have in common: name, channels, the rules for class labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from voxelocity.core.cases import MAX_BYTE_CLASSES, MAX_CLASSES, MAX_LABEL_VALUE
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.core.plain import excerpt, shortened
from voxelocity_observe.core.whole_file import check_is_file

T = TypeVar("T")

_EXAMPLES = {
    "labels": '{"0": "background", "1": "tumour"}',
    "channel_names": '{"0": "MRI"}',
    "modality": '{"0": "MRI"}',
    "training": '[{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}]',
    "dataset": '{"a": {"images": ["imagesTr/a_0000.nii.gz"], "label": "labelsTr/a.nii.gz"}}',
    "file_ending": '".nii.gz"',
    "numTraining": "20",
    "name": '"Spleen"',
}


@dataclass(frozen=True, kw_only=True)
class Description:
    """The top-level object of one JSON file.

    Attributes:
        path: the file, which every error names.
        values: its fields, unchecked.
    """

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Description:
        """The description in this file.

        Raises:
            DatasetError: the file cannot be read, is not JSON, or its top level is not an object with fields.
        """
        values = read_json(path)
        if not isinstance(values, dict) or not values:
            found = "an empty object" if values == {} else kind_of(values)
            raise DatasetError(
                f"source: {path}: the top level is {found}, not the description of a data set; it needs "
                '"labels", "channel_names" and the cases: see the MSD or nnU-Net v2 form of dataset.json'
            )
        return cls(path=path, values=values)

    @property
    def folder(self) -> Path:
        """The folder that relative paths in this file start from."""
        return self.path.parent

    @property
    def name(self) -> str:
        """What the data set calls itself, or the name of its folder."""
        declared = self.require("name", str).strip() if "name" in self.values else ""
        return declared or self.folder.name

    @property
    def channels(self) -> tuple[str, ...]:
        """One name per image channel, from "channel_names" or the older "modality"; data lists may have neither."""
        key = "modality" if "modality" in self.values and "channel_names" not in self.values else "channel_names"
        if self.is_data_list and not isinstance(self.values.get(key), dict):
            return self._channels_of_list(self.values.get(key))
        names = self.require(key, dict)
        if not names or set(names) != {str(index) for index in range(len(names))}:
            raise self.error(
                f'"{key}" has the keys {shortened(list(names))}; number the channels "0", "1", ... without gaps'
            )
        ordered = tuple(names[str(index)] for index in range(len(names)))
        for index, name in enumerate(ordered):
            if not isinstance(name, str):
                raise self.error(f'"{key}" calls channel {index} {shortened(name)}; write its name as a string')
        return ordered

    @property
    def is_data_list(self) -> bool:
        """Whether it is a list of cases that need not name channels and classes, as MONAI and Auto3DSeg take it."""
        return "training" in self.values and "labels" not in self.values

    def _channels_of_list(self, named: Any) -> tuple[str, ...]:
        """The channels of a data list: as many as the first case has files."""
        entries = self.require("training", list)
        first = entries[0].get("image") if entries and isinstance(entries[0], dict) else None
        number = len(first) if isinstance(first, list) else 1
        if number == 1:
            return (named if isinstance(named, str) and named.strip() else "image",)
        return tuple(f"image_{index}" for index in range(number))

    @property
    def lists_cases(self) -> bool:
        """Whether the description lists the cases; one that does not describes a table next to it."""
        return bool({"training", "dataset", "numTraining", "file_ending"} & self.values.keys())

    @property
    def names_are_values(self) -> bool:
        """Whether "labels" maps numbers to names (MSD); False where it maps names to numbers (nnU-Net v2).

        Raises:
            DatasetError: it mixes both.
        """
        if self.is_data_list:
            return True
        labels = self._listed_labels()
        texts = [key for key, value in labels.items() if isinstance(value, str)]
        if texts and len(texts) < len(labels):
            other = next(key for key in labels if key not in texts)
            raise self.error(
                f'"labels" mixes two directions: {_quoted(texts[0])} maps to a string and {_quoted(other)} to '
                f'{kind_of(labels[other])}; write all of them as {{"0": "background"}} (MSD) or as '
                '{"background": 0} (nnU-Net)'
            )
        return bool(texts) or not labels

    @property
    def labels(self) -> dict[int, str]:
        """Class names by file value, in ascending order of value, from either direction.

        Of overlapping classes, a value has the name of the region that is drawn with it.

        Raises:
            DatasetError: a value is not a whole number, or as `check_labels` and `regions`.
        """
        if self.is_data_list:
            return {}
        listed = self._listed_labels()
        if self.names_are_values:
            return self.check_labels(self._label_pair(key, name) for key, name in listed.items() if name != "ignore")
        regions = self.regions
        if regions:
            drawn = {
                value: name if values == (value,) else f"rest of {name}"
                for value, (name, values) in zip(self.region_values, regions.items(), strict=True)
            }
            every = sorted({value for values in regions.values() for value in values})
            if len(every) + 1 + ("ignore" in listed) > MAX_BYTE_CLASSES:
                raise self.error(
                    f'"labels" has overlapping classes of {len(every)} values; at most {MAX_BYTE_CLASSES - 2} are '
                    "supported: give the parts that classes share fewer values"
                )
            return self.check_labels(
                [(0, "background"), *((value, drawn.get(value, f"label {value}")) for value in every)]
            )
        return self.check_labels((values[0], name) for name, values in self._values_by_name().items())

    @property
    def ignore_value(self) -> int | None:
        """The file value of voxels without a known class ("ignore", as nnU-Net has it); None without one.

        Raises:
            DatasetError: it is not a whole number above all others.
        """
        if self.is_data_list:
            return None
        listed = self._listed_labels()
        if self.names_are_values:
            given: list[Any] = [whole_number(key) for key, name in listed.items() if name == "ignore"]
        else:
            given = [listed["ignore"]] if "ignore" in listed else []
        if not given:
            return None
        value, highest = given[0], max(self.labels)
        if not isinstance(value, int) or isinstance(value, bool) or not highest < value <= MAX_LABEL_VALUE:
            raise self.error(
                f'"labels" gives "ignore" the value {shortened(value)}; it must be a whole number above all '
                f"others, as in nnU-Net, such as {shortened(highest + 1)}"
            )
        if len(self.labels) == MAX_CLASSES:
            raise self.error(f'"labels" has {MAX_CLASSES} classes, which leave no index for "ignore"; merge some')
        return value

    @property
    def regions(self) -> dict[str, tuple[int, ...]]:
        """Of overlapping classes, the file values of each, in the order in which they are drawn; else empty.

        As nnU-Net v2 writes them: `"labels": {"background": 0, "whole tumor": [1, 2, 3], "core": [2, 3]}` with one
        number in "regions_class_order" for each.

        Raises:
            DatasetError: a value is not a whole number, a region holds the background, or "regions_class_order" does
                not fit.
        """
        if self.names_are_values:
            return {}
        found = self._values_by_name()
        if all(len(values) == 1 for values in found.values()):
            return {}
        regions = {name: values for name, values in found.items() if values != (0,)}
        order = self._region_order(regions)
        for value, (name, values) in zip(order, regions.items(), strict=True):
            if 0 in values:
                raise self.error(f'"labels" makes 0, the background, a part of {_quoted(name)}; leave it out there')
            if value not in values:
                raise self.error(
                    f'"regions_class_order" writes {_quoted(name)} with the value {shortened(value)}, which is not '
                    f"one of its values {shortened(list(values))}; write one that is"
                )
        return regions

    @property
    def region_values(self) -> tuple[int, ...]:
        """The file value that each of `regions` is drawn with."""
        return tuple(self.values["regions_class_order"]) if self.regions else ()

    def _region_order(self, regions: Mapping[str, tuple[int, ...]]) -> list[int]:
        order: Any = self.values.get("regions_class_order")
        is_list = isinstance(order, list) and all(map(_is_whole, order))
        if not is_list or len(order) != len(regions) or len(set(order)) != len(order):
            raise self.error(
                f'"labels" has the regions {excerpt(", ".join(regions))}, and "regions_class_order" is '
                f"{shortened(order)}; write one value for each of them, all different: predictions write regions in "
                "this order, later ones over earlier ones"
            )
        return list(order)

    def _values_by_name(self) -> dict[str, tuple[int, ...]]:
        """The values of each name where names have values: one, or those of a region."""
        found = {}
        for name, value in self._listed_labels().items():
            if name == "ignore":
                continue
            values = value if isinstance(value, list) else [value]
            if not values or not all(map(_is_whole, values)):
                raise self.error(
                    f'"labels" gives {_quoted(name)} the value {shortened(value)}; write a whole number, or a list of '
                    "them"
                )
            found[name] = tuple(sorted(set(values)))
        return found

    def _listed_labels(self) -> dict[str, Any]:
        """As they are written; numbers in quotes are numbers where they are the values of names."""
        listed = self.require("labels", dict)
        numbers = [whole_number(value) if isinstance(value, str) else None for value in listed.values()]
        if None in numbers or any(whole_number(key) is not None for key in listed):
            return listed
        return dict(zip(listed, numbers, strict=True))

    def _label_pair(self, key: str, name: str) -> tuple[int, str]:
        value = whole_number(key)
        if value is None:
            raise self.error(f'"labels" has the key {_quoted(key)}; write the voxel value, as in "1": {_quoted(name)}')
        return value, name

    def require(self, key: str, expected: type[T]) -> T:
        """The value of a field.

        Raises:
            DatasetError: the field is missing or of another type.
        """
        if key not in self.values:
            raise self.error(f'"{key}" is missing; add it in the form "{key}": {_EXAMPLES[key]}')
        value = self.values[key]
        if not isinstance(value, expected) or isinstance(value, bool):
            raise self.error(f'"{key}" is {kind_of(value)}; write it in the form "{key}": {_EXAMPLES[key]}')
        return value

    def error(self, problem: str) -> DatasetError:
        """The error that describes this problem and names this file."""
        return source_error(self.path, problem)

    def check_labels(self, pairs: Iterable[tuple[int, str]]) -> dict[int, str]:
        """Class names by file value, in ascending order of value.

        Raises:
            DatasetError: a value is negative or larger than 65535, a value or name appears twice, background 0 or any
                other class is missing, or there are more classes than can be told apart.
        """
        labels, names = dict[int, str](), set[str]()
        for value, name in sorted(pairs):
            if not 0 <= value <= MAX_LABEL_VALUE:
                raise self.error(
                    f'"labels" gives {_quoted(name)} the value {shortened(value)}; label values must be 0 to '
                    f"{MAX_LABEL_VALUE}"
                )
            if value in labels:
                raise self.error(
                    f'"labels" gives {shortened(value)} to both {_quoted(labels[value])} and {_quoted(name)}; keep '
                    "one of them"
                )
            if name in names:
                raise self.error(
                    f'"labels" has two classes called {_quoted(name)}; rename one, results are reported by name'
                )
            labels[value] = name
            names.add(name)
        if 0 not in labels:
            raise self.error(f'"labels" has the values {shortened(list(labels))} and no 0; add the background as 0')
        if not 2 <= len(labels) <= MAX_CLASSES:
            raise self.error(
                f'"labels" has {len(labels)} classes with the background; 2 to {MAX_CLASSES} can be learned, '
                "add the classes to be found, or merge classes"
            )
        return labels


def read_json(path: Path) -> Any:
    """The value in a JSON file; an object that names a key twice is refused, because one of the two would be lost.

    Raises:
        DatasetError: the file cannot be read, is empty, or is not valid JSON in UTF-8 (line and column are named).
    """
    text = read_text(path, how="the file as UTF-8")
    if not text.strip():
        raise DatasetError(f"source: {path} is empty; copy it again or write the description of the data set into it")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise DatasetError(
                f"source: {path}: {_quoted(twice)} appears twice in one object; remove or rename one of them"
            )
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DatasetError(
            f"source: {path}: not valid JSON at {where} ({error.msg}); correct it there, or copy the file again"
        ) from None
    except (RecursionError, ValueError) as error:
        # Nested beyond the parser's depth, or a number of thousands of digits.
        raise DatasetError(f"source: {path}: not usable as JSON ({error}); copy the file again") from None


def read_text(path: Path, *, how: str) -> str:
    """The text of a file, with its own line ends.

    Args:
        path: of the file.
        how: to save it: the end of an error.

    Raises:
        DatasetError: the file cannot be read, or is not UTF-8.
    """
    try:
        return check_is_file(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DatasetError(f"source: {path} cannot be read ({error.strerror}); check its permissions") from None
    except UnicodeDecodeError as error:
        raise source_error(path, f"byte {error.start} is not UTF-8; save {how}") from None


def source_error(path: Path, problem: str) -> DatasetError:
    """The error that describes this problem and names the file."""
    return DatasetError(f"source: {path}: {problem}")


def whole_number(text: str) -> int | None:
    """The number that this text writes in plain digits, or None."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _quoted(text: str) -> str:
    return f'"{excerpt(text, 80)}"'


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    words = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return words.get(type(value), type(value).__name__)
