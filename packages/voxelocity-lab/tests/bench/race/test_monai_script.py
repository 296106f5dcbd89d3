from __future__ import annotations

import ast
import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
import torch

import voxelocity
from shared.limits import HANGS_S
from voxelocity.data.augment import EFFECTS, AugmentConfig
from voxelocity.data.augment.built_in import BuiltInEffect
from voxelocity.planning import Planned, make_plan
from voxelocity.step import LOSSES, OPTIMIZERS, LossConfig, ScheduleConfig, build_network, learning_rate_at
from voxelocity_lab.bench.body import make_bodies
from voxelocity_lab.bench.race import monai_script
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS, _unlike, script_job
from voxelocity_lab.bench.race.monai_script import ScriptSettings, learning_rate, read_settings
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import cpu_budget

SCRIPT = Path(monai_script.__file__)
SCRIPT_OPTIMIZERS = get_args(get_type_hints(ScriptSettings)["optimizer"])
SMALL = {**LIMITS, **PEER_KEYS} | {
    "data.prepare.spacing_mm": [6.0, 6.0, 6.0],
    "data.patch.shape_voxel": [16, 16, 16],
    "network.name": "unet",
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
}


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bodies(tmp_path_factory.mktemp("data") / "phantoms", 4, scale=0.2)


def planned_on(phantoms: Path, **keys: Any) -> Planned:
    return make_plan(voxelocity.open(phantoms), device="cpu", overrides=SMALL | keys)


def job_of(planned: Planned, **changes: Any) -> dict[str, Any]:
    options = {"recipe": "fast", "target_dice": 0.9, "budget_s": 60.0, "epochs_per_validation": 2} | changes
    return script_job(planned, **options) | {"num_threads": 1}


def run(job: dict[str, Any], out: Path, *arguments: str) -> dict[str, Any]:
    """The record written by the script, run as a reader would: on its own, without the package on its path."""
    path = out.with_suffix(".job.json")
    path.write_text(json.dumps(job))
    command = [sys.executable, "-I", str(SCRIPT), str(path), "--out", str(out)]
    subprocess.run([*command, *arguments], check=True, cwd=out.parent, timeout=HANGS_S)
    record: dict[str, Any] = json.loads(out.read_text())
    return record


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", ["plain", "fast"])
def test_two_epochs_give_a_complete_record(phantoms: Path, tmp_path: Path, recipe: str) -> None:
    job = job_of(planned_on(phantoms), recipe=recipe, target_dice=1.0, budget_s=600.0) | {"seed": 3, "num_workers": 1}
    record = run(job, tmp_path / "result.json", "--max-epochs", "2")
    assert record["reached"] is False
    assert record["seconds_to_target"] is None
    assert record["epochs"] == len(record["loss_history"]) == 2
    assert all(math.isfinite(loss) and loss > 0 for loss in record["loss_history"])
    ((seconds, epoch, dice),) = record["dice_history"]
    assert epoch == 2
    assert 0 <= dice < 1
    assert 0 < record["seconds_per_epoch"] < seconds <= record["seconds"]
    assert sum(record["seconds_by_activity"].values()) <= record["seconds"]
    assert min(record["seconds_by_activity"].values()) > 0
    # 2 epochs of 3 scans, a patch each
    assert record["patches_per_second"] == pytest.approx(6 / (2 * record["seconds_per_epoch"]), rel=1e-6)
    assert record["settings"] | job == record["settings"]


@pytest.mark.nightly
def test_training_stops_at_the_validation_that_reaches_the_target(phantoms: Path, tmp_path: Path) -> None:
    job = job_of(planned_on(phantoms), target_dice=1e-6, epochs_per_validation=1)
    record = run(job, tmp_path / "result.json", "--weights", str(tmp_path / "weights.pt"))
    assert record["reached"] is True
    assert record["epochs"] == 1
    assert record["seconds_to_target"] == record["seconds"] >= record["dice_history"][0][0]
    assert torch.load(tmp_path / "weights.pt", weights_only=True)


@pytest.mark.nightly
def test_a_budget_ends_in_the_middle_of_an_epoch_and_counts_from_the_start_of_the_process(
    phantoms: Path, tmp_path: Path
) -> None:
    job = job_of(planned_on(phantoms), target_dice=0.0, budget_s=1.0, epochs_per_validation=0)
    record = run(job, tmp_path / "result.json", "--began", "0")
    assert (record["epochs"], record["dice_history"], record["reached"]) == (1, [], False)
    assert record["patches_per_second"] * record["seconds_per_epoch"] == pytest.approx(2.0), "one step"


def test_the_script_trains_what_the_plan_says(phantoms: Path, tmp_path: Path) -> None:
    planned = planned_on(phantoms)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job_of(planned)))
    settings = read_settings(path)
    plan, split = planned.plan, planned.cases.split(0)
    assert [case["image"] for case in settings.held_out] == [str(ref.images[0]) for ref in split.validation]
    assert len(settings.training) == len(split.training) == 3
    assert settings.images_per_batch * settings.patches_per_image == plan.data.batch_size

    decayed, kept = monai_script.build_optimizer(torch.nn.Conv3d(1, 1, 1), settings).param_groups
    assert plan.optimizer.learning_rate == decayed["lr"] == kept["lr"]
    assert (0.9, plan.optimizer.second_momentum) == decayed["betas"] == kept["betas"]
    assert (plan.optimizer.weight_decay, 0.0) == (decayed["weight_decay"], kept["weight_decay"])

    ours = plan.data.augment
    theirs = {type(transform).__name__: transform for transform in monai_script.augmentation(settings)}
    changing = {name.removesuffix("_probability") for name, value in ours.model_dump().items()
                if name.endswith("_probability") and value not in (0.0, (0.0, 0.0, 0.0))}  # fmt: skip
    names = {"affine": "RandAffined", "flip": "RandFlipd", "noise": "RandGaussianNoised",
             "intensity_scale": "RandScaleIntensityd", "intensity_shift": "RandShiftIntensityd",
             "gamma": "RandAdjustContrastd"}  # fmt: skip
    assert {names[name] for name in changing} == set(theirs) - {"RandCropByLabelClassesd"}
    for name in changing - {"flip"}:
        assert theirs[names[name]].prob == getattr(ours, f"{name}_probability")


def test_the_fast_recipe_has_what_is_best_on_its_device(phantoms: Path) -> None:
    planned = planned_on(phantoms, **{"precision.channels_last": True})
    on_gpu = dataclasses.replace(planned, machine=dataclasses.replace(planned.machine, device="cuda", device_index=0))
    assert job_of(planned)["channels_last"] is True
    assert job_of(on_gpu)["channels_last"] is False, "its norms are in the contiguous layout"
    assert job_of(planned, recipe="plain")["num_workers"] == 2
    assert job_of(planned)["num_workers"] == max(2, cpu_budget())


@pytest.mark.parametrize(
    "network",
    [
        {"network.name": "unet", "network.widths": [4, 8], "network.strides": [[2, 2, 2]]},
        {"network.name": "unet", "network.num_res_units": 1},
        {"network.name": "dynunet", "network.widths": [4, 8, 8], "network.strides": [[2, 2, 1], [2, 2, 2]]},
    ],
)
def test_the_network_of_the_script_is_that_of_the_plan(phantoms: Path, tmp_path: Path, network: dict[str, Any]) -> None:
    planned = planned_on(phantoms, **network)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job_of(planned)))
    theirs = monai_script.build_network(read_settings(path), 1).eval()
    ours = build_network(planned.plan.network, num_channels=1, num_classes=4, seed=0).eval()
    state = theirs.state_dict()
    ours.load_state_dict({name: state[name] for name in ours.state_dict()})
    image = torch.randn(1, 1, 16, 16, 16)
    assert torch.equal(theirs(image), ours(image))


def test_the_learning_rate_is_that_of_the_plan(phantoms: Path, tmp_path: Path) -> None:
    planned = planned_on(phantoms)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job_of(planned, target_dice=0.0)))
    schedule: ScheduleConfig = planned.plan.schedule
    assert schedule.decay == "cosine"
    shares = (0.0, 0.01, 0.05, 0.5, 1.0)
    for share in shares:
        rate = learning_rate_at(share, peak=planned.plan.optimizer.learning_rate, config=schedule)
        assert learning_rate(read_settings(path), share) == pytest.approx(rate)
    constant = planned_on(phantoms, **{"train.target_dice": 0.5})
    path.write_text(json.dumps(job_of(constant)))
    assert {learning_rate(read_settings(path), share) for share in shares} == {constant.plan.optimizer.learning_rate}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"data.augment.blur_probability": 0.1}, "data.augment.blur_probability"),
        (
            {"data.augment.quarter_turn_probability": [0.0, 0.0, 0.5], "data.augment.shear": 0.1},
            "data.augment.quarter_turn_probability, data.augment.shear",
        ),
        ({"optimizer.name": "sgd", "loss.name": "dice"}, "loss.name, optimizer.name"),
        # Without overlapping classes, the script has only the default.
        *(({"loss.name": name}, "loss.name") for name in LOSSES if name != LossConfig().name),
        *(({"optimizer.name": name}, "optimizer.name") for name in OPTIMIZERS if name not in SCRIPT_OPTIMIZERS),
        ({"data.prepare.intensity.mode": "none"}, "data.prepare.intensity.mode"),
    ],
)
def test_a_plan_that_the_script_cannot_follow_is_refused(phantoms: Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(
        ConfigError, match=f"no counterpart for the plan's {named}, so the sides would train differently"
    ):
        job_of(planned_on(phantoms, **keys))


FOLLOWED = {
    "affine_probability": 0.5,
    "flip_probability": (0.5, 0.0, 0.0),
    "noise_probability": 0.5,
    "intensity_scale_probability": 0.5,
    "intensity_shift_probability": 0.5,
    "gamma_probability": 0.5,
}
LIKE_THE_SCRIPT = AugmentConfig.only(**FOLLOWED, rotation_share=1.0, scale_share=1.0, gamma_keeps="range")


@pytest.mark.parametrize("effect", EFFECTS, ids=[effect.name for effect in EFFECTS])
def test_an_effect_that_the_script_lacks_is_refused_without_being_named_for_it(effect: BuiltInEffect) -> None:
    assert _unlike(LIKE_THE_SCRIPT) == []
    often = (0.1, 0.1, 0.1) if isinstance(getattr(LIKE_THE_SCRIPT, effect.probability), tuple) else 0.1
    changed = LIKE_THE_SCRIPT.model_copy(update={effect.probability: often})
    assert _unlike(changed) == ([] if effect.probability in FOLLOWED else [effect.probability])


CHANGED: dict[str, Any] = {
    "enabled": False,
    "ramp_epochs": 3,
    "effects": ("mine",),
    "swap_pairs": (("left", "right"),),
    "rotation_degrees": (1.0, 2.0, 3.0),
    "scale_range": (0.9, 1.3),
    "translate_voxel": (0.0, 1.0, 0.0),
    "label_interpolation": "vote",
    "noise_std_range": (0.1, 0.2),
    "intensity_scale_range": (0.9, 1.3),
    "intensity_shift_range": (0.1, 0.2),
    "gamma_range": (0.9, 1.3),
    "gamma_keeps": "moments",
    "rotation_share": 0.5,
    "scale_share": 0.5,
    "shear": 0.5,
    **dict.fromkeys(FOLLOWED, 0.25),
    "flip_probability": (0.25, 0.5, 0.0),
}


def test_each_key_of_what_the_script_does_is_passed_on_or_refused(phantoms: Path) -> None:
    planned = planned_on(phantoms)
    keys = {key for effect in EFFECTS if effect.probability in FOLLOWED for key in (effect.probability, *effect.keys)}
    assert CHANGED.keys() == keys | {"enabled", "ramp_epochs", "effects"}

    def job_with(augment: AugmentConfig) -> dict[str, Any]:
        data = planned.plan.data.model_copy(update={"augment": augment})
        return job_of(dataclasses.replace(planned, plan=planned.plan.model_copy(update={"data": data})))

    for key, value in CHANGED.items():
        changed = LIKE_THE_SCRIPT.model_copy(update={key: value})
        if _unlike(changed):
            assert _unlike(changed) == [key]
        else:
            assert job_with(changed) != job_with(LIKE_THE_SCRIPT), f"{key} is not passed on"


def test_every_setting_of_the_script_without_a_default_is_in_the_job(phantoms: Path) -> None:
    needed = {field.name for field in dataclasses.fields(ScriptSettings) if field.default is dataclasses.MISSING}
    assert needed <= job_of(planned_on(phantoms)).keys()


@pytest.mark.parametrize(("name", "allowed"), [("monai_script.py", "monai"), ("nnunet_script.py", "nnunetv2")])
def test_a_script_imports_nothing_but_its_own_toolkit_and_the_standard_library(name: str, allowed: str) -> None:
    nodes = ast.walk(ast.parse(SCRIPT.with_name(name).read_text()))
    imported = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
    roots = {str(name).split(".")[0] for name in imported}
    assert roots - set(sys.stdlib_module_names) - {"numpy"} == {"torch", allowed}


@pytest.mark.parametrize("regions", [((1, 2), (2,)), ()])
def test_a_class_in_neither_has_no_dice_and_one_that_is_not_there_has_zero(
    regions: tuple[tuple[int, ...], ...],
) -> None:
    trainer = object.__new__(monai_script.Trainer)
    settings = {"num_classes": 3, "regions": regions, "patch_voxel": (4, 4, 4), "window_overlap": 0.25}
    trainer.settings = SimpleNamespace(**settings, precision="float32")  # type: ignore[assignment]
    trainer.watch = SimpleNamespace(device=torch.device("cpu"), charge=lambda name: None)  # type: ignore[assignment]
    trainer.memory_format = torch.contiguous_format
    # Images are logits: of the two regions, or of the background and the two classes.
    trainer.net = torch.nn.Identity()
    first = 0 if regions else 1
    label = torch.zeros(1, 1, 4, 4, 4)
    label[..., 0] = 1
    logits = torch.full((1, first + 2, 4, 4, 4), -1.0)
    logits[:, :first] = 0.0
    logits[:, first, ..., 0] = 1.0
    trainer.held_out_loader = [{"image": logits, "label": label}]
    assert trainer.validate() == pytest.approx(1.0), "nobody sees the second class"
    invented = logits.clone()
    invented[:, first + 1, ..., 1:] = 2.0
    trainer.held_out_loader.append({"image": invented, "label": label})
    assert trainer.validate() == pytest.approx(0.5), "the first is right twice, the second is wrong in its only case"
