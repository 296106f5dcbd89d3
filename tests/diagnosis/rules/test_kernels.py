"""How the network is computed: each fault planted in facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.facts import CompileFacts


def test_benchmark_off_is_worth_knowing_with_fixed_shapes(clean_gpu, find):
    off = replace(clean_gpu.settings, cudnn_benchmark=False)
    (found,) = find("VX311", replace(clean_gpu, settings=off))
    assert "All batches have one shape (2 × 1 × 64 × 64 × 64)" in found.cause
    assert (found.saves_s, found.is_cause) == (None, False)
    varying = replace(clean_gpu.network, input_shapes=[((2, 1, 64, 64, 60 + i), 10) for i in range(10)])
    assert find("VX311", replace(clean_gpu, settings=off, network=varying)) == ()
    assert find("VX311", clean_gpu) == ()


def test_benchmark_on_with_many_shapes_is_a_cause(clean_gpu, find):
    varying = replace(clean_gpu.network, input_shapes=[((2, 1, 64, 64, 60 + i), 10) for i in range(10)])
    (found,) = find("VX312", replace(clean_gpu, network=varying))
    assert "given 10 different shapes" in found.cause
    assert found.evidence[0] == "2 × 1 × 64 × 64 × 60: 10 times"
    assert find("VX312", clean_gpu) == ()


def test_contiguous_tensors_are_told_with_the_gain_that_was_measured_on_a_cpu(clean, clean_gpu, find):
    network = replace(clean.network, memory_format="contiguous")
    (found,) = find("VX313", replace(clean, network=network))
    assert found.saves_s == pytest.approx(9.55 * 0.24)
    assert not found.is_cause
    assert "torch.channels_last_3d" in found.change
    (found,) = find("VX313", replace(clean_gpu, network=network))
    assert found.saves_s is None
    assert find("VX313", clean) == ()


def test_recompiles_cost_what_they_took(clean, find):
    compiled = CompileFacts(num_frames=4, num_recompiles=3, seconds=2.5, reasons=["size mismatch at index 0"])
    (found,) = find("VX321", replace(clean, compiled=compiled))
    assert "compiled 3 more times, 2.5 s in all: size mismatch at index 0" in found.cause
    assert (found.saves_s, found.basis) == (2.5, "measured")
    assert find("VX321", replace(clean, compiled=replace(compiled, num_recompiles=1))) == ()


def test_graph_breaks_are_worth_knowing(clean, find):
    broken = CompileFacts(num_frames=3, num_graph_breaks=2, reasons=["Tensor.item() at net.py:8"])
    (found,) = find("VX322", replace(clean, compiled=broken))
    assert found.evidence == ("Tensor.item() at net.py:8",)
    assert not found.is_cause
    assert find("VX322", replace(clean, compiled=CompileFacts(num_frames=3))) == ()


@pytest.mark.parametrize(
    ("code", "setting", "saves_s"),
    [("VX331", "detect_anomaly", 9.55 * (1 - 1 / 1.17)), ("VX332", "deterministic", 9.95 / 6)],
)
def test_switches_for_finding_errors_are_found(clean, find, code, setting, saves_s):
    (found,) = find(code, replace(clean, settings=replace(clean.settings, **{setting: True})))
    assert found.saves_s == pytest.approx(saves_s)
    assert found.is_cause
    assert find(code, clean) == ()
