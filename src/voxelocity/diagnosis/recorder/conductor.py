"""What follows what in a recording: warm-up, counted steps, profiled ones, steps on resident batches, the end.

Called after each step, in the training thread. Enough was seen when at least `min_steps` steps and `min_seconds` were
counted and with them a validation and an epoch's start, if the program had any before; or after `seconds` in any case.
Then three steps are profiled, the experiments are made, and the program is ended by `Enough`.
"""

from __future__ import annotations

from typing import Any, Callable

from .agreement import Plan, ahead, announce, announced
from .loaders import Entry, Loaders
from .profile import CaptureRange, Profiler
from .resident import Resident, wait_until_idle
from .settings import Settings
from .steps import Steps
from .writer import note_failure

_PROFILED_STEPS = 3
_MAX_COLLECTING_STEPS = 10
_MIN_RESIDENT_STEPS = 5
_NEVER = 1 << 62


class Enough(SystemExit):
    """Ends the watched program: nothing more is to be seen of it."""

    def __init__(self) -> None:
        super().__init__(0)


class Conductor:
    """Leads one recording through its phases.

    Args:
        rank: of this process, and of how many; the first one leads.
        begin_counting: called when the first counted step begins.
        new_profiler: makes what profiles or captures the steps after the counted ones.
        conclude: called after the last step, with why there were no steps on resident batches ("" if there were); it
            raises where the program is to end.
    """

    def __init__(
        self,
        settings: Settings,
        steps: Steps,
        loaders: Loaders,
        *,
        ranks: Callable[[], tuple[int, int]],
        begin_counting: Callable[[], None],
        new_profiler: Callable[[], Profiler | CaptureRange],
        conclude: Callable[[str], None],
    ) -> None:
        self.resident = Resident(settings.kept_bytes)
        self._settings = settings
        self._steps = steps
        self._loaders = loaders
        self._ranks = ranks
        self._begin_counting = begin_counting
        self._new_profiler = new_profiler
        self._conclude = conclude
        self._has_begun = False
        self._plan: Plan | None = None
        self._profiler: Profiler | CaptureRange | None = None
        self._resident_since = (0, 0.0)
        loaders.keep = self._keep
        loaders.replay = self.resident.replay

    def after_step(self, seconds: float, parts: dict[str, float]) -> None:
        """Goes over to the next phase where this step was the last one of its own."""
        steps = self._steps
        if steps.phase == "watched":
            if not self._has_begun:
                self._has_begun = True
                self._begin_counting()
            elif self._has_seen_enough(seconds, parts):
                self._profile()
        elif steps.phase == "profiled":
            self._after_profiled()
        elif steps.phase == "resident":
            self._after_resident()

    def _has_seen_enough(self, seconds: float, parts: dict[str, float]) -> bool:
        steps, settings = self._steps, self._settings
        if settings.whole:
            if steps.num_counted >= settings.max_steps:
                self._conclude("")
            return False
        rank, world_size = self._ranks()
        if self._plan is None:
            is_enough = self._is_enough()
            if world_size == 1:
                return is_enough
            if rank > 0:
                self._plan = announced(settings.folder)
            elif is_enough:
                self._plan = self._agree(seconds, parts)
        return self._plan is not None and steps.num_steps >= self._plan.watched

    def _is_enough(self) -> bool:
        steps, settings = self._steps, self._settings
        if steps.counted_s >= settings.seconds:
            return True
        if steps.num_counted < settings.min_steps or steps.counted_s < settings.min_seconds:
            return False
        return {"validation", "epoch start"} <= steps.kinds_counted

    def _agree(self, seconds: float, parts: dict[str, float]) -> Plan:
        mean_s = self._steps.counted_s / self._steps.num_counted
        computing_s = max(seconds - parts.get("wait", 0.0), 1e-6)
        watched = self._steps.num_steps + ahead(mean_s)
        num_resident = max(_MIN_RESIDENT_STEPS, min(2000, int(self._settings.experiment_seconds / computing_s)))
        profiled = watched + _PROFILED_STEPS
        plan = Plan(watched, profiled, profiled + (num_resident if self._settings.experiments else 0))
        announce(self._settings.folder, plan)
        return plan

    def _profile(self) -> None:
        self._steps.phase = "profiled"
        self._plan = self._plan or Plan(0, self._steps.num_steps + _PROFILED_STEPS, _NEVER)
        self.resident.is_keeping = self._settings.experiments
        if self._settings.profile:
            self._start_profiler()
        self._steps.restart()

    def _start_profiler(self) -> None:
        try:
            profiler = self._new_profiler()
            why_not = profiler.start()
        except Exception:
            note_failure(self._settings.folder, "the profiler could not be started")
            return
        if why_not:
            self._steps.tell_unseen(f"kernels and operators: {why_not}")
            return
        self._profiler = profiler
        self._steps.ledger.on_move = profiler.part

    def _after_profiled(self) -> None:
        assert self._plan is not None
        if self._steps.num_steps < self._plan.profiled:
            self._tell_profiler("step")
            return
        self._tell_profiler("step")
        self._steps.ledger.on_move = None
        self._tell_profiler("stop")
        self._profiler = None
        reason = self._why_not_resident()
        is_collecting = (
            self._plan.resident == _NEVER and self._steps.num_steps < self._plan.profiled + _MAX_COLLECTING_STEPS
        )
        if reason and self._training_entries() and self._settings.experiments and is_collecting:
            return
        if reason:
            self._conclude(reason)
            return
        self.resident.is_keeping = False
        self._steps.phase = "resident"
        self.resident.is_replaying = True
        wait_until_idle(_pids_of_workers(self._training_entries()))
        self._steps.restart()
        self._resident_since = (self._steps.num_steps, self._steps.ledger.clock())

    def _after_resident(self) -> None:
        assert self._plan is not None
        first, since_s = self._resident_since
        if self._plan.resident != _NEVER:
            is_done = self._steps.num_steps >= self._plan.resident
        else:
            is_long = self._steps.ledger.clock() - since_s >= self._settings.experiment_seconds
            is_done = is_long and self._steps.num_steps - first >= _MIN_RESIDENT_STEPS
        if is_done:
            self._conclude("")

    def _why_not_resident(self) -> str:
        if not self._settings.experiments:
            return "experiments were not asked for"
        if not self._training_entries():
            return (
                "the program's batches come from no loader that is known here (torch's DataLoader, MONAI's thread "
                "loaders, batchgenerators, DALI, Voxelocity's Feed), so they could not be replaced"
            )
        if not self.resident.is_ready:
            return f"no batch could be kept: it is larger than {self._settings.kept_bytes} bytes, or none was fetched"
        return ""

    def _training_entries(self) -> list[Entry]:
        return [entry for entry in self._loaders.entries if entry.key in self._steps.training_keys]

    def _keep(self, entry: Entry, batch: Any) -> None:
        if self.resident.is_keeping and entry.key in self._steps.training_keys:
            self.resident.keep(entry, batch)

    def _tell_profiler(self, what: str) -> None:
        if self._profiler is None:
            return
        try:
            getattr(self._profiler, what)()
        except Exception:
            self._profiler = None
            note_failure(self._settings.folder, f"the profiler failed in {what}")


def _pids_of_workers(entries: list[Entry]) -> list[int]:
    workers = [worker for entry in entries for worker in getattr(entry.iterator, "_workers", ())]
    return [worker.pid for worker in workers if isinstance(getattr(worker, "pid", None), int)]
