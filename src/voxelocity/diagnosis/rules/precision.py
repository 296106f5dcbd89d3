"""Rules on number formats: 32 bits where 16 would do, 64 by mistake, channels that tensor cores cannot take."""

from __future__ import annotations

from voxelocity.core.quantities import duration_text
from voxelocity.diagnosis.accounting.watched import part_s, steps_s
from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.rules.rule import Found, rule
from voxelocity.diagnosis.rules.seen import compute_s, computes_in_half, has_tensor_cores, on_gpu
from voxelocity.diagnosis.rules.words import percent

# PyTorch's report on AMP: 1.5 to 5.5 times float32 on V100, 1.3 to 2.5 on A100, whose float32 may already use TF32.
_HALF_GAIN = 1.5
_HALF_OVER_TF32_GAIN = 1.3
# Convolutions in TF32 against float32 without tensor cores; NVIDIA's paper on A100 has 2 to 6 for whole networks.
_TF32_GAIN = 2.0
# Measured for a small 3-D U-Net's step on a Zen 4 core pair: bfloat16 0.60 of float32 (0.55 to 0.66, n = 9).
_CPU_HALF_SAVED = 0.4
# The same network in float64: 3.8 times as long (3.0 to 4.6, n = 9); on most GPUs far more.
_DOUBLE_GAIN = 3.0
_WIDTH = 8


def _learning_s(facts: Facts) -> float:
    return part_s(facts, "forward", "backward")


@rule("VX301", "The network computes in float32 on tensor cores", pool="compute")
def float32_on_tensor_cores(facts: Facts) -> Found | None:
    """No autocast around the forward pass on a GPU whose tensor cores take 16 bits."""
    settings = facts.settings
    if settings is None or not facts.counted or not has_tensor_cores(facts) or computes_in_half(facts):
        return None
    has_tf32 = tuple(settings.capability) >= (8, 0) and settings.allow_tf32_cudnn is not False
    gain = _HALF_OVER_TF32_GAIN if has_tf32 else _HALF_GAIN
    dtype = "bfloat16" if tuple(settings.capability) >= (8, 0) else "float16"
    share = facts.profile.tensor_core_share if facts.profile else None
    return Found(
        cause="The forward and backward passes take "
        f"{duration_text(_learning_s(facts))} of {duration_text(steps_s(facts))} without autocast; "
        f"{settings.device_name or 'this GPU'} computes 16-bit convolutions at least {gain:.1f} times as fast.",
        evidence=[
            "autocast around the forward pass: none",
            *([f"time of kernels on tensor cores: {percent(share)}"] if share is not None else []),
        ],
        saves_s=_learning_s(facts) * (1.0 - 1.0 / gain),
        risk="changes results",
        change=f"with torch.autocast('cuda', dtype=torch.{dtype}):\n    loss = loss_function(network(images), labels)"
        + ("" if dtype == "bfloat16" else "\nscaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"),
        where=facts.network.where if facts.network else "",
    )


@rule("VX302", "TF32 is switched off", pool="compute")
def tf32_off(facts: Facts) -> Found | None:
    """Float32 convolutions or matrix products without tensor cores on a GPU that has TF32."""
    settings = facts.settings
    if settings is None or not facts.counted or not on_gpu(facts) or tuple(settings.capability) < (8, 0):
        return None
    if computes_in_half(facts):
        return None
    has_convolutions = facts.network is not None and facts.network.kernel_dimensions > 0
    if has_convolutions and settings.allow_tf32_cudnn is False:
        change, what = "torch.backends.cudnn.allow_tf32 = True", "Convolutions"
    elif not has_convolutions and settings.allow_tf32_matmul is False:
        change, what = "torch.set_float32_matmul_precision('high')", "Matrix products"
    else:
        return None
    return Found(
        cause=f"{what} in float32 do not use the tensor cores; the forward and backward passes take "
        f"{duration_text(_learning_s(facts))} of {duration_text(steps_s(facts))}.",
        evidence=[
            f"cudnn.allow_tf32={settings.allow_tf32_cudnn}, matmul.allow_tf32={settings.allow_tf32_matmul}",
            f"capability {'.'.join(map(str, settings.capability))}",
        ],
        saves_s=_learning_s(facts) * (1.0 - 1.0 / _TF32_GAIN),
        risk="changes results",
        change=change,
    )


@rule("VX303", "The CPU is faster in bfloat16, and the network computes in float32", pool="compute")
def bfloat16_on_cpu(facts: Facts) -> Found | None:
    """Training without autocast on a CPU that computes bfloat16 faster than float32."""
    settings = facts.settings
    if settings is None or settings.device != "cpu" or not facts.counted or computes_in_half(facts):
        return None
    if not facts.environment.get("cpu_has_fast_bfloat16", False):
        return None
    return Found(
        cause="This CPU is faster in bfloat16: the forward and backward passes take "
        f"{duration_text(_learning_s(facts))} of {duration_text(steps_s(facts))} now, and would take about "
        f"{percent(1.0 - _CPU_HALF_SAVED)} of that.",
        evidence=[f"autocast around the forward pass: none; CPU: {facts.environment.get('cpu', 'not named')}"],
        saves_s=_learning_s(facts) * _CPU_HALF_SAVED,
        risk="changes results",
        change="with torch.autocast('cpu', dtype=torch.bfloat16):\n    loss = loss_function(network(images), labels)",
        where=facts.network.where if facts.network else "",
        # A network that computes all the time is not held back; bfloat16 would change the computation.
        is_cause=False,
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
        f"computing takes {duration_text(seconds)} of {duration_text(steps_s(facts))}, at least three times as long "
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
        saves_s=None,
        risk="changes results",
        change=f"# {width} channels -> {-(-width // _WIDTH) * _WIDTH}, and likewise at each width of the network",
        where=network.where,
        is_cause=False,
    )


RULES = (float32_on_tensor_cores, tf32_off, bfloat16_on_cpu, float64, odd_channels)
