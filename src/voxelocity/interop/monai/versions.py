"""Which installed package a module belongs to, and its version: the identity of code that nobody edits in place."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from types import ModuleType

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_RESULT_MAKERS = ("monai", "torch", "numpy", "scipy", "nibabel")
"""Packages whose version may change voxels, whatever the chain names."""


@functools.lru_cache(maxsize=4096)
def version_of(module_name: str) -> str | None:
    """Package and version of an installed module, or None for code that its author may edit, which is then read.

    A package installed in editable form is such code.
    """
    top = module_name.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    module = sys.modules.get(top)
    if module is None or not _is_installed(module):
        return None
    version = _package_version(top, module)
    return None if version is None else f"{top} {version}"


def versions_below_all() -> dict[str, str]:
    """Versions of Python and of the packages that take part in every chain."""
    found = {name: importlib.metadata.version(name) for name in _RESULT_MAKERS}
    return {"python": f"{sys.implementation.cache_tag}", **found}


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", []))
    return bool(places) and all(any(f"/{folder}/" in str(place) for folder in _PACKAGE_FOLDERS) for place in places)


def _package_version(top: str, module: ModuleType) -> str | None:
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        # The package and its module have different names, as with SimpleITK or PIL.
        version = getattr(module, "__version__", None)
        return str(version) if version is not None else None
