"""Which peers are installed. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util

PEERS = {
    "MONAI": ("monai",),
    "LMDBDataset": ("monai", "lmdb"),
    "batchgeneratorsv2": ("batchgeneratorsv2", "pandas"),
    "nnU-Net": ("nnunetv2", "acvl_utils", "dynamic_network_architectures", "batchgeneratorsv2", "batchgenerators"),
    "TorchIO": ("torchio", "SimpleITK"),
    "SimpleITK": ("SimpleITK",),
    "libdeflate": ("deflate",),
    "zlib-ng": ("zlib_ng",),
}
"""Modules that each peer needs."""
_DISTRIBUTIONS = (
    "monai",
    "lmdb",
    "nnunetv2",
    "batchgenerators",
    "batchgeneratorsv2",
    "torchio",
    "SimpleITK",
    "deflate",
    "zlib-ng",
    "isal",
    "numba",
    "blosc2",
)


def missing(peer: str) -> str:
    """Why this peer cannot be run, or an empty text where it can."""
    absent = [module for module in PEERS[peer] if importlib.util.find_spec(module) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def versions() -> dict[str, str | None]:
    """Versions of the peers' packages, None for those that are not installed."""
    return {name: _version(name) for name in _DISTRIBUTIONS}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
