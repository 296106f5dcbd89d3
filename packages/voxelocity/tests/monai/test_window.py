"""Sliding windows under MONAI's names: the same results for every argument, and its known faults gone."""

import inspect
import sys

import monai.inferers
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data.meta_tensor import MetaTensor

from shared.examples import examples
from voxelocity.monai import SlidingWindowInferer, sliding_window_inference
from voxelocity_observe.core.errors import InputError

peer = monai.inferers.sliding_window_inference


def noise(*shape, seed=0, dtype=np.float32):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def placed(windows):
    """An answer that depends on the place in the window."""
    ramp = torch.arange(windows[0, 0].numel(), dtype=windows.dtype).reshape(windows.shape[2:])
    return torch.cat([windows[:, :1] + 0.01 * ramp, windows[:, :1] * 2.0, windows[:, :1].tanh() - ramp.cos()], 1)


def close(ours, theirs, tolerance=1e-5):
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        ours, theirs = tuple(ours.values()), tuple(theirs.values())
    if not isinstance(theirs, tuple):
        ours, theirs = (ours,), (theirs,)
    assert len(ours) == len(theirs)
    for our_output, their_output in zip(ours, theirs, strict=True):
        assert our_output.dtype == their_output.dtype
        torch.testing.assert_close(our_output, their_output, atol=tolerance, rtol=tolerance)


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_signatures_are_monais():
    assert parameters(sliding_window_inference) == parameters(peer)
    theirs = monai.inferers.SlidingWindowInferer
    assert parameters(SlidingWindowInferer.__init__) == parameters(theirs.__init__)
    assert parameters(SlidingWindowInferer.__call__) == parameters(theirs.__call__)
    assert issubclass(SlidingWindowInferer, theirs)


axes = st.tuples(st.integers(1, 9), st.one_of(st.integers(1, 6), st.sampled_from([None, -1, 0])), st.floats(0.0, 0.8))


@settings(max_examples=examples(60))
@given(
    axes=st.lists(axes, min_size=1, max_size=3),
    batch=st.integers(1, 2),
    sw_batch_size=st.integers(1, 5),
    mode=st.sampled_from(["constant", "gaussian"]),
    sigma_scale=st.sampled_from([0.125, 0.4]),
    cval=st.sampled_from([0.0, -1.5]),
    buffer_steps=st.sampled_from([None, None, 0, 1, 2]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_results_equal_monais(axes, batch, sw_batch_size, mode, sigma_scale, cval, buffer_steps, dtype):
    shape, roi, overlap = zip(*axes, strict=True)
    inputs = noise(batch, 2, *shape, dtype=dtype)
    arguments = (inputs, roi, sw_batch_size, placed, overlap, mode, sigma_scale, "constant", cval)
    options = {"buffer_steps": buffer_steps, "buffer_dim": -len(shape)}
    close(sliding_window_inference(*arguments, **options), peer(*arguments, **options))


@pytest.mark.parametrize("buffer_dim", [-1, 0, 1])
@pytest.mark.parametrize("buffer_steps", [1, 3, 100])
def test_buffers_ask_for_the_same_windows_in_the_same_order_as_monais(buffer_steps, buffer_dim):
    inputs = noise(2, 1, 13, 9)

    def run(function):
        asked = []

        def predictor(windows, positions):
            asked.append(([[(p.start, p.stop) for p in place[2:]] for place in positions], windows.clone()))
            return windows * 2.0

        options = {"buffer_steps": buffer_steps, "buffer_dim": buffer_dim, "with_coord": True}
        return function(inputs, (4, 3), 3, predictor, 0.4, "gaussian", **options), asked

    (ours, our_calls), (theirs, their_calls) = run(sliding_window_inference), run(peer)
    close(ours, theirs)
    assert [positions for positions, _ in our_calls] == [positions for positions, _ in their_calls]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(our_calls, their_calls, strict=True))


def several(windows):
    return windows + 1, windows[:, ::2, ::2, ::2] + 2, windows[:, :1, ::4, ::4] * 3


@pytest.mark.parametrize("mode", ["constant", "gaussian"])
@pytest.mark.parametrize("shape", [(20, 20), (5, 20)])
def test_answers_of_several_sizes_equal_monais(shape, mode):
    for predictor in (several, lambda x: dict(zip("abc", several(x), strict=True)), lambda x: list(several(x))[:1]):
        arguments = (noise(2, 3, *shape), (8, 8), 3, predictor, 0.5, mode)
        close(sliding_window_inference(*arguments), peer(*arguments))


def test_answer_of_the_windows_size_may_come_after_a_smaller_one_where_monai_fails():
    inputs = noise(1, 3, 20, 20)
    with pytest.raises(RuntimeError):
        peer(inputs, (8, 8), 2, lambda x: several(x)[1::-1], 0.5)
    small, full = sliding_window_inference(inputs, (8, 8), 2, lambda x: several(x)[1::-1], 0.5, "gaussian")
    close(full, inputs + 1)
    close(small, inputs[:, ::2, ::2, ::2] + 2)


def test_scaled_places_are_exact_where_monai_loses_a_voxel():
    inputs = noise(1, 1, 98)
    assert peer(inputs, (49,), 1, lambda x: x[:, :, :1], 0.0).shape == (1, 1, 1)
    close(sliding_window_inference(inputs, (49,), 1, lambda x: x[:, :, :1], 0.0), inputs[:, :, ::49])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes_are_monais(mode):
    arguments = (noise(1, 2, 6, 7, 9), (8, 8, 6), 2, placed, 0.25, "gaussian", (0.1, 0.2, 0.3), mode)
    close(sliding_window_inference(*arguments), peer(*arguments))


@pytest.mark.parametrize("weights", [torch.rand(4, 5) + 0.1, torch.rand(1, 1, 4, 5) + 0.1, np.ones((4, 5))])
def test_own_weights_are_used(weights):
    arguments, options = (noise(1, 2, 11, 9), (4, 5), 2, placed, 0.5, "gaussian"), {"roi_weight_map": weights}
    close(sliding_window_inference(*arguments, **options), peer(*arguments, **options))


def test_process_fn_gets_and_gives_what_monais_does():
    def halved(answers, windows, weights):
        assert windows.shape[1:] == (2, 4, 6)
        inner = torch.zeros_like(weights)
        inner[1:3, 1:5] = weights[1:3, 1:5]
        return tuple(answer + windows.mean() for answer in answers), inner

    arguments = (noise(1, 2, 10, 12), (4, 6), 1, placed, 0.5, "gaussian")
    ours, theirs = (f(*arguments, process_fn=halved) for f in (sliding_window_inference, peer))
    assert theirs.isnan().any()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_process_fn_cannot_change_the_weights_of_later_calls():
    def erase(answers, _, weights):
        return answers, weights.mul_(2.0)

    arguments = (noise(1, 1, 9, 9), (4, 4), 100, placed, 0.5, "gaussian")
    expected = sliding_window_inference(*arguments)
    sliding_window_inference(*arguments, process_fn=erase)
    assert torch.equal(sliding_window_inference(*arguments), expected)


def test_the_divisor_stays_that_of_the_first_call_when_process_fn_changes_its_weights():
    arguments = (noise(1, 1, 9, 9), (4, 4), 1, placed, 0.5, "gaussian")
    ours, theirs = (
        f(*arguments, process_fn=lambda answers, _, weights: (answers, weights.mul_(0.5)))
        for f in (sliding_window_inference, peer)
    )
    close(ours, theirs)


def test_condition_arguments_and_keywords_reach_the_predictor():
    inputs, condition = noise(2, 1, 7, 5), noise(2, 1, 7, 5, seed=1)

    def predictor(windows, plus, *, times, condition):
        return (windows + plus) * times + condition

    for function, network in (
        (sliding_window_inference, SlidingWindowInferer),
        (peer, monai.inferers.SlidingWindowInferer),
    ):
        options = {"times": 3.0, "condition": condition}
        plain = function(inputs, (8, 4), 3, predictor, 0.25, *(["constant", 0.1, "constant", 0.0] + [None] * 2), False,
                         None, None, None, -1, False, 5.0, **options)  # fmt: skip
        kept = network((8, 4), 3)(inputs, predictor, 5.0, **options)
        close(plain, (inputs + 5.0) * 3.0 + condition)
        close(kept, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_metadata_and_dtype_come_back_as_monais(dtype):
    inputs = MetaTensor(noise(1, 1, 9, 7).to(dtype), affine=torch.diag(torch.tensor([2.0, 3.0, 4.0, 1.0])))
    seen = []
    arguments = (inputs, (4, 4), 2, lambda x: (seen.append(type(x)), x * 2)[1], 0.5, "gaussian")
    ours, theirs = sliding_window_inference(*arguments), peer(*arguments)
    close(ours, theirs, 1e-5 if dtype != torch.float16 else 5e-3)
    assert torch.equal(ours.affine, theirs.affine)
    assert set(seen) == {torch.Tensor}


def test_half_precision_answers_to_float_inputs_are_blended_in_float():
    inputs = noise(1, 1, 12, 12)
    ours = sliding_window_inference(inputs, (6, 6), 2, lambda x: x.to(torch.bfloat16), 0.5, "gaussian")
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, inputs, atol=0.02, rtol=0.0)


def test_gradients_are_monais():
    grads = []
    for function in (sliding_window_inference, peer):
        inputs = noise(1, 2, 11, 7).requires_grad_()
        function(inputs, (4, 4), 3, lambda x: (x * x).sin(), 0.5, "gaussian").square().sum().backward()
        grads.append(inputs.grad)
    close(*grads)


@pytest.mark.parametrize("sw_batch_size", [1, 2])
def test_inputs_stay_whatever_the_predictor_does_to_its_windows(sw_batch_size):
    """With one window a call MONAI hands out the inputs' own memory, and weights what a predictor answers in place."""
    inputs = noise(1, 1, 9, 9)
    before = inputs.clone()
    ours = sliding_window_inference(inputs, (4, 4), sw_batch_size, lambda x: x.mul_(1.0), 0.5, "gaussian")
    assert torch.equal(inputs, before)
    close(ours, before)
    peer(inputs, (4, 4), 1, lambda x: x, 0.5, "gaussian")
    assert not torch.equal(inputs, before)


def test_windows_that_a_predictor_keeps_stay_its_own():
    kept = []
    inputs = noise(1, 1, 8, 4)
    sliding_window_inference(inputs, (4, 4), 1, lambda x: (kept.append(x), x)[1], 0.0)
    assert torch.equal(torch.cat(kept, 2), inputs)


def test_inferer_keeps_weights_and_gives_the_same():
    inputs = noise(1, 1, 11, 9)
    kept = SlidingWindowInferer((4, 5), 2, 0.5, "gaussian", cache_roi_weight_map=True)
    assert kept.roi_weight_map.shape == (4, 5)
    assert SlidingWindowInferer((4, -1), mode="gaussian", cache_roi_weight_map=True).roi_weight_map is None
    theirs = monai.inferers.SlidingWindowInferer((4, 5), 2, 0.5, "gaussian")
    close(kept(inputs, placed), theirs(inputs, placed))


def test_inferer_puts_large_inputs_together_on_the_cpu(monkeypatch):
    devices = []
    module = sys.modules["voxelocity.monai.window"]
    monkeypatch.setattr(module, "sliding_window_inference", lambda *a, **k: devices.append(a[10]))
    inferer = SlidingWindowInferer((4, 4), cpu_thresh=80)
    inferer(noise(1, 1, 9, 9), placed)
    inferer(noise(1, 1, 8, 10), placed)
    inferer(noise(1, 1, 9, 9), placed, device="meta")
    assert devices == ["cpu", None, "meta"]


def test_progress_draws_a_bar(capsys):
    sliding_window_inference(noise(1, 1, 8), (4,), 1, placed, 0.0, progress=True)
    assert "2/2" in capsys.readouterr().err


def test_progress_without_tqdm_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(InputError, match="progress=True draws tqdm's bar, and tqdm is not installed; pip install tqdm"):
        sliding_window_inference(noise(1, 1, 8), (4,), 1, placed, progress=True)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"inputs": noise(1, 8, 8)},
            r"Inputs must have 4 dimensions for 2D roi_size .* got inputs of shape \(1, 8, 8\)",
        ),
        ({"inputs": noise(8, 8), "roi_size": 4}, r"inputs have shape \(8, 8\); they need axes of batch, channels and"),
        ({"inputs": noise(1, 1, 8, 8).int()}, r"inputs are torch.int32, .* pass inputs.float\(\)"),
        ({"sw_batch_size": 0}, "sw_batch_size is 0; it must be 1 or more"),
        ({"overlap": 1.0}, r"overlap must be >= 0 and < 1, got \(1.0, 1.0\)"),
        ({"overlap": (-0.1, 0)}, r"overlap must be >= 0 and < 1, got \(-0.1, 0\)"),
        ({"buffer_steps": 1, "buffer_dim": 2}, r"buffer_dim must be in \[-2, 1\], got 2"),
        (
            {"buffer_steps": 1, "predictor": lambda x: x[:, :, ::2]},
            r"return windows of \(4, 4\) at their own size, but .* leave",
        ),
        ({"mode": "cubic"}, "cubic"),
        ({"roi_weight_map": torch.ones(3, 4)}, r"roi_weight_map has shape \(3, 4\), and windows have \(4, 4\)"),
        ({"roi_weight_map": torch.ones(1, 2, 4, 4)}, r"weights of shape \(1, 2, 4, 4\) do not fit windows of \(4, 4\)"),
        ({"predictor": lambda x: x[:1]}, r"the predictor returned \(1, 1, 4, 4\) for 2 windows of \(4, 4\); it must"),
        ({"predictor": lambda x: "no"}, r"the predictor returned str for 2 windows|returned n"),
        (
            {"predictor": lambda x: x.long()},
            "returned torch.int64, which cannot be blended in the inputs' torch.float32",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(changed, named):
    options = {"inputs": noise(1, 1, 9, 9), "roi_size": (4, 4), "sw_batch_size": 2, "predictor": lambda x: x, **changed}
    with pytest.raises(ValueError, match=named):
        sliding_window_inference(**options)


def test_condition_of_another_shape_is_refused():
    with pytest.raises(
        InputError, match=r"`condition` must match shape of `inputs` \(\(1, 1, 8\)\), but got \(1, 1, 7\)"
    ):
        SlidingWindowInferer((4,))(noise(1, 1, 8), placed, condition=noise(1, 1, 7))
