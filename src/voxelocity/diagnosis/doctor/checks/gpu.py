"""The GPUs themselves: what they can do and what is missing. `torch_build` judges whether torch can use them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from voxelocity.core.quantities import bytes_text, count_text
from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.seen import Driver, Gpu

_check = partial(Check, section="GPU")

_PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/overview.html"
# Other programs' share of a GPU's memory from which it is worth reporting.
_USED_SHARE = 0.1
# By compute capability, NVIDIA's tables of what its units compute.
_TENSOR_CORES, _AMPERE, _ADA = (7, 0), (8, 0), (8, 9)


def judge_gpus(driver: Driver) -> Iterator[Check]:
    """Driver, then each GPU."""
    yield _judge_driver(driver)
    for gpu in driver.gpus:
        yield from _judge_gpu(gpu, is_only_one=len(driver.gpus) == 1)


def _judge_driver(driver: Driver) -> Check:
    if driver.gpus:
        cuda = f", CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
        found = f"NVIDIA {driver.version or '(unknown version)'}{cuda}; {count_text(len(driver.gpus), 'GPU')}"
        return _check(name="driver", level="ok", found=found)
    if driver.num_cards:
        why = driver.silence or "it answers, and shows no GPU"
        return _check(
            name="driver",
            level="problem",
            found=f"{count_text(driver.num_cards, 'NVIDIA card')} on the bus, but no driver for it: {why}",
            costs="training runs on the CPU, many times slower than on the GPU that is there",
            cure="see what `nvidia-smi` says; start a container with --gpus all; after a driver update restart the "
            "machine",
        )
    return _check(
        name="driver",
        level="note",
        found=f"no NVIDIA GPU ({driver.silence or 'the driver shows none'})",
        costs="training runs on the CPU, many times slower than on a GPU",
        cure="if there should be one: `nvidia-smi`; in a container, docker run --gpus all",
    )


def _judge_gpu(gpu: Gpu, *, is_only_one: bool) -> Iterator[Check]:
    name = f"GPU {gpu.index}"
    yield _check(name=name, level="ok", found=_description(gpu))
    if gpu.capability is not None:
        yield _judge_precision(name, gpu.capability)
    if gpu.compute_mode in ("exclusive", "prohibited"):
        yield _judge_mode(name, gpu, is_only_one=is_only_one)
    if gpu.has_mig:
        yield _judge_mig(name, gpu)
    used = gpu.memory_used_bytes
    if used is not None and gpu.memory_bytes and used > _USED_SHARE * gpu.memory_bytes:
        yield _check(
            name=name,
            level="warning",
            found=f"{bytes_text(used)} of {bytes_text(gpu.memory_bytes)} are used by other programs",
            costs="batches must be smaller, and those programs share its time",
            cure="list them: nvidia-smi; if there is another GPU, select it with CUDA_VISIBLE_DEVICES",
        )
    yield from _judge_link(name, gpu)
    yield from _judge_state(name, gpu)


def _description(gpu: Gpu) -> str:
    parts = [gpu.name or "a GPU of unknown name"]
    if gpu.memory_bytes is not None:
        parts.append(bytes_text(gpu.memory_bytes))
    if gpu.capability is not None:
        parts.append(f"compute capability {gpu.capability[0]}.{gpu.capability[1]}")
    if gpu.pcie_width is not None and gpu.pcie_generation is not None:
        parts.append(f"PCIe {gpu.pcie_generation}.0 x{gpu.pcie_width}")
    if gpu.has_ecc is not None:
        parts.append(f"ECC {'on' if gpu.has_ecc else 'off'}")
    return ", ".join(parts)


def _judge_precision(name: str, capability: tuple[int, int]) -> Check:
    can = {"fp16": _TENSOR_CORES, "bf16": _AMPERE, "TF32": _AMPERE, "fp8": _ADA}
    has = [kind for kind, since in can.items() if capability >= since]
    if capability >= _AMPERE:
        return _check(name=f"{name} formats", level="ok", found=f"tensor cores take {', '.join(has)}")
    if has:
        return _check(
            name=f"{name} formats",
            level="note",
            found="tensor cores take fp16, and neither bf16 nor TF32",
            costs="mixed precision needs fp16 with a gradient scaler; in float32 its tensor cores are idle",
            cure="torch.autocast('cuda', torch.float16) with torch.amp.GradScaler()",
        )
    return _check(
        name=f"{name} formats",
        level="note",
        found="no tensor cores",
        costs="mixed precision saves memory here, but little time",
    )


def _judge_mode(name: str, gpu: Gpu, *, is_only_one: bool) -> Check:
    if gpu.compute_mode == "prohibited":
        return _check(
            name=name,
            level="problem",
            found="compute mode is 'prohibited': no program may compute on it",
            costs="training on it fails at its first operation",
            cure=f"as administrator: nvidia-smi -i {gpu.index} -c DEFAULT; until then: --device cpu",
            stops_training=is_only_one,
        )
    return _check(
        name=name,
        level="note",
        found="compute mode is 'exclusive': one program at a time",
        costs="a second CUDA program on it fails, even a monitor",
        cure=f"if you do not want that, as administrator: nvidia-smi -i {gpu.index} -c DEFAULT",
    )


def _judge_mig(name: str, gpu: Gpu) -> Check:
    if gpu.num_slices == 0:
        return _check(
            name=name,
            level="problem",
            found="MIG is on, and no slice exists",
            costs="CUDA sees no device, and training runs on the CPU",
            cure=f"as administrator create slices (nvidia-smi mig -cgi ... -C) or turn MIG off: "
            f"nvidia-smi -i {gpu.index} -mig 0",
        )
    slices = "an unknown number of slices" if gpu.num_slices is None else count_text(gpu.num_slices, "slice")
    return _check(
        name=name,
        level="note",
        found=f"it is divided into {slices} (MIG)",
        costs="a process sees one slice, with its part of the cores and the memory",
        cure="choose one: CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them)",
    )


def _judge_link(name: str, gpu: Gpu) -> Iterator[Check]:
    # The generation is not judged: an idle link slows down, and speeds up with the first copy.
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is not None and most is not None and width < most:
        yield _check(
            name=f"{name} link",
            level="warning",
            found=f"PCIe x{width} of x{most}",
            costs=f"batches reach the GPU at {width / most:.0%} of the possible speed",
            cure="reseat the card or use a slot with all lanes; a virtual machine may not offer more",
        )


def _judge_state(name: str, gpu: Gpu) -> Iterator[Check]:
    if gpu.num_uncorrected:
        yield _check(
            name=f"{name} memory",
            level="warning",
            found=f"{count_text(gpu.num_uncorrected, 'error')} that ECC could not correct since the driver was loaded",
            costs="they ended programs, and may do so again",
            cure=f"reset the GPU when it is idle (nvidia-smi -i {gpu.index} -r); if they come back, have it replaced",
        )
    if gpu.is_persistent is False:
        yield _check(
            name=name,
            level="note",
            found="persistence mode is off",
            costs="if nothing else keeps the GPU awake, each program first waits 1 to 3 s for it",
            cure="as administrator: nvidia-smi -pm 1, or the service nvidia-persistenced",
            source=_PERSISTENCE,
        )
