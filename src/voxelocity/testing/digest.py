"""A batch as a short string, so that streams can be compared bit for bit across processes, tiers and resume points."""

from __future__ import annotations

import hashlib

from voxelocity.core.batch import Batch


def batch_digest(batch: Batch) -> str:
    """A string that is equal for two batches if step, draws, boxes, shapes and every bit of the voxels are equal."""
    digest = hashlib.blake2b(repr((batch.step, batch.draws, batch.regions)).encode(), digest_size=16)
    for tensor in (batch.image, batch.label):
        array = tensor.cpu().contiguous().numpy()
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
