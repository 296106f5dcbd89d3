"""Rules on how the network is computed: number formats, algorithms, layout of memory, compiling."""

from __future__ import annotations

from voxelocity_observe.core.quantities import duration_text
from voxelocity_observe.diagnose.accounting import experiment_s, part_s, place, watched_s
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    compute_s,
    computes_in_half,
    has_fixed_shapes,
    has_tensor_cores,
    network_line,
    of_steps,
    on_gpu,
    stacks_in,
)
from voxelocity_observe.diagnose.rules.words import percent, shape_text

# PyTorch's report on AMP: 1.5 to 5.5 times float32 on V100, 1.3 to 2.5 on A100, whose float32 may already use TF32.
_HALF_GAIN = 1.5
_HALF_OVER_TF32_GAIN = 1.3
# Convolutions in TF32 against float32 without tensor cores; NVIDIA's paper on A100 has 2 to 6 for whole networks.
_TF32_GAIN = 2.0
# Measured for a small 3-D U-Net's step on a Zen 4 core pair: bfloat16 0.60 of float32 (0.55 to 0.66, n = 9).
_CPU_HALF_SAVED = 0.4
# The same network in float64: 3.8 times as long (3.0 to 4.6, n = 9); on most GPUs far more.
_DOUBLE_GAIN = 3.0
# From this share of the watched time on, a measured gain is worth changing the number format for.
_HALF_WORTH = 0.1
_FORWARD_LINES = 3
_WIDTH = 8

# Number of input shapes from which a search for each of them shows.
_MANY_SHAPES = 8
# Measured, step of a small 3-D U-Net in float32 on two Zen 4 cores, CPU time, n = 9: channels_last_3d 0.76 of
# contiguous (0.65 to 0.80); anomaly detection 1.17 (1.13 to 1.20); deterministic algorithms 1.23 (1.15 to 1.29).
_CPU_CHANNELS_LAST_SAVED = 0.24
_ANOMALY_COST = 1.17
_DETERMINISTIC_COST = 1.2
_MANY_RECOMPILES = 2


def _learning_s(facts: Facts) -> float:
    return part_s(facts, "forward", "backward")


def _half_saved(facts: Facts) -> float | None:
    """Share of the forward and backward passes that 16 bits save, measured on the network alone; None if it was not."""
    whole_s, half_s = experiment_s(facts, "network, float32"), experiment_s(facts, "network, 16 bits")
    return max(0.0, 1.0 - half_s / whole_s) if whole_s and half_s else None


def _autocast(facts: Facts, device: str, dtype: str) -> str:
    """The program's own lines of the forward pass within autocast; in general form if they are not known."""
    stacks = [stack for stack in stacks_in(facts, ("forward",)) if stack.where]
    file = place(stacks[0].where)[0] if stacks else ""
    lines = {place(stack.where): stack.line.strip() for stack in stacks if place(stack.where)[0] == file}
    # A line of many is one of a loop over windows, or of the network itself.
    own = [line for _, line in sorted(lines.items())] if len(lines) <= _FORWARD_LINES else []
    body = own or ["loss = loss_function(network(images), labels)"]
    return f"with torch.autocast({device!r}, dtype=torch.{dtype}):\n" + "\n".join(f"    {line}" for line in body)


def _half_line(facts: Facts) -> str:
    whole_s, half_s = experiment_s(facts, "network, float32"), experiment_s(facts, "network, 16 bits")
    if not whole_s or not half_s:
        return ""
    return (
        f"network alone, forward and backward: {duration_text(whole_s)} in float32, {duration_text(half_s)} in 16 bits"
    )


@rule("VX301", "The network computes in float32 on tensor cores", pool="compute")
def float32_on_tensor_cores(facts: Facts) -> Found | None:
    """No autocast around the forward pass on a GPU whose tensor cores take 16 bits."""
    settings = facts.settings
    if settings is None or not facts.counted or not has_tensor_cores(facts) or computes_in_half(facts):
        return None
    has_tf32 = tuple(settings.capability) >= (8, 0) and settings.allow_tf32_cudnn is not False
    saved = _half_saved(facts)
    gain = 1.0 / (1.0 - saved) if saved is not None else _HALF_OVER_TF32_GAIN if has_tf32 else _HALF_GAIN
    dtype = "bfloat16" if tuple(settings.capability) >= (8, 0) else "float16"
    share = facts.profile.tensor_core_share if facts.profile else None
    return Found(
        cause=f"The forward and backward passes take {of_steps(facts, _learning_s(facts))} without autocast; "
        f"{settings.device_name or 'this GPU'} computes "
        + (
            f"this network {gain:.1f} times as fast in 16 bits."
            if saved is not None
            else f"16-bit convolutions at least {gain:.1f} times as fast."
        ),
        evidence=[
            _half_line(facts),
            "autocast around the forward pass: none",
            f"time of kernels on tensor cores: {percent(share)}" if share is not None else "",
        ],
        saves_s=_learning_s(facts) * (1.0 - 1.0 / gain),
        risk="changes results",
        change=_autocast(facts, "cuda", dtype)
        + ("" if dtype == "bfloat16" else "\nscaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"),
        where=network_line(facts),
    )


@rule("VX302", "TF32 is switched off", pool="compute")
def tf32_off(facts: Facts) -> Found | None:
    """Float32 convolutions or matrix products without tensor cores on a GPU that has TF32."""
    settings = facts.settings
    if settings is None or not facts.counted or not on_gpu(facts) or tuple(settings.capability) < (8, 0):
        return None
    if computes_in_half(facts):
        return None
    if _has_convolutions(facts) and settings.allow_tf32_cudnn is False:
        change, what = "torch.backends.cudnn.allow_tf32 = True", "Convolutions"
    elif not _has_convolutions(facts) and settings.allow_tf32_matmul is False:
        change, what = "torch.set_float32_matmul_precision('high')", "Matrix products"
    else:
        return None
    return Found(
        cause=f"{what} in float32 do not use the tensor cores; the forward and backward passes take "
        f"{of_steps(facts, _learning_s(facts))}.",
        evidence=[
            f"cudnn.allow_tf32={settings.allow_tf32_cudnn}, matmul.allow_tf32={settings.allow_tf32_matmul}",
            f"capability {'.'.join(map(str, settings.capability))}",
        ],
        saves_s=_learning_s(facts) * (1.0 - 1.0 / _TF32_GAIN),
        risk="changes results",
        change=change,
    )


@rule("VX303", "The CPU is faster in bfloat16, and the network computes in float32", pool="compute", is_upgrade=True)
def bfloat16_on_cpu(facts: Facts) -> Found | None:
    """Training without autocast on a CPU that computes bfloat16 faster than float32."""
    settings = facts.settings
    if settings is None or settings.device != "cpu" or not facts.counted or computes_in_half(facts):
        return None
    if not facts.environment.get("cpu_has_fast_bfloat16", False):
        return None
    measured = _half_saved(facts)
    saved = _CPU_HALF_SAVED if measured is None else measured
    saves_s = _learning_s(facts) * saved
    is_in_doubt = facts.network is not None and facts.network.kernel_dimensions == 3
    first = "# first: `voxelocity doctor` measures whether 3-D convolutions have right gradients in bfloat16 here\n"
    return Found(
        cause="This CPU is faster in bfloat16: the forward and backward passes take "
        f"{of_steps(facts, _learning_s(facts))} now, and would take about "
        f"{percent(1.0 - saved)} of that.",
        evidence=[
            f"autocast around the forward pass: none; CPU: {facts.environment.get('cpu', 'not named')}",
            _half_line(facts),
        ],
        saves_s=saves_s,
        basis="estimated" if measured is None else "measured",
        risk="changes results",
        change=f"{first if is_in_doubt else ''}{_autocast(facts, 'cpu', 'bfloat16')}",
        where=network_line(facts),
        # As bfloat16 changes the computation, only a gain that was measured on this network is worth it.
        is_cause=measured is not None and saves_s >= _HALF_WORTH * watched_s(facts),
    )


@rule("VX304", "The network computes in float64", pool="compute", names_work=True)
def float64(facts: Facts) -> Found | None:
    """Parameters or inputs of 64 bits, usually a numpy array that was not cast."""
    network = facts.network
    if network is None or not facts.counted:
        return None
    doubles = sum(count for name, count in network.parameter_dtypes.items() if "float64" in name)
    if not doubles and "float64" not in network.input_dtype:
        return None
    seconds = compute_s(facts)
    return Found(
        cause=f"{doubles:,} parameters are float64 and the input is {network.input_dtype or 'not known'}; "
        f"computing takes {of_steps(facts, seconds)}, at least three times as long "
        "as in float32.",
        evidence=[f"{name}: {count:,} parameters" for name, count in network.parameter_dtypes.items()],
        saves_s=seconds * (1.0 - 1.0 / _DOUBLE_GAIN),
        risk="changes results",
        change="network = network.float()\nimages = images.float()",
        where=network.where,
    )


@rule("VX305", "Channel counts keep convolutions off the tensor cores", pool="compute")
def odd_channels(facts: Facts) -> Found | None:
    """Wide convolutions whose channel counts are not a multiple of 8, in 16 bits on tensor cores."""
    network = facts.network
    if network is None or not has_tensor_cores(facts) or not computes_in_half(facts):
        return None
    # The number of image channels and of classes is given.
    wide = [pair for pair in network.channels if min(pair) > _WIDTH]
    odd = [pair for pair in wide if pair[0] % _WIDTH or pair[1] % _WIDTH]
    if len(odd) < 0.3 * max(1, len(wide)) or not odd:
        return None
    width = next(count for pair in odd for count in pair if count % _WIDTH)
    return Found(
        cause=f"{len(odd)} of {len(wide)} wide convolutions have channel counts that are not a multiple of {_WIDTH}, "
        f"for example {odd[0][0]} to {odd[0][1]}; tensor cores take {_WIDTH} at a time.",
        evidence=[f"{pair[0]} to {pair[1]} channels" for pair in odd[:4]],
        risk="changes results",
        change=f"# {width} channels -> {-(-width // _WIDTH) * _WIDTH}, and likewise at each width of the network",
        where=network.where,
        is_cause=False,
    )


def _has_convolutions(facts: Facts) -> bool:
    return facts.network is not None and facts.network.kernel_dimensions > 0


@rule("VX311", "cuDNN does not look for its fastest convolutions", pool="compute")
def benchmark_off(facts: Facts) -> Found | None:
    """Fixed shapes, convolutions on a GPU, and `cudnn.benchmark` is off."""
    settings, network = facts.settings, facts.network
    if settings is None or network is None or not on_gpu(facts) or not _has_convolutions(facts):
        return None
    if settings.cudnn_benchmark is not False or settings.deterministic or not has_fixed_shapes(facts):
        return None
    shape, count = network.input_shapes[0]
    return Found(
        cause=f"All batches have one shape ({shape_text(shape)}), so cuDNN could try its algorithms once and keep the "
        "fastest; it picks them by a heuristic instead.",
        evidence=[f"torch.backends.cudnn.benchmark=False; {count} batches of {shape_text(shape)}"],
        change="torch.backends.cudnn.benchmark = True",
        is_cause=False,
    )


@rule("VX312", "cuDNN searches again for each new input shape", pool="compute")
def benchmark_with_many_shapes(facts: Facts) -> Found | None:
    """`cudnn.benchmark` is on and the shapes vary."""
    settings, network = facts.settings, facts.network
    if settings is None or network is None or not on_gpu(facts) or settings.cudnn_benchmark is not True:
        return None
    shapes = network.input_shapes
    if len(shapes) < _MANY_SHAPES or has_fixed_shapes(facts):
        return None
    return Found(
        cause=f"The network was given {len(shapes)} different shapes; for each one cuDNN tries all algorithms of each "
        "convolution before it computes.",
        evidence=[f"{shape_text(shape)}: {count} times" for shape, count in shapes[:4]],
        risk="changes results",
        change="torch.backends.cudnn.benchmark = False\n# or one shape: SpatialPadd(keys, size), "
        "RandSpatialCropd(keys, size)",
    )


@rule("VX313", "Tensors lie in memory with the channels outermost", pool="compute")
def channels_first(facts: Facts) -> Found | None:
    """3-D convolutions on contiguous tensors where channels last is faster."""
    network = facts.network
    if network is None or network.kernel_dimensions < 2 or network.memory_format != "contiguous" or not facts.counted:
        return None
    is_half_on_gpu = has_tensor_cores(facts) and computes_in_half(facts)
    is_cpu = facts.settings is not None and facts.settings.device == "cpu"
    if not is_half_on_gpu and not is_cpu:
        return None
    layout = "channels_last_3d" if network.kernel_dimensions == 3 else "channels_last"
    seconds = _learning_s(facts)
    why = "tensor cores read" if is_half_on_gpu else "the CPU's vector units read"
    return Found(
        cause=f"The forward and backward passes take {of_steps(facts, seconds)} on "
        f"contiguous tensors; {why} channels together, and these are adjacent only in {layout}.",
        evidence=[f"first convolution's weight: {network.memory_format}, {network.kernel_dimensions} dimensions"],
        saves_s=seconds * _CPU_CHANNELS_LAST_SAVED if is_cpu and network.kernel_dimensions == 3 else None,
        change=f"network = network.to(memory_format=torch.{layout})\nimages = images.to(memory_format=torch.{layout})",
        where=network.where,
        is_cause=False,
    )


@rule("VX321", "torch.compile compiles again in the midst of training", pool="compute", names_work=True)
def recompiles(facts: Facts) -> Found | None:
    """Compiled code did not fit and was compiled again after the first steps."""
    compiled = facts.compiled
    if compiled is None or compiled.num_recompiles < _MANY_RECOMPILES:
        return None
    reason = compiled.reasons[0] if compiled.reasons else "reason unknown"
    return Found(
        cause=f"After the first steps torch.compile compiled {compiled.num_recompiles} more times, "
        f"{duration_text(compiled.seconds)} in all: {reason}.",
        evidence=[*compiled.reasons[:4], f"{compiled.num_frames} frames compiled"],
        saves_s=compiled.seconds,
        basis="measured",
        change="network = torch.compile(network, dynamic=True)  # or one shape for all batches: drop_last=True, "
        "padding",
        where=facts.network.where if facts.network else "",
    )


@rule("VX322", "torch.compile leaves parts of the network to Python", pool="compute")
def graph_breaks(facts: Facts) -> Found | None:
    """Breaks in the graph, each an end of what is fused."""
    compiled = facts.compiled
    if compiled is None or compiled.num_graph_breaks == 0:
        return None
    return Found(
        cause=f"torch.compile broke the network into pieces {compiled.num_graph_breaks} times; nothing is fused "
        "across a break, and Python runs in between.",
        evidence=list(compiled.reasons[:4]) or ["TORCH_LOGS=graph_breaks names the lines"],
        change="network = torch.compile(network, fullgraph=True)  # fails at the first break and names its line",
        where=facts.network.where if facts.network else "",
        is_cause=False,
    )


@rule("VX331", "Autograd's anomaly detection is on", pool="compute", names_work=True)
def anomaly_detection(facts: Facts) -> Found | None:
    """A switch for finding errors was left on."""
    if facts.settings is None or not facts.settings.detect_anomaly or not facts.counted:
        return None
    seconds = part_s(facts, "forward", "backward")
    return Found(
        cause=f"Autograd records a stack for each operation and checks each gradient for NaN, in all "
        f"{duration_text(seconds)} of the forward and backward passes.",
        evidence=["torch.is_anomaly_enabled(): True"],
        saves_s=seconds * (1.0 - 1.0 / _ANOMALY_COST),
        change="torch.autograd.set_detect_anomaly(False)",
    )


@rule("VX332", "Deterministic algorithms are on", pool="compute")
def deterministic(facts: Facts) -> Found | None:
    """`use_deterministic_algorithms` rules out the faster algorithms and fills each new tensor."""
    if facts.settings is None or not facts.settings.deterministic or not facts.counted:
        return None
    seconds = compute_s(facts)
    return Found(
        cause=f"Slower algorithms run so that two runs agree bit for bit, and new memory is filled first; "
        f"computing takes {duration_text(seconds)}.",
        evidence=["torch.are_deterministic_algorithms_enabled(): True"],
        saves_s=seconds * (1.0 - 1.0 / _DETERMINISTIC_COST),
        risk="changes results",
        change="torch.use_deterministic_algorithms(False)\n"
        "# if you need them: torch.utils.deterministic.fill_uninitialized_memory = False saves a part",
    )
