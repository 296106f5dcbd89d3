"""A stand-in for CUDA graphs on a CPU: operations are recorded with their tensors and numbers, and run again."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storages(values):
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}


class RecordedOperations(TorchDispatchMode):
    """Keeps each operation with its arguments, and what tensors from outside held before they were written to."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.before = []
        self._own, self._seen = set(), set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        given = storages((arguments, options))
        for leaf in tree_leaves((arguments, options)):
            if not isinstance(leaf, torch.Tensor):
                continue
            place = (leaf.untyped_storage().data_ptr(), leaf.storage_offset(), leaf.shape)
            if place[0] not in self._own and place not in self._seen:
                self._seen.add(place)
                self.before.append((leaf.detach(), leaf.detach().clone()))
        made = function(*arguments, **options)
        new = [
            leaf
            for leaf in tree_leaves(made)
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in given
        ]
        self._own |= storages(new)
        self.operations.append((function, arguments, options, new))
        return made

    def replay(self):
        for function, arguments, options, new in self.operations:
            given = storages((arguments, options))
            again = [
                leaf
                for leaf in tree_leaves(function(*arguments, **options))
                if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in given
            ]
            for tensor, value in zip(new, again, strict=True):
                tensor.copy_(value)


class RecordedCalls:
    """A `voxelocity.step.graph.Recorder`: a number that is not read from a tensor stays what it was when recorded.

    Attributes:
        num_asides: steps that ran on the side.
        num_records: recordings made.
        num_releases: times that they were given back.
        error: raised in place of a recording.
    """

    def __init__(self):
        self.num_asides = self.num_records = self.num_releases = 0
        self.error = None
        self.num_bytes, self.share = 0, 0.0

    def aside(self, work):
        self.num_asides += 1
        return work()

    def record(self, work):
        self.num_records += 1
        if self.error is not None:
            raise self.error
        recorded = RecordedOperations()
        try:
            with recorded:
                made = work()
        finally:
            with torch.no_grad():
                for tensor, value in recorded.before:
                    tensor.copy_(value)

        def replay():
            with torch.no_grad():
                recorded.replay()

        return replay, made

    def wait(self):
        pass

    def release(self):
        self.num_releases += 1
