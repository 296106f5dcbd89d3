import pytest
import torch
from monai.losses import DiceCELoss, DiceLoss, FocalLoss, TverskyLoss
from torch.utils._python_dispatch import TorchDispatchMode

from voxelocity.step import LOSSES, LossConfig, build_loss
from voxelocity_observe.core.errors import ConfigError


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
@pytest.mark.parametrize("name", LOSSES)
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


def focal_tversky(logits, target, *, alpha, beta, gamma, over_batch=True, first=1):
    """The formula of Abraham and Khan as a mean over classes; logits and target (b, k, x, y, z) of any precision."""
    probability = logits.softmax(1) if first else logits.sigmoid()
    over = (0, 2, 3, 4) if over_batch else (2, 3, 4)
    right, extra, missed = (
        both.sum(over) for both in (probability * target, probability * (1 - target), (1 - probability) * target)
    )
    # Half of what Dice has in numerator and denominator, which are twice these.
    index = (right + 0.5e-5) / (right + alpha * extra + beta * missed + 0.5e-5)
    return ((1.0 - index) ** (1.0 / gamma))[..., first:].mean()


@pytest.mark.parametrize("over_batch", [True, False])
@pytest.mark.parametrize(
    ("alpha", "beta", "gamma"), [(0.3, 0.7, 4.0 / 3.0), (0.2, 0.3, 3.0), (1.0, 1.0, 1.0), (0.1, 0.9, 2.0)]
)
def test_the_focal_tversky_loss_and_its_gradient_are_those_of_the_formula(
    logits_and_label, alpha, beta, gamma, over_batch
):
    logits, label = logits_and_label
    config = LossConfig(
        name="focal_tversky", tversky_alpha=alpha, tversky_beta=beta, tversky_gamma=gamma, dice_over_batch=over_batch
    )
    weights = {"alpha": alpha, "beta": beta, "gamma": gamma, "over_batch": over_batch}
    for regions in ((), REGIONS):
        used = logits[:, 1:] if regions else logits
        indices = regions or tuple((index,) for index in range(4))
        target = torch.stack([torch.isin(label, torch.tensor(index)) for index in indices], dim=1)
        precise = used.detach().double().requires_grad_()
        wanted = focal_tversky(precise, target.double(), **weights, first=0 if regions else 1)
        found = build_loss(config, regions=regions)(used, label)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
        (ours,) = torch.autograd.grad(found, used, retain_graph=True)
        (theirs,) = torch.autograd.grad(wanted, precise)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (0.5, 1.0)])
@pytest.mark.parametrize("background", [True, False])
def test_with_a_gamma_of_1_it_is_the_tversky_loss_of_monai(logits_and_label, alpha, beta, background):
    logits, label = logits_and_label
    config = LossConfig(
        name="focal_tversky", tversky_alpha=alpha, tversky_beta=beta, tversky_gamma=1.0, include_background=background,
        smooth=1e-4,
    )  # fmt: skip
    ours = build_loss(config)(logits, label)
    theirs = TverskyLoss(
        include_background=background, softmax=True, to_onehot_y=True, alpha=alpha, beta=beta, batch=True,
        smooth_nr=0.5e-4, smooth_dr=0.5e-4,
    )(logits, label.unsqueeze(1))  # fmt: skip
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    (grad_a,), (grad_b,) = (torch.autograd.grad(loss, logits) for loss in (ours, theirs))
    torch.testing.assert_close(grad_a, grad_b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("gamma", [1.0, 4.0 / 3.0, 3.0])
def test_the_focal_tversky_loss_has_the_slope_of_its_values_in_float64(gamma):
    config = LossConfig(name="focal_tversky", tversky_alpha=0.4, tversky_beta=0.9, tversky_gamma=gamma)
    random = torch.Generator().manual_seed(0)
    total = 10.0 + torch.rand(2, 3, generator=random, dtype=torch.float64)
    # The last class is nearly right, the first one is not predicted at all.
    agreed = total * torch.tensor([0.0, 0.3, 0.4999])
    sizes = torch.stack([agreed, total]).requires_grad_()
    assert torch.autograd.gradcheck(lambda sizes: LOSSES["focal_tversky"].overlap(sizes, config, 0), sizes)


@pytest.mark.parametrize("compute", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gamma", [4.0 / 3.0, 3.0])
def test_a_class_that_is_right_or_absent_has_a_finite_slope_in_the_focal_tversky_loss(compute, gamma):
    label = torch.zeros(1, 8, 8, 8, dtype=torch.uint8)
    label[:, 2:5] = 1
    for height in (5.0, 12.0, 60.0):
        logits = (height * torch.nn.functional.one_hot(label.long(), 3).movedim(-1, 1)).to(compute).requires_grad_()
        loss = build_loss(LossConfig(name="focal_tversky", tversky_gamma=gamma))(logits, label)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert 0.0 <= loss.item() < 1.0
        assert gradient.isfinite().all()


def test_a_tversky_index_that_counts_no_wrong_voxel_is_refused():
    with pytest.raises(ConfigError, match="tversky_alpha and tversky_beta are both 0, so focal_tversky would count no"):
        LossConfig.parse({"name": "focal_tversky", "tversky_alpha": 0.0, "tversky_beta": 0.0})


@pytest.mark.parametrize("name", LOSSES)
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
        if any(isinstance(arg, torch.Tensor) and arg.device.type == "cpu" and arg.dim() for arg in args):
            self.found.append(str(func))
        return func(*args, **kwargs)


@pytest.mark.parametrize("ignored", [None, 4])
@pytest.mark.parametrize("regions", [(), REGIONS])
@pytest.mark.parametrize("name", LOSSES)
def test_later_steps_read_nothing_in_main_memory(name, regions, ignored):
    # As a recorded step must: it would read the memory again when that has long been given back.
    loss = build_loss(LossConfig(name=name), regions=regions, ignored=ignored)
    logits = torch.empty((2, 3 if regions else 4, 4, 5, 6), device="meta", requires_grad=True)
    label = torch.empty((2, 4, 5, 6), dtype=torch.uint8, device="meta")
    for number in range(2):
        with _OnHost() as noted:
            loss(logits, label).backward()
        assert number == 0 or noted.found == []
