"""`voxelocity recipe NAME both`: stopped by a signal and continued, each time in a process, and what it refuses."""

import errno
import itertools
import json
import os
import signal
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import save_file

from shared.forked import run_python
from shared.ranks import COMMAND
from voxelocity_observe.core.events import read_events

# As `python -m voxelocity`, but a signal arrives before a step.
_STOPPED = """
import os
from voxelocity.step import TrainingStep
step, num_steps = TrainingStep.__call__, 0
def stopped(*arguments):
    global num_steps
    num_steps += 1
    if num_steps == {at}:
        os.kill(os.getpid(), {number})
    return step(*arguments)
TrainingStep.__call__ = stopped
from voxelocity_observe.cli.main import main
main()
"""
_SMALL_NETWORK = {
    "data.batch_size": 2,
    "data.cache.tier": "disk",
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
    "planner.measure": "never",
    "precision.compute": "float32",
    "train.steps": 4,
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A recipe's smallest run.

    Attributes:
        data: the fixture that makes its data.
        sets: its settings.
        steps: of a training.
        run: the folder of the training that is stopped, in that of the recipe.
        before: steps of trainings before that one.
        results: files that the whole leaves there.
    """

    name: str
    data: str
    sets: dict[str, object]
    steps: int
    run: str = "."
    before: int = 0
    results: tuple[str, ...]


_TRIALS = {
    "tractography": Trial(
        name="tractography",
        data="bundles_file",
        sets={"network.num_points": 8, "network.num_waves": 4, "network.width": 8, "network.depth": 1,
              "fit.batch_size": 8, "fit.steps": 4, "sample.num_steps": 2},
        steps=4,
        results=("generated.trx", "scores.json", "report.html"),
    ),
    "pathology": Trial(
        name="pathology",
        data="tiles",
        sets={"folds": "all", "fit.batch_size": 4, "fit.steps": 4, "tissue.downsample": 4.0},
        steps=4,
        run="fold_1",
        before=4,
        results=("heat/t0.tiff", "heat/t1.tiff", "lesions.csv", "scores.json", "report.html"),
    ),
    "brain": Trial(
        name="brain",
        data="brains",
        sets={**_SMALL_NETWORK, "data.patch.shape_voxel": [16] * 3, "window.shape_voxel": [16] * 3},
        steps=4,
        results=("scores.json", "report.html", "predictions/*.nii.gz", "predictions/**/*.png"),
    ),
    "spleen": Trial(
        name="spleen",
        data="task09",
        sets={**_SMALL_NETWORK, "network.name": "unet", "data.prepare.spacing_mm": "keep",
              "data.patch.shape_voxel": [16, 16, 8], "window.shape_voxel": [16, 16, 8]},
        steps=4,
        results=("scores.json", "report.html", "predictions/spleen_9.nii.gz", "predictions/**/*.png"),
    ),
}  # fmt: skip
_EACH = pytest.mark.parametrize("trial", _TRIALS.values(), ids=_TRIALS)


def words_of(trial, action, data, out):
    sets = [part for key, value in trial.sets.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    return ["recipe", trial.name, action, str(data), "-o", str(out), "--device", "cpu", *sets]


@pytest.mark.parametrize(
    ("name", "number", "status"),
    [
        ("tractography", signal.SIGINT, 130),
        pytest.param("pathology", signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param("brain", signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param("spleen", signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_command_continues_where_it_was_and_leads_to_pictures(name, number, status, request, tmp_path):
    trial, out = _TRIALS[name], tmp_path / "run"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(script, more=()):
        words = words_of(trial, "both", request.getfixturevalue(trial.data), out)
        return run_python(script, [*words, *more], environment)

    at = trial.before + 3
    stopped = run(_STOPPED.format(at=at, number=int(number)))
    assert stopped.returncode == status, stopped.stderr
    assert "--resume" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    earlier = {path: path.stat().st_mtime_ns for path in out.glob("fold_*/model.safetensors")}
    assert len(earlier) == trial.before // trial.steps, "finished folds"
    assert not (out / "scores.json").exists()

    again = run(COMMAND, more=["--resume"])
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in earlier} == earlier
    events = read_events(out / trial.run / "events.jsonl")
    assert [event["event"] for event in events].count("run_started") == 2
    steps = [(event["step"] - event["num_steps"], event["step"]) for event in events if event["event"] == "steps"]
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(steps)), "no step is repeated"
    assert (steps[0][0], steps[-1][1]) == (0, trial.steps)
    assert any(end == 3 for _, end in steps), "where it was stopped"
    for pattern in trial.results:
        assert any(out.glob(pattern)), pattern


@pytest.fixture
def _listens_to_ctrl_c():
    """Tests started in the background of a shell begin with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@_EACH
@pytest.mark.usefixtures("_listens_to_ctrl_c")
def test_ctrl_c_and_a_full_disk_while_predicting_lose_nothing(trial, request, tmp_path, voxelocity, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, out, fsync = request.getfixturevalue(trial.data), tmp_path / "run", os.fsync
    trained = voxelocity(*words_of(trial, "train", data, out))
    assert trained.status == 0, trained.err
    weights = {path: path.read_bytes() for path in out.glob("**/model.safetensors")}

    def interrupted(descriptor):
        os.kill(os.getpid(), signal.SIGINT)
        fsync(descriptor)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cured = {"brain": (2, "make space"), "spleen": (2, "make space")}.get(trial.name, (1, "free some space"))
    for instead, status, said in (
        (interrupted, 130, f"voxelocity recipe {trial.name} predict {data} -o {out}"),
        (full, *cured),
    ):
        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", instead)
            result = voxelocity(*words_of(trial, "predict", data, out))
        assert result.status == status, result.err
        assert said in result.err
        assert str(out) in result.err
        assert not list(out.glob("**/.*.part"))
    again = voxelocity(*words_of(trial, "both", data, out), "--resume")
    assert again.status == 0, again.err
    assert {path: path.read_bytes() for path in weights} == weights
    for pattern in trial.results:
        assert any(out.glob(pattern)), pattern


@_EACH
def test_a_folder_without_data_is_named(trial, tmp_path, voxelocity):
    (tmp_path / "empty").mkdir()
    for data in ("empty", "missing"):
        result = voxelocity(*words_of(trial, "both", tmp_path / data, tmp_path / "run"))
        assert result.status == 2, result.err
        assert str(tmp_path / data) in result.err
        assert not (tmp_path / "run" / "run.yaml").exists()


@_EACH
def test_a_run_of_another_recipe_stays_as_it_is(trial, request, tmp_path, voxelocity):
    data, out = request.getfixturevalue(trial.data), tmp_path / "run"
    out.mkdir()
    (out / "run.yaml").write_text("recipe: other\n")
    (out / "model.json").write_text('{"recipe": "other"}')
    for more in ((), ("--resume",)):
        result = voxelocity(*words_of(trial, "both", data, out), *more)
        assert result.status == 2, result.err
        assert str(out) in result.err
        assert "-o" in result.err or "--overwrite" in result.err
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == ["model.json", "run.yaml"]
    assert (out / "run.yaml").read_text() == "recipe: other\n"


@_EACH
def test_a_model_of_another_recipe_a_damaged_and_a_missing_one_are_named(trial, request, tmp_path, voxelocity):
    data, out = request.getfixturevalue(trial.data), tmp_path / "run"
    folder = out / trial.run
    words = words_of(trial, "predict", data, out)
    missing = voxelocity(*words)
    assert missing.status == 2, missing.err
    assert f"{out} holds no finished" in missing.err
    assert not out.exists()
    folder.mkdir(parents=True)
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    for content, said in (('{"recipe": "other", "format": 1}', "recipe"), ("{", "damaged")):
        (folder / "model.json").write_text(content)
        result = voxelocity(*words)
        assert result.status == 2, result.err
        assert str(folder) in result.err
        assert said in result.err


@_EACH
def test_a_place_that_cannot_be_written_is_named(trial, request, tmp_path, voxelocity):
    (tmp_path / "file").write_text("")
    data = request.getfixturevalue(trial.data)
    for action in ("train", "benchmark"):
        result = voxelocity(*words_of(trial, action, data, tmp_path / "file" / "run"))
        assert result.status in (1, 2), result.err
        assert str(tmp_path / "file") in result.err
        assert "Traceback" not in result.err
