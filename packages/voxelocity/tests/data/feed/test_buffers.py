import gc
import threading

import pytest
import torch

from shared.limits import HANGS_S
from voxelocity.data.feed import BufferRing


def num_free(ring):
    return sum(map(len, ring._free.values()))


def test_memory_is_used_again_once_nobody_holds_it():
    ring = BufferRing(max_free=2)
    first = ring.take((4, 5), torch.float32)
    place = first.data_ptr()
    assert (first.shape, first.dtype, first.is_contiguous()) == ((4, 5), torch.float32, True)
    del first
    gc.collect()
    assert num_free(ring) == 1
    assert ring.take((4, 5), torch.float32).data_ptr() == place


def test_memory_is_kept_while_a_view_or_a_graph_holds_it():
    ring = BufferRing(max_free=2)
    batch = ring.take((4, 5), torch.float32).fill_(3.0)
    view, weight = batch[1], torch.ones(5, requires_grad=True)
    loss = (batch[2] * weight).sum()
    place = batch.data_ptr()
    del batch
    gc.collect()
    assert num_free(ring) == 0
    ring.take((4, 5), torch.float32).fill_(9.0)
    assert (view == 3.0).all()
    del view
    gc.collect()
    assert ring.take((4, 5), torch.float32).data_ptr() != place
    loss.backward()
    assert (weight.grad == 3.0).all()


def test_kinds_do_not_mix_and_only_a_limited_number_is_kept():
    ring = BufferRing(max_free=1)
    held = [ring.take((3,), torch.uint8) for _ in range(3)] + [ring.take((3,), torch.float32)]
    del held
    gc.collect()
    assert num_free(ring) == 2


def test_memory_may_come_back_while_the_same_thread_is_inside_the_ring():
    """As the garbage collector may do at any call."""
    ring = BufferRing(max_free=2)
    held = [ring.take((3,), torch.uint8)]

    class Collecting(dict):
        def __missing__(self, kind):
            held.clear()
            return self.setdefault(kind, [])

    ring._free = Collecting({kind: list(free) for kind, free in ring._free.items()})
    taking = threading.Thread(target=ring.take, args=((4,), torch.uint8), daemon=True)
    taking.start()
    taking.join(HANGS_S)
    assert not taking.is_alive(), "the ring waits for itself"
    assert num_free(ring) == 2


@pytest.mark.gpu
def test_page_locked_memory_is_used_again_with_what_was_copied_from_it_whole():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    ring, stream, copies = BufferRing(max_free=2, pinned=True), torch.cuda.Stream(), []
    busy, places = torch.zeros(2**26, device="cuda"), set()
    for number in range(16):
        buffer = ring.take((2**20,), torch.float32).fill_(number)
        assert buffer.is_pinned()
        places.add(buffer.data_ptr())
        with torch.cuda.stream(stream):
            busy.add_(1.0)
            copies.append(buffer.to("cuda", non_blocking=True))
        # As the feed does before it lets go of the buffer.
        stream.synchronize()
        del buffer
        gc.collect()
    assert len(places) == 1
    assert all(bool((copy == number).all()) for number, copy in enumerate(copies))
