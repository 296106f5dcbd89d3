"""The recording of one process, from its start to its end, and what becomes of it in a worker or a forked child.

What watches the training is imported only when the program imports torch: every Python that the program starts, for any
purpose, runs this module.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from .ending import Enough, end_process_later, keep_quiet_about_the_end, raise_in
from .guard import Guard
from .hooks import Imports
from .process import VARIABLE, Settings, describe_process, file_name, process_age_s, rank_and_world_size
from .writer import Writer, note_failure, tell_user

if TYPE_CHECKING:
    from .batches import Fetches
    from .extras import Extras
    from .profile import CaptureRange, Profiler
    from .training import TrainingWatcher

_recording: Recording | None = None
_is_at_fork = False


class Recording:
    """Records this process from `start` to `stop`.

    Args:
        settings: limits and switches.
        ends_process: whether the process is ended in any case once enough was seen, even if the program catches
            `SystemExit`.
    """

    def __init__(self, settings: Settings, *, ends_process: bool = False) -> None:
        self.settings = settings
        self.training: TrainingWatcher | None = None
        self._ends_process = ends_process
        self._is_over = False
        self._is_ending = False
        self._finishing = threading.Lock()
        self._pid = os.getpid()
        self._guard = Guard(settings.folder, self._refused)
        self._refused_paths: set[str] = set()
        # A notebook's threads, for example: what they write does not belong to the recorded block.
        self._hosts = (
            set() if ends_process else {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        )
        self._role = "main"
        self._own_cpu_s = 0.0
        self._since_s = time.perf_counter()
        self._age_offset_s = process_age_s() - time.perf_counter()
        self._writer = self._new_writer()
        self._imports = self._new_imports()
        self._extras: Extras | None = None
        self._fetches: Fetches | None = None
        self._at_torch: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Writes the process's event at once, and watches its training once it imports torch."""
        self._tell_process()
        self._writer.flush()
        self._imports.when_imported("torch", lambda torch: self._watch(torch, first_step=lambda: None))

    def stop(self, reason: str, note: str = "") -> None:
        """Restores everything and writes all that was seen. A second call does nothing."""
        if not self._ends_process:
            self._guard.disarm()
        if self._is_over:
            return
        if self._refused_paths and self.training is not None:
            # A refused write in another thread has ended the program.
            reason, note = "limit", self.training.steps.counted_text()
        started_s = time.thread_time()
        self._unhook()
        try:
            if self.training is not None and self._role == "main":
                self.training.write_sums()
            if self._role == "worker":
                self._own_cpu_s += time.thread_time() - started_s + self._writer.cpu_s
                of_s = time.perf_counter() - self._since_s
                self._writer.write("cost", seconds=round(self._own_cpu_s, 6), of_s=round(of_s, 6))
            if self.training is not None or self._role == "worker":
                self._tell_process()
                self._tell_end(reason, note)
        except Exception:
            note_failure(self.settings.folder, "the end of the recording could not be written")
        self._writer.close()

    def become_worker(self, worker_id: int, *, asked_s: float) -> None:
        """From now on this process is a loader's worker: only how it makes batches is recorded."""
        from .batches import Fetches
        from .steps import watch

        started_s = time.thread_time()
        self._guard.disarm()
        self._role = "worker"
        self._since_s = time.perf_counter()
        self._drop_extras()
        if self.training is not None:
            self.training.rest()
            self.training = None
        self._writer.forget()
        self._tell_process()
        self._fetches = Fetches(self._writer, worker_id, asked_s=asked_s)
        self._fetches.hook(sys.modules["torch.utils.data._utils.fetch"])
        self._writer.before_flush(self._fetches.write)
        self._writer.start()
        watch(None, is_worker=True)
        self._look_beside()
        self._own_cpu_s += time.thread_time() - started_s

    def after_fork(self, at_end: Callable[[], None]) -> None:
        """Called in a forked child: it gets its own file, made once there is something to write.

        Args:
            at_end: called when the child turns out to train, or imports torch, so that its end is recorded.
        """
        self._age_offset_s = process_age_s() - time.perf_counter()
        self._finishing = threading.Lock()
        if not self._guard.is_armed:
            # Otherwise what it writes is work of its parent process.
            self._pid = os.getpid()
        self._writer.forget()
        self._writer = self._new_writer()
        self._drop_extras(is_forked=True)
        if self.training is not None and self.training.loaders.is_starting_workers:
            # `become_worker` follows; until then there is nothing to record.
            self._own_cpu_s = time.thread_time()
            self.training.ledger.stop()
            return
        before, self.training = self.training, None
        if before is None:
            # It has yet to import torch, if it does.
            self._at_torch = at_end
            return
        before.unhook()
        self._imports = self._new_imports()
        self._tell_process()

        def first_step() -> None:
            self._writer.start()
            self._look_beside()
            at_end()

        self._watch(before.torch, first_step=first_step, is_child=True)

    def _watch(self, torch: Any, *, first_step: Callable[[], None], is_child: bool = False) -> None:
        from .conductor import Hooks
        from .training import TrainingWatcher

        self.training = TrainingWatcher(
            torch,
            self.settings,
            self._writer,
            self._imports,
            Hooks(
                self._new_profiler, self._guard.arm, self._conclude, self._end_outside if self._ends_process else None
            ),
            start_age_s=self._age_offset_s,
            first_step=lambda: self._begin(first_step),
            begin_worker=begin_worker,
        )
        self.training.hook()
        # Again, because torch is now there: a process that is killed, or ends by `os._exit`, writes no later event.
        self._tell_process()
        if not is_child:
            self._writer.start()
            self._look_beside()
            self._at_torch()

    def _begin(self, first_step: Callable[[], None]) -> None:
        """The program trains; by now its libraries and transforms are loaded, and its training thread is known."""
        first_step()
        if self._extras is not None:
            self._extras.follow(threading.get_ident())
            self._extras.take_in(None)

    def _look_beside(self) -> None:
        from .extras import LIBRARIES, Extras

        self._extras = Extras(self._writer, is_worker=self._role == "worker")
        self._extras.start()
        for library in LIBRARIES:
            self._imports.when_imported(library, self._extras.take_in)

    def _drop_extras(self, *, is_forked: bool = False) -> None:
        """Another process reports what was seen before this one changed its role, or none does."""
        if self._extras is not None:
            self._extras.drop(is_forked=is_forked)
            self._extras = None

    def _new_profiler(self) -> Profiler | CaptureRange:
        from .profile import CaptureRange, Profiler

        if self.settings.nsys:
            return CaptureRange()
        return Profiler(self.settings.folder, syncs=None if self._extras is None else self._extras.syncs)

    def _conclude(self, why_not_resident: str, note: str) -> None:
        """Enough was seen. Raises to end the program, unless it is to run to its own end, which it then does
        unwatched."""
        self._finish(why_not_resident, note)
        if not self.settings.whole:
            raise self._end_of_program()

    def _end_outside(self, note: str) -> None:
        """Like `_conclude`, for the training thread, from another one."""
        training = self.training
        thread = 0 if training is None or self._is_over else training.ledger.thread
        if thread:
            self._finish("the program made no more steps", note, has_experiments=False)
            raise_in(thread, type(self._end_of_program(thread)))

    def _finish(self, why_not_resident: str, note: str, *, has_experiments: bool = True) -> None:
        """Removes all hooks and writes all that was seen, once; from now on the program is ending."""
        training = self.training
        assert training is not None
        with self._finishing:
            if self._is_ending:
                return
            self._is_ending = True
        is_whole = self.settings.whole
        self._unhook()
        # The experiments read from this file which files the program has read.
        self._writer.flush()
        counted = training.steps.counted_text()
        try:
            training.write_sums()
            if has_experiments and self.settings.experiments and not is_whole and rank_and_world_size()[0] == 0:
                with self._guard.lifted():
                    training.write_experiments(why_not_resident)
        except Exception:
            note_failure(self.settings.folder, "some recorded data could not be written")
        finally:
            # Also after Ctrl-C in an experiment.
            self._tell_process()
            self._tell_end("limit", note or counted + ("; the program continued unwatched" if is_whole else ""))
            self._writer.close()
        if is_whole:
            return
        if not self.settings.keeps_saves:
            self._guard.arm()
        if rank_and_world_size()[0] == 0:
            told = f"{note}, so" if note else f"{counted}, which is enough;"
            tell_user(f"{told} the program is ended here.")
        if self._ends_process:
            keep_quiet_about_the_end()
            end_process_later(self.settings.folder)

    def _end_of_program(self, thread: int = 0) -> SystemExit:
        is_main = (thread or threading.get_ident()) == threading.main_thread().ident
        # Python ends a thread silently only for this class, not for its subclasses.
        return Enough() if is_main or not self._ends_process else SystemExit(0)

    def _refused(self, path: str) -> None:
        """The program is about to write a file that the guard protects. Raises to end it there."""
        if threading.get_ident() in self._hosts or self._is_making_batch():
            return
        if os.getpid() == self._pid and path not in self._refused_paths:
            from .lines import OWN_CODE

            self._refused_paths.add(path)
            where = OWN_CODE.where()
            self._writer.write("refused", path=path, where=where)
            if self._is_ending:
                self._writer.close()
                named = f"{path} ({where})" if where else path
                shown = "".join(letter if letter.isprintable() else "?" for letter in named)
                tell_user(f"not written because the program is being ended: {shown}")
            elif self.training is not None and threading.get_ident() == self.training.ledger.thread:
                self.training.conductor.refused(path)
        raise self._end_of_program()

    def _is_making_batch(self) -> bool:
        """Whether the training's own thread makes a batch: a data set may cache items on disk, as in a worker."""
        ledger = None if self.training is None else self.training.ledger
        return ledger is not None and ledger.thread == threading.get_ident() and ledger.part == "wait"

    def _unhook(self) -> None:
        self._is_over = True
        self._imports.stop()
        if self.training is None and self._fetches is None:
            return
        from .steps import watch

        if self._extras is not None:
            self._extras.stop()
            self._own_cpu_s += self._extras.stacks.own_s
        if self.training is not None:
            self.training.unhook()
        if self._fetches is not None:
            self._fetches.unhook()
            self._fetches.write()
        watch(None)

    def _tell_process(self) -> None:
        fields = describe_process(-self._age_offset_s, self._role, self.settings.launchers)
        self._writer.write("process", **fields)

    def _tell_end(self, reason: str, note: str) -> None:
        self._writer.flush()
        self._writer.write("end", reason=reason, note=note)

    def _new_writer(self) -> Writer:
        return Writer(self.settings.folder, file_name(), lambda: time.perf_counter() + self._age_offset_s)

    def _new_imports(self) -> Imports:
        return Imports(lambda what: note_failure(self.settings.folder, what))


def begin(settings: Settings, *, is_from_start: bool = False) -> Recording:
    """Starts recording this process; hooks are set when the program imports torch.

    Args:
        settings: limits and switches.
        is_from_start: whether the process has just begun, so that all of it is recorded until it ends.
    """
    global _recording, _is_at_fork
    recording = _recording = Recording(settings, ends_process=is_from_start)
    recording.start()
    if is_from_start:
        atexit.register(_at_exit, os.getpid())
    if not _is_at_fork and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _is_at_fork = True
    return recording


def end(recording: Recording, reason: str, note: str = "") -> None:
    """Ends a recording: what was seen is written and all hooks are removed."""
    global _recording
    recording.stop(reason, note)
    if _recording is recording:
        _recording = None


def begin_from_environment() -> None:
    """Starts recording if the environment asks for it; called when Python starts."""
    text = os.environ.get(VARIABLE)
    if text:
        begin(Settings.from_json(text), is_from_start=True)


def begin_worker(settings: str, key: int, worker_id: int, *, asked_s: float) -> None:
    """Records a loader's worker process, from now on.

    Args:
        settings: of the recording, as JSON.
        key: the loader's.
        worker_id: its number among the loader's workers.
        asked_s: `time.monotonic()` when the program asked for workers.
    """
    global _recording
    chosen = Settings.from_json(settings)
    try:
        recording = _recording
        if recording is None:
            recording = _recording = Recording(chosen)
        recording.become_worker(worker_id, asked_s=asked_s)
        _at_end_of_child(recording)
    except Exception:
        note_failure(chosen.folder, f"worker {worker_id} of loader {key} could not be watched")


def _after_fork() -> None:
    recording = _recording
    if recording is None:
        return
    try:
        recording.after_fork(lambda: _at_end_of_child(recording))
    except Exception:
        note_failure(recording.settings.folder, "a forked process could not be watched")


def _at_end_of_child(recording: Recording) -> None:
    """Children of multiprocessing end without `atexit`."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, args=(recording, "program"), exitpriority=100)


def _at_exit(pid: int) -> None:
    if _recording is None or os.getpid() != pid:
        return
    error = getattr(sys, "last_value", None)
    if error is None:
        end(_recording, "program")
    else:
        end(_recording, "error", f"{type(error).__name__}: {error}"[:500])
