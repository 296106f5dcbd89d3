import importlib.util
import json
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "tables.py"


def test_the_page_of_figures_shows_every_comparison_of_a_record(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("tables", SCRIPT)
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    sides = [
        {"name": "Voxelocity", "note": "", "n": 5, "median": 70.0, "low": 60.0, "high": 1234.5},
        {"name": "MONAI", "note": "two workers", "n": 5, "median": 7.0, "low": 6.0, "high": 8.0,
         "ours_better_by": {"median": 10.0, "low": 9.0, "high": 11.0}},
        {"name": "TorchIO", "note": "not installed: torchio", "n": 0},
    ]  # fmt: skip
    comparison = {"title": "patches", "unit": "patches/s", "better": "larger", "note": "crop", "sides": sides}
    record = {"benchmark": "transforms", "command": "voxelocity bench transforms", "date": "2026-01-02"}
    environment = dict.fromkeys(("cpu", "num_cpus", "gpu", "torch", "monai", "commit"), "x") | {"memory_bytes": 1}
    (tmp_path / "bench_transforms.json").write_text(
        json.dumps({**record, "environment": environment, "comparisons": [comparison]})
    )
    lines = tables.measured_page().splitlines()
    assert "## Side by side: transforms" in lines
    assert "| Voxelocity | 70 | 60 | 1,234 | 5 | n/a |  |" in lines
    assert "| MONAI | 7 | 6 | 8 | 5 | 10× | two workers |" in lines
    assert "| TorchIO | n/a | n/a | n/a | 0 | n/a | not installed: torchio |" in lines
