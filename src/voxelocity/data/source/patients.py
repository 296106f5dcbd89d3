"""Derives from their names which cases are scans of one patient: folds must keep these together.

Names only count where the groups are plausible. If all cases share the name before a number, the number counts cases,
as in case_001 to case_099, and says nothing about patients.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_BIDS = re.compile(r"(?:^|[_/])(sub-[A-Za-z0-9]+)(?=_|$)")
_SPLIT = re.compile(r"[-_. ]+")
# Sides and points in time: words count anywhere in a name; what could be a contrast or a site counts only at its end.
_ANYWHERE = re.compile(
    r"left|right|pre|post|preop|postop|baseline|follow-?up\d*|(ses|session|visit|timepoint|time|tp|day|week|month|year|fu|frame|phase)"
    r"\d+",
    re.IGNORECASE,
)
_AT_END = re.compile(r"[lr]|[lr][ht]|(v|t|m|scan|run)\d+", re.IGNORECASE)
_PREFIXES = frozenset(
    ("ses", "session", "visit", "timepoint", "time", "tp", "day", "week", "month", "year", "fu", "frame", "phase")
)
_NUMBERED = re.compile(r"(.*\d.*)[-_. ](\d{1,3}|\d{8})")
_MEAN_SCANS, _MOST_SCANS = 4, 24


def patients_of(case_ids: Sequence[str]) -> dict[str, str]:
    """Case id to the name of its patient, which is the case id itself unless the names show a group.

    Patients come from BIDS names (sub-01_ses-2), from words for sides and times (p7_left, p7_right, p7_visit2), and
    from numbers after a name that has a number itself (p07_1, p07_2). The last two count only if no patient has more
    than 24 cases; numbers also only if patients have at most 4 on average and mostly count from 0 or 1.
    """
    patients = {case_id: _subject(case_id) or _without_markers(case_id) for case_id in case_ids}
    if _largest(patients) > _MOST_SCANS or len(set(patients.values())) < 2:
        patients = {case_id: _subject(case_id) or case_id for case_id in case_ids}
    by_stem: dict[str, list[str]] = defaultdict(list)
    for case_id, patient in patients.items():
        numbered = None if _subject(case_id) else _NUMBERED.fullmatch(patient)
        if numbered:
            by_stem[numbered[1]].append(case_id)
    if _are_patients(by_stem):
        stems = {case_id: stem for stem, ids in by_stem.items() for case_id in ids}
        patients = {case_id: stems.get(case_id, patient) for case_id, patient in patients.items()}
    # A patient with one scan has the name of its case.
    count = Counter(patients.values())
    return {case_id: patient if count[patient] > 1 else case_id for case_id, patient in patients.items()}


def _subject(case_id: str) -> str | None:
    found = _BIDS.search(case_id)
    return found[1] if found else None


def _without_markers(case_id: str) -> str:
    """The id without words for a side or a time; the id itself where nothing else is left of it."""
    words = _SPLIT.split(case_id)
    kept: list[str] = []
    place = 0
    while place < len(words):
        word, after = words[place], words[place + 1 :]
        if word.lower() in _PREFIXES and after and re.fullmatch(r"\d+|pre|post|baseline", after[0], re.IGNORECASE):
            place += 2
            continue
        is_marker = _ANYWHERE.fullmatch(word) or (not after and kept and _AT_END.fullmatch(word))
        if not is_marker:
            kept.append(word)
        place += 1
    has_number = any(re.search(r"\d", word) for word in kept)
    return "_".join(kept) if has_number and len(kept) < len(words) else case_id


def _are_patients(by_stem: dict[str, list[str]]) -> bool:
    sizes = [len(ids) for ids in by_stem.values()]
    if len(sizes) < 2 or max(sizes) == 1 or max(sizes) > _MOST_SCANS or sum(sizes) > _MEAN_SCANS * len(sizes):
        return False
    firsts = [min(int(_last_number(case_id)) for case_id in ids) for ids in by_stem.values()]
    are_dates = [len(_last_number(ids[0])) == 8 for ids in by_stem.values()]
    num_counted = sum(first <= 1 or is_date for first, is_date in zip(firsts, are_dates, strict=True))
    return 2 * num_counted >= len(firsts)


def _last_number(case_id: str) -> str:
    last: str = re.findall(r"\d+", case_id)[-1]
    return last


def _largest(patients: dict[str, str]) -> int:
    return max(Counter(patients.values()).values(), default=0)
