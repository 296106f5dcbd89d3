"""Which classes count in the mean of a validation on the way, and that both validations judge the same predictions."""

import math
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch

from shared.small_predictor import small_spec
from voxelocity.core.records import CaseScore
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import CacheConfig
from voxelocity.data.pipeline import PreparedCases
from voxelocity.infer import Predictor, WindowConfig
from voxelocity.training import scoring, validation
from voxelocity.training.scoring import mean_dice, score_cases, score_prepared


class _BackgroundEverywhere:
    """In place of `Predictor`."""

    def __init__(self, network, spec, preparation, **options):
        pass

    def predict_prepared(self, volumes):
        for volume in volumes:
            yield volume, torch.zeros(volume.label.shape, dtype=torch.uint8)


def test_a_network_that_finds_nothing_reaches_no_target_by_classes_that_are_not_there(monkeypatch):
    monkeypatch.setattr(scoring, "Predictor", _BackgroundEverywhere)
    label = np.zeros((4, 4, 4), np.uint8)
    label[0, 0] = [0, 1, 1, 2]
    volume = SimpleNamespace(case_id="a", label=label)
    prepared = [SimpleNamespace(load=lambda: volume)]
    names = ("background", *(f"class {index}" for index in range(1, 105)))
    spec = SimpleNamespace(
        class_names=names,
        labels=dict.fromkeys(names, 0),
        scored={name: (index,) for index, name in enumerate(names) if index > 0},
        ignored=None,
        window=WindowConfig(shape_voxel=(4, 4, 4), overlap=0.5),
        preparation=lambda: None,
    )
    mean, dice = mean_dice(score_prepared(torch.nn.Identity(), prepared, spec, device=torch.device("cpu")))
    assert mean == 0.0
    assert sum(math.isnan(value) for value in dice.values()) == 102


class LeftAndRight(torch.nn.Module):
    """Names bright voxels by their side of the window: class 1 in the lower half of x, class 2 in the upper."""

    def __init__(self) -> None:
        super().__init__()
        self.num_passes = 0

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        self.num_passes += 1
        is_bright, middle = windows[:, 0] > 0.5, windows.shape[2] // 2
        logits = torch.zeros((len(windows), 3, *windows.shape[2:]))
        logits[:, 0] = 4.0 * ~is_bright
        logits[:, 1, :middle] = 8.0 * is_bright[:, :middle]
        logits[:, 2, middle:] = 8.0 * is_bright[:, middle:]
        return logits


@pytest.mark.parametrize(("swap_pairs", "dice"), [([["eye_L", "eye_R"]], 1.0), ([], 1 / 3)])
def test_both_validations_mirror_and_swap_alike(tmp_path, swap_pairs, dice):
    label = np.zeros((8, 6, 4), np.uint8)
    label[1, 2:4, 1:3], label[6, 2:4, 1:3] = 1, 2
    for name, voxels in (("image", (label > 0).astype(np.float32)), ("label", label)):
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / f"{name}.nii.gz")
    refs = [VolumeRef(case_id="a", images=(tmp_path / "image.nii.gz",), label=tmp_path / "label.nii.gz")]
    spec = small_spec(
        labels={0: "background", 1: "eye_L", 2: "eye_R"},
        prepare={"intensity": {"mode": "none"}},
        window={"shape_voxel": [8, 6, 4], "mirror_axes": [0], "swap_pairs": swap_pairs},
    )
    cases = PreparedCases(
        refs, label_values=(0, 1, 2), prepare=spec.prepare, cache=CacheConfig(tier="none"), warn=pytest.fail
    )
    network, device = LeftAndRight(), torch.device("cpu")
    on_the_way, _ = mean_dice(score_prepared(network, cases, spec, device=device))
    assert network.num_passes == 2
    predictor = Predictor(network, spec, spec.preparation(), device=device)
    ((score, _, _),) = score_cases(predictor, refs, spec, num_threads=0)
    assert on_the_way == pytest.approx(score.mean_dice) == pytest.approx(dice)
    ((score, _, _),) = score_cases(predictor, refs, spec, num_threads=0, may_measure_surface=lambda: False)
    assert score.mean_dice == pytest.approx(dice)
    assert not score.hd95_mm


@pytest.mark.parametrize(
    ("device", "leads", "target", "dice", "axes"),
    [
        ("cuda", True, 0.9, [0.5, 0.6], [(), ()]),
        ("cuda", True, 0.9, [0.89, 0.91, 0.95, 0.96], [(), (0, 1), (), (0, 1)]),
        ("cuda", True, 0.9, [math.nan], [()]),
        ("cuda", True, 0.0, [0.5], [(0, 1)]),
        ("cpu", True, 0.9, [0.5], [(0, 1)]),
        # Led by a rank with a GPU: all ranks exchange scores equally often.
        ("cpu", False, 0.9, [0.89, 0.91], [(), (0, 1)]),
    ],
)
def test_windows_are_mirrored_only_near_a_target_which_mirrored_ones_alone_reach(
    monkeypatch, device, leads, target, dice, axes
):
    window, seen, left = WindowConfig(shape_voxel=(4, 4, 4), mirror_axes=(0, 1)), [], list(dice)
    of_leader = (window, window.model_copy(update={"mirror_axes": ()}), 1)

    def score(network, prepared, spec, **options):
        seen.append(spec.window.mirror_axes)
        return [CaseScore(case_id="a", dice={"x": left.pop(0)})]

    monkeypatch.setattr(validation, "score_prepared", score)
    spec = SimpleNamespace(window=window)
    spec.model_copy = lambda update: SimpleNamespace(**update)
    session = SimpleNamespace(
        spec=spec,
        device=SimpleNamespace(type=device),
        planned=SimpleNamespace(fold=0, cases=SimpleNamespace(split=lambda fold: SimpleNamespace(held_out=("a",)))),
        plan=SimpleNamespace(train=SimpleNamespace(target_dice=target)),
        stop=SimpleNamespace(check=lambda: None),
        world=SimpleNamespace(
            from_leader=lambda value: value if leads else of_leader,
            together=lambda work: [work()],
            place=SimpleNamespace(rank=0, size=1),
        ),
    )

    class Cases(list):
        def shape(self, index):
            return (8, 4, 4)

        def part(self, indices):
            return self

    checks = validation.Validation(session, Cases([0]), Cases([0]), is_full=True, report_s=0.0)
    num_validations = axes.count(()) or 1
    results = [checks.intermediate(None)[0] for _ in range(num_validations)]
    assert seen == axes
    # Windows of 4 voxels, half overlapping, cover 8 voxels three times.
    last = axes[-2:] if axes[-1] and len(axes) > 1 else axes[-1:]
    assert checks._last_passes == sum(12 if is_whole else 3 for is_whole in last)
    reached = [value for value in results if value >= target > 0.0]
    assert reached == [value for value, axis in zip(dice, axes, strict=True) if axis and value >= target > 0.0]


@pytest.mark.parametrize(
    ("training_s", "train", "num_cases"),
    [(60.0, {}, 1), (120.0, {}, 3), (3600.0, {}, 16), (1.0, {}, 1), (60.0, {"target_dice": 0.8}, 16),
     (60.0, {"validate_every_steps": 5}, 16), (60.0, {"validation_share": 0.33}, 13)],
)  # fmt: skip
def test_validations_on_the_way_leave_cases_out_rather_than_come_late(training_s, train, num_cases, monkeypatch):
    settings = {"target_dice": 0.0, "validate_every_steps": 0, "validation_share": 0.01, **train}
    session = SimpleNamespace(
        spec=SimpleNamespace(window=None),
        device=torch.device("cpu"),
        plan=SimpleNamespace(train=SimpleNamespace(**settings)),
        planned=SimpleNamespace(fold=0, cases=SimpleNamespace(split=lambda fold: SimpleNamespace(held_out=True))),
    )
    checks = validation.Validation(session, range(16), range(16), is_full=False, report_s=0.0)
    monkeypatch.setattr(validation.Validation, "intermediate_s", property(lambda checks: 0.5 * checks.num_intermediate))
    checks.fit_intermediate(training_s)
    assert checks.num_intermediate == num_cases
    checks.continue_with(2)
    checks.fit_intermediate(training_s)
    assert checks.num_intermediate == 2, "as in the session before"
