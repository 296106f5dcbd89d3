import io
from contextlib import nullcontext

import pytest
import torch

from shared.gpu import nothing_waits
from voxelocity.core.batch import Batch
from voxelocity.step import (
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainingStep,
    build_loss,
    build_network,
)
from voxelocity_observe.core.errors import DeviceMemoryError
from voxelocity_observe.spans import SpanRecorder

NETWORK = NetworkConfig.parse({"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]]})


def training(
    compute="float32", average_decay=0.9, name="sgd", compile="none", seed=0, warn=None, device="cpu", **network
):
    return TrainingStep(
        build_network(NETWORK.model_copy(update=network), num_channels=1, num_classes=2, seed=0),
        build_loss(LossConfig()),
        optimizer=OptimizerConfig(name=name, learning_rate=0.05, average_decay=average_decay, momentum=0.9),
        precision=PrecisionConfig(compute=compute, channels_last=compute != "float32", compile=compile),
        device=torch.device(device),
        seed=seed,
        warn=warn,
    )


def batch(step=0, size=2, device="cpu", side=8):
    rng = torch.Generator().manual_seed(step % 3)
    image = torch.randn(size, 1, side, side, side, generator=rng).to(device)
    return Batch(image=image, label=(image[:, 0] > 0).to(torch.uint8), draws=(), regions=(), step=step)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_steps_lower_the_loss(compute, name):
    step = training(compute, name=name)
    losses = [float(step(batch(i), 0.1 if name == "sgd" else 0.02)) for i in range(30)]
    assert losses[-1] < 0.8 * losses[0]


def weights(step, name="network"):
    return (step.averaged() if name == "averaged" else step.network).state_dict()


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# Batch norms count their batches in an integer, which has no average; dropout draws numbers at every step.
@pytest.mark.parametrize("network", [{}, {"norm": "batch"}, {"dropout": 0.3}])
def test_going_on_from_a_saved_state_gives_the_same_weights_bit_for_bit(network):
    through, first = training(**network), training(**network)
    for i in range(6):
        through(batch(i), 0.05)
    for i in range(3):
        first(batch(i), 0.05)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    torch.manual_seed(99)
    second = training(**network)
    second.load_state(torch.load(file, weights_only=True))
    for i in range(3, 6):
        second(batch(i), 0.05)
    for name in ("network", "averaged"):
        assert_equal(weights(through, name), weights(second, name))


def test_the_masks_of_dropout_follow_the_seed_and_the_step_and_leave_torchs_numbers_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    losses = {
        (seed, number): float(training(dropout=0.5, seed=seed)(batch(number), 0.05))
        for seed in (0, 1)
        for number in (0, 3)
    }
    assert len(set(losses.values())) == 4, "batches 0 and 3 are equal, so only the masks differ"
    assert torch.equal(torch.get_rng_state(), before)
    assert float(training(dropout=0.5)(batch(0), 0.05)) == losses[0, 0]
    # A network that draws nothing pays for it once.
    step = training()
    step(batch(0), 0.05)
    assert isinstance(step._dropout.numbers(1), nullcontext)


def test_numbers_that_a_network_draws_without_a_dropout_layer_follow_the_seed_and_the_step():
    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv3d(1, 2, 1)

        def forward(self, image):
            return self.layer(image) * torch.rand(len(image), 1, 1, 1, 1)

    losses = []
    for others in (1, 2):
        torch.manual_seed(0)
        noisy = Noisy()
        torch.manual_seed(others)
        step = TrainingStep(
            noisy, build_loss(LossConfig()), optimizer=OptimizerConfig(name="sgd", learning_rate=0.05),
            precision=PrecisionConfig(compute="float32", channels_last=False), device=torch.device("cpu"),
        )  # fmt: skip
        losses.append([float(step(batch(number), 0.05)) for number in range(3)])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_average_follows_the_weights_and_is_the_network_itself_when_off(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    step = training(average_decay=0.99, norm="batch", device=device)
    expected = None
    for i in range(20):
        step(batch(i, device=device), 0.05)
        weight = next(iter(step.network.parameters())).detach().clone()
        share = 1.0 - min((1 + i) / (10 + i), 0.99)
        expected = weight if expected is None else torch.lerp(expected, weight, share)
    torch.testing.assert_close(next(iter(step.averaged().parameters())).detach(), expected)
    assert not torch.equal(expected, weight)
    counts = [tensor for name, tensor in weights(step, "averaged").items() if name.endswith("num_batches_tracked")]
    assert counts
    assert all(int(count) == 20 for count in counts)
    off = training(average_decay=0.0)
    assert off.averaged() is off.network


@pytest.mark.parametrize("network", [{}, {"norm": "batch"}, {"dropout": 0.3}])
@pytest.mark.parametrize(("compute", "name"), [("float32", "sgd"), ("bfloat16", "adamw"), ("float16", "adamw")])
def test_no_operation_of_a_step_needs_the_value_of_a_tensor(reads_of_tensors, compute, name, network):
    step = training(compute, name=name, **network)
    step(batch(), 0.05)
    with reads_of_tensors() as reads:
        step(batch(1), 0.05)
    assert reads.found == []
    with reads_of_tensors() as reads:
        float(torch.ones(1)), torch.ones(2)[torch.ones(2) > 0]
    assert len(reads.found) == 2


def full_beyond(step, num_patches, error=torch.OutOfMemoryError):
    """Makes the step's memory hold the activations of so many patches."""
    forward = step._forward

    def limited(image):
        if len(image) > num_patches and torch.is_grad_enabled():
            raise error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
        return forward(image)

    step._forward = limited
    return step


@pytest.mark.parametrize(
    ("compute", "error"),
    [("float32", torch.OutOfMemoryError), ("float32", MemoryError), ("bfloat16", RuntimeError)],
)
def test_a_batch_that_does_not_fit_is_computed_in_pieces_with_the_same_gradients(compute, error):
    said = []
    whole, cut = training(compute), full_beyond(training(compute, warn=said.append), 1, error)
    for i in range(3):
        losses = [float(step(batch(i, size=5), 0.05)) for step in (whole, cut)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5 if compute == "float32" else 2e-2)
    for name, weight in weights(whole).items():
        rtol, atol = (1e-4, 1e-6) if compute == "float32" else (0.1, 2e-2)
        torch.testing.assert_close(weights(cut)[name], weight, rtol=rtol, atol=atol)
    assert len(said) == 1
    for fact in ("5 patches of 8 x 8 x 8 voxels", "step 0", "5 pieces", "data.batch_size"):
        assert fact in said[0]


def test_pieces_see_the_same_masks_in_both_of_their_passes():
    cut = full_beyond(training(dropout=0.5, warn=[].append), 1)
    made = []
    cut.network.register_forward_hook(lambda module, given, output: made.append(output.detach().clone()))
    cut(batch(), 0.05)
    first, second = made[-4:-2], made[-2:]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_what_cannot_be_cut_ends_in_one_sentence_with_the_cure():
    one = full_beyond(training(warn=[].append), 0)
    with pytest.raises(DeviceMemoryError, match=r"one patch of 8 x 8 x 8 .*data\.patch\.shape_voxel.*network\.widths"):
        one(batch(), 0.05)
    mixed = full_beyond(training(norm="batch", warn=[].append), 1)
    with pytest.raises(DeviceMemoryError, match=r"2 patches .*batch norms.*data\.batch_size \(now 2\)"):
        mixed(batch(), 0.05)
    late = training(warn=[].append)

    def full(optimizer):
        raise torch.OutOfMemoryError("full")

    late._scaler.step = full
    with pytest.raises(DeviceMemoryError, match=r"one patch of 8 x 8 x 8 .*full"):
        late(batch(), 0.05)


def test_another_error_and_a_step_without_a_listener_are_left_as_they_are():
    with pytest.raises(torch.OutOfMemoryError):
        full_beyond(training(), 1)(batch(), 0.05)
    broken = training(warn=[].append)
    broken._forward = lambda image: torch.zeros(2, 3) @ image
    with pytest.raises(RuntimeError, match="Expected size"):
        broken(batch(), 0.05)


def test_the_parts_of_a_step_are_spans_in_their_order():
    step = training()
    with SpanRecorder() as recorder:
        step(batch(), 0.05)
    names = ["layout", "forward", "loss", "backward", "optimizer", "averaging"]
    assert [(record.name, record.depth) for record in recorder.take()] == [(name, 0) for name in names]
    with SpanRecorder() as recorder:
        training(average_decay=0.0)(batch(), 0.05)
    assert [record.name for record in recorder.take()] == names[:-1]


# torch warns about parts of its own that compiling touches.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
def test_a_compiled_step_trains_the_same_weights_and_saves_them_under_the_same_names(monkeypatch):
    compile_with = torch.compile
    # The whole way but for the C++ compiler, which would take half a minute.
    monkeypatch.setattr(
        torch, "compile", lambda network, **_: compile_with(network, backend="aot_eager", dynamic=False)
    )
    plain, fast = training(), training(compile="default")
    for i in range(3):
        losses = [float(step(batch(i), 0.05)) for step in (plain, fast)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert fast._forward is not fast.network, "otherwise nothing was compiled"
    a, b = plain.network.state_dict(), fast.network.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=1e-3, atol=1e-4)
    resumed = training()
    resumed.load_state(fast.state())
    assert all(torch.equal(weight, b[name]) for name, weight in resumed.network.state_dict().items())


@pytest.mark.gpu
@pytest.mark.parametrize("network", [{}, {"dropout": 0.3}, {"norm": "batch"}])
@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
def test_a_step_on_a_gpu_waits_for_nothing(compute, network):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    step, given = training(compute, device="cuda", name="adamw", **network), batch(device="cuda")
    # The first makes moments and code.
    for _ in range(2):
        step(given, 0.01)
    with nothing_waits():
        step(given, 0.01)


@pytest.mark.gpu
def test_a_gpu_that_is_full_computes_the_batch_in_pieces():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    given, said = batch(size=4, device="cuda", side=96), []
    torch.cuda.reset_peak_memory_stats()
    # Wide, as the loss is computed on the whole batch.
    whole = training(device="cuda", widths=[32, 64])
    whole(given, 0.05)
    peak_bytes = torch.cuda.max_memory_allocated()
    expected = {name: weight.clone() for name, weight in weights(whole).items()}
    del whole
    torch.cuda.empty_cache()
    cut = training(device="cuda", warn=said.append, widths=[32, 64])
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.7 * peak_bytes / total_bytes)
    try:
        cut(given, 0.05)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(said) == 1
    for name, weight in weights(cut).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_an_overflow_on_a_gpu_skips_the_step_and_lowers_the_scale_which_is_saved(name):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    step, given = training("float16", device="cuda", name=name), batch(device="cuda")
    step(given, 0.01)
    before, scale = {key: weight.clone() for key, weight in weights(step).items()}, step._scaler.get_scale()
    broken = Batch(image=given.image * float("inf"), label=given.label, draws=(), regions=(), step=1)
    assert not step(broken, 0.01).isfinite()
    assert_equal(weights(step), before)
    assert step._scaler.get_scale() == 0.5 * scale
    file = io.BytesIO()
    torch.save(step.state(), file)
    file.seek(0)
    resumed = training("float16", device="cuda", name=name)
    resumed.load_state(torch.load(file, weights_only=True))
    assert resumed._scaler.get_scale() == 0.5 * scale
    losses = [float(some(given, 0.01)) for some in (step, resumed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for key, weight in weights(step).items():
        torch.testing.assert_close(weights(resumed)[key], weight, rtol=1e-2, atol=1e-3)


# torch warns about parts of its own that compiling touches.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.gpu
@pytest.mark.slow
def test_cuda_graphs_train_the_weights_of_plain_steps_and_keep_the_losses_until_they_are_read():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    plain, fast = (training(compile=mode, device="cuda") for mode in ("none", "reduce-overhead"))
    losses = []
    for i in range(6):
        # As the loop does: read together, when graphs were replayed since.
        losses.append([step(batch(i, device="cuda", side=16), 0.05) for step in (plain, fast)])
        with torch.no_grad():
            fast.averaged()(batch(i, device="cuda", side=16).image)
    for ours, theirs in losses:
        assert float(theirs) == pytest.approx(float(ours), rel=1e-2)
    for name, weight in weights(plain).items():
        torch.testing.assert_close(weights(fast)[name], weight, rtol=2e-2, atol=2e-3)
