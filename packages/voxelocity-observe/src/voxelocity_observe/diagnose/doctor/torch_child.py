"""Runs as a file in a separate process: prints one line of JSON on what torch is and sees. Needs nothing but torch."""

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


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(_ask_torch())}\n")
    sys.stdout.flush()
    # A normal exit of torch takes up to a second, and nothing needs it.
    os._exit(0)
