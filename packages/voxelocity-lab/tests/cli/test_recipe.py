"""`voxelocity recipe`: a complete example by one command."""

import numpy as np

from shared.refused import assert_refused

SETS = {
    "network.num_points": 8,
    "network.num_waves": 4,
    "network.width": 8,
    "network.depth": 1,
    "fit.batch_size": 8,
    "fit.steps": 3,
    "sample.num_steps": 2,
    "sample.format": "tck",
}


def test_both_trains_and_makes_streamlines_and_is_not_repeated_by_accident(voxelocity, tmp_path):
    lines = np.cumsum(np.random.default_rng(0).random((20, 9, 3)), axis=1)
    np.savez(tmp_path / "lines.npz", points=lines)
    sets = [part for key, value in SETS.items() for part in ("--set", f"{key}={value}")]
    call = ("recipe", "tractography", "both", tmp_path / "lines.npz", "-o", tmp_path / "run", "--device", "cpu", *sets)
    told = voxelocity(*call).succeeded()
    assert "report.html" in told.out
    assert (tmp_path / "run" / "generated.tck").is_file()
    assert_refused(voxelocity(*call), "continue it with --resume, replace it with --overwrite")
    assert voxelocity(*call, "--resume").status == 0


def test_wrong_words_are_answered_with_the_right_ones(voxelocity, tmp_path):
    told = voxelocity("recipe", "tractography", "train", tmp_path / "none.trk", "-o", tmp_path / "run")
    assert_refused(told, "none.trk does not exist; name a file or folder of streamlines")
    told = voxelocity("recipe", "tractography", "train", tmp_path, "-o", tmp_path / "run", "--set", "network.widht=8")
    assert_refused(told, "network.width")
    assert voxelocity("recipe", "spline", "train", tmp_path, "-o", tmp_path / "run").status == 2
