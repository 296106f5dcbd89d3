"""What recipes write about their benchmarks."""

import io
import json

import torch

from voxelocity.bench.comparison import Comparison, Figure
from voxelocity.core.console import PlainConsole
from voxelocity.recipes.call import Call
from voxelocity.recipes.pages import write_benchmark


def test_a_benchmark_shows_and_keeps_what_belongs_to_no_comparison(tmp_path):
    shown = io.StringIO()
    call = Call(
        data=tmp_path, out=tmp_path, device=torch.device("cpu"), fast_bfloat16=False, console=PlainConsole(file=shown)
    )
    figures = tuple(Figure(name=name, note="", values=(value,)) for name, value in (("Voxelocity", 4.0), ("M", 2.0)))
    compared = Comparison(title="reading", unit="patches/s", better="larger", figures=figures)
    write_benchmark(call, "pathology", [compared], {"rounds": 1}, {"square_auc": {"Voxelocity": 0.989}})
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert "square_auc.Voxelocity 0.989" in lines
    assert f"see {tmp_path / 'bench_pathology.html'}" in lines
    assert json.loads((tmp_path / "bench_pathology.json").read_text())["square_auc"] == {"Voxelocity": 0.989}
