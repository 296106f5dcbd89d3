"""Which files of a folder are the images and the labels of cases, by patterns that the user gives."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from voxelocity.data.source.folder import ONLY_CHANNEL, FoundCase, FoundCases
from voxelocity_observe.core.errors import ConfigError, DatasetError
from voxelocity_observe.core.quantities import listed

_FIELD = re.compile(r"\{([^{}]*)\}|(\*\*|\*)")
_FIELDS = {"--image": ("case", "channel"), "--label": ("case", "class")}


def group_by_patterns(names: Sequence[str], *, image: str, label: str) -> FoundCases:
    """The cases whose files have these names, sorted by case id.

    `{case}` stands for what a file shares with the others of its case, within one folder or file name; `{channel}` for
    a channel, `{class}` for the class of a mask; `*` for anything within a name, `**` for folders, too.

    Args:
        names: of files, or of folders of a DICOM series, relative to the folder, with "/".
        image: pattern of the images.
        label: pattern of the labels.

    Raises:
        ConfigError: a pattern is missing or not one.
        DatasetError: no file has such a name, or two files have one place.
    """
    if not image or not label:
        raise ConfigError("source: --image and --label go together; give a pattern of both")
    images: dict[str, dict[str, str]] = defaultdict(dict)
    for name, found in _matches(names, image, "--image"):
        channel = found.get("channel", ONLY_CHANNEL)
        other = images[found["case"]].setdefault(channel, name)
        if other != name:
            raise DatasetError(
                f"source: --image {image!r} takes {other} and {name} for the same channel of case {found['case']}; "
                "make the pattern narrower, or distinguish them by {channel}"
            )
    labels: dict[str, list[str]] = defaultdict(list)
    for name, found in _matches(names, label, "--label"):
        labels[found["case"]].append(name)
    several = {case: tuple(paths) for case, paths in labels.items() if len(paths) > 1 or "{class}" in label}
    channels = tuple(sorted({channel for found in images.values() for channel in found}))
    left_out = [(case, "no image has this name") for case in sorted(labels) if case not in images]
    cases = []
    for case, found in sorted(images.items()):
        if missing := [channel for channel in channels if channel not in found]:
            left_out.append((case, f"no {', '.join(missing)}"))
            continue
        one = "" if case in several else next(iter(labels.get(case, [""])))
        cases.append(FoundCase(case_id=case, images={channel: found[channel] for channel in channels}, label=one))
    known = {case.case_id for case in cases}
    masks = {case: paths for case, paths in several.items() if case in known}
    if "{class}" not in label:
        left_out += [(case, f"{len(paths)} label files; choose by --raters") for case, paths in masks.items()]
    return FoundCases(channels=channels, cases=tuple(cases), left_out=tuple(left_out), masks=masks)


def _matches(names: Sequence[str], pattern: str, option: str) -> list[tuple[str, dict[str, str]]]:
    """The names that have the pattern, with what its fields stand for."""
    expression = _expression(pattern, option)
    found = [(name, match.groupdict()) for name in sorted(names) if (match := expression.fullmatch(name))]
    if not found:
        there = listed(sorted(names), 3) or "none"
        raise DatasetError(f"source: no file has a name like {option} {pattern!r}; there are {there}")
    return found


def _expression(pattern: str, option: str) -> re.Pattern[str]:
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
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>[^/]+?)")
            seen.add(name)
    if "case" not in seen:
        raise ConfigError(
            f"source: {option} {pattern!r} does not say what distinguishes cases; write {{case}} in its place, as in "
            f"'{'images' if option == '--image' else 'labels'}/{{case}}.nii.gz'"
        )
    return re.compile("".join(parts) + re.escape(pattern[end:]))
