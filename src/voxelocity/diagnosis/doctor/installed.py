"""Which packages are installed, which Voxelocity requires, and which of them conflict. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import platform
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from voxelocity.diagnosis.doctor.seen import Conflict, Packages, Wanted

_CHECKOUT = Path(__file__).resolve().parents[4]
# Extras for developing Voxelocity, not for using it.
_OF_DEVELOPERS = ("dev",)


def see_packages() -> Packages:
    """Packages of this Python, from their metadata alone."""
    distributions = list(importlib.metadata.distributions())
    versions: dict[str, str] = {}
    for distribution in distributions:
        # Python imports the first one on the path. Leftovers of a broken removal have no name.
        if name := _name(distribution):
            versions.setdefault(name, distribution.version)
    wanted = tuple(wanted_packages(_own_requirements(_CHECKOUT)))
    ours = {package.name for package in wanted}
    asks: dict[str, Iterable[str]] = {
        name: distribution.requires or ()
        for distribution in reversed(distributions)
        if (name := _name(distribution)) in ours
    }
    return Packages(
        python=platform.python_version(),
        versions=versions,
        wanted=wanted,
        conflicts=tuple(find_conflicts(versions, asks)),
    )


def wanted_packages(requirements: Iterable[str]) -> Iterable[Wanted]:
    """The packages that a list of requirements, as in a package's metadata, asks for on this machine."""
    for text in requirements:
        requirement = Requirement(text)
        extra = _extra(requirement)
        if extra not in _OF_DEVELOPERS and requirement.name != "voxelocity" and _applies(requirement, extra):
            yield Wanted(name=canonicalize_name(requirement.name), versions=str(requirement.specifier), extra=extra)


def find_conflicts(versions: Mapping[str, str], asks: Mapping[str, Iterable[str]]) -> Iterable[Conflict]:
    """Installed packages whose own requirements another installed package does not meet.

    Args:
        versions: of installed packages.
        asks: requirements by the package that declares them; those of extras are skipped.
    """
    for name, texts in asks.items():
        for text in texts:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            neighbor = canonicalize_name(requirement.name)
            found = versions.get(neighbor)
            if found is not None and not _extra(requirement) and _applies(requirement, "") and not fits(found, text):
                wants = f"{neighbor}{requirement.specifier}"
                yield Conflict(name=name, version=versions[name], wants=wants, found=f"{neighbor} {found}")


def fits(version: str, requirement: str) -> bool:
    """Whether a version meets a requirement; True for a version that cannot be parsed."""
    try:
        return Requirement(requirement).specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _name(distribution: importlib.metadata.Distribution) -> str:
    try:
        metadata = distribution.metadata
    except FileNotFoundError:
        # A removal that did not finish; `importlib_metadata`, if a program has imported it, raises this.
        return ""
    return canonicalize_name(metadata["Name"]) if "Name" in metadata else ""


def _own_requirements(checkout: Path) -> list[str]:
    """Requirements of the checkout this runs from, since the installed version may differ; else the package's."""
    try:
        project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        project = {}
    if project.get("name") == "voxelocity":
        extras = project["optional-dependencies"].items()
        return [*project["dependencies"], *(_with_extra(text, extra) for extra, texts in extras for text in texts)]
    try:
        return importlib.metadata.requires("voxelocity") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _with_extra(text: str, extra: str) -> str:
    plain, _, marker = text.partition(";")
    condition = f"({marker.strip()}) and " if marker else ""
    return f'{plain.strip()}; {condition}extra == "{extra}"'


def _extra(requirement: Requirement) -> str:
    """The extra of a requirement, as metadata writes it: `...; extra == "lmdb"`."""
    _, has_extra, rest = str(requirement.marker or "").partition("extra ==")
    return rest.strip().strip("\"')").split('"')[0] if has_extra else ""


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
