from voxelocity.parallel.heap import Heap

MIB = 2**20


def test_a_block_goes_into_the_smallest_gap_that_holds_it():
    heap = Heap()
    for key, size in enumerate((3, 2, 5)):
        heap.take(key, size)
    heap.give_back(0)
    heap.give_back(2)
    heap.take(3, 3)
    heap.take(4, 4)
    assert heap.resident_bytes == heap.most_bytes == 10
    # The gap of 5 has 1 left.
    heap.take(5, 2)
    assert heap.most_bytes == 12


def test_neighboring_gaps_do_not_join():
    heap = Heap()
    heap.take(0, 4)
    heap.take(1, 4)
    heap.give_back(0)
    heap.give_back(1)
    heap.take(2, 8)
    assert heap.most_bytes == 16


def test_a_large_block_is_mapped_alone_until_one_of_its_size_has_been_given_back():
    heap = Heap()
    for size in (MIB, 40 * MIB):
        heap.take(0, size)
        heap.give_back(0)
        assert heap.resident_bytes == 0
    # Now a block of this size is the heap's own, and stays; larger ones are still mapped.
    heap.take(0, MIB)
    heap.give_back(0)
    heap.take(0, 40 * MIB)
    heap.give_back(0)
    assert heap.resident_bytes == MIB
    assert heap.most_bytes == 41 * MIB
