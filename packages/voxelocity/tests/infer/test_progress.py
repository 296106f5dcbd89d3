import io
import pydoc
from types import SimpleNamespace

import voxelocity as vx
from voxelocity.infer import PredictionHooks
from voxelocity.infer.progress import PredictionProgress
from voxelocity_observe.core.console import PlainConsole


def test_each_pass_moves_the_bar_and_each_scan_the_count(monkeypatch):
    shown, called = [], []
    monkeypatch.setattr(PredictionProgress, "left_text", lambda self, share: "")
    monkeypatch.setattr(PredictionProgress, "update", lambda self, share, words: shown.append((share, words)))
    memory = {case_id: SimpleNamespace(num_passes=num) for case_id, num in (("a", 1), ("b", 3))}
    job = SimpleNamespace(refs=("a", "b", "broken"), memory=memory)
    progress = PredictionProgress(PlainConsole(file=io.StringIO()))
    hooks = PredictionHooks(on_windows=lambda: called.append("pass"), on_case=lambda scan: called.append(scan.case_id))
    watched = hooks.with_progress(progress)
    watched.on_start(job)
    watched.on_failure("broken", "it is empty")
    watched.on_windows()
    watched.on_case(SimpleNamespace(case_id="a"))
    watched.on_windows()
    assert called == ["pass", "a", "pass"]
    assert shown == [
        (0.0, "predicting scan 1 of 3"),
        (0.0, "predicting scan 2 of 3"),
        (0.25, "predicting scan 2 of 3"),
        (0.25, "predicting scan 3 of 3"),
        (0.5, "predicting scan 3 of 3"),
    ]


def test_help_calls_the_function_as_users_do():
    assert pydoc.render_doc(vx.predict, renderer=pydoc.plaintext).splitlines()[2].startswith("predict(models")
