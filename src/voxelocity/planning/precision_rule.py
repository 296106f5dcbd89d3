"""How a step computes: number format, memory format, compilation, CUDA's switches.

Rules choose; a measurement of the planned step on this machine overrides them where that is safe and its result clear.
"""

from __future__ import annotations

from dataclasses import replace

from voxelocity.core.errors import ConfigError
from voxelocity.core.records import Measured
from voxelocity.observe.interleaved_timing import SpeedRatio, Times
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.step_timing import StepTask, StepVariant
from voxelocity.step import BackendConfig, LossConfig, NetworkConfig, OptimizerConfig, PrecisionConfig

COMPUTE, LAST, COMPILE = "precision.compute", "precision.channels_last", "precision.compile"
GRAPH = "precision.step_graph"
TF32, TRIED = "backend.tf32", "backend.cudnn_benchmark"
MEASURED_KEYS = (LAST, TRIED)
"""Keys that a measurement may choose: those that change results only by roundings."""

_PLANNED = "as planned"
_LIMIT_S = 6.0
# On a CPU a choice saves at most a tenth of a step, and three rounds take seconds.
_LIMIT_SHARE = {"cuda": 0.05, "cpu": 0.01}


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
        "only a GPU has graphs": facts.machine.device != "cuda",
        "several ranks exchange gradients, which the host steers": facts.machine.num_ranks > 1,
        "float16 scales the loss, which has never been tried in a graph": compute == "float16",
        f"{COMPILE}={compile_mode} makes graphs of its own": compile_mode != "none",
        "the boundary loss is computed on the host": float(facts.section("loss").get("boundary_weight", 0.0)) > 0.0,
        "your own network may do work on the host, which a graph would not repeat": (
            facts.section("network").get("name") == "custom"
        ),
    }
    reason = next((reason for reason, holds in why_not.items() if holds), "")
    if reason:
        return False, reason
    return True, (
        "a step is recorded once and then launched at once, so small steps do not wait for Python; "
        f"--set {GRAPH}=false turns it off"
    )


def _compute(facts: PlanFacts) -> tuple[str, str]:
    machine = facts.machine
    if machine.fast_bfloat16:
        return "bfloat16", f"{machine.device_name} is faster in bfloat16; weights stay float32"
    if machine.device == "cuda":
        return "float16", f"{machine.device_name} has no bfloat16 units; the loss is scaled"
    return "float32", "bfloat16 is not faster on this CPU (docs/log.md)"


def planned_compute(facts: PlanFacts) -> str:
    """The number format of convolutions, before it is settled."""
    return str(facts.overrides.get(COMPUTE, _compute(facts)[0]))


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
    choosable = MEASURED_KEYS if facts.machine.device == "cuda" else (LAST,)
    open_keys = [key for key in choosable if not facts.is_given(key)]
    if facts.time_steps is None or not open_keys:
        return None
    if planned.precision.compile != "none":
        return Times(seconds={}, why_not="each variant would have to be compiled first")
    task = _task(facts)
    if task is None:
        return None
    ways = {_PLANNED: planned, **{key: _flipped(planned, key) for key in open_keys}}
    # What changes results is timed only to inform the user.
    if COMPUTE not in facts.overrides and planned.precision.compute != "float32":
        ways[COMPUTE] = replace(planned, precision=planned.precision.model_copy(update={"compute": "float32"}))
    if facts.machine.device == "cuda" and TF32 not in facts.overrides:
        ways[TF32] = _flipped(planned, TF32)
    times = facts.time_steps(task, ways, limit_s=_limit_s(facts))
    facts.ran_out_of_memory = times.ran_out_of_memory
    return times


def _limit_s(facts: PlanFacts) -> float:
    budget_s, device = facts.request.time_budget_s, facts.machine.device
    if device == "cpu" and facts.overrides.get("train.target_dice", 0.0):
        # A target should be reached soon.
        return 0.0
    return min(_LIMIT_S, _LIMIT_SHARE[device] * budget_s) if budget_s else _LIMIT_S


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
    if compute != "float32":
        return True, "faster with half-precision convolutions"
    if facts.machine.device == "cpu" and facts.settled["network"]["name"] == "dynunet":
        return True, "faster for DynUNet on the CPUs where it was measured (docs/log.md)"
    return False, "torch's default"


def _settle_backend(facts: PlanFacts, times: Times | None) -> None:
    """Switches of CUDA's libraries."""
    ratio = None if times is None else times.ratio(_PLANNED, TF32)
    reason = "torch's default for convolutions; here it applies to what half precision leaves in float32"
    measured = None if ratio is None else _measured("TF32 against float32 in full", ratio, decided=False)
    if times is not None and measured is not None:
        reason += f"; measured here: {_took(times, measured, _PLANNED, TF32)} as without"
    facts.settle(
        TF32,
        True,
        f"{reason}; `voxelocity bench tf32` measures it in whole trainings, --set {TF32}=false turns it off",
        measured=measured,
    )
    names = {True: "algorithms tried", False: "algorithms guessed"}
    _settle_measured(facts, TRIED, False, "torch's default", times, names=names, bench="cudnn-benchmark")


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
        lacking = times.why_not or "there was no time left to try it"
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
            "compiling takes half a minute to a minute and a half before the first step, and on two cores steps then "
            f"took as long as before {turned_on}"
        )
    return f"compiling takes a minute before the first step, and we have not measured its gain on a GPU {turned_on}"
