"""The training of one process, watched: puts ledger, steps, hooks and loaders together, and writes their sums."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from functools import partial
from typing import Any, Callable

from .batches import BeginWorker, Fetches
from .chains import Chains
from .conductor import Conductor, Hooks
from .describe import (
    compile_counts,
    describe_compile,
    describe_network,
    describe_optimizer,
    describe_settings,
    device_of,
    has_fast_half,
    shown_sync_s,
)
from .experiments import all_experiments, network_alone, network_in_half
from .growth import Growth
from .hooks import Imports, skip_own_frames
from .kept_state import kept_generators
from .lines import Sites
from .loaders import Loaders
from .networks import Networks
from .process import Settings, core_wait_s
from .steps import Steps, is_counting, watch
from .timeline import CudaDevice, Ledger
from .torch_hooks import CallCounter, TorchHooks
from .writer import Writer, note_failure

_WRAPPER = "DistributedDataParallel"
_COST_REPEATS = 2000


class TrainingWatcher:
    """Watches the training from `hook` to `unhook`.

    Args:
        torch: the module, imported by the program.
        start_age_s: what is added to the clock to give seconds since the process began.
        first_step: called once, when the first step is closed.
        begin_worker: as for `Loaders`.
        host: as for the `Conductor`.
    """

    def __init__(
        self,
        torch: Any,
        settings: Settings,
        writer: Writer,
        imports: Imports,
        host: Hooks,
        *,
        start_age_s: float,
        first_step: Callable[[], None],
        begin_worker: BeginWorker,
    ) -> None:
        self.torch = torch
        self._settings = settings
        self._writer = writer
        self._imports = imports
        self._first_step = first_step
        self.ledger = Ledger()
        self.steps = Steps(self.ledger, writer, settings, after_step=self._after_step, start_age_s=start_age_s)
        self.fetches = Fetches(writer, is_counting=is_counting)
        self._sites = Sites()
        self._chains = Chains()
        self.loaders = Loaders(self.ledger, self.steps, writer, self._sites, settings, begin_worker)
        self._calls = CallCounter(writer, self.steps)
        self._networks = Networks(torch, self.ledger)
        self._hooks = TorchHooks(torch, self.ledger, self.steps, self._networks, self._calls)
        self.conductor = Conductor(torch, settings, self.steps, self.loaders, host, begin_counting=self._begin_counting)
        self._networks.before_call = self.conductor.before_call
        self._growth = Growth(torch, writer)
        self._failed: set[str] = set()
        self._network: dict[str, Any] = {}
        self._described: dict[str, Any] = {}
        self._model: Callable[[], Any] = lambda: None
        self._device: Any = None
        self._num_modules = 0
        self._compiled_before: dict[str, Any] = {}
        self._moves_before = 0
        self._writer_cpu_before = 0.0
        self._core_wait_before: tuple[int, float | None, float] | None = None
        self._core_wait: dict[str, float] = {}

    def hook(self) -> None:
        """Sets all hooks; the main thread is assumed to train until another one steps first."""
        torch = self.torch
        is_for_devices = bool(torch.version.cuda or getattr(torch.version, "hip", None))
        self._hooks.hook(self._imports.when_imported, with_copies=is_for_devices)
        self.fetches.hook(sys.modules["torch.utils.data._utils.fetch"])
        self.loaders.hook_torch(sys.modules["torch.utils.data.dataloader"])
        self.loaders.hook_known(self._imports.when_imported)
        self._sites.hook(torch, self._imports.when_imported)
        self._chains.hook(self._imports.when_imported)
        self._calls.hook(gc, "collect", "gc.collect")
        if is_for_devices:
            self._calls.hook(torch.cuda, "empty_cache", "torch.cuda.empty_cache")
        skip_own_frames(torch)
        for write in (self.loaders.write, self.fetches.write, self._calls.write, self.steps.write, self._growth.write):
            self._writer.before_flush(write)
        watch(self.steps)
        self.ledger.start(thread=threading.main_thread().ident)

    def unhook(self) -> None:
        """Removes all hooks. A second call does nothing."""
        self.rest()
        self._hooks.unhook()
        self._sites.unhook()
        self._chains.unhook()
        self.conductor.stop()

    def rest(self) -> None:
        """All that a loader's worker, which does not train, removes of the hooks. Those in torch's own classes stay and
        do nothing: removing them touches all subclasses and takes each worker 8 ms."""
        self.ledger.stop()
        watch(None)
        self._imports.stop()
        self.loaders.unhook()
        self._calls.unhook()
        self.fetches.unhook()

    def write_sums(self) -> None:
        """What is known only at the end: open passes, the network, the optimizer, the compiler, the own cost."""
        steps, writer = self.steps, self._writer
        self.steps.finish()
        optimizer, counted = self._hooks.optimizer, steps.num_counted
        if counted and self._network:
            shapes = sorted(steps.shapes.items(), key=lambda item: -item[1])
            self._network["input_shapes"] = [[list(shape), count] for shape, count in shapes]
            writer.write("network", **self._network)
        if counted and optimizer is not None:
            fields = describe_optimizer(
                optimizer,
                sets_to_none=self._hooks.sets_to_none,
                per_step={
                    "forwards": steps.num_forwards / counted,
                    "backwards": steps.num_backwards / counted,
                    "batches": steps.num_batches / counted,
                    "synced": steps.num_synced / counted,
                },
                sync_s=shown_sync_s(self._model()),
                where=self._hooks.optimizer_where,
                site=self._sites.of(optimizer),
            )
            writer.write("optimizer", **fields)
        compiled = compile_counts()
        if compiled.get("frames") and counted:
            writer.write("compile", **describe_compile(self._compiled_before, compiled))
        self._growth.write(is_last=True)
        self._note_core_wait()
        if self._core_wait:
            writer.write("core wait", **self._core_wait)
        if counted:
            writer.write("cost", seconds=round(self._own_s(), 6), of_s=round(steps.counted_s, 6))

    def write_experiments(self, why_not_resident: str) -> None:
        """Makes the experiments that need no step, and writes all of them."""
        entries = sorted(self.loaders.training_entries(), key=lambda entry: entry.iterator is None)
        # The experiments make data sets and samplers draw random numbers.
        put_back = kept_generators(self.torch, self.loaders.generators())
        try:
            for fields in all_experiments(
                self.torch,
                entries[0] if entries else None,
                resident_s=self.steps.resident_s,
                why_not_resident=why_not_resident,
                batch=self.conductor.resident.batch_of(entries[0].key) if entries else None,
                device=self._device,
                folder=self._settings.folder,
                seconds=self._settings.experiment_seconds,
            ):
                self._writer.write("experiment", **fields)
            for fields in (*self._single_calls(), *self._in_half()):
                self._writer.write("experiment", **fields)
        finally:
            put_back()

    def _alone(self) -> tuple[Any, tuple[int, ...], Any]:
        """The network that learns without its wrapper, its most frequent shape and its inputs' dtype; None for a
        network or dtype that it cannot be tried alone with."""
        shapes, network = self.steps.shapes, self._model()
        shape = max(shapes, key=lambda candidate: shapes[candidate], default=())
        dtype = getattr(self.torch, self._network.get("input_dtype", ""), None)
        if network is None or len(shape) < 2 or dtype is None or "_orig_mod" in network._modules:
            return None, shape, None
        inner = network._modules.get("module", network) if type(network).__name__ == _WRAPPER else network
        return inner, shape, dtype if dtype.is_floating_point else None

    def _single_calls(self) -> list[dict[str, Any]]:
        """The network alone, if it is called once for each sample of a batch."""
        calls = round(self.steps.num_forwards / max(1, self.steps.num_counted))
        network, shape, dtype = self._alone()
        if calls < 2 or dtype is None or shape[0] != 1:
            return []
        seconds = self._settings.experiment_seconds
        return network_alone(self.torch, network, shape, calls, dtype, self._device, seconds)

    def _in_half(self) -> list[dict[str, Any]]:
        """The network alone with and without autocast, if it computes in float32 on a device that is fast in less."""
        network, shape, dtype = self._alone()
        is_half = bool(self._described.get("autocast")) or dtype is not self.torch.float32
        if network is None or is_half or not has_fast_half(self.torch, self._device):
            return []
        return network_in_half(self.torch, network, shape, self._device, self._settings.experiment_seconds)

    def _after_step(self, seconds: float, parts: dict[str, float]) -> None:
        if self.steps.num_steps == 1:
            self._imports.catch_up()
            self._first_step()
            groups = getattr(self._hooks.optimizer, "param_groups", None)
            parameters = groups[0]["params"] if groups else []
            if parameters and parameters[0].device.type == "cuda":
                self.ledger.device = CudaDevice(self.torch)
                self.steps.restart()
        was_counting = self.steps.phase == "watched"
        if was_counting and self.steps.num_counted:
            self._try(
                "inspect what grows with the steps", self._growth.after_step, self.steps.num_counted, self._device
            )
        if not self._try("continue the recording", self.conductor.after_step, seconds, parts):
            self.conductor.stop()
        if was_counting and self.steps.phase != "watched":
            self._note_core_wait()

    def _try(self, what: str, call: Callable[..., None], *args: Any) -> bool:
        """Whether the call succeeded; one that has failed is not made again.

        The program's objects may run any code when they are inspected; the program must not notice an error.
        """
        if what not in self._failed:
            try:
                call(*args)
            except Exception:
                self._failed.add(what)
                note_failure(self._settings.folder, f"could not {what}")
        return what not in self._failed

    def _begin_counting(self) -> None:
        self._compiled_before = compile_counts()
        self._moves_before = self.ledger.num_moves
        self._writer_cpu_before = self._writer.cpu_s
        thread = threading.get_native_id()
        self._core_wait_before = (thread, core_wait_s(thread), self.ledger.clock())
        self._networks.look = partial(self._try, "describe the network", self._look_at)

    def _look_at(self, network: Any, tensor: Any) -> None:
        """In the first counted forward pass, before the network runs."""
        self._device = device_of(network)
        self._model = weakref.ref(network)
        self._described = describe_settings(self.torch, self._device)
        self._writer.write("settings", **self._described)
        dtype = "" if tensor is None else str(tensor.dtype).replace("torch.", "")
        self._network = describe_network(network, dtype)
        self._num_modules = sum(1 for _ in network.modules())

    def _note_core_wait(self) -> None:
        """How long the thread waited for a core since counting began; only the first call counts."""
        if self._core_wait_before is None:
            return
        (thread, before_s, since_s), self._core_wait_before = self._core_wait_before, None
        now_s = core_wait_s(thread)
        if before_s is not None and now_s is not None:
            of_s = self.ledger.clock() - since_s
            self._core_wait = {"seconds": round(now_s - before_s, 6), "of_s": round(of_s, 6)}

    def _own_s(self) -> float:
        """Seconds of the counted steps that watching took: measured, or the cost of one call times their number."""
        moves = (self.ledger.num_moves - self._moves_before) * _move_cost_s()
        hooked, original = self._hooks.call, self._hooks.original_call
        # Of a module within another; this thread is not watched by now.
        nested_s = max(0.0, _seconds_of(hooked) - _seconds_of(original))
        nested = self.steps.num_forwards * self._num_modules * nested_s
        return self.steps.own_s + moves + nested + self._writer.cpu_s - self._writer_cpu_before


def _move_cost_s() -> float:
    """Seconds to change the part once, on the host."""
    ledger = Ledger()
    ledger.start()
    started_s = time.perf_counter()
    for _ in range(_COST_REPEATS // 2):
        ledger.begin("forward")
        ledger.end()
    return (time.perf_counter() - started_s) / _COST_REPEATS


def _seconds_of(call: Any) -> float:
    best = float("inf")
    for _ in range(3):
        started_s = time.perf_counter()
        for _ in range(_COST_REPEATS):
            call(_Nothing)
        best = min(best, (time.perf_counter() - started_s) / _COST_REPEATS)
    return best


class _Nothing:
    """The smallest possible module: its calls do nothing."""

    _compiled_call_impl = None

    @staticmethod
    def _call_impl() -> None:
        return None
