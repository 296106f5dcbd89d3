"""How a step computes: number format, memory format, compilation, CUDA's switches.

Rules choose; a measurement of the planned step on this machine overrides them where that is safe and its result clear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from voxelocity.core.records import Measured
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.step_forecast import ENOUGH_STEPS, PatchPass
from voxelocity.planning.step_timing import StepTask, StepVariant
from voxelocity.step import NETWORKS, BackendConfig, LossConfig, NetworkConfig, OptimizerConfig, PrecisionConfig
from voxelocity.step.fused import has_triton
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.interleaved_timing import SpeedRatio, Times
from voxelocity_observe.core.quantities import count_text

COMPUTE, LAST, COMPILE = "precision.compute", "precision.channels_last", "precision.compile"
GRAPH = "precision.step_graph"
TF32, TRIED = "backend.tf32", "backend.cudnn_benchmark"
MEASURED_KEYS = (LAST, TRIED)
"""Keys that a measurement may choose: those that change results only by roundings."""

_PLANNED = "as planned"
_LIMIT_S = 6.0
# On a CPU a choice saves at most a tenth of a step, and the first step of a new machine, or of a job whose home is new,
# comes within 8 s: three seconds of a core, more in a long run.
_CPU_CORE_S, _CPU_LIMIT_S = 3.0, 3.0
_LONG_SHARE, _LIMIT_SHARE = 0.002, 0.01
# On a GPU a measurement took a third of a run of half a minute.
_GPU_LIMIT_S = 0.5
_GPU_LEAST_BUDGET_S = 600.0
# Steps until two ways have been called first and had three rounds each.
_GPU_LEAST_STEPS = 8
# Assumed of cuDNN's trying its algorithms. 3-D networks in half precision usually gain 10 to 30 % of a step. It costs
# seconds for each shape of a batch: some 20 convolutions, forward and backward, ten algorithms each.
_AUTOTUNE_GAIN, _AUTOTUNE_COST_S = 0.05, 2.0


def settle_precision(facts: PlanFacts) -> None:
    """Half precision if the device has units for it; the rest by measurement if that decides."""
    compute, why = _compute(facts)
    planned = _planned_way(facts, compute)
    times = _times(facts, planned)
    ratio = None if times is None else times.ratio(_PLANNED, COMPUTE)
    gain = None if ratio is None else _measured(f"{planned.precision.compute} against float32", ratio, decided=False)
    fast = facts.settle(COMPUTE, compute, why + _gain_text(times, gain, planned), measured=gain)
    names = {True: "channels_last_3d", False: "contiguous"}
    _settle_measured(facts, LAST, *_format(facts, fast), times, names=names, bench="memory-format")
    if facts.machine.device == "cuda":
        _settle_backend(facts, times)
    mode = facts.settle(COMPILE, "none", _compile_reason(facts.machine.device))
    facts.settle(GRAPH, *_graph(facts, fast, mode), changes_results=False, changes_roundings=True)


def _graph(facts: PlanFacts, compute: str, compile_mode: str) -> tuple[bool, str]:
    """Whether steps are replayed as a CUDA graph by rule, and why."""
    why_not = {
        "CUDA graphs need a GPU": facts.machine.device != "cuda",
        "several ranks exchange gradients, which the host controls": facts.machine.num_ranks > 1,
        "loss scaling for float16 has not been tested in a graph": compute == "float16",
        f"{COMPILE}={compile_mode} makes its own graphs": compile_mode != "none",
        "the boundary loss is computed on the host": float(facts.section("loss").get("boundary_weight", 0.0)) > 0.0,
        "your own network may do work on the host, which a graph cannot replay": (
            facts.section("network").get("name") == "custom"
        ),
        "the device has no memory for a graph of the step next to a validation": not facts.fits_graph,
    }
    reason = next((reason for reason, holds in why_not.items() if holds), "")
    if reason:
        return False, reason
    return True, (
        "a step is recorded once and replayed with one launch, so small steps do not wait for Python; "
        f"--set {GRAPH}=false turns it off"
    )


def _compute(facts: PlanFacts) -> tuple[str, str]:
    machine = facts.machine
    if machine.fast_bfloat16:
        return "bfloat16", f"{machine.device_name} is faster in bfloat16; weights stay float32"
    if machine.device == "cuda":
        return "float16", f"{machine.device_name} has no bfloat16 units; the loss is scaled"
    return "float32", "bfloat16 is not faster on this CPU (docs/log)"


def planned_compute(facts: PlanFacts) -> str:
    """The number format of convolutions, before it is settled."""
    return str(facts.overrides.get(COMPUTE, _compute(facts)[0]))


def patch_pass(facts: PlanFacts, network: Mapping[str, Any], shape_voxel: Sequence[int]) -> PatchPass | None:
    """A pass of a network with these keys; None if keys do not fit together, which the check of the plan reports."""
    try:
        config = NetworkConfig.parse(network)
    except ConfigError:
        return None
    x, y, z = shape_voxel
    return PatchPass(
        network=config,
        shape_voxel=(x, y, z),
        num_channels=len(facts.data.channels),
        num_outputs=facts.data.num_outputs,
        is_half=planned_compute(facts) != "float32",
    )


def _planned_way(facts: PlanFacts, compute: str) -> StepVariant:
    """The way that rules and the user's keys give."""
    given = {"compute": compute, "channels_last": _format(facts, compute)[0]}
    return StepVariant(
        # Trials compare switches of the step itself.
        precision=PrecisionConfig.parse(
            given | facts.section("precision") | {"step_graph": False}, where="plan: precision"
        ),
        backend=BackendConfig.parse(facts.section("backend"), where="plan: backend"),
    )


def _times(facts: PlanFacts, planned: StepVariant) -> Times | None:
    """Measured times of the steps; None if measuring is off or there is nothing to choose."""
    on_cpu = facts.machine.device == "cpu"
    # Trying cuDNN's algorithms takes longer than the limit of a plan that was not asked to measure again.
    measurable = MEASURED_KEYS if facts.measures_again and not on_cpu else (LAST,)
    open_keys = [key for key in measurable if not facts.is_given(key)]
    if facts.time_steps is None or not open_keys:
        return None
    if planned.precision.compile != "none":
        return Times(seconds={}, why_not="each variant would have to be compiled first")
    task = _task(facts)
    if task is None:
        return None
    ways = {_PLANNED: planned, **{key: _flipped(planned, key) for key in open_keys}}
    if on_cpu or facts.measures_again:
        # What changes results is timed only to inform the user.
        if COMPUTE not in facts.overrides and planned.precision.compute != "float32":
            ways[COMPUTE] = replace(planned, precision=planned.precision.model_copy(update={"compute": "float32"}))
        if not on_cpu and TF32 not in facts.overrides:
            ways[TF32] = _flipped(planned, TF32)
    times = facts.time_steps(task, ways, limit_s=_limit_s(facts))
    facts.ran_out_of_memory = times.ran_out_of_memory
    return times


def _limit_s(facts: PlanFacts) -> float:
    """Seconds for measuring; 0 only takes what was measured before."""
    budget_s, on_cpu = facts.time_budget_s, facts.machine.device == "cpu"
    if facts.measures_again and not on_cpu:
        return _LIMIT_S
    # A target should be reached soon.
    if facts.overrides.get("train.target_dice", 0.0):
        return 0.0
    if on_cpu:
        limit_s = max(_CPU_CORE_S / facts.machine.num_cpus, _LONG_SHARE * budget_s)
        if facts.measures_again:
            limit_s = _CPU_LIMIT_S
        return min(limit_s, _CPU_LIMIT_S, _LIMIT_SHARE * budget_s if budget_s else math.inf)
    if 0.0 < budget_s < _GPU_LEAST_BUDGET_S:
        return 0.0
    expected = facts.forecast
    return 0.0 if expected and _GPU_LEAST_STEPS * expected.step_s > _GPU_LIMIT_S else _GPU_LIMIT_S


def _flipped(way: StepVariant, key: str) -> StepVariant:
    """The way with one of its switches, a key of the plan, the other way round."""
    section, name = key.split(".")
    config = getattr(way, section)
    return replace(way, **{section: config.model_copy(update={name: not getattr(config, name)})})


def _task(facts: PlanFacts) -> StepTask | None:
    """The planned step; None if the user's keys do not fit together, which the check of the whole plan reports."""
    try:
        network = NetworkConfig.parse(facts.section("network"))
        loss = LossConfig.parse(facts.section("loss"))
        optimizer = OptimizerConfig.parse(facts.section("optimizer"))
    except ConfigError:
        return None
    x, y, z = facts.settled["data"]["patch"]["shape_voxel"]
    if any(n % d for n, d in zip((x, y, z), network.divisor, strict=True)):
        return None
    return StepTask(
        network=network,
        loss=loss,
        optimizer=optimizer,
        num_channels=len(facts.data.channels),
        num_classes=len(facts.data.class_names),
        num_regions=len(facts.data.regions),
        patch_voxel=(x, y, z),
        batch_size=int(facts.settled["data"]["batch_size"]),
    )


def _gain_text(times: Times | None, gain: Measured | None, planned: StepVariant) -> str:
    """The text on the gain of half precision; empty if float32 is planned."""
    if planned.precision.compute == "float32":
        return ""
    if times is None or gain is None:
        return f"; `voxelocity bench amp` measures it along with the accuracy, --set {COMPUTE}=float32 turns it off"
    return (
        f"; measured here: {_took(times, gain, _PLANNED, COMPUTE)} as in float32 with the same memory format; "
        f"`voxelocity bench amp` also shows the accuracy, --set {COMPUTE}=float32 turns it off"
    )


def _format(facts: PlanFacts, compute: str) -> tuple[bool, str]:
    """Whether channels come last by rule, and why."""
    if compute != "float32" and facts.machine.device == "cuda":
        return _gpu_format(facts)
    if compute != "float32":
        return True, "faster with half-precision convolutions"
    kind = NETWORKS[facts.settled["network"]["name"]]
    if facts.machine.device == "cpu" and kind.is_faster_channels_last:
        return True, f"faster for {kind.title} on the CPUs where it was measured (docs/log)"
    return False, "torch's default"


def _gpu_format(facts: PlanFacts) -> tuple[bool, str]:
    """Half-precision convolutions are faster with channels last, but torch's instance norm copies from and to it."""
    network, fast = facts.section("network"), "half-precision convolutions are faster so"
    if network["name"] == "custom":
        return True, fast
    if network.get("norm", "instance") == "batch":
        return True, f"{fast}, and batch norms keep it"
    if not NETWORKS[network["name"]].has_own_norms:
        return False, f"torch's instance norms, which {network['name']} uses, copy from and to channels_last_3d"
    if not BackendConfig.parse(facts.section("backend"), where="plan: backend").fused_norm:
        return False, "torch's instance norms copy from and to channels_last_3d, and backend.fused_norm is off"
    if not has_triton():
        return False, "torch's instance norms copy from and to channels_last_3d, and Triton, for our own, is missing"
    return True, f"{fast}, and our instance norm keeps it; --set backend.fused_norm=false turns that norm off"


def _settle_backend(facts: PlanFacts, times: Times | None) -> None:
    """Switches of CUDA's libraries."""
    ratio = None if times is None else times.ratio(_PLANNED, TF32)
    reason = "torch's default for convolutions; here it applies to operations that half precision leaves in float32"
    measured = None if ratio is None else _measured("TF32 against full float32", ratio, decided=False)
    if times is not None and measured is not None:
        reason += f"; measured here: {_took(times, measured, _PLANNED, TF32)} as without"
    facts.settle(
        TF32,
        True,
        f"{reason}; `voxelocity bench tf32` measures it in whole trainings, --set {TF32}=false turns it off",
        measured=measured,
    )
    names = {True: "algorithms tried", False: "algorithms guessed"}
    tried = times if facts.measures_again else None
    _settle_measured(facts, TRIED, *_autotune(facts), tried, names=names, bench="cudnn-benchmark")


def _autotune(facts: PlanFacts) -> tuple[bool, str]:
    """Whether cuDNN tries its algorithms by rule, and why: where that saves more than it costs."""
    expected = facts.forecast
    if expected is None:
        return False, "torch's default"
    data, train = facts.section("data"), facts.section("train")
    # Whichever ends the run first; a run to a target may end soon.
    limits = [num for num in (expected.num_steps, int(train.get("steps", 0))) if num]
    num_steps = ENOUGH_STEPS if expected.is_to_target else min(limits, default=0)
    cost_s = _AUTOTUNE_COST_S * (1 + len(data["patch"].get("growth", ())))
    saved_s = _AUTOTUNE_GAIN * num_steps * expected.device_s
    return saved_s > cost_s, (
        f"benchmarking takes about {cost_s:.2g} s and saves {saved_s:.2g} s, {_AUTOTUNE_GAIN:.0%} of what the device "
        "works "
        f"in {count_text(num_steps, 'step')} (assumed, not measured)"
    )


def _settle_measured(
    facts: PlanFacts, key: str, rule: bool, why: str, times: Times | None, *, names: dict[bool, str], bench: str
) -> None:
    """The rule's value, or the other one if a step is clearly quicker with it; `why` is the rule's own reason."""
    if key not in facts.overrides and facts.is_given(key):
        facts.settle(key, rule, why, changes_results=False, changes_roundings=True)
        return
    value, measured = rule, None
    ratio = None if times is None else times.ratio(key, _PLANNED)
    bench_text = f"`voxelocity bench {bench}` measures whole trainings and their accuracy"
    if times is None:
        reason = f"{why}; {bench_text}"
    elif ratio is None:
        lacking = times.why_not or "there was no time left to measure it"
        reason = f"{why}; not measured: {lacking}; {bench_text}"
    else:
        value = not rule if ratio.is_quicker else rule
        decided = ratio.is_quicker or ratio.is_slower
        measured = _measured(f"{names[not rule]} against {names[rule]}", ratio, decided=decided)
        took = f"{_took(times, measured, key, _PLANNED)} with {names[not rule]} as with {names[rule]}"
        reason = f"measured here: {took}" if decided else f"no clear difference here: {took}; so the rule holds: {why}"
    facts.settle(key, value, reason, changes_results=False, changes_roundings=True, measured=measured)


def _measured(what: str, ratio: SpeedRatio, *, decided: bool) -> Measured:
    return Measured(what=what, ratio=ratio.median, low=ratio.low, high=ratio.high, rounds=ratio.rounds, decided=decided)


def _took(times: Times, measured: Measured, way: str, against: str) -> str:
    way_ms, against_ms = (f"{1000.0 * times.median_s(name):.3g}" for name in (way, against))
    return (
        f"a step takes {measured.ratio:.2f} times as long ({measured.low:.2f} to {measured.high:.2f}, "
        f"n = {measured.rounds}; {way_ms} and {against_ms} ms)"
    )


def _compile_reason(device: str) -> str:
    turned_on = f"(`voxelocity bench compile` measures it here); --set {COMPILE}=default turns it on"
    if device == "cpu":
        return (
            "compiling takes 30 to 90 s before the first step, and on two cores steps then took as long as before "
            f"{turned_on}"
        )
    return f"compiling takes a minute before the first step, and its gain on a GPU has not been measured {turned_on}"
