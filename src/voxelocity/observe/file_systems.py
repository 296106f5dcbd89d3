"""What a file system is, by the name that Linux gives it."""

from __future__ import annotations

_OF_NETWORKS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "beegfs",
        "gpfs",
        "ceph",
        "glusterfs",
        "9p",
        "afs",
        "fuse.sshfs",
    }
)
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def is_on_network(file_system: str) -> bool:
    """Whether files of such a file system lie on another machine; False where the name is not known."""
    return file_system in _OF_NETWORKS


def is_in_memory(file_system: str) -> bool:
    """Whether files of such a file system take main memory, and are gone with it."""
    return file_system in _IN_MEMORY
