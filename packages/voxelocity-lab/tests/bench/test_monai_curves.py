"""The loss curves of `benchmarks/monai_curves.py`: what is compared, how it is judged, and that every pair is equal."""

import importlib
import json

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def curves():
    return importlib.import_module("monai_curves")


def test_a_spread_wider_than_the_margin_is_not_called_equivalent(curves):
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(2.0, 1.0, (2, 24)).tolist()
    assert not curves.two_samples(ours, theirs, margin=0.02)["is_equivalent"]


def test_losses_that_are_no_numbers_are_equal_to_none(curves):
    assert curves._relative(float("nan"), float("nan")) == float("inf")
    assert curves._relative(1.5, 1.0) == 0.5


@pytest.mark.nightly
def test_every_drop_in_trains_to_the_losses_of_monai(curves, tmp_path):
    threads = torch.get_num_threads()
    try:
        curves.main(["--quick", "--out", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    record = json.loads((tmp_path / "monai_curves.json").read_text())
    assert record["command"].endswith("benchmarks/monai_curves.py --quick")
    pairs = [(kind, loader, "SGD") for kind in curves.KINDS for loader in curves.LOADERS]
    pairs.append(("CacheDataset", "ThreadDataLoader", "Novograd"))
    assert [(row["data_set"], row["loader"], row["optimizer"]) for row in record["curves"]] == pairs
    for row in record["curves"]:
        assert row["num_steps"] == (2 if row["data_set"] == "SmartCacheDataset" else 4), row["data_set"]
        assert row["is_equal"], row
        assert len(set(row["losses"]["MONAI"])) == row["num_steps"], "every step is another"
    noise = record["noise"]
    assert noise["n"] == [3, 3]
    assert len(set(noise["losses"]["MONAI"] + noise["losses"]["Voxelocity"])) == 6, "every seed is another"
