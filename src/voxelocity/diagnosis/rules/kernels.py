"""Rules on how the network is computed: algorithms, layout of memory, compiling, switches for finding errors."""

from __future__ import annotations

from voxelocity.core.quantities import duration_text
from voxelocity.diagnosis.accounting.watched import part_s, steps_s
from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.rules.rule import Found, rule
from voxelocity.diagnosis.rules.seen import compute_s, computes_in_half, has_fixed_shapes, has_tensor_cores, on_gpu
from voxelocity.diagnosis.rules.words import shape_text

# Number of input shapes from which a search for each of them shows.
_MANY_SHAPES = 8
# Measured, step of a small 3-D U-Net in float32 on two Zen 4 cores, CPU time, n = 9: channels_last_3d 0.76 of
# contiguous (0.65 to 0.80); anomaly detection 1.17 (1.13 to 1.20); deterministic algorithms 1.23 (1.15 to 1.29).
_CPU_CHANNELS_LAST_SAVED = 0.24
_ANOMALY_COST = 1.17
_DETERMINISTIC_COST = 1.2
_MANY_RECOMPILES = 2


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
        saves_s=None,
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
        saves_s=None,
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
    seconds = part_s(facts, "forward", "backward")
    why = "tensor cores read" if is_half_on_gpu else "the CPU's vector units read"
    return Found(
        cause=f"The forward and backward passes take {duration_text(seconds)} of {duration_text(steps_s(facts))} on "
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
        saves_s=None,
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


@rule("VX332", "Deterministic algorithms are asked for", pool="compute")
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


RULES = (
    benchmark_off,
    benchmark_with_many_shapes,
    channels_first,
    recompiles,
    graph_breaks,
    anomaly_detection,
    deterministic,
)
