import pytest
import torch
from monai.losses import DiceCELoss, DiceLoss, FocalLoss, TverskyLoss
from torch.utils._python_dispatch import TorchDispatchMode

from voxelocity.step import LossConfig, build_loss


@pytest.fixture
def logits_and_label():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 6, 7, 8, generator=rng, requires_grad=True)
    label = torch.randint(0, 4, (2, 6, 7, 8), generator=rng, dtype=torch.uint8)
    label[1][label[1] == 3] = 0  # one class is absent from one sample
    return logits, label


@pytest.mark.parametrize("over_batch", [True, False])
@pytest.mark.parametrize("background", [True, False])
def test_loss_and_gradient_equal_those_of_monai(logits_and_label, over_batch, background):
    logits, label = logits_and_label
    ours = build_loss(LossConfig(dice_over_batch=over_batch, include_background=background, smooth=1e-4))
    theirs = DiceCELoss(
        softmax=True, to_onehot_y=True, batch=over_batch, include_background=background, smooth_nr=1e-4, smooth_dr=1e-4
    )
    a, b = ours(logits, label), theirs(logits, label.unsqueeze(1))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    (grad_a,) = torch.autograd.grad(a, logits)
    (grad_b,) = torch.autograd.grad(b, logits)
    torch.testing.assert_close(grad_a, grad_b, rtol=1e-4, atol=1e-8)


def test_dice_alone_equals_that_of_monai(logits_and_label):
    logits, label = logits_and_label
    ours = build_loss(LossConfig(name="dice", dice_over_batch=False))(logits, label)
    theirs = DiceLoss(softmax=True, to_onehot_y=True, include_background=False)(logits, label.unsqueeze(1))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_the_focal_term_is_that_of_monai_summed_over_classes(logits_and_label, gamma):
    logits, label = logits_and_label
    ours = build_loss(LossConfig(name="dice_focal", focal_gamma=gamma))(logits, label)
    dice = build_loss(LossConfig(name="dice"))(logits, label)
    theirs = dice + 4 * FocalLoss(use_softmax=True, to_onehot_y=True, gamma=gamma)(logits, label.unsqueeze(1))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    (grad_a,), (grad_b,) = (torch.autograd.grad(loss, logits) for loss in (ours, theirs))
    torch.testing.assert_close(grad_a, grad_b, rtol=1e-4, atol=1e-7)


REGIONS = ((1, 2, 3), (2, 3), (3,))


@pytest.mark.parametrize("name", ["dice_ce", "dice", "dice_focal"])
@pytest.mark.parametrize("over_batch", [True, False])
def test_the_loss_of_overlapping_classes_equals_that_of_monai_with_sigmoids(logits_and_label, over_batch, name):
    logits, label = logits_and_label
    logits = logits[:, 1:]
    target = torch.stack([torch.isin(label, torch.tensor(indices)) for indices in REGIONS], dim=1).float()
    common = {"sigmoid": True, "batch": over_batch, "smooth_nr": 1e-5, "smooth_dr": 1e-5}
    theirs = DiceLoss(**common)(logits, target)
    if name == "dice_ce":
        # Of several channels, DiceCELoss takes the cross-entropy of exclusive classes.
        theirs = theirs + torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
    elif name == "dice_focal":
        theirs = theirs + FocalLoss(gamma=2.0)(logits, target)
    ours = build_loss(LossConfig(name=name, dice_over_batch=over_batch), regions=REGIONS)(logits, label)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    (grad_a,), (grad_b,) = (torch.autograd.grad(loss, logits, retain_graph=True) for loss in (ours, theirs))
    torch.testing.assert_close(grad_a, grad_b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("regions", [(), REGIONS])
@pytest.mark.parametrize("name", ["dice_ce", "dice", "dice_focal", "tversky_ce"])
@pytest.mark.parametrize("over_batch", [True, False])
def test_voxels_without_a_known_class_count_nowhere(logits_and_label, over_batch, name, regions):
    logits, label = logits_and_label
    logits, label = logits[:, 1:] if regions else logits, label.clone()
    config = LossConfig(name=name, dice_over_batch=over_batch)
    loss, alone = build_loss(config, regions=regions, ignored=4), build_loss(config, regions=regions)
    torch.testing.assert_close(loss(logits, label), alone(logits, label), rtol=1e-5, atol=1e-6)
    label[:, 3:] = 4
    (gradient,) = torch.autograd.grad(loss(logits, label), logits, retain_graph=True)
    assert gradient[:, :, 3:].abs().max() == 0.0
    # As if the rest were not there at all.
    torch.testing.assert_close(loss(logits, label), alone(logits[:, :, :3], label[:, :3]), rtol=1e-5, atol=1e-6)
    label[:] = 4
    nothing = loss(logits, label)
    assert nothing.item() == pytest.approx(0.0, abs=1e-6)
    (gradient,) = torch.autograd.grad(nothing, logits)
    assert gradient.abs().max() == 0.0


def test_nnunets_losses_say_the_same_of_ignored_voxels_and_of_regions(logits_and_label):
    losses = pytest.importorskip("nnunetv2.training.loss.compound_losses")
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss

    logits, label = logits_and_label
    label[:, 3:] = 4
    dice = {"batch_dice": True, "smooth": 1e-5, "ddp": False}
    theirs = losses.DC_and_CE_loss(
        {**dice, "do_bg": False}, {}, ignore_label=4, dice_class=MemoryEfficientSoftDiceLoss
    )(logits, label.unsqueeze(1).long())
    # Their Dice is negative.
    torch.testing.assert_close(build_loss(LossConfig(), ignored=4)(logits, label), 1.0 + theirs, rtol=1e-5, atol=1e-6)
    label[:, 3:] = 2
    target = torch.stack([torch.isin(label, torch.tensor(indices)) for indices in REGIONS], dim=1).float()
    theirs = losses.DC_and_BCE_loss({}, {**dice, "do_bg": True}, dice_class=MemoryEfficientSoftDiceLoss)
    ours = build_loss(LossConfig(), regions=REGIONS)(logits[:, 1:], label)
    torch.testing.assert_close(ours, 1.0 + theirs(logits[:, 1:], target), rtol=1e-5, atol=1e-6)


def test_the_boundary_term_of_a_region_is_that_of_its_mask():
    label = torch.zeros(1, 4, 4, 4, dtype=torch.uint8)
    label[:, 1:3], label[:, 2:3] = 1, 2
    logits = torch.randn(1, 1, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    both = build_loss(LossConfig(name="dice", boundary_weight=1.0), regions=[(1, 2)])(logits, label)
    merged = build_loss(LossConfig(name="dice", boundary_weight=1.0), regions=[(1,)])(logits, label.clamp(max=1))
    torch.testing.assert_close(both, merged)


def test_the_boundary_term_weighs_each_voxel_by_its_distance_to_the_border():
    label = torch.zeros(1, 5, 5, 5, dtype=torch.uint8)
    label[0, 1:4, 1:4, 1:4] = 1
    logits = torch.randn(1, 3, 5, 5, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    plain, weighed = (build_loss(LossConfig(boundary_weight=weight))(logits, label) for weight in (0.0, 0.5))
    # Outside of the cube the distance to it, on its surface 0, in its middle one voxel in; class 2 is not there.
    place = torch.stack(torch.meshgrid(*[torch.arange(5)] * 3, indexing="ij")).float()
    distance = ((place - 2).abs() - 1).clamp(min=0).norm(dim=0)
    distance[2, 2, 2] = -1.0
    wanted = 0.5 * (logits.softmax(1)[0, 1] * distance).sum() / logits.numel()
    torch.testing.assert_close(weighed - plain, wanted, rtol=1e-5, atol=1e-6)
    (ours,), (theirs,) = (torch.autograd.grad(loss, logits, retain_graph=True) for loss in (weighed - plain, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_the_boundary_term_is_0_where_a_class_is_everywhere_or_nowhere():
    logits = torch.randn(2, 2, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    label = torch.zeros(2, 3, 3, 3, dtype=torch.uint8)
    label[1] = 1
    plain, weighed = (build_loss(LossConfig(boundary_weight=weight))(logits, label) for weight in (0.0, 1.0))
    assert torch.equal(plain, weighed)


@pytest.mark.parametrize("regions", [(), [(1, 2), (2,)]])
def test_the_boundary_term_is_the_mean_over_the_voxels_that_count(regions):
    logits = torch.randn(1, 2, 6, 4, 4, generator=torch.Generator().manual_seed(0))
    label = torch.zeros(1, 6, 4, 4, dtype=torch.uint8)
    label[0, 1, 1:3, 1:3], label[0, 3:] = 1, 4
    ours, plain = (
        build_loss(LossConfig(boundary_weight=weight), regions=regions, ignored=4)(logits, label)
        for weight in (1.0, 0.0)
    )
    # As if the ignored half were not there: no border of a class is nearer than those of the first half.
    alone, bare = (
        build_loss(LossConfig(boundary_weight=weight), regions=regions)(logits[:, :, :3], label[:, :3])
        for weight in (1.0, 0.0)
    )
    torch.testing.assert_close(ours - plain, alone - bare, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_tversky_term_is_that_of_monai(logits_and_label, alpha):
    logits, label = logits_and_label
    ours = build_loss(LossConfig(name="tversky_ce", tversky_alpha=alpha, smooth=1e-4))(logits, label)
    overlap = TverskyLoss(
        include_background=False, softmax=True, to_onehot_y=True, alpha=alpha, beta=1.0 - alpha, batch=True,
        smooth_nr=0.5e-4, smooth_dr=0.5e-4,
    )  # fmt: skip
    entropy = torch.nn.functional.cross_entropy(logits, label.long())
    theirs = overlap(logits, label.unsqueeze(1)) + entropy
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dice_ce", "dice", "dice_focal", "tversky_ce"])
@pytest.mark.parametrize("compute", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_large_class_has_the_loss_and_gradient_of_float32_under_autocast(compute, name, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rng = torch.Generator().manual_seed(0)
    # A class of 10^6 voxels: float16 ends at 65,504, and bfloat16 counts in steps of 4,096 there.
    label = torch.zeros(1, 104, 100, 100, dtype=torch.uint8)
    label[:, 4:] = 1
    logits = torch.randn(1, 2, 104, 100, 100, generator=rng).to(compute)
    loss = build_loss(LossConfig(name=name))
    expected = loss(logits.float(), label)
    logits = logits.to(device).requires_grad_()
    with torch.autocast(device, dtype=compute):
        found = loss(logits, label.to(device))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=0.0)
    # Scaled as a GradScaler does; unscaled gradients of a voxel are below what float16 holds.
    (gradient,) = torch.autograd.grad(found * 2.0**16, logits)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0.0


class _OnHost(TorchDispatchMode):
    """Notes operations that read a tensor in main memory."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(isinstance(each, torch.Tensor) and each.device.type == "cpu" and each.dim() for each in args):
            self.found.append(str(func))
        return func(*args, **kwargs)


@pytest.mark.parametrize("ignored", [None, 4])
@pytest.mark.parametrize("regions", [(), REGIONS])
@pytest.mark.parametrize("name", ["dice_ce", "dice", "dice_focal", "tversky_ce"])
def test_later_steps_read_nothing_in_main_memory(name, regions, ignored):
    # As a recorded step must: it would read the memory again when that has long been given back.
    loss = build_loss(LossConfig(name=name), regions=regions, ignored=ignored)
    logits = torch.empty((2, 3 if regions else 4, 4, 5, 6), device="meta", requires_grad=True)
    label = torch.empty((2, 4, 5, 6), dtype=torch.uint8, device="meta")
    for number in range(2):
        with _OnHost() as noted:
            loss(logits, label).backward()
        assert number == 0 or noted.found == []
