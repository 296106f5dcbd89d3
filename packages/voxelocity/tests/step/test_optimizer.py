import copy
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.optimizers import Novograd

from voxelocity.step import OptimizerConfig, ScheduleConfig, build_optimizer, learning_rate_at
from voxelocity.step.optimizer import begin_momentum
from voxelocity.step.own_optimizers import _brought_to_one, _brought_to_one_each, orthogonal


def made(parameters):
    ends = [torch.nn.Parameter(torch.zeros(1, 1)) for _ in range(2)]
    config = OptimizerConfig(name="muon", learning_rate=0.01, momentum=0.95, weight_decay=0.1)
    return build_optimizer(config, [ends[0], *parameters, ends[1]])


def slope_of(parameter, number):
    return torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))


def test_matrices_step_as_in_torchs_own_class():
    begin = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    ours, theirs = torch.nn.Parameter(begin.clone()), torch.nn.Parameter(begin.clone())
    own = made([ours])
    reference = torch.optim.Muon([theirs], lr=0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for number in range(5):
        ours.grad, theirs.grad = slope_of(ours, number), slope_of(theirs, number)
        own.step()
        reference.step()
    moved = (theirs - begin).abs().max()
    # torch iterates in bfloat16.
    assert moved > 0.01
    assert (ours - theirs).abs().max() < 0.03 * moved


def test_vectors_and_the_first_and_last_weights_step_as_in_adamw_without_decay():
    config = OptimizerConfig(name="muon", learning_rate=0.01, momentum=0.95, second_momentum=0.99)
    begin = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((7, 2), (7,), (3, 7), (2, 3))]
    ours, theirs = ([torch.nn.Parameter(tensor.clone()) for tensor in begin] for _ in range(2))
    own, reference = (
        build_optimizer(config, ours),
        torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.99), weight_decay=0.0),
    )
    for number in range(5):
        for our_weight, other in zip(ours, theirs, strict=True):
            our_weight.grad, other.grad = slope_of(our_weight, number), slope_of(other, number)
        own.step()
        reference.step()
    for place in (0, 1, 3):
        torch.testing.assert_close(ours[place], theirs[place])
    assert not torch.allclose(ours[2], theirs[2])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_a_convolution_steps_as_the_matrix_of_its_weights(memory_format):
    weight = torch.randn(4, 3, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    kernel = torch.nn.Parameter(weight.clone().to(memory_format=memory_format))
    matrix = torch.nn.Parameter(weight.reshape(4, -1).clone())
    kernel.grad = slope_of(weight, 1).to(memory_format=memory_format)
    matrix.grad = slope_of(weight, 1).reshape(4, -1)
    made([kernel]).step()
    made([matrix]).step()
    torch.testing.assert_close(kernel.detach().reshape(4, -1), matrix.detach())


def test_singular_values_come_close_to_one():
    random = torch.Generator().manual_seed(0)
    shapes = [(5, 40), (40, 5), (5, 12), (7, 7)]
    made = orthogonal([torch.randn(shape, generator=random) * 100.0 for shape in shapes])
    assert [tuple(matrix.shape) for matrix in made] == shapes
    found = torch.cat([torch.linalg.svdvals(matrix) for matrix in made[:3]])
    assert found.min() > 0.6
    assert found.max() < 1.3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rank", [1, 2, 32])
def test_singular_values_stay_below_one_and_a_half_in_every_precision_of_a_step(rank, dtype, device):
    """In bfloat16 those of a matrix of rank 2 grew to 7,300."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    random = torch.Generator().manual_seed(rank)
    given = [
        (torch.randn(32, rank, generator=random) @ torch.randn(rank, n, generator=random)).to(device, dtype)
        for n in (864, 864, 16)
    ]
    with torch.autocast(device, dtype=torch.bfloat16):
        made = orthogonal(given)
    assert {matrix.dtype for matrix in made} == {torch.float32}
    assert max(float(torch.linalg.matrix_norm(matrix, 2)) for matrix in made) < 1.3


def test_matrices_of_one_shape_in_one_product_give_the_same():
    random = torch.Generator().manual_seed(0)
    wide = [torch.randn(shape, generator=random) for shape in ((5, 40), (5, 12), (7, 7), (5, 40), (7, 9))]
    wide = [matrix / matrix.norm() for matrix in wide]
    for together, other in zip(_brought_to_one(wide), _brought_to_one_each(wide), strict=True):
        torch.testing.assert_close(together, other)


def test_novograd_steps_as_in_monais_class():
    config = OptimizerConfig(name="novograd", learning_rate=0.01, second_momentum=0.98, weight_decay=0.1)
    begin = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((4, 3, 3), (4,), (2, 4))]
    ours, theirs = ([torch.nn.Parameter(tensor.clone()) for tensor in begin] for _ in range(2))
    own = build_optimizer(config, ours)
    decays = [{"params": [theirs[0], theirs[2]], "weight_decay": 0.1}, {"params": [theirs[1]], "weight_decay": 0.0}]
    reference = Novograd(decays, lr=0.01, betas=(0.9, 0.98))
    for number in range(5):
        for our_weight, other in zip(ours, theirs, strict=True):
            our_weight.grad, other.grad = slope_of(our_weight, number), slope_of(other, number)
        own.step()
        reference.step()
    for our_weight, other, first in zip(ours, theirs, begin, strict=True):
        torch.testing.assert_close(our_weight, other)
        assert not torch.allclose(our_weight, first)


@pytest.mark.parametrize("name", ["muon", "novograd"])
def test_weights_without_a_slope_stay_and_a_saved_state_goes_on_exactly(name):
    weights = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3, 4), (3,), (2, 2), (3, 4), (4, 5))]
    config = OptimizerConfig(name=name, learning_rate=0.01, momentum=0.95)
    optimizer = build_optimizer(config, weights)

    def steps(optimizer, numbers):
        for number in numbers:
            for weight in (*weights[:2], *weights[3:]):
                weight.grad = slope_of(weight, number)
            optimizer.step()
        return [weight.detach().clone() for weight in weights]

    middle = steps(optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    end = steps(optimizer, range(3, 5))
    assert torch.equal(end[2], torch.ones(2, 2))
    assert not torch.equal(end[0], middle[0])
    with torch.no_grad():
        for weight, value in zip(weights, middle, strict=True):
            weight.copy_(value)
    again = build_optimizer(config, weights)
    again.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(steps(again, range(3, 5)), end, strict=True))


@pytest.mark.parametrize(("width", "num_threads"), [(8, 1), (1024, 2)])
def test_small_matrices_are_made_in_one_thread_and_the_others_come_back(width, num_threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    weight = torch.nn.Parameter(torch.ones(width, width))
    made([weight]).step()
    assert seen == ([1, 2] if num_threads == 1 else [2])


def test_a_step_does_not_import_torchs_compiler():
    code = """
import sys, torch
from voxelocity.step import OptimizerConfig, build_optimizer
weights = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(3)]
optimizer = build_optimizer(OptimizerConfig(name="muon", learning_rate=0.01), weights)
optimizer.zero_grad()
sum(weight.sum() for weight in weights).backward()
scaler = torch.amp.GradScaler("cpu", enabled=False)
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(weights, 1.0)
scaler.step(optimizer)
assert weights[1].max() < 1.0
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_rate_rises_to_its_peak_and_falls_as_the_decay_says():
    config = ScheduleConfig(warmup_share=0.1, decay="poly", poly_power=0.9)
    assert learning_rate_at(0.05, peak=2.0, config=config) == pytest.approx(1.0)
    assert learning_rate_at(0.1, peak=2.0, config=config) == 2.0
    assert learning_rate_at(0.55, peak=2.0, config=config) == pytest.approx(2.0 * 0.5**0.9)
    assert learning_rate_at(1.0, peak=2.0, config=config) == 0.0
    cosine = ScheduleConfig(warmup_share=0.0, decay="cosine")
    assert learning_rate_at(0.5, peak=1.0, config=cosine) == pytest.approx(0.5)
    assert learning_rate_at(1.0, peak=1.0, config=ScheduleConfig(decay="constant")) == 1.0


@given(progress=st.floats(-1, 2), decay=st.sampled_from(["poly", "cosine", "constant"]))
def test_the_rate_stays_between_zero_and_peak(progress, decay):
    assert 0.0 <= learning_rate_at(progress, peak=0.3, config=ScheduleConfig(decay=decay)) <= 0.3


def test_momentum_begins_with_zeros_where_the_first_step_is_left_out():
    """torch's fused SGD would keep what the memory held."""
    weight = torch.nn.Parameter(torch.ones(4))
    settings = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.0)
    optimizer = build_optimizer(settings, [weight])
    scaler = torch.amp.GradScaler("cpu")
    for factor in (float("inf"), 1.0):
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        begin_momentum(optimizer)
        scaler.step(optimizer)
        scaler.update()
        weight.grad = None
    assert optimizer.state[weight]["momentum_buffer"].tolist() == [1.0] * 4
