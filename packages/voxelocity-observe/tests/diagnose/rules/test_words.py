"""Calls of a program with other arguments, and nothing where its source is not known."""

from __future__ import annotations

import pytest

from voxelocity_observe.diagnose.rules.words import changed_call, renamed_call


@pytest.mark.parametrize(
    ("call", "variable", "arguments", "changed"),
    [
        ("DataLoader(a, shuffle=b)", "x", {"num_workers": "2"}, "x = DataLoader(a, shuffle=b, num_workers=2)"),
        ("DataLoader(a,\n    num_workers=0)", "", {"num_workers": "4"}, "DataLoader(a, num_workers=4)"),
        ("SGD(p, foreach=False)", "o", {"foreach": "", "fused": "True"}, "o = SGD(p, fused=True)"),
        ("DataLoader(a, **kw)", "", {"num_workers": "2"}, "DataLoader(a, **{**kw, 'num_workers': 2})"),
        ("", "train", {"num_workers": "2"}, ""),
        ("not a call", "train", {"num_workers": "2"}, ""),
        ("name", "train", {"num_workers": "2"}, ""),
    ],
)  # fmt: skip
def test_a_call_keeps_all_but_the_arguments_that_change(call, variable, arguments, changed):
    assert changed_call(call, variable, **arguments) == changed


def test_a_call_of_another_class_keeps_its_arguments():
    assert (
        renamed_call("monai.data.Dataset(f, transform=t)", "ds", "CacheDataset") == "ds = CacheDataset(f, transform=t)"
    )
    assert renamed_call("", "ds", "CacheDataset") == ""
