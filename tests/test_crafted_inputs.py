"""Crafted inputs of every kind are read or refused in words: a slice in `make test`, all in `make test-all`.

`python benchmarks/crafted_inputs.py` makes all of them and writes the table.
"""

import pytest

from shared.crafted import RIGHT, Kind, SilentError, table, try_kind
from shared.crafted_kinds import KINDS
from voxelocity_observe.core.errors import InputError

_SLICE = 8


def check(kind, folder, num_trials):
    counts, wrong = try_kind(kind, folder, num_trials)
    assert not wrong, f"{len(wrong)} of {num_trials} trials:\n" + "\n".join(wrong[:10])
    assert sum(counts.values()) == num_trials


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_few_of_each_kind_are_read_or_refused(kind, tmp_path):
    check(kind, tmp_path, min(_SLICE, kind.num_trials))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_all_of_each_kind_are_read_or_refused(kind, tmp_path):
    check(kind, tmp_path, kind.num_trials)


def test_the_suite_has_enough_trials():
    assert sum(kind.num_trials for kind in KINDS) >= 1500


@pytest.mark.parametrize(
    ("outcome", "lines"),
    [
        ("read", "pass"),
        ("refused", "raise InputError('no')"),
        ("wordy", "raise InputError('no' * 5000)"),
        ("traceback", "{}['a']"),
        ("silent", "raise SilentError('other')"),
        ("outside", "open('../out', 'w').close()"),
        ("outside", "os.mkdir('../made')"),
        ("executed", "os.mkdir('ran')"),
        ("executed", "subprocess.run(['/bin/true'])"),
        ("executed", "socket.socket().connect_ex(('127.0.0.1', 9)) or socket.getaddrinfo('x.invalid', 9)"),
        ("crash", "os.abort()"),
        ("hang", "any(False for _ in itertools.count())"),
    ],
)
def test_each_outcome_is_distinguished(outcome, lines, tmp_path, monkeypatch):
    import itertools
    import os
    import resource
    import socket
    import subprocess

    monkeypatch.setattr("shared.crafted._MOST_CPU_S", 0.2)
    names = {"os": os, "subprocess": subprocess, "socket": socket, "itertools": itertools, "InputError": InputError,
             "SilentError": SilentError}  # fmt: skip
    if outcome == "crash":
        monkeypatch.setattr(
            os, "abort", lambda: (resource.setrlimit(resource.RLIMIT_CORE, (0, 0)), os.kill(os.getpid(), 6))
        )
    kind = Kind("a kind", 1, lambda folder: lambda numbers: exec(lines, names), is_forked=outcome == "crash")
    counts, wrong = try_kind(kind, tmp_path, 1)
    assert dict(counts) == {outcome: 1}, wrong
    assert bool(wrong) is (outcome not in RIGHT)
    assert f"| a kind | 1 | {int(outcome == 'read')} |" in table({"a kind": counts})
