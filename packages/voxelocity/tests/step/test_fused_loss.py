"""The loss in two fused passes against torch's operations and against float64.

It needs a CUDA device; `test_triton_loss.py` runs all of this but the part with a device in its name once more in
Triton's interpreter.
"""

import itertools
import os
from dataclasses import replace

import pytest
import torch

from shared.examples import is_thorough
from voxelocity.core.kernels import record_launches
from voxelocity.step import LOSSES, LossConfig, build_loss
from voxelocity.step.fused import is_fused, set_fused
from voxelocity.step.fused_loss import FusedLoss, LossForm, LossTiling, can_fuse, possible_launches

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_KERNELS = IS_INTERPRETED or torch.cuda.is_available()
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_KERNELS, reason="no CUDA device")]
REGIONS = ((1, 2, 3), (2, 3), (3,))
# Of the largest element; the interpreter cuts off the digits that bfloat16 rounds.
ROUNDING = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def switches(count):
    """All settings of switches; where kernels are interpreted, a half in which those of any but one are all there."""
    found = itertools.product([True, False], repeat=count)
    return [values for values in found if is_thorough or not IS_INTERPRETED or sum(values) % 2 == 0]


@pytest.fixture(autouse=True)
def _switch_is_put_back():
    before = is_fused("loss")
    yield
    set_fused("loss", before)


def drawn(num_classes, shape=(2, 5, 6, 7), *, dtype=torch.float32, channels_last=False, highest=None, scale=3.0):
    rng = torch.Generator().manual_seed(num_classes)
    logits = (scale * torch.randn(shape[0], num_classes, *shape[1:], generator=rng)).to(dtype).to(DEVICE)
    if channels_last:
        logits = logits.to(memory_format=torch.channels_last_3d)
    label = torch.randint(0, highest or num_classes, shape, generator=rng).to(torch.uint8).to(DEVICE)
    return logits.requires_grad_(), label


def has_kernels(value):
    """Whether kernels made the loss, or the sums that torch finished."""
    reached = [value.grad_fn]
    for node in reached:
        reached += [below for below, _ in node.next_functions if below is not None]
    return any(node.name() in ("_LossBackward", "_SumsBackward") for node in reached)


def both(logits, label, config=None, **options):
    """Loss and gradient by torch's operations in float32, and by the kernels."""
    loss = build_loss(config or LossConfig(), **options)
    made = []
    for fused, given in ((False, logits.detach().float().requires_grad_()), (True, logits)):
        set_fused("loss", fused)
        value = loss(given, label)
        assert has_kernels(value) == fused
        made.append((value.detach(), *torch.autograd.grad(value, given)))
    return made


def check(reference, found, rounding=1e-5):
    (loss_a, gradient_a), (loss_b, gradient_b) = reference, found
    assert loss_b.dtype == torch.float32
    assert loss_b.shape == ()
    torch.testing.assert_close(loss_b, loss_a, rtol=1e-5, atol=2e-6)
    assert (gradient_b.float() - gradient_a).abs().max() <= rounding * gradient_a.abs().max() + 1e-9


@pytest.mark.parametrize("channels_last", [False, True], ids=["planes", "channels_last"])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("num_classes", [1, 2, 3, 4, 14, 33, 105])
def test_loss_and_gradient_are_those_of_torch(num_classes, dtype, channels_last):
    logits, label = drawn(num_classes, dtype=dtype, channels_last=channels_last)
    reference, found = both(logits, label)
    check(reference, found, ROUNDING[dtype])
    assert found[1].dtype == dtype
    assert found[1].stride() == logits.stride()


@pytest.mark.parametrize("channels_last", [False, True], ids=["planes", "channels_last"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 1, 9), (2, 8, 16, 20), (1, 3, 11, 37)])
def test_every_voxel_counts_once_whatever_the_extent(shape, channels_last):
    for num_classes in (2, 3):
        check(*both(*drawn(num_classes, shape, channels_last=channels_last)))


@pytest.mark.parametrize("regions", [(), REGIONS], ids=["classes", "regions"])
@pytest.mark.parametrize("name", [name for name, kind in LOSSES.items() if kind.has_kernels])
@pytest.mark.parametrize("ignored", [None, 4])
def test_every_option_gives_the_loss_of_torch(name, ignored, regions):
    for over_batch, background, channels_last in switches(3):
        config = LossConfig(
            name=name, dice_over_batch=over_batch, include_background=background, focal_gamma=1.5, tversky_beta=0.9
        )
        logits, label = drawn(len(regions) or 4, channels_last=channels_last, highest=4)
        label[label == 3] = 4 if ignored else 2
        check(*both(logits, label, config, regions=regions, ignored=ignored))


@pytest.mark.parametrize("gamma", [1.0, 2.0, 5.0])
def test_the_focal_loss_has_a_gradient_also_where_the_prediction_is_right(gamma):
    logits, label = drawn(3, scale=0.5)
    with torch.no_grad():
        # Beyond the last digit of 1, 1, and nearly.
        for voxel, height in enumerate((200.0, 17.0, 8.0)):
            logits[:, :, voxel] = 0.0
            logits[:, 1, voxel] = height
    label[:, :3] = 1
    check(*both(logits, label, LossConfig(name="dice_focal", focal_gamma=gamma)))


def exact(logits, label):
    """Dice over the batch without the background plus cross-entropy, in the precision of the logits."""
    probability = logits.softmax(1).flatten(2)
    target = torch.nn.functional.one_hot(label.long(), logits.shape[1]).movedim(-1, 1).flatten(2).to(logits.dtype)
    agreed, both_sizes = (probability * target).sum((0, 2)), (probability + target).sum((0, 2))
    dice = (2.0 * agreed + 1e-5) / (both_sizes + 1e-5)
    return 1.0 - dice[1:].mean() + torch.nn.functional.cross_entropy(logits, label.long())


@pytest.mark.parametrize("channels_last", [False, True], ids=["planes", "channels_last"])
@pytest.mark.parametrize("num_classes", [2, 3, 14])
def test_loss_and_gradient_are_those_of_float64(num_classes, channels_last):
    logits, label = drawn(num_classes, (2, 9, 8, 11), channels_last=channels_last, scale=6.0)
    precise = logits.detach().double().requires_grad_()
    value = exact(precise, label)
    (gradient,) = torch.autograd.grad(value, precise)
    check((value.float(), gradient.float()), both(logits, label)[1])


def test_sums_of_millions_of_voxels_are_as_exact_as_those_of_few():
    logits, label = drawn(2, (1, 64, 64, 128) if IS_INTERPRETED else (1, 256, 256, 256))
    with torch.no_grad():
        found = build_loss(LossConfig())(logits, label)
    torch.testing.assert_close(found, exact(logits.detach().double(), label).float(), rtol=1e-6, atol=0.0)


def test_large_logits_neither_overflow_nor_lose_their_class():
    logits, label = drawn(3, scale=400.0)
    check(*both(logits, label))
    half, label = drawn(3, scale=8000.0, dtype=torch.float16)
    check(*both(half, label), ROUNDING[torch.float16])


@pytest.mark.parametrize("regions", [(), REGIONS], ids=["classes", "regions"])
def test_a_batch_of_ignored_voxels_has_neither_loss_nor_gradient(regions):
    for over_batch in (True, False):
        logits, label = drawn(3)
        label[:] = 4
        loss = build_loss(LossConfig(dice_over_batch=over_batch), regions=regions, ignored=4)(logits, label)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.item() == pytest.approx(0.0, abs=1e-6)
        assert gradient.abs().max() == 0.0


def test_classes_that_no_voxel_has_count_as_in_torch():
    for over_batch, background in itertools.product([True, False], repeat=2):
        config = LossConfig(dice_over_batch=over_batch, include_background=background)
        logits, label = drawn(14, highest=2)
        check(*both(logits, label, config))
        check(*both(logits, torch.zeros_like(label), config))


@pytest.mark.parametrize("beyond", [3, 200], ids=["the next", "any"])
def test_a_label_that_is_no_class_is_not_learned_from_in_silence(beyond):
    logits, label = drawn(3)
    label[0, 0, 0, 0] = beyond
    loss = build_loss(LossConfig())(logits, label)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not loss.isfinite()
    assert gradient[0, :, 0, 0, 0].isnan().all()
    # Dice alone has no term for it, in torch either.
    check(*both(logits, label, LossConfig(name="dice")))
    # Of regions, every label may be in none.
    check(*both(logits, label, regions=REGIONS))


# Of NumPy, in the interpreter.
@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_make_a_loss_that_is_not(value):
    logits, label = drawn(3)
    with torch.no_grad():
        logits[1, 2, 3, 3, 3] = value
    assert not build_loss(LossConfig())(logits, label).isfinite()
    assert not build_loss(LossConfig(name="dice"))(logits, label).isfinite()


@pytest.mark.parametrize(("over_batch", "has_ignored", "has_regions", "of_index"), switches(4))
def test_two_ranks_have_the_loss_and_gradient_of_their_common_batch(over_batch, has_ignored, has_regions, of_index):
    ignored, regions, name = 4 if has_ignored else None, REGIONS if has_regions else (), "dice_ce"
    if of_index:
        (name,) = (name for name, kind in LOSSES.items() if kind.of_index is not None)
    logits, label = drawn(3, (4, 4, 5, 6), highest=3)
    if ignored:
        label[0, :, 2:] = 4
    config = LossConfig(name=name, dice_over_batch=over_batch)
    reference, _ = both(logits, label, config, regions=regions, ignored=ignored)
    halves = [(logits[:2], label[:2]), (logits[2:], label[2:])]
    exchanged: list[list[torch.Tensor]] = [[], []]
    for rank, half in enumerate(halves):
        with torch.no_grad():
            build_loss(config, regions=regions, ignored=ignored, total=lambda v, r=rank: exchanged[r].append(v) or v)(
                *half
            )
    gradient = torch.zeros_like(logits)
    for rank, half in enumerate(halves):
        others = iter(exchanged[1 - rank])
        loss = build_loss(config, regions=regions, ignored=ignored, total=lambda v, o=others: v + next(o))(*half)
        gradient += torch.autograd.grad(loss, logits, retain_graph=True)[0]
        check(reference, (loss.detach(), reference[1]))
    check(reference, (reference[0], gradient))


def test_memory_of_any_order_is_read():
    logits, label = drawn(3, (2, 6, 8, 8))
    wide, turned = torch.randn(2, 6, 6, 8, 8, device=DEVICE), label.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (wide[:, 1:4].requires_grad_(), logits.detach().transpose(2, 3).requires_grad_()):
        found = label if given.shape[2] == 6 else label.transpose(1, 2)
        check(*both(given, found))
    check(*both(logits, turned))
    flat, plane = drawn(3, (2, 9, 12))
    check(*both(flat, plane))


def test_a_gradient_is_scaled_as_a_scaler_asks_and_is_the_same_each_time():
    logits, label = drawn(3, dtype=torch.float16)
    loss = build_loss(LossConfig())
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        scaled = loss(logits, label) * 2.0**16
    gradients = [torch.autograd.grad(scaled, logits, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*gradients)
    reference, _ = both(logits, label)
    check(reference, (reference[0], gradients[0].float() / 2.0**16), ROUNDING[torch.float16])


def test_a_second_derivative_is_refused():
    logits, label = drawn(3)
    for total in ({}, {"total": lambda sums: sums.clone()}):
        value = build_loss(LossConfig(), **total)(logits, label)
        with pytest.raises(RuntimeError, match=r"backend\.fused_loss=false"):
            torch.autograd.grad(value, logits, create_graph=True)


def test_every_tiling_gives_the_same_result():
    for num_classes, channels_last in itertools.product((2, 3, 6), (False, True)):
        logits, label = drawn(num_classes, (2, 8, 8, 9), channels_last=channels_last)
        reference, _ = both(logits, label)
        for block, align, by_thread in ((64, 8, False), (32, 2, True), (256, 1, True)):
            # Few programs, so that each has several tiles.
            tiling = LossTiling(block=block, align=align, num_warps=1, programs=3, is_by_thread=by_thread)
            loss = FusedLoss(LossConfig(), tilings=(tiling, tiling)).loss(logits, label)
            check(reference, (loss.detach(), *torch.autograd.grad(loss, logits)))


@pytest.mark.parametrize("name", [name for name, kind in LOSSES.items() if kind.has_kernels])
@pytest.mark.parametrize("total", [None, torch.clone], ids=["alone", "ranks"])
def test_the_kernels_that_are_compiled_ahead_are_those_that_it_launches(name, total):
    logits, label = drawn(3)
    loss = build_loss(LossConfig(name=name), **({} if total is None else {"total": total}))
    with record_launches(runs=True) as launches:
        loss(logits, label)
    form = LossForm(num_classes=3, is_channels_last=False, config=LossConfig(name=name))
    ahead = possible_launches(form, logits.dtype, num_voxels=label[0].numel(), is_shared=total is not None)
    names = [launch.kernel.__name__ for launch in ahead]
    assert names == [*(launch.kernel.__name__ for launch in launches), "loss_gradient"]


def test_a_term_without_a_kernel_is_left_to_torch(monkeypatch):
    term = replace(LOSSES["dice_focal"].of_voxels, kernel="")
    logits, label = drawn(3)
    reference, _ = both(logits, label, LossConfig(name="dice_focal"))
    monkeypatch.setitem(LOSSES, "dice_focal", replace(LOSSES["dice_focal"], of_voxels=term))
    loss = build_loss(LossConfig(name="dice_focal"))(logits, label)
    assert not has_kernels(loss)
    check(reference, (loss.detach(), *torch.autograd.grad(loss, logits)))


def test_what_the_kernels_cannot_do_is_left_to_torch(monkeypatch):
    config, (logits, label) = LossConfig(), drawn(3)
    assert can_fuse(logits, label, config, 0)
    assert not can_fuse(logits.double(), label, config, 0)
    assert not can_fuse(logits, label.long(), config, 0)
    assert not can_fuse(logits, label, LossConfig(boundary_weight=0.1), 0)
    assert not can_fuse(torch.zeros(1, 33, 2, 2, 2, device=DEVICE), label[:1, :2, :2, :2], config, 33)
    for empty in (logits[:, :, :0], logits[:0], logits[:, :0]):
        assert not can_fuse(empty, label[: len(empty), : empty.shape[2]], config, 0)
    with monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not can_fuse(logits, label, config, 0)
    set_fused("loss", False)
    assert not can_fuse(logits, label, config, 0)


@pytest.mark.parametrize("channels_last", [False, True], ids=["planes", "channels_last"])
@pytest.mark.parametrize("num_classes", [3, 14, 105])
def test_a_device_agrees_on_patches_of_full_size(num_classes, channels_last):
    shape = (4, 128, 128, 128) if num_classes < 100 else (2, 96, 96, 96)
    logits, label = drawn(num_classes, shape, dtype=torch.bfloat16, channels_last=channels_last)
    check(*both(logits, label), ROUNDING[torch.bfloat16])


def test_a_device_captures_it_in_a_graph():
    logits, label = drawn(3, (2, 16, 16, 16), dtype=torch.bfloat16)
    loss = build_loss(LossConfig())

    def step():
        value = loss(logits, label)
        return value, *torch.autograd.grad(value, logits)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    other, other_label = drawn(3, (2, 16, 16, 16), dtype=torch.bfloat16, scale=1.0)
    with torch.no_grad():
        logits.copy_(other)
        label.copy_(other_label)
    graph.replay()
    for ours, theirs in zip(captured, step(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_device_counts_voxels_beyond_two_to_the_31_logits():
    """In bfloat16, 9 GB of logits and as much of their gradient."""
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("a small device")
    logits = torch.zeros(1, 130, 330, 320, 320, dtype=torch.bfloat16, device=DEVICE)
    label = torch.zeros(1, 330, 320, 320, dtype=torch.uint8, device=DEVICE)
    logits[0, 0, 300:], logits[0, 129, :300], label[0, :300] = 8.0, 8.0, 129
    loss = build_loss(LossConfig(name="dice", include_background=True))
    for given in (logits, logits.contiguous(memory_format=torch.channels_last_3d)):
        value = loss(given.requires_grad_(), label)
        # Both classes that exist are found, and the others are not predicted.
        wanted = 1.0 - (2 * 2.0 * 0.9585 / 1.9585) / 130
        assert value.item() == pytest.approx(wanted, abs=2e-3)
        (gradient,) = torch.autograd.grad(value * 2.0**30, given)
        assert gradient.isfinite().all()
        assert gradient[0, 129, 0].abs().max() > 0.0
        del gradient, value
