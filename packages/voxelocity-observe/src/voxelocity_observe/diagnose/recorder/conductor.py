"""The order of a recording: warm-up, counted steps, profiled ones, steps on resident batches, the end.

Called after each step, in the training thread. Enough is seen when at least `min_steps` steps and `min_seconds` were
counted and with them a validation and an epoch's start, if the program had any before; or after `seconds` in any case.
Then three steps are profiled. Steps on resident batches and unchanged steps alternate in rounds, so both meet the same
load of the machine. The other experiments follow, and the program is ended. One that makes no steps is ended by the
clock.

Unchanged steps follow resident ones, so all steps of the rounds train a network that is no longer the program's. The
training's state is therefore saved once, before the first of them, and restored once, at the end; in between its files
are guarded. The program's own last step is the one before the rounds.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from .batches import Entry
from .ending import Deadline, has_any
from .kept_state import KeptState, free_bytes
from .loaders import Loaders
from .process import Settings, rank_and_world_size
from .profile import CaptureRange, Profiler
from .rounds import Resident, StepSchedule, ahead, announce, read_announcement, wait_until_idle
from .steps import Steps
from .writer import note_failure, tell_user

_PROFILED_STEPS = 3
_MAX_COLLECTING_STEPS = 10
_MIN_RESIDENT_STEPS = 5
_ROUNDS = 3
_MIN_UNCHANGED_STEPS = 3
# Times the duration of one experiment that all unchanged steps may take: they are the slow ones.
_UNCHANGED_FACTOR = 10.0
_ROUND_PHASES = ("resident", "refilled", "unchanged")
_GIB = float(1 << 30)
# Share of the free memory that the saved state may take; the rest is the program's.
_FREE_SHARE = 0.5
_NOT_KEPT = "weights and optimizer could not be saved first, to be restored afterwards"


class Hooks(NamedTuple):
    """What the recording of the process does when the conductor asks for it.

    Attributes:
        new_profiler: makes what profiles or captures the steps after the counted ones.
        guard_files: called before the first step on resident batches: from then on the program's files stay unchanged.
        conclude: called after the last step, with why there were no steps on resident batches ("" if there were) and
            why the program is ended ("" where enough steps were counted); it raises to end the program.
        end_outside: called in another thread to end a program that makes no steps; None if that is not allowed.
    """

    new_profiler: Callable[[], Profiler | CaptureRange]
    guard_files: Callable[[], None]
    conclude: Callable[[str, str], None]
    end_outside: Callable[[str], None] | None


class Conductor:
    """Leads one recording through its phases.

    Args:
        begin_counting: called when the first counted step begins.
    """

    def __init__(
        self,
        torch: Any,
        settings: Settings,
        steps: Steps,
        loaders: Loaders,
        host: Hooks,
        *,
        begin_counting: Callable[[], None],
    ) -> None:
        self.resident = Resident(settings.kept_bytes)
        self._torch = torch
        self._settings = settings
        self._steps = steps
        self._loaders = loaders
        self._host = host
        self._begin_counting = begin_counting
        self._deadline = Deadline(settings.seconds, steps.ledger.clock, lambda: has_any(torch.optim.Optimizer))
        self._kept: KeptState | None = None
        self._why_not_kept: str | None = None
        self._has_begun = False
        self._plan: StepSchedule | None = None
        self._profiler: Profiler | CaptureRange | None = None
        self._rounds_since = 0
        self._num_resident = 0
        self._is_epoch_over = False
        loaders.keep = self._keep
        loaders.replay = self.resident.replay
        loaders.replay_at_end = self._at_epoch_end
        loaders.before_fetch = self._end_at_deadline
        self.resident.begins = self._begin_resident
        if settings.whole:
            self._deadline.turn_off()

    def before_call(self) -> None:
        """A network is about to be called."""
        if not self._deadline.is_running:
            self._deadline.begin()
            end = self._host.end_outside
            if end is not None:
                self._deadline.watch(self._settings.folder, lambda: end(self._without_steps()))
        self._end_at_deadline()

    def stop(self) -> None:
        """Ends the last phase: profiling ends, and the saved state of the training is restored."""
        self._deadline.turn_off()
        self._stop_profiler(is_complete=False)
        self.resident.is_replaying = False
        kept, self._kept = self._kept, None
        if kept is None:
            return
        try:
            kept.put_back()
        except Exception:
            note_failure(self._settings.folder, "the training's state could not be restored")
            tell_user(
                "weights and optimizer could not be restored to their state before the steps on resident batches; "
                "do not continue with them"
            )

    def refused(self, path: str) -> None:
        """The program was about to write this file in a round, which ends here."""
        done = self._num_resident
        is_enough = done >= _MIN_RESIDENT_STEPS
        why_not = "" if is_enough else f"the program was about to write {path} after only {done} of these steps"
        self._host.conclude(why_not, "")

    def after_step(self, seconds: float, parts: dict[str, float]) -> None:
        """Starts the next phase if this step was the last one of its own."""
        steps = self._steps
        self._deadline.step_ended()
        if steps.phase == "watched":
            if not self._has_begun:
                self._has_begun = True
                rank, world_size = rank_and_world_size()
                if rank == 0 and world_size > 1 and not self._settings.whole:
                    # Its plan is made while steps are counted, in which this search must not be.
                    self._look_for_state()
                    steps.restart()
                self._begin_counting()
            elif self._has_seen_enough(seconds, parts):
                self._profile(seconds, parts)
        elif steps.phase == "profiled":
            self._after_profiled()
        elif steps.phase in _ROUND_PHASES:
            self._after_step_of_round()

    def _has_seen_enough(self, seconds: float, parts: dict[str, float]) -> bool:
        steps, settings = self._steps, self._settings
        if settings.whole:
            if steps.num_counted >= settings.max_steps:
                self._host.conclude("", "")
            return False
        rank, world_size = rank_and_world_size()
        if self._plan is None:
            is_enough = self._is_enough()
            if world_size == 1:
                return is_enough
            if rank > 0:
                self._plan = read_announcement(settings.folder)
            elif is_enough:
                plan = self._planned(steps.num_steps + ahead(self._mean_s()), seconds, parts)
                announce(settings.folder, plan)
                self._plan = plan
                steps.restart()
        return self._plan is not None and steps.num_steps >= self._plan.watched

    def _is_enough(self) -> bool:
        steps, settings = self._steps, self._settings
        if steps.counted_s >= settings.seconds:
            return True
        if steps.num_counted < settings.min_steps or steps.counted_s < settings.min_seconds:
            return False
        return {"validation", "epoch start"} <= steps.kinds_counted

    def _mean_s(self) -> float:
        return max(self._steps.counted_s / max(1, self._steps.num_counted), 1e-6)

    def _planned(self, watched: int, seconds: float, parts: dict[str, float]) -> StepSchedule:
        """The remaining phases: as many rounds as their slow steps leave time for, none where they would do harm.

        With several ranks, the leader decides whether the state can be saved, because all make the same steps.
        """
        for_s, mean_s = self._settings.experiment_seconds, self._mean_s()
        computing_s = max(seconds - parts.get("wait", 0.0), 1e-6)
        num_resident = max(_MIN_RESIDENT_STEPS, min(2000, int(for_s / computing_s)))
        refilled = max((entry.num_ahead for entry in self._loaders.training_entries()), default=0)
        unchanged = max(_MIN_UNCHANGED_STEPS, min(num_resident, int(for_s / mean_s)) // _ROUNDS)
        rounds = min(_ROUNDS, int(_UNCHANGED_FACTOR * for_s / ((refilled + unchanged) * mean_s)))
        profiled = watched + _PROFILED_STEPS
        self._look_for_state()
        if self._why_not_kept:
            return StepSchedule(watched, profiled)
        if rounds == 0:
            return StepSchedule(watched, profiled, rounds=1, resident=num_resident)
        return StepSchedule(watched, profiled, rounds, -(-num_resident // rounds), refilled, unchanged)

    def _profile(self, seconds: float, parts: dict[str, float]) -> None:
        self._plan = self._plan or self._planned(self._steps.num_steps, seconds, parts)
        self._steps.phase = "profiled"
        self.resident.is_keeping = self._settings.experiments
        if self._settings.profile:
            self._start_profiler()
        self._steps.restart()

    def _start_profiler(self) -> None:
        try:
            profiler = self._host.new_profiler()
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
        is_last = self._steps.num_steps >= self._plan.profiled
        if is_last or not self._is_profiled_further():
            self._stop_profiler(is_complete=True)
        if not is_last:
            return
        reason = self._why_not_resident()
        if not reason and not self.resident.is_ready:
            if rank_and_world_size()[1] == 1 and self._steps.num_steps < self._plan.profiled + _MAX_COLLECTING_STEPS:
                return
            room = f"{self._settings.kept_bytes / _GIB:.1f} GiB"
            reason = f"no batch could be kept: it is larger than {room}, or none was fetched"
        if reason:
            self._host.conclude(reason, "")
            return
        self.resident.is_keeping = False
        self._rounds_since = self._steps.num_steps
        self._go_over_to("resident")

    def _after_step_of_round(self) -> None:
        assert self._plan is not None
        self._num_resident += self._steps.phase == "resident"
        phase = self._plan.phase_after(self._steps.num_steps - self._rounds_since)
        if not phase:
            self._host.conclude("", "")
        elif phase != self._steps.phase and not self._is_epoch_over:
            self._go_over_to(phase)

    def _go_over_to(self, phase: str) -> None:
        """Called between two steps. Steps on resident batches begin once the workers have made all they may."""
        self._steps.phase = phase
        self.resident.is_replaying = phase == "resident"
        if phase == "resident":
            wait_until_idle(_pids_of_workers(self._loaders.training_entries()))
            self._steps.restart()

    def _begin_resident(self) -> None:
        """Called before the first batch: until now the training's state and files are entirely the program's own."""
        try:
            kept = KeptState(self._torch, self._loaders.generators())
            kept.keep()
        except Exception as error:
            note_failure(self._settings.folder, "the training's state could not be saved")
            self._host.conclude(f"{_NOT_KEPT} ({type(error).__name__})", "")
        else:
            self._kept = kept
            self._host.guard_files()
            self._steps.restart()

    def _look_for_state(self) -> None:
        """Finds out, once, why the training's state cannot be saved, and so must not be changed; "" if it can."""
        if self._why_not_kept is None:
            self._why_not_kept = "" if self._why_not_asked() else self._search_for_state()

    def _search_for_state(self) -> str:
        try:
            num_bytes = KeptState(self._torch, self._loaders.generators()).num_bytes
        except Exception as error:
            note_failure(self._settings.folder, "the training's state could not be found")
            return f"{_NOT_KEPT} ({type(error).__name__})"
        most = int(_FREE_SHARE * free_bytes())
        if num_bytes <= most:
            return ""
        return (
            f"weights and optimizer ({num_bytes / _GIB:.1f} GiB) could not be saved first, to be restored afterwards: "
            f"{most / _GIB:.1f} GiB of memory is available for that"
        )

    def _end_at_deadline(self) -> None:
        if self._deadline.is_over():
            self._host.conclude("the program made no more steps", self._without_steps())

    def _without_steps(self) -> str:
        since = f"{self._steps.counted_text()} and no further one" if self._steps.num_counted else "no training step"
        return f"{since} was made in {self._deadline.allowed_s:g} s"

    def _at_epoch_end(self, entry: Entry) -> tuple[Any] | None:
        """While steps are experiments, resident batches continue: the program must not validate or save."""
        if self._steps.phase not in _ROUND_PHASES or entry.key not in self._steps.training_keys:
            return None
        self._is_epoch_over = True
        self._steps.phase = "resident"
        self.resident.is_replaying = True
        return self.resident.replay(entry)

    def _why_not_resident(self) -> str:
        reason = self._why_not_asked()
        if reason:
            return reason
        if self._plan is not None and not self._plan.rounds:
            return self._why_not_kept or _NOT_KEPT
        if not self._loaders.training_entries():
            return (
                "the program's batches do not come from a known loader (torch's DataLoader, MONAI's thread "
                "loaders, batchgenerators, DALI, Voxelocity's Feed), so they could not be replaced"
            )
        return ""

    def _why_not_asked(self) -> str:
        if not self._settings.experiments:
            return "experiments were not requested"
        return "it would change what the program saves with --keep-saves" if self._settings.keeps_saves else ""

    def _keep(self, entry: Entry, batch: Any) -> None:
        if entry.key not in self._steps.training_keys:
            return
        if self.resident.is_keeping:
            self.resident.keep(entry, batch)
        elif self._steps.phase in _ROUND_PHASES:
            self.resident.renumber(entry, batch)

    def _is_profiled_further(self) -> bool:
        try:
            return self._profiler is not None and self._profiler.step()
        except Exception:
            note_failure(self._settings.folder, "the profiler failed at the end of a step")
            return False

    def _stop_profiler(self, *, is_complete: bool) -> None:
        """Ends profiling, if it runs; the trace is written only if the last step `is_complete`."""
        self._steps.ledger.on_move = None
        profiler, self._profiler = self._profiler, None
        try:
            if profiler is not None:
                profiler.stop(is_complete=is_complete)
        except Exception:
            note_failure(self._settings.folder, "the profiler could not be stopped")


def _pids_of_workers(entries: list[Entry]) -> list[int]:
    workers = [worker for entry in entries for worker in getattr(entry.iterator, "_workers", ())]
    return [worker.pid for worker in workers if isinstance(getattr(worker, "pid", None), int)]
