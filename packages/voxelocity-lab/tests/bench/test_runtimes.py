"""The structure of `benchmarks/runtimes.py`; its figures mean nothing here."""

import importlib
import json

import pytest

pytestmark = pytest.mark.nightly


def test_a_record_has_every_runtime_or_why_not_and_the_choice_of_auto(tmp_path, monkeypatch):
    runtimes = importlib.import_module("runtimes")
    options = ["--networks", "unet", "--edges", "32", "--rounds", "2", "--widths-divided-by", "4"]
    command = ["runtimes.py", *options, "--runtimes", "openvino", "tensorrt", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    runtimes.main()
    record = json.loads((tmp_path / "runtimes_32.json").read_text())
    assert "--widths-divided-by 4" in record["command"]
    row = record["rows"][0]
    assert row["runtimes"]["eager"]["relative_difference"] == 0.0
    assert row["runtimes"]["openvino"]["window_s"] > 0.0
    assert "CUDA" in row["runtimes"]["tensorrt"]["why_not"]
    assert row["auto"]["choice"] in ("eager", "openvino")
    assert row["auto"]["over_best"] >= 1.0
