"""Hand-made features: what they measure, and that a regression of them tells phantoms apart."""

import json

import numpy as np
import torch

from shared.recipe_call import call_of
from voxelocity.core.batch import Batch
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, find_pieces
from voxelocity_lab.recipes.pathology.handmade import HandMade, fit_handmade, measure_features
from voxelocity_lab.recipes.pathology.patches import PatchBatches
from voxelocity_lab.recipes.pathology.score import roc_auc
from voxelocity_lab.recipes.pathology.settings import settings
from voxelocity_lab.recipes.pathology.slides import Blocks


def test_features_are_finite_also_of_patches_of_one_color():
    images = torch.cat([torch.zeros(1, 3, 96, 96), torch.ones(1, 3, 96, 96), torch.rand(1, 3, 96, 96)])
    found = measure_features(images)
    assert found.shape == (3, 78)
    assert torch.isfinite(found).all()
    assert torch.allclose(measure_features(images[2:]), found[2:], atol=1e-5)
    assert measure_features(torch.rand(1, 3, 32, 32)).shape == (1, 78)


def test_what_lies_around_changes_only_what_is_measured_over_the_whole_patch():
    images = torch.rand(1, 3, 96, 96)
    other = images.clone()
    other[..., :16] = 0.5
    is_same = (measure_features(images) == measure_features(other))[0]
    # Five planes with three moments, and three resolutions of two planes with four kinds of texture.
    middle = [*range(15, 30), *(30 + 16 * level + 8 + number for level in range(3) for number in range(8))]
    assert is_same[middle].all()
    assert not is_same[[number for number in range(78) if number not in middle]].all()


def test_a_regression_of_them_tells_unseen_phantoms_apart_and_is_kept_as_plain_data(tiles):
    call = call_of(tiles, None, overrides={"fit.batch_size": 16, "augment.enabled": False, "tissue.downsample": 4.0})
    pieces = find_pieces(tiles)
    seen, unseen = (
        PatchBatches(OpenPieces(chosen), Blocks(2**28), settings(call), seed=0) for chosen in (pieces[:3], pieces[3:])
    )
    fitted = fit_handmade(seen(step) for step in range(3))
    kept = HandMade.from_plain(json.loads(json.dumps(fitted.to_plain())))
    batch = unseen(0)
    scores = fitted(batch.image).numpy()
    assert np.array_equal(kept(batch.image).numpy(), scores)
    assert roc_auc(scores, batch.label[:, 1, 1].numpy() > 0.5) > 0.9


def test_patches_of_one_class_can_be_fitted():
    batch = Batch(image=torch.rand(4, 3, 96, 96), label=torch.ones(4, 3, 3), draws=(), regions=(), step=0)
    assert np.isfinite(fit_handmade([batch])(batch.image).numpy()).all()
