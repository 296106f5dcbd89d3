"""What follows what in a recording: warm-up, counted steps, profiled ones, steps on resident batches, the end.

Called after each step, in the training thread. Enough was seen when at least `min_steps` steps and `min_seconds` were
counted and with them a validation and an epoch's start, if the program had any before; or after `seconds` in any case.
Then three steps are profiled, the experiments are made, and the program is ended by `Enough`. A program that makes no
steps is ended by the clock.

Before the first step on resident batches the training's state is kept, and the program's files are guarded from then
on; at the end the state is put back.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from .agreement import Plan, ahead, announce, announced
from .deadline import Deadline, has_any
from .kept_state import KeptState, free_bytes
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
_GIB = float(1 << 30)
# Of the free memory; the rest is the program's.
_FREE_SHARE = 0.5


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
        guard_files: called before the first step on resident batches: from now on the program's files are to stay.
        conclude: called after the last step, with why there were no steps on resident batches ("" if there were) and
            why the program is ended ("" where enough steps were counted); it raises where the program is to end.
        end_outside: called in another thread where a program that makes no steps has to be ended there; None if it may
            not.
    """

    def __init__(
        self,
        torch: Any,
        settings: Settings,
        steps: Steps,
        loaders: Loaders,
        *,
        ranks: Callable[[], tuple[int, int]],
        begin_counting: Callable[[], None],
        new_profiler: Callable[[], Profiler | CaptureRange],
        guard_files: Callable[[], None],
        conclude: Callable[[str, str], None],
        end_outside: Callable[[str], None] | None,
    ) -> None:
        self.resident = Resident(settings.kept_bytes)
        self._torch = torch
        self._settings = settings
        self._steps = steps
        self._loaders = loaders
        self._ranks = ranks
        self._begin_counting = begin_counting
        self._new_profiler = new_profiler
        self._guard_files = guard_files
        self._conclude = conclude
        self._end_outside = end_outside
        self._deadline = Deadline(settings.seconds, steps.ledger.clock, lambda: has_any(torch.optim.Optimizer))
        self._kept: KeptState | None = None
        self._has_begun = False
        self._plan: Plan | None = None
        self._profiler: Profiler | CaptureRange | None = None
        self._resident_since = (0, 0.0)
        loaders.keep = self._keep
        loaders.replay = self.resident.replay
        loaders.before_fetch = self._end_at_deadline
        self.resident.begins = self._begin_resident
        if settings.whole:
            self._deadline.turn_off()

    def before_call(self) -> None:
        """A network is about to be called."""
        if not self._deadline.is_running:
            self._deadline.begin()
            end = self._end_outside
            if end is not None:
                self._deadline.watch(self._settings.folder, lambda: end(self._without_steps()))
        self._end_at_deadline()

    def stop(self) -> None:
        """There is no phase after this one: what was kept of the training's state is put back."""
        self._deadline.turn_off()
        self.resident.is_replaying = False
        kept, self._kept = self._kept, None
        if kept is None:
            return
        try:
            kept.put_back()
        except Exception:
            note_failure(self._settings.folder, "the training's state could not be put back")
            print(
                "voxelocity: weights and optimizer could not be put back as they were before the steps on resident "
                "batches; do not go on with them",
                file=sys.stderr,
            )

    def refused(self, path: str) -> None:
        """The program was about to write this file while it trains on resident batches, which ends here."""
        done = self._steps.num_steps - self._resident_since[0]
        is_enough = done >= _MIN_RESIDENT_STEPS
        self._conclude("" if is_enough else f"the program was about to write {path} after {done} of them", "")

    def after_step(self, seconds: float, parts: dict[str, float]) -> None:
        """Goes over to the next phase where this step was the last one of its own."""
        steps = self._steps
        self._deadline.step_ended()
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
                self._conclude("", "")
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
        # All ranks make the same steps: whether the state can be kept is the leader's to say.
        has_resident = not self._why_not_asked() and not self._keep_state(is_only_asked=True)
        self._steps.restart()
        plan = Plan(watched, profiled, profiled + (num_resident if has_resident else 0))
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
            self._conclude(reason, "")
            return
        self.resident.is_keeping = False
        self._steps.phase = "resident"
        self.resident.is_replaying = True
        wait_until_idle(_pids_of_workers(self._training_entries()))
        self._restart_resident()

    def _begin_resident(self) -> None:
        """Before the first batch: until now all of the training's state and of its files is the program's own."""
        assert self._plan is not None
        reason = self._keep_state() if self._plan.resident == _NEVER else self._keep_state(is_checked=False)
        if reason:
            self._conclude(reason, "")
        self._guard_files()
        self._restart_resident()

    def _restart_resident(self) -> None:
        self._steps.restart()
        self._resident_since = (self._steps.num_steps, self._steps.ledger.clock())

    def _keep_state(self, *, is_checked: bool = True, is_only_asked: bool = False) -> str:
        """Keeps the training's state; or why it cannot be kept, and so must not be changed."""
        try:
            kept = KeptState(self._torch, self._loaders.generators())
            most = int(_FREE_SHARE * free_bytes())
            if is_checked and kept.num_bytes > most:
                return (
                    f"weights and optimizer ({kept.num_bytes / _GIB:.1f} GiB) could not be kept to be put back after "
                    f"them: {most / _GIB:.1f} GiB of memory could be taken for it"
                )
            if not is_only_asked:
                kept.keep()
                self._kept = kept
        except Exception as error:
            note_failure(self._settings.folder, "the training's state could not be kept")
            return f"weights and optimizer could not be kept to be put back after them ({type(error).__name__})"
        return ""

    def _end_at_deadline(self) -> None:
        if self._deadline.is_over():
            self._tell_profiler("stop")
            self._conclude("the program made no more steps", self._without_steps())

    def _without_steps(self) -> str:
        counted = self._steps.num_counted
        since = f"{counted} steps were counted and no further one" if counted else "no step of a training"
        return f"{since} was made in {self._deadline.allowed_s:g} s"

    def _after_resident(self) -> None:
        assert self._plan is not None
        first, since_s = self._resident_since
        if self._plan.resident != _NEVER:
            is_done = self._steps.num_steps >= self._plan.resident
        else:
            is_long = self._steps.ledger.clock() - since_s >= self._settings.experiment_seconds
            is_done = is_long and self._steps.num_steps - first >= _MIN_RESIDENT_STEPS
        if is_done:
            self._conclude("", "")

    def _why_not_resident(self) -> str:
        reason = self._why_not_asked()
        if reason:
            return reason
        if self._plan is not None and self._plan.resident == self._plan.profiled:
            return "weights and optimizer could not be kept to be put back after them"
        if not self._training_entries():
            return (
                "the program's batches come from no loader that is known here (torch's DataLoader, MONAI's thread "
                "loaders, batchgenerators, DALI, Voxelocity's Feed), so they could not be replaced"
            )
        if not self.resident.is_ready:
            return f"no batch could be kept: it is larger than {self._settings.kept_bytes} bytes, or none was fetched"
        return ""

    def _why_not_asked(self) -> str:
        if not self._settings.experiments:
            return "experiments were not asked for"
        return "they change what --keep-saves keeps" if self._settings.keeps_saves else ""

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
