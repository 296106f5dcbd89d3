"""Runs as a file in a separate process, and needs nothing but torch: prints a line of JSON on what torch is and sees,
then one on whether this CPU computes right gradients, which may end the process."""

import json
import os
import sys
import time
import warnings


def _ask_torch() -> dict[str, object]:
    started, cpu_started = time.perf_counter(), time.process_time()
    try:
        import torch
    except BaseException as error:  # report whatever a broken installation raises
        return {"error": f"{type(error).__name__}: {error}"}
    import_s, import_cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        number = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
        size = 10_000 if number >= 90_000 else 1_000
        cudnn = f"{number // size}.{number % size // 100}.{number % 100}" if number else ""
    except RuntimeError as error:  # not the cuDNN that torch was built for
        cudnn = f"unusable: {error}"
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "hip": torch.version.hip or "",
        "architectures": torch.cuda.get_arch_list(),
        "cudnn": cudnn,
        "num_gpus": num_gpus,
        "warning": str(said[-1].message) if said else "",
        "num_threads": torch.get_num_threads(),
        "import_s": import_s,
        "import_cpu_s": import_cpu_s,
    }


def _compare_gradients() -> dict[str, object]:
    """A convolution's gradients in bfloat16 and in float32, where the input is shorter than the kernel.

    oneDNN 3.12 adds uninitialized memory to those of the weights on CPUs with AVX-512 bfloat16 (docs/log).
    """
    import torch

    draw = torch.Generator().manual_seed(0)
    image, weight = torch.randn(2, 16, 2, 4, 4, generator=draw), torch.randn(16, 16, 3, 3, 3, generator=draw)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for power in range(14, 18):
            # Memory that is given back holds large numbers.
            torch.full((1 << power,), 1e3)
        inputs = [tensor.to(dtype) for tensor in (torch.ones_like(image), image, weight)]
        geometry = ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1)
        try:
            gradients = torch.ops.aten.convolution_backward(*inputs, None, *geometry, [False, True, False])
        except RuntimeError:  # a build without such convolutions
            return {}
        found.append(gradients[1].float())
    # Right ones differ by 0.003; not a number is not below.
    return {"gradients": "right" if (found[1] - found[0]).abs().max() < 0.05 * found[0].abs().max() else "wrong"}


def _tell(values: dict[str, object]) -> None:
    sys.stdout.write(f"\n{json.dumps(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    told = _ask_torch()
    _tell(told)
    if "version" in told:
        _tell(_compare_gradients())
    # A normal exit of torch takes up to a second, and nothing needs it.
    os._exit(0)
