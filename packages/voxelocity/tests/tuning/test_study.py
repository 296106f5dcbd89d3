"""The search over fake trials whose costs and failures are known."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest
from filelock import FileLock

from voxelocity.tuning.space import Knob
from voxelocity.tuning.study import Study, cost_ratios
from voxelocity.tuning.trial import TrialLimits
from voxelocity_observe.core.errors import ConfigError, OutputError

pytest.importorskip("optuna")

# Larger is quicker, "b" is best, and sizes above 4 do not fit.
FITS_4 = """
if settings["size"] > 4: raise MemoryError
measured(seconds=10.0 / settings["size"] + (0.0 if settings["word"] == "b" else 5.0))
"""


def phases(result):
    return [record.phase for record in result.trials]


def test_it_finds_the_largest_size_by_bisection_and_the_best_settings_that_fit_and_tries_no_hopeless_ones(study):
    result = study(FITS_4, num_trials=40).run()
    sizes = [record.settings["size"] for record in result.trials if record.phase in ("default", "size")]
    assert sizes == [1, 16, 4, 8]
    kinds = [record.outcome.kind for record in result.trials[:4]]
    assert kinds == ["finished", "out_of_memory", "finished", "out_of_memory"]
    tried = [tuple(record.settings.values()) for record in result.trials if record.phase != "confirm"]
    # Of each word the sizes that fit, and at most two that do not.
    assert len(tried) == len(set(tried)) <= 15
    assert result.ended == "exhausted"
    assert result.winner == {"size": 4, "word": "b"}
    assert cost_ratios(result.winner_trials, result.default_trials) == (pytest.approx(2.5 / 15.0),)
    assert result.refused == ()


def test_a_seed_gives_the_same_trials(study, tmp_path):
    first, second = (study(FITS_4, folder=tmp_path / name, num_trials=8).run() for name in "ab")
    assert [record.settings for record in first.trials] == [record.settings for record in second.trials]


def test_default_settings_that_do_not_fit_are_replaced_by_the_smallest(study):
    knobs = (Knob(name="size", choices=(1, 2, 4, 8, 16), default=16, grows_memory=True),)
    lines = "if settings['size'] > 2: raise MemoryError\nmeasured(seconds=1.0 / settings['size'])"
    result = study(lines, knobs=knobs).run()
    assert result.winner == {"size": 2}
    assert result.default_trials == ()


def test_memory_that_is_never_free_ends_in_no_winner(study):
    result = study("raise MemoryError").run()
    assert result.winner is None
    assert {record.outcome.kind for record in result.trials} == {"out_of_memory"}


@pytest.mark.parametrize("number", [0, 1, 4])
def test_running_out_of_memory_at_any_trial_does_not_end_the_search(study, number):
    lines = f"if answer.name == '{number:03d}.json': raise MemoryError\nmeasured(seconds=settings['size'])"
    result = study(lines, num_trials=8).run()
    kinds = {record.number: record.outcome.kind for record in result.trials}
    assert kinds[number] == "out_of_memory"
    assert result.winner is not None
    assert len(result.trials) > number + 1


def test_the_winner_must_finish_again_with_headroom(study):
    # The quickest fits once and not again: its second trial has the phase "confirm".
    lines = """
seen = answer.parent.parent / "seen"
if settings["word"] == "b" and settings["size"] == 4:
    if seen.exists(): raise MemoryError
    seen.touch()
measured(seconds=10.0 / settings["size"] + (0.0 if settings["word"] == "b" else 5.0))
"""
    knobs = (
        Knob(name="size", choices=(1, 4), default=1, grows_memory=True),
        Knob(name="word", choices=("a", "b"), default="a"),
    )
    result = study(lines, knobs=knobs).run()
    assert result.refused == ({"size": 4, "word": "b"},)
    assert result.winner == {"size": 4, "word": "a"}


@pytest.fixture
def trials_of(tmp_path):
    """A clock by which each trial takes that many seconds, however busy the machine is: it moves when one answers."""
    return lambda seconds: lambda: seconds * len([*tmp_path.rglob("[0-9][0-9][0-9].json")])


@pytest.fixture
def limits_of(study, script):
    """The limits of each trial of a study whose trials take as many seconds as their size says."""

    def run(*, clock=time.monotonic, **given):
        seen, plain, made = [], script("measured(seconds=settings['size'])"), study("", **given)

        def command(settings, *, answer, limits):
            seen.append(limits)
            return plain(settings, answer=answer, limits=limits)

        Study(made.folder, made.search, command=command, cost=made._cost, clock=clock).run()
        return seen

    return run


def test_headroom_lowers_the_limit_of_memory_alone(limits_of):
    limits = limits_of(limits=TrialLimits(seconds=30.0, host_bytes=2**30), num_trials=1)
    assert limits == [TrialLimits(seconds=30.0, host_bytes=host_bytes) for host_bytes in (2**30, int(0.9 * 2**30))]


def test_settings_that_took_the_headroom_are_refused_without_another_trial(study):
    # The trial says what it took: on a busy machine, one that ends soon is over before its memory is looked at.
    lines = """
measurements, taken = {"seconds": [10.0 / settings["size"]]}, 2**28 if settings["size"] == 4 else 0
answer.write_text(json.dumps({"measurements": measurements, "peak_host_bytes": taken}))
"""
    knobs = (Knob(name="size", choices=(1, 4), default=1, grows_memory=True),)
    made = study(lines, knobs=knobs, limits=TrialLimits(seconds=30.0, host_bytes=2**28 + 2**27), headroom=0.5)
    result = made.run()
    assert result.refused == ({"size": 4},)
    assert result.winner == {"size": 1}
    assert [record.settings["size"] for record in result.trials if record.phase == "confirm"] == [1]


def test_the_next_best_alternates_with_the_default_settings_as_they_are_by_then(study):
    # "c" fails when it is measured again, and the machine slows down threefold from then on.
    lines = """
slow = answer.parent.parent / "slow"
seen = answer.parent.parent / "seen"
if settings["word"] == "c":
    if seen.exists():
        slow.touch()
        raise MemoryError
    seen.touch()
measured(seconds={"a": 5.0, "b": 4.0, "c": 3.0}[settings["word"]] * (3.0 if slow.exists() else 1.0))
"""
    knobs = (Knob(name="word", choices=("a", "b", "c"), default="a"),)
    result = study(lines, knobs=knobs, num_trials=3, num_confirmations=2).run()
    words = [record.settings["word"] for record in result.trials if record.phase == "confirm"]
    assert words == ["a", "c", "a", "b", "a", "b"]
    assert (result.winner, result.refused) == ({"word": "b"}, ({"word": "c"},))
    assert cost_ratios(result.winner_trials, result.default_trials) == (pytest.approx(0.8), pytest.approx(0.8))


def test_a_winner_by_luck_gives_way_to_the_default_settings(study):
    # "b" is quick the first time only.
    lines = """
seen = answer.parent.parent / "seen"
is_first = settings["word"] == "b" and not seen.exists()
if is_first: seen.touch()
measured(seconds=1.0 if is_first else 6.0 if settings["word"] == "b" else 5.0)
"""
    knobs = (Knob(name="word", choices=("a", "b"), default="a"),)
    result = study(lines, knobs=knobs, num_trials=2).run()
    assert result.winner == {"word": "a"}
    assert result.refused == ({"word": "b"},)


def test_a_hang_and_a_crash_are_outcomes(study, tmp_path):
    hangs = tmp_path / "hangs"
    hangs.mkdir()
    lines = f"""
if settings["word"] == "b":
    (pathlib.Path({str(hangs)!r}) / answer.name).touch()
    time.sleep(3600)
if settings["word"] == "c": sys.exit("no such algorithm")
measured(seconds=1.0)
"""
    knobs = (Knob(name="word", choices=("a", "b", "c"), default="a"),)
    result = study(lines, knobs=knobs, clock=lambda: 1e6 * len([*hangs.iterdir()])).run()
    kinds = {record.settings["word"]: record.outcome.kind for record in result.trials}
    assert kinds == {"a": "finished", "b": "hung", "c": "crashed"}
    assert result.winner == {"word": "a"}


def test_a_trial_may_take_ten_times_as_long_as_the_default_settings(limits_of, trials_of):
    first, *others = limits_of(clock=trials_of(30.0), limits=TrialLimits(seconds=3600.0), num_trials=2)
    assert first.seconds == 3600.0
    assert [limits.seconds for limits in others] == [300.0] * len(others) != []


def test_a_study_that_was_killed_continues(study, tmp_path):
    # A process that is killed while its third trial runs.
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from voxelocity.tuning.space import Knob
        from voxelocity.tuning.study import Search, Study
        from voxelocity.tuning.trial import TrialLimits
        def command(settings, *, answer, limits):
            if answer.name == "002.json": os.kill(os.getpid(), signal.SIGKILL)
            line = "import json, sys; open(sys.argv[1], 'w').write(json.dumps({'measurements': {'seconds': [1.0]}}))"
            return [sys.executable, "-I", "-S", "-c", line, str(answer)]
        knobs = (Knob(name="size", choices=(1, 2, 4, 8, 16), default=1, grows_memory=True),
                 Knob(name="word", choices=("a", "b", "c"), default="a"))
        search = Search(knobs=knobs, limits=TrialLimits(seconds=30.0), num_trials=8, num_confirmations=1)
        Study(Path(sys.argv[1]), search, command=command, cost=lambda outcome, default: 1.0).run()
    """)
    folder = tmp_path / "study"
    killed = subprocess.run([sys.executable, "-c", program, folder], check=False, env=os.environ)
    assert killed.returncode == -9
    new = []
    result = study(FITS_4, folder=folder, on_trial=new.append).run()
    # The two trials before the kill were not repeated.
    assert [record.number for record in result.trials[:2]] == [0, 1]
    assert sum(record.phase != "confirm" for record in new) == 4
    assert result.winner is not None


def test_a_finished_study_runs_nothing_again(study):
    first = study(FITS_4).run()
    new = []
    second = study(FITS_4, on_trial=new.append).run()
    assert new == []
    assert (second.winner, second.winner_trials) == (first.winner, first.winner_trials)


def test_two_tunings_in_one_folder_are_refused(study, tmp_path):
    (tmp_path / "study").mkdir()
    with FileLock(tmp_path / "study" / ".lock"), pytest.raises(OutputError, match=r"another process.*study.*-o"):
        study(FITS_4).run()


def test_a_folder_with_another_study_is_refused_unless_it_is_overwritten(study):
    study(FITS_4, num_trials=1).run()
    other = (Knob(name="word", choices=("a", "b"), default="a"),)
    with pytest.raises(ConfigError, match=r"knobs.*--overwrite"):
        study(FITS_4, knobs=other).run()
    lines = "measured(seconds=1.0)"
    assert study(lines, knobs=other, num_trials=2, overwrite=True).run().winner == {"word": "a"}


def test_a_time_budget_leaves_time_for_confirmation(study, trials_of):
    lines = "measured(seconds=settings['size'])"
    result = study(lines, clock=trials_of(10.0), time_budget_s=80.0, num_trials=50).run()
    assert result.ended == "time"
    assert phases(result)[-1] == "confirm"


def test_a_time_budget_in_which_nothing_can_be_tried_says_how_long_a_trial_takes(study, trials_of):
    lines = "measured(seconds=settings['size'])"
    words = r"15 s are too short: one trial takes 10 s here.*takes 4 of them; give at least --time-budget 40s"
    with pytest.raises(ConfigError, match=words):
        study(lines, clock=trials_of(10.0), time_budget_s=15.0).run()
    kept = []
    study(lines, clock=trials_of(10.0), time_budget_s=80.0, on_trial=kept.append).run()
    assert kept[0].number == 1, "the trial before is not repeated"


def test_a_wall_clock_that_jumps_changes_nothing(study, monkeypatch):
    monkeypatch.setattr(time, "time", iter([*range(0, -(10**9), -(10**6))]).__next__)
    result = study(FITS_4, num_trials=3, time_budget_s=100.0).run()
    assert len([p for p in phases(result) if p != "confirm"]) == 3
    assert all(0.0 < record.outcome.seconds < 30.0 for record in result.trials)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_trials": 0}, "0 trials"),
        ({"headroom": 1.0}, "headroom"),
        ({"time_budget_s": -1.0}, "negative"),
        ({"knobs": ()}, "nothing is left"),
    ],
)
def test_a_search_out_of_range_is_refused(study, given, words):
    with pytest.raises(ConfigError, match=words):
        study(FITS_4, **given)


def test_a_winner_must_be_cheaper_every_time(study):
    # "b" is cheaper than "a" in two of its three confirmations.
    lines = """
place = answer.parent.parent / settings["word"]
number = len(place.read_text()) if place.exists() else 0
place.write_text("x" * (number + 1))
measured(seconds=5.0 if settings["word"] == "a" else 6.0 if number == 2 else 4.0)
"""
    knobs = (Knob(name="word", choices=("a", "b"), default="a"),)
    assert study(lines, knobs=knobs, num_trials=2, num_confirmations=3).run().winner == {"word": "a"}


def test_a_gain_within_the_noise_is_none(study):
    lines = "measured(seconds=5.0 if settings['word'] == 'a' else 4.95)"
    knobs = (Knob(name="word", choices=("a", "b"), default="a"),)
    assert study(lines, knobs=knobs, num_trials=2).run().winner == {"word": "a"}
