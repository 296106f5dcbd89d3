"""Compiling the Triton kernels that a program will launch, in threads, before it needs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from voxelocity.core.kernels import Launch, compile_one

NUM_THREADS = 4
"""Triton and ptxas hold no GIL for most of a compilation."""
_slots = threading.BoundedSemaphore(NUM_THREADS)
_begun: set[object] = set()
_beginning = threading.Lock()


def compile_all(
    find: Callable[[], Iterable[Launch]], device: torch.device, *, num_threads: int = NUM_THREADS
) -> Future[dict[str, float]]:
    """Begins to compile kernels in threads, and returns at once.

    A launch that comes meanwhile waits only for its own kernel. What fails here fails again, and is raised, when it is
    launched. Kernels that were begun before are left out, so it is cheap to call again.

    Args:
        find: what to compile, those that take longest first. Runs in a thread too, as importing Triton takes a while.
        device: a CUDA device, with its number.
        num_threads: in which kernels are compiled.

    Returns:
        Once all is compiled, the seconds of each kernel that was not begun before, by its name and number.
    """

    def compile_found() -> dict[str, float]:
        todo = []
        for launch in find():
            with _beginning:
                if (key := (device, launch.form)) not in _begun:
                    _begun.add(key)
                    todo.append(launch)
        with ThreadPoolExecutor(num_threads, thread_name_prefix="voxelocity-compile") as pool:
            futures = {
                f"{launch.kernel.__name__} {n}": pool.submit(_compile_one, launch, device)
                for n, launch in enumerate(todo)
            }
            wait(futures.values())
        return {name: future.result() for name, future in futures.items() if future.exception() is None}

    first = ThreadPoolExecutor(1, thread_name_prefix="voxelocity-compile")
    begun = first.submit(compile_found)
    first.shutdown(wait=False)
    return begun


def _compile_one(launch: Launch, device: torch.device) -> float:
    # However many are compiled at once by several calls, other threads of the program need cores too.
    with _slots:
        return compile_one(launch, device)
