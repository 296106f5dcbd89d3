"""Which files of a folder are the images and the labels of cases, by patterns that the user gives."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from voxelocity.data.source.folder import FoundCase, FoundCases
from voxelocity.data.source.naming import ONLY_CHANNEL
from voxelocity_observe.core.errors import ConfigError, DatasetError
from voxelocity_observe.core.quantities import listed

_FIELD = re.compile(r"\{([^{}]*)\}|(\*\*|\*)")
_FIELDS = {"--image": ("case", "channel"), "--label": ("case", "class")}


def group_by_patterns(names: Sequence[str], *, image: str, label: str) -> FoundCases:
    """The cases whose files have these names, sorted by case id.

    `{case}` stands for what a file shares with the others of its case, within one folder or file name; `{channel}` for
    a channel, `{class}` for the class of a mask; `*` for anything within a name, `**` for folders, too. Where a name
    can be divided in several ways, as `BraTS_001_t1` by `{case}_{channel}`, that way is taken which gives images and
    labels the same cases, and then the one with the most cases of a channel or class. A file that has both patterns is
    a label, unless all images are such files: then it is an image.

    Args:
        names: of files, or of folders of a DICOM series, relative to the folder, with "/".
        image: pattern of the images.
        label: pattern of the labels.

    Raises:
        ConfigError: a pattern is missing or not one, or both take the same files.
        DatasetError: no file has such a name, or two files have one place.
    """
    if not image or not label:
        raise ConfigError("source: --image and --label go together; give a pattern of both")
    of_images, of_labels = _matches(names, image, "--image"), _matches(names, label, "--label")
    if of_images.keys() == of_labels.keys():
        raise ConfigError(f"source: --image {image!r} and --label {label!r} take the same files; make one narrower")
    of_either = of_labels if of_images.keys() <= of_labels.keys() else of_images
    for name in of_images.keys() & of_labels.keys():
        del of_either[name]
    images: dict[str, dict[str, str]] = defaultdict(dict)
    for name, (case, channel) in _divided(of_images, {case for ways in of_labels.values() for case, _ in ways}).items():
        other = images[case].setdefault(channel or ONLY_CHANNEL, name)
        if other != name:
            raise DatasetError(
                f"source: --image {image!r} takes {other} and {name} for the same channel of case {case}; "
                "make the pattern narrower, or distinguish them by {channel}"
            )
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for name, (case, of_class) in _divided(of_labels, images.keys()).items():
        labels[case][name] = of_class
    several = {case: paths for case, paths in labels.items() if len(paths) > 1 or "{class}" in label}
    channels = tuple(sorted({channel for found in images.values() for channel in found}))
    left_out = [(case, "no image has this name") for case in sorted(labels) if case not in images]
    cases = []
    for case, found in sorted(images.items()):
        if missing := [channel for channel in channels if channel not in found]:
            left_out.append((case, f"no {', '.join(missing)}"))
            continue
        one = "" if case in several else next(iter(labels.get(case, ("",))))
        cases.append(FoundCase(case_id=case, images={channel: found[channel] for channel in channels}, label=one))
    known = {case.case_id for case in cases}
    masks = {case: paths for case, paths in several.items() if case in known}
    if "{class}" not in label:
        left_out += [(case, f"{len(paths)} label files; choose by --raters") for case, paths in masks.items()]
    return FoundCases(channels=channels, cases=tuple(cases), left_out=tuple(left_out), masks=masks)


def _matches(names: Sequence[str], pattern: str, option: str) -> dict[str, list[tuple[str, str]]]:
    """The names that have the pattern, sorted, with every case and channel or class that they can be divided into."""
    expression, is_open = _expression(pattern, option), _is_open(pattern)
    found = {}
    for name in filter(expression.fullmatch, sorted(names)):
        longest = max(map(len, name.split("/")))
        sizes = range(1, longest + 1) if is_open else ()
        ways = [_expression(pattern, option, size).fullmatch(name) for size in sizes] or [expression.fullmatch(name)]
        found[name] = [(way["case"], way.groupdict().get(_FIELDS[option][1], "")) for way in ways if way]
    if not found:
        there = listed(sorted(names), 3) or "none"
        raise DatasetError(f"source: no file has a name like {option} {pattern!r}; there are {there}")
    return found


def _is_open(pattern: str) -> bool:
    """Whether what stands for the case may be longer or shorter, or elsewhere: no folder or name is all of it."""
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        ends = ("/".join(parts[:number]), "/".join(parts[number + 1 :]))
        if [match[0] for match in _FIELD.finditer(part)] == ["{case}"] and not all("**" in end for end in ends):
            return False
    return True


def _divided(found: Mapping[str, Sequence[tuple[str, str]]], known: Collection[str]) -> dict[str, tuple[str, str]]:
    """Of each name the case and the channel or class: of known cases, then such as most cases have, then long ones."""
    cases_of: dict[str, set[str]] = defaultdict(set)
    for ways in found.values():
        for case, part in ways:
            cases_of[part].add(case)

    def worth(way: tuple[str, str]) -> tuple[bool, int, int]:
        case, part = way
        # Of names without a channel or class, all parts are "".
        return case in known, len(cases_of[part]), len(part or case)

    return {name: max(ways, key=worth) for name, ways in found.items()}


@cache
def _expression(pattern: str, option: str, size: int = 0) -> re.Pattern[str]:
    """What names must have, with a case of this many characters, or any number of them."""
    fields = _FIELDS[option]
    parts, seen, end = [], set(), 0
    for match in _FIELD.finditer(pattern):
        parts.append(re.escape(pattern[end : match.start()]))
        end, name = match.end(), match[1]
        if name is None:
            parts.append("[^/]*" if match[2] == "*" else ".*")
        elif name not in fields:
            known = " and ".join(f"{{{field}}}" for field in fields)
            raise ConfigError(f"source: {option} {pattern!r} has {match[0]}; its fields are {known}")
        else:
            times = f"{{{size}}}" if size and name == "case" else "+?"
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>[^/]{times})")
            seen.add(name)
    if "case" not in seen:
        raise ConfigError(
            f"source: {option} {pattern!r} does not say what distinguishes cases; write {{case}} in its place, as in "
            f"'{'images' if option == '--image' else 'labels'}/{{case}}.nii.gz'"
        )
    return re.compile("".join(parts) + re.escape(pattern[end:]))
