"""Batches compared bit for bit, also across processes, tiers and resume points."""

import hashlib

import torch


def assert_equal_batches(ours, theirs):
    """The same draws and regions at the same steps, bit for bit."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a.step, a.draws, a.regions) == (b.step, b.draws, b.regions)
        assert torch.equal(a.image, b.image)
        assert torch.equal(a.label, b.label)


def batch_digest(batch):
    """A string that is equal for two batches if step, draws, boxes, shapes and every bit of the voxels are equal."""
    digest = hashlib.blake2b(repr((batch.step, batch.draws, batch.regions)).encode(), digest_size=16)
    for tensor in (batch.image, batch.label):
        array = tensor.cpu().contiguous().numpy()
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def digests_by_draw(batches):
    """By step, epoch, case and draw, a string that is equal if every bit of the sample's voxels is."""
    found = {}
    for batch in batches:
        for draw, *voxels in zip(batch.draws, batch.image, batch.label, strict=True):
            digest = hashlib.blake2b(digest_size=16)
            for tensor in voxels:
                digest.update(tensor.contiguous().numpy().tobytes())
            found[f"{batch.step}/{draw.epoch}/{draw.case_id}/{draw.draw}"] = digest.hexdigest()
    return found
