"""Ways of naming files, tried in order: case and channel of each image, and the case of each label, by names alone."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

from voxelocity.core.scan_formats import stem_of
from voxelocity.data.source.listing import IMAGE, LABEL, name_without_label

_BIDS = re.compile(r"(sub-[A-Za-z0-9]+(?:_ses-[A-Za-z0-9]+)?)")
_RUN = re.compile(r"_run-[A-Za-z0-9]+")
_NUMBERED = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")
_Keys = dict[str, tuple[str, str]]
ONLY_CHANNEL = "image"
"""The name of the channel where file names do not distinguish several."""


def keys_of(images: Sequence[str], labels: Sequence[str]) -> _Keys:
    """Case and channel of each name, in the first way that suits them."""
    return next(keys for naming in _NAMINGS if (keys := naming(images, labels)) is not None)


def _bids_keys(images: Sequence[str], labels: Sequence[str]) -> _Keys | None:
    everything = [*images, *labels]
    if not all(_BIDS.search(os.path.basename(name)) for name in everything):
        return None
    keys = {name: _bids_key(name) for name in everything}
    runs = {name: match[0] for name in everything if (match := _RUN.search(os.path.basename(name)))}
    # Where every file says its run, and one has several, each is a scan of its own.
    has_several = len({(*keys[name], run) for name, run in runs.items()}) > len({*keys.values()})
    if has_several and len(runs) == len(keys):
        keys = {name: (case + runs[name], channel) for name, (case, channel) in keys.items()}
    return keys


def _name_keys(images: Sequence[str], labels: Sequence[str]) -> _Keys | None:
    """If most labels have the name of one image, and no two images have one name."""
    by_name = {name: (name_without_label(name), ONLY_CHANNEL) for name in labels}
    label_keys = Counter(case for case, _ in by_name.values())
    by_name |= {name: _name_key(name, label_keys) for name in images}
    return _if_matched(by_name, images, labels)


def _path_keys(images: Sequence[str], labels: Sequence[str]) -> _Keys | None:
    """If most labels have the path of one image, but for words that say what is a label or an image."""
    parts = {name: _own_parts(os.path.dirname(name)) for name in (*images, *labels)}
    shared = _in_all(parts, parts)
    keys = {}
    for name, found in parts.items():
        own = [*(part for part in found if part not in shared), name_without_label(name)]
        keys[name] = "_".join(filter(None, own)) or "_".join(found[-1:]) or "case", ONLY_CHANNEL
    return _if_matched(keys, images, labels) if labels else None


def _if_matched(keys: _Keys, images: Sequence[str], labels: Sequence[str]) -> _Keys | None:
    """The keys, if those of images differ and most labels alone have the case of an image."""
    cases, counts = {keys[name][0] for name in images}, Counter(keys[name][0] for name in labels)
    num_matched = sum(count == 1 and case in cases for case, count in counts.items())
    are_apart = len({keys[name] for name in images}) == len(images)
    return keys if are_apart and 2 * num_matched >= len(labels) else None


def _channel_folder_keys(images: Sequence[str], labels: Sequence[str]) -> _Keys | None:
    """If most labels have the name of one image in each of several folders: these are the channels."""
    bases, names = ({name: name_without_label(name) for name in some} for some in (labels, images))
    folders: dict[str, set[str]] = defaultdict(set)
    for name in images:
        folders[os.path.dirname(name)].add(names[name])
    are_apart = len(set(bases.values())) == len(labels) and not {os.path.dirname(name) for name in labels} & {*folders}
    if len(folders) < 2 or not are_apart or not labels:
        return None
    num_matched = len(set.intersection(*folders.values()) & set(bases.values()))
    parts = {folder: folder.split("/") for folder in folders}
    shared = _in_all(parts, folders)
    channels = {folder: "_".join(part for part in parts[folder] if part not in shared) for folder in folders}
    keys = {name: (names[name], channels[os.path.dirname(name)]) for name in images}
    if 2 * num_matched < len(labels) or len(set(keys.values())) < len(keys):
        return None
    return keys | {name: (base, ONLY_CHANNEL) for name, base in bases.items()}


def _prefix_keys(images: Sequence[str], labels: Sequence[str]) -> _Keys | None:
    """If images begin with the names of most labels, without the words that call these labels: the rest is a channel.

    An image without a label belongs here if it ends as the others do.
    """
    bases = {name: tuple(word for word in _words(_stem(name)) if not LABEL.search(word)) for name in labels}
    words = {name: tuple(_words(_stem(name))) for name in images}
    known = set(bases.values()) - {()}
    lengths = {
        name: next((num for num in range(len(found), 0, -1) if found[:num] in known), 0)
        for name, found in words.items()
    }
    channels = {words[name][num:] for name, num in lengths.items() if num}
    if not channels or 2 * len({words[name][:num] for name, num in lengths.items() if num}) < len(known):
        return None
    keys = {}
    for name, num in lengths.items():
        ends = (len(words[name]) - len(end) for end in channels if end and words[name][-len(end) :] == end)
        begin = num or next(ends, 0) or len(words[name])
        keys[name] = _begin(_stem(name), begin), "_".join(words[name][begin:]) or ONLY_CHANNEL
    cases = {words[name][:num]: keys[name][0] for name, num in lengths.items() if num}
    keys |= {name: (cases.get(base, "_".join(base)), ONLY_CHANNEL) for name, base in bases.items()}
    return keys if len({keys[name] for name in images}) == len(images) else None


def _number_keys(images: Sequence[str], labels: Sequence[str]) -> _Keys | None:
    """If names of images differ by one number alone, and those of most labels have one of these numbers."""
    numbers = {name: re.findall(r"\d+", _stem(name))[-1:] for name in (*images, *labels)}
    forms = {name: re.sub(r"\d+(?=\D*$)", "#", _stem(name)) for name in images}
    cases = {int(number): _stem(name) for name in images for number in numbers[name]}
    found = {name: cases.get(int(number), number) for name in labels for number in numbers[name]}
    if len(set(forms.values())) != 1 or len(cases) != len(images) or len(found) != len(labels):
        return None
    known = set(cases.values())
    keys = {name: (case, ONLY_CHANNEL) for name, case in ({name: _stem(name) for name in images} | found).items()}
    return keys if 2 * sum(case in known for case in found.values()) >= len(labels) > 0 else None


def _bids_key(name: str) -> tuple[str, str]:
    base = os.path.basename(name)
    match = _BIDS.search(base)
    assert match is not None, "checked for every name"
    return match[1], stem_of(base).rpartition("_")[2]


def _name_key(name: str, label_keys: Mapping[str, int]) -> tuple[str, str]:
    whole, numbered = name_without_label(name) or "case", _NUMBERED.fullmatch(_stem(name))
    # A number at the end counts channels only where it does not belong to the name of a case.
    if numbered is None or (whole in label_keys and numbered["channel"] != "0000"):
        return whole, ONLY_CHANNEL
    return name_without_label(numbered["case"]), numbered["channel"]


def _folder_keys(images: Sequence[str], labels: Sequence[str]) -> _Keys:
    """Cases are folders; channels are what the names of the files in one folder do not have in common."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name in (*images, *labels):
        by_folder[os.path.dirname(name)].append(name)
    parts = {folder: _own_parts(folder) for folder in by_folder}
    shared = _in_all(parts, by_folder)
    # Folders within each case, that only images or only labels have.
    of_images, of_labels = ({os.path.dirname(name) for name in names} for names in (images, labels))
    shared_by = {True: shared | _in_all(parts, of_images), False: shared | _in_all(parts, of_labels)}
    keys = {}
    for folder, inside in by_folder.items():
        own = [part for part in parts[folder] if part not in shared_by[folder in of_images]] or parts[folder][-1:]
        case = "_".join(own) or os.path.basename(folder) or "case"
        words = {name: _words_beyond(os.path.basename(folder), _stem(name)) for name in inside}
        columns = list(zip(*words.values(), strict=False)) if len(inside) > 1 else []
        start = next((index for index, column in enumerate(columns) if len(set(column)) > 1), len(columns))
        for name in inside:
            keys[name] = case, "_".join(words[name][start:]) or ONLY_CHANNEL
    cases = {keys[name][0] for name in images}
    for name in labels:
        # A label may have the name of the folder of its images.
        if keys[name][0] not in cases and (base := name_without_label(name)) in cases:
            keys[name] = base, ONLY_CHANNEL
    return keys


@lru_cache(maxsize=1 << 16)
def _own_parts(folder: str) -> list[str]:
    """Of a path those that name no kind of files. Not to be changed."""
    return [part for part in folder.split("/") if part and not LABEL.fullmatch(part) and not IMAGE.fullmatch(part)]


def _in_all(parts: Mapping[str, Sequence[str]], folders: Collection[str]) -> set[str]:
    """What occurs in the paths of all of several folders."""
    return set.intersection(*(set(parts[folder]) for folder in folders)) if len(folders) > 1 else set()


_NAMINGS: tuple[Callable[[Sequence[str], Sequence[str]], _Keys | None], ...] = (
    _bids_keys, _name_keys, _path_keys, _channel_folder_keys, _number_keys, _prefix_keys, _folder_keys,
)  # fmt: skip


def class_of(name: str, case: str) -> str:
    """The class that a file of a case is the mask of: its name, without that of the case at the beginning."""
    stem = _stem(name)
    begin = re.match(rf"{re.escape(case)}[-_. ]+(?=[^-_. ])", stem, re.IGNORECASE)
    return stem[begin.end() :] if begin else stem


def _stem(name: str) -> str:
    return stem_of(os.path.basename(name))


def _words(stem: str) -> list[str]:
    return re.findall(r"[^-_. ]+", stem)


def _begin(stem: str, num: int) -> str:
    """The stem up to the end of this many words."""
    ends = [match.end() for match in re.finditer(r"[^-_. ]+", stem)]
    return stem[: ends[num - 1]] if ends else stem


def _words_beyond(folder: str, stem: str) -> list[str]:
    """The words of a file name, without those of its folder's name that it begins with."""
    words, shared = _words(stem), _words(folder)
    return words[len(shared) :] if words[: len(shared)] == shared else words
