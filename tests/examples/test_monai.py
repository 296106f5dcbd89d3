"""The two scripts of each example: the same but for their import lines, and the same training."""

import ast
import csv
import difflib
import importlib.util
import json
import random
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.utils import set_determinism

from voxelocity_lab.bench import phantom

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "monai"
NAMES = ("spleen", "brats")
LARGEST_DIFFERENCE = 5e-4
"""Of two losses, as a share of their value. Labels and draws are the same; intensities are equal to float32's rounding,
and an optimizer's steps let that grow."""


@pytest.fixture(autouse=True)
def _random_states_stay_as_they_were():
    # A script seeds everything, as scripts do.
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    flags = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    set_determinism(None)
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Phantoms in the Decathlon's form for both examples; of every other case, each contrast in a file of its own."""
    place = tmp_path_factory.mktemp("examples")
    abdomens = phantom.PhantomSet(kind="ct", shape=(48, 52, 32), num_cases=5, spacing_mm=(1.4, 1.4, 2.4))
    write_cases(place / "spleen", abdomens, {"0": "background", **{str(n): f"organ {n}" for n in range(1, 7)}})
    brains = phantom.PhantomSet(kind="mr", shape=(44, 48, 40), num_cases=5)
    classes = ("background", "edema", "non-enhancing tumour", "enhancing tumour")
    write_cases(place / "brats", brains, {str(number): name for number, name in enumerate(classes)})
    return place


def write_cases(folder, phantoms, labels):
    folder.mkdir()
    affine = np.diag([*phantoms.spacing_mm, 1.0])
    listing = []
    for index in range(phantoms.num_cases):
        image, label = phantom.draw(phantoms, index)
        parts = [np.moveaxis(image, 0, -1).squeeze()] if index % 2 == 0 else list(image)
        names = [f"./image_{index}_{number}.nii.gz" for number in range(len(parts))]
        for name, part in [*zip(names, parts, strict=True), (f"./label_{index}.nii.gz", label)]:
            nib.save(nib.Nifti1Image(part, affine), folder / name)
        listing.append({"image": names[0] if len(names) == 1 else names, "label": f"./label_{index}.nii.gz"})
    (folder / "dataset.json").write_text(json.dumps({"labels": labels, "training": listing}))


def script(name, side):
    return EXAMPLES / name / f"with_{side}.py"


def run(name, side, data, out, *options):
    """Losses, scores and summary of a few steps, made in this process."""
    spec = importlib.util.spec_from_file_location(f"{name}_{side}", script(name, side))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    words = ["--data", data / name, "--out", out, "--small", "--patch", 16 if name == "brats" else 24, "--steps", 4]
    module.main([str(word) for word in (*words, *options)])
    losses = column(out / "losses.csv", "loss")
    scores = column(out / "metrics.csv", "mean_dice")
    return losses, scores, json.loads((out / "summary.json").read_text())


def column(path, name):
    return [float(row[name]) for row in csv.DictReader(path.read_text().splitlines())]


def without_imports(text):
    """The lines of a script but for its imports, and for empty lines, which stand between groups of them."""
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    taken = {line for node in imports for line in range(node.lineno, node.end_lineno + 1)}
    return [line for number, line in enumerate(text.splitlines(), start=1) if line.strip() and number not in taken]


@pytest.mark.parametrize("name", NAMES)
def test_the_scripts_differ_in_nothing_but_import_lines(name):
    plain, fast = (script(name, side).read_text() for side in ("monai", "voxelocity"))
    assert list(difflib.unified_diff(without_imports(plain), without_imports(fast))) == []
    assert "voxelocity" not in plain
    assert "from voxelocity.monai import CacheDataset" in fast
    assert plain != fast


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "options"), [("spleen", ()), ("spleen", ("--optimizer", "novograd")), ("brats", ())])
def test_both_scripts_train_to_the_same_losses_and_scores(name, options, data, tmp_path):
    losses, scores, summary = run(name, "monai", data, tmp_path / "monai", *options)
    ours, own_scores, own_summary = run(name, "voxelocity", data, tmp_path / "voxelocity", *options)
    assert len(losses) == 4
    assert len(set(losses)) == 4, "every batch is another"
    np.testing.assert_allclose(ours, losses, rtol=LARGEST_DIFFERENCE)
    np.testing.assert_allclose(own_scores, scores, atol=0.01)
    assert set(own_summary) == set(summary)
    assert own_summary["num_steps"] == 4
    assert own_summary["samples_per_s"] > 0


@pytest.mark.nightly
def test_another_seed_trains_to_other_losses(data, tmp_path):
    losses, _, _ = run("spleen", "monai", data, tmp_path / "0")
    others, _, _ = run("spleen", "monai", data, tmp_path / "1", "--seed", 1)
    assert np.abs(np.subtract(losses, others)).max() > 10 * LARGEST_DIFFERENCE * max(losses)
