"""Each example trains on batches of `vx.Feed` under the launcher of its own library, on two ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import voxelocity as package

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "feed"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "library", "launcher", "ranks"),
    [
        ("own_loop", "torch", TORCHRUN, ()),
        ("with_monai", "monai", TORCHRUN, ()),
        ("with_ignite", "ignite", (), ("2",)),
        ("with_lightning", "lightning", (), ("2",)),
    ],
)
def test_two_ranks_of_an_example_learn(name, library, launcher, ranks, tiny_msd, tmp_path):
    pytest.importorskip(library)
    done = subprocess.run(
        [sys.executable, *launcher, EXAMPLES / f"{name}.py", tiny_msd, *ranks, "40"],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(package.__file__).parents[1]),
            "XDG_CACHE_HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"step (\d+), loss ([\d.]+)", done.stdout)
    assert [int(step) for step, _ in found] == [10, 20, 30, 40], done.stdout
    assert float(found[-1][1]) < 0.9 * float(found[0][1])
