from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import CompileFacts, ExperimentFacts


def test_float32_on_tensor_cores_saves_less_where_tf32_is_used_already(clean_gpu, find):
    plain = replace(clean_gpu.settings, autocast="")
    (found,) = find("VX301", replace(clean_gpu, settings=plain))
    assert found.saves_s == pytest.approx(9.55 * (1 - 1 / 1.3))
    assert (found.risk, "dtype=torch.bfloat16" in found.change) == ("changes results", True)
    (found,) = find("VX301", replace(clean_gpu, settings=replace(plain, capability=(7, 0))))
    assert found.saves_s == pytest.approx(9.55 / 3)
    assert "scaler.scale(loss)" in found.change


def test_bfloat16_on_a_cpu_is_proposed_with_the_test_of_its_gradients(clean, find):
    fast = replace(clean, environment={"cpu_has_fast_bfloat16": True})
    (found,) = find("VX303", fast)
    assert found.change.startswith("# first: `voxelocity doctor` measures")
    (flat,) = find("VX303", replace(fast, network=replace(clean.network, kernel_dimensions=2)))
    assert "doctor" not in flat.change
    assert found.change.endswith(flat.change)


@pytest.mark.parametrize("changes", [{"autocast": "bfloat16"}, {"capability": (6, 1)}, {"device": "cpu"}])
def test_half_precision_is_not_proposed_where_it_is_used_or_useless(clean_gpu, find, changes):
    settings = replace(clean_gpu.settings, **{"autocast": "", **changes})
    assert find("VX301", replace(clean_gpu, settings=settings)) == ()


def test_tf32_off_is_judged_by_whether_the_network_has_convolutions(clean_gpu, find):
    plain = replace(clean_gpu.settings, autocast="")
    off = replace(plain, allow_tf32_cudnn=False, allow_tf32_matmul=True)
    (found,) = find("VX302", replace(clean_gpu, settings=off))
    assert found.change == "torch.backends.cudnn.allow_tf32 = True"
    assert found.saves_s == pytest.approx(9.55 / 2)
    dense = replace(clean_gpu.network, kernel_dimensions=0)
    assert find("VX302", replace(clean_gpu, settings=off, network=dense)) == ()
    matmul = replace(plain, allow_tf32_matmul=False)
    (found,) = find("VX302", replace(clean_gpu, settings=matmul, network=dense))
    assert found.change == "torch.set_float32_matmul_precision('high')"
    assert find("VX302", clean_gpu) == ()


def test_fast_bfloat16_of_a_cpu_is_worth_knowing_and_no_cause(clean, make, find):
    (found,) = find("VX303", replace(clean, environment={"cpu": "EPYC", "cpu_has_fast_bfloat16": True}))
    assert "This CPU is faster in bfloat16" in found.cause
    assert "about 60 % of that" in found.cause
    assert (found.is_cause, found.saves_s) == (False, pytest.approx(9.55 * 0.4))
    assert find("VX303", replace(clean, environment={"cpu_has_fast_bfloat16": False})) == ()
    tried = {"network, float32": 0.08, "network, 16 bits": 0.02}
    experiments = [ExperimentFacts(name=name, unit="batch", seconds=[value]) for name, value in tried.items()]
    lines = [
        make.stack("forward", "other", 9, where="train.py:50", line="out = net(x)"),
        make.stack("forward", "other", 2, where="train.py:51", line="loss = criterion(out, y)"),
    ]
    fast = replace(clean, environment={"cpu_has_fast_bfloat16": True}, experiments=experiments, stacks=lines)
    (found,) = find("VX303", fast)
    assert (found.is_cause, found.basis, found.saves_s) == (True, "measured", pytest.approx(9.55 * 0.75))
    assert found.change.splitlines()[2:] == ["    out = net(x)", "    loss = criterion(out, y)"]
    slow = replace(experiments[1], seconds=[0.075])
    (found,) = find("VX303", replace(fast, experiments=[experiments[0], slow]))
    assert not found.is_cause, "a gain of six percent"
    assert find("VX303", replace(clean, environment={})) == ()


def test_float64_is_found_in_parameters_and_in_the_input(clean, find):
    network = replace(clean.network, parameter_dtypes={"float64": 1_000_000})
    (found,) = find("VX304", replace(clean, network=network))
    assert "1,000,000 parameters are float64" in found.cause
    assert found.saves_s == pytest.approx(9.95 * 2 / 3)
    assert find("VX304", replace(clean, network=replace(clean.network, input_dtype="torch.float64")))
    assert find("VX304", clean) == ()


def test_odd_channels_are_told_in_half_precision_alone(clean_gpu, find):
    network = replace(clean_gpu.network, channels=[(30, 60), (60, 60), (1, 30)])
    (found,) = find("VX305", replace(clean_gpu, network=network))
    assert "2 of 2 wide convolutions have channel counts that are not a multiple of 8, for example 30" in found.cause
    assert found.change.startswith("# 30 channels -> 32")
    assert found.saves_s is None
    assert not found.is_cause
    full = replace(clean_gpu.settings, autocast="")
    assert find("VX305", replace(clean_gpu, network=network, settings=full)) == ()
    assert find("VX305", clean_gpu) == ()


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
