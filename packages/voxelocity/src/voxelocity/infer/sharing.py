"""One list of scans, several devices: each takes the next scan as soon as it has room for one."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from voxelocity.core.volume import VolumeRef
from voxelocity.infer.pending import Failed, Loaded, OnFailure, Prediction
from voxelocity.infer.predictor import Predictor
from voxelocity_observe.core.device import as_current
from voxelocity_observe.core.errors import ScanError

_LOOK_AGAIN_S = 0.1


class StoppedError(Exception):
    """Ends what a device does after another has failed, or after Ctrl-C."""


class _Ended(NamedTuple):
    """A device has nothing more to do, or gave up with this error."""

    error: BaseException | None


_Message = Prediction | Failed | _Ended


def until(stop: threading.Event, on_windows: Callable[[], None] | None) -> Callable[[], None]:
    """The `on_windows` of each predictor: what the user gave, or `StoppedError` once `stop` is set."""

    def before_windows() -> None:
        if stop.is_set():
            raise StoppedError
        if on_windows is not None:
            on_windows()

    return before_windows


def share_scans(
    predictors: Sequence[Predictor],
    refs: Sequence[VolumeRef],
    *,
    stop: threading.Event,
    num_threads: int,
    num_ahead: int,
    on_failure: OnFailure,
) -> Iterator[Prediction]:
    """Each case with its prediction; with several devices in the order in which they are finished.

    Args:
        predictors: one for each device, of equal models.
        refs: the cases.
        stop: set when the iteration ends early; ends what the other devices do, through `until`.
        num_threads: threads that decode scans, and that put predictions back on the grids of their scans.
        num_ahead: scans decoded and prepared beyond those that are being predicted.
        on_failure: called with the id and the error of each case that cannot be predicted, in the calling thread.

    Raises:
        Exception: what ended the work of one device; the others are stopped.
    """
    if len(predictors) == 1:
        yield from predictors[0].stream(refs, num_threads=num_threads, num_ahead=num_ahead, on_failure=on_failure)
        return
    # Full when as many predictions wait to be written as there are devices: memory is bounded.
    messages: queue.Queue[_Message] = queue.Queue(maxsize=len(predictors))
    with predictors[0].prefetch(refs, num_threads=num_threads, num_ahead=num_ahead) as loading:
        loaded = _Shared(loading, stop)
        threads = [
            threading.Thread(
                target=_predict,
                args=(predictor, loaded, messages, max(1, num_threads // len(predictors))),
                name=f"voxelocity-predict-{number}",
            )
            for number, predictor in enumerate(predictors)
        ]
        num_running = len(threads)
        try:
            for thread in threads:
                thread.start()
            while num_running > 0:
                message = messages.get()
                if isinstance(message, Prediction):
                    yield message
                elif isinstance(message, Failed):
                    on_failure(message.case_id, message.error)
                elif message.error is not None:
                    raise message.error
                else:
                    num_running -= 1
                # Otherwise this frame would keep the last prediction while it waits for the next.
                del message
        finally:
            stop.set()
            _empty(messages, threads)


class _Shared:
    """What several threads take from one iterator, until `stop` is set."""

    def __init__(self, items: Iterator[Loaded | Failed], stop: threading.Event) -> None:
        self._items, self._stop, self._lock = items, stop, threading.Lock()

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> Loaded | Failed:
        with self._lock:
            if self._stop.is_set():
                raise StopIteration
            return next(self._items)


def _predict(predictor: Predictor, loaded: _Shared, messages: queue.Queue[_Message], num_threads: int) -> None:
    def fail(case_id: str, error: ScanError) -> None:
        messages.put(Failed(case_id, error))

    try:
        with as_current(predictor.device):
            for prediction in predictor.predict_loaded(loaded, on_failure=fail, num_threads=num_threads):
                messages.put(prediction)
                del prediction
    except BaseException as error:  # raised by the thread that takes the messages, whatever it is
        messages.put(_Ended(error))
    else:
        messages.put(_Ended(None))


def _empty(messages: queue.Queue[_Message], threads: Sequence[threading.Thread]) -> None:
    """Waits for the threads, taking what they still have to say."""
    while any(thread.is_alive() for thread in threads):
        with contextlib.suppress(queue.Empty):
            messages.get(timeout=_LOOK_AGAIN_S)
