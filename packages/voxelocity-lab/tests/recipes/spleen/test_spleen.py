"""What the recipe of the spleen refuses; `recipes/test_both.py` trains and predicts with it."""

import pytest

from shared.recipe_call import call_of
from voxelocity_lab.recipes.spleen import recipe
from voxelocity_observe.core.errors import DatasetError


def test_data_of_several_organs_are_refused(tiny_msd, tmp_path):
    with pytest.raises(DatasetError, match="this recipe is for one organ"):
        recipe.train(call_of(tiny_msd, tmp_path / "run"))
