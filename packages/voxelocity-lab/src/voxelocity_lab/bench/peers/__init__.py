"""The peers: what each needs, and what makes its batches. A peer is imported only when it is measured."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from voxelocity_lab.bench.comparison import BenchSide, Once
from voxelocity_lab.bench.streams import OpenStream, Work, batches_per_s, fastest
from voxelocity_observe.core.first_use import value_of


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another way to do the same work.

    Attributes:
        needs: modules without which it cannot be run.
        streams: a module here and its function that takes a `Work` and "crop", "affine" (changes as `streams.AS_MONAI`)
            or "nnU-Net" (its default augmentation), and returns batches by the settings of a loader. Empty for a peer
            that makes no batches.
    """

    needs: tuple[str, ...] = ()
    streams: str = ""


_NNUNET = ("nnunetv2", "acvl_utils", "dynamic_network_architectures", "batchgeneratorsv2", "batchgenerators")
PEERS = {
    "MONAI": Peer(needs=("monai",), streams="monai.streams"),
    "LMDBDataset": Peer(needs=("monai", "lmdb")),
    "torch": Peer(streams="torch_loop.streams"),
    # Its patches come by MONAI's loaders.
    "TorchIO": Peer(needs=("torchio", "SimpleITK", "monai"), streams="torchio.streams"),
    "batchgeneratorsv2": Peer(needs=("batchgeneratorsv2", "pandas"), streams="nnunet.patch_streams"),
    "nnU-Net": Peer(needs=_NNUNET, streams="nnunet.streams"),
    "SimpleITK": Peer(needs=("SimpleITK",)),
    "libdeflate": Peer(needs=("deflate",)),
    "zlib-ng": Peer(needs=("zlib_ng",)),
}
_DISTRIBUTIONS = (
    *("monai", "lmdb", "nnunetv2", "batchgenerators", "batchgeneratorsv2", "torchio", "SimpleITK", "deflate"),
    *("zlib-ng", "isal", "blosc2"),
)


def missing(peer: str) -> str:
    """Why this peer cannot be run, or an empty text where it can."""
    absent = [module for module in PEERS[peer].needs if importlib.util.find_spec(module) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def versions() -> dict[str, str | None]:
    """Versions of the peers' packages, None for those that are not installed."""
    return {name: _version(name) for name in _DISTRIBUTIONS}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def peer_side(name: str, peer: str, make: Callable[[], Once], note: str = "") -> BenchSide:
    """The side that `make` prepares where the peer is installed; else one that says what is missing. "" needs none."""
    why = missing(peer) if peer else ""
    return BenchSide(name=name, once=None if why else make(), note=why or note)


def best_side(
    name: str, peer: str, work: Work, chain: str, num_batches: int, *, note: str = "", per_batch: int = 1
) -> BenchSide:
    """The rate of a peer's batches at the best of its settings, which the note names."""
    if why := missing(peer):
        return BenchSide(name=name, once=None, note=why)
    module, function = PEERS[peer].streams.split(".")
    # Imports the peer.
    streams: dict[str, OpenStream] = value_of(f"{__name__}.{module}", function)(work, chain)
    best, stream = fastest(streams, num_batches)
    return BenchSide(name=name, once=lambda: per_batch * batches_per_s(stream, num_batches), note=f"{note}{best}")
