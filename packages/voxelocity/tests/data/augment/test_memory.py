import numpy as np
import pytest
import torch

from voxelocity.data.augment.memory import Staging


def test_arrays_of_any_order_and_dtype_come_back_from_one_piece_of_memory():
    base = np.random.default_rng(0).integers(0, 200, (2, 7, 5, 9)).astype(np.int16)
    given = [
        base,
        np.asfortranarray(base),
        base[:, 1:4, ::2, 3:],
        base[..., ::-1],
        base.astype(np.uint8)[0, :3, :1, :1],
        base[:, :0],
        np.zeros((0, 3, 2, 2), np.float32),
        np.array([2**40, -1], np.int64),
    ]
    staging = Staging()
    pieces = [staging.add(array) for array in given]
    staged = staging.to(torch.device("cpu"))
    assert staged.memory.dtype == torch.uint8
    assert staged.memory.numel() % 16 == 0
    for piece, array in zip(pieces, given, strict=True):
        assert piece.offset_bytes % 16 == 0
        np.testing.assert_array_equal(staged.of(piece).numpy(), array)
        assert staged.of(piece).numpy().dtype == array.dtype


def test_the_order_in_memory_is_kept_so_that_no_axis_is_turned_round():
    array = np.zeros((4, 5, 6), np.float32)
    assert Staging().add(np.asfortranarray(array)).steps == (1, 4, 20)
    assert Staging().add(array[:2, :, 1:4]).steps == (15, 3, 1)


def test_an_array_can_be_stored_as_another_dtype():
    staging, array = Staging(), np.array([1.5, -2.0], dtype=">f8")
    piece = staging.add(array, "float32")
    stored = staging.to(torch.device("cpu")).of(piece)
    assert stored.dtype == torch.float32
    assert stored.tolist() == [1.5, -2.0]


@pytest.mark.gpu
def test_page_locked_memory_is_kept_until_its_copy_is_done_though_nobody_holds_it():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device, copies = torch.device("cuda"), []
    matrix = torch.zeros(4096, 4096, device=device)
    for number in range(32):
        # Copies wait behind it, while the next ones ask for memory of the same size.
        matrix @ matrix
        staging = Staging()
        piece = staging.add(np.full(2**18, number, np.int32))
        copies.append(staging.to(device).of(piece))
    assert all(bool((copy == number).all()) for number, copy in enumerate(copies))
