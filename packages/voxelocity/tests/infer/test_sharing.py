"""One list of scans for several devices. Two CPU devices stand for two GPUs."""

import threading

import pytest

from shared.limits import HANGS_S
from shared.small_predictor import predictor, scans
from voxelocity.infer.sharing import StoppedError, share_scans, until


class Pair:
    """Two predictors of equal networks, with what is called before each forward pass."""

    def __init__(self, *calls):
        self.stop = threading.Event()
        self.failures = {}
        self.predictors = [predictor(on_windows=until(self.stop, call)) for call in calls]

    def predict(self, refs):
        return share_scans(
            self.predictors,
            refs,
            stop=self.stop,
            num_threads=2,
            num_ahead=1,
            on_failure=lambda case_id, error: self.failures.__setitem__(case_id, str(error)),
        )


def no_thread_is_left():
    return not [thread for thread in threading.enumerate() if thread.name.startswith("voxelocity-predict")]


def test_two_devices_give_what_one_gives(tmp_path):
    refs = scans(tmp_path, 6, shape=(20, 8, 8))
    expected = {prediction.scan.case_id: prediction.classes for prediction in predictor().stream(refs, num_threads=1)}
    pair = Pair(None, None)
    found = {prediction.scan.case_id: prediction.classes for prediction in pair.predict(refs)}
    assert found.keys() == expected.keys()
    for case_id, classes in expected.items():
        assert (found[case_id] == classes).mean() > 0.999
    assert no_thread_is_left()


def test_a_device_that_is_busy_leaves_the_other_scans_to_the_other(tmp_path):
    others_are_done, slow_thread = threading.Event(), []

    def wait():
        slow_thread.append(threading.current_thread().name)
        assert others_are_done.wait(HANGS_S)

    # Scans of more windows than four passes share none with the next, so the slow device holds one scan only.
    refs = scans(tmp_path, 5, shape=(150, 8, 8))
    pair, given = Pair(wait, None), []
    for prediction in pair.predict(refs):
        given.append(prediction.scan.case_id)
        if len(given) == 4:
            others_are_done.set()
    assert sorted(given) == [ref.case_id for ref in refs]
    assert set(slow_thread) == {"voxelocity-predict-0"}


def test_a_broken_scan_is_left_out_and_reported_in_the_calling_thread(tmp_path):
    refs = scans(tmp_path, 4)
    refs[1].images[0].write_bytes(b"no scan")
    pair = Pair(None, None)
    assert {prediction.scan.case_id for prediction in pair.predict(refs)} == {"case_0", "case_2", "case_3"}
    assert list(pair.failures) == ["case_1"]
    assert "this is not a NIfTI file" in pair.failures["case_1"]


def test_an_error_of_one_device_ends_the_others(tmp_path):
    def fail():
        raise ValueError("the network is broken")

    with pytest.raises(ValueError, match="the network is broken"):
        list(Pair(fail, None).predict(scans(tmp_path, 8, shape=(150, 8, 8))))
    assert no_thread_is_left()


def test_a_thread_that_cannot_be_started_ends_the_others(tmp_path, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "voxelocity-predict-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pair = Pair(lambda: pair.stop.wait(HANGS_S), None)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(pair.predict(scans(tmp_path, 1)))
    assert pair.stop.is_set()
    assert no_thread_is_left()


def test_leaving_early_ends_all_devices_at_their_next_windows(tmp_path):
    pair = Pair(None, None)
    stream = pair.predict(scans(tmp_path, 8, shape=(150, 8, 8)))
    next(stream)
    stream.close()
    assert pair.stop.is_set()
    assert no_thread_is_left()
    with pytest.raises(StoppedError):
        until(pair.stop, None)()
