import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import Rand2DElastic, Rand2DElasticd, Rand3DElastic, Rand3DElasticd

from shared.lowered import check_lowered_alike
from shared.monai_items import make_item
from voxelocity.monai.lower import lowerings

LOWERINGS = lowerings(exact_noise=True)
TOLERANCE = 2e-4
"""Of the largest value: with one thread, torch sums the smoothed field in another order than with several."""
settled = settings(max_examples=20)
common = {
    "seed": st.integers(0, 10_000),
    "prob": st.sampled_from([0.0, 0.5, 1.0]),
    "padding": st.sampled_from(["zeros", "border", "reflection"]),
    "is_tracked": st.booleans(),
}


@pytest.fixture(autouse=True)
def _several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@settled
@given(shape=st.tuples(*[st.integers(2, 16)] * 3), size=st.sampled_from([None, 9]), **common)
def test_rand_3d_elastic_in_both_forms_gives_what_monai_gives(shape, size, seed, prob, padding, is_tracked):
    item = make_item(shape, seed=seed, is_tracked=is_tracked)
    options = {"sigma_range": (1.0, 4.0), "magnitude_range": (5.0, 60.0), "prob": prob, "spatial_size": size}
    options |= {"rotate_range": [0.2] * 3, "translate_range": [2.0] * 3, "padding_mode": padding}
    transform = Rand3DElasticd(keys=["image", "label"], mode=("bilinear", "nearest"), **options)
    transform.set_random_state(seed)
    check_lowered_alike(transform, item, TOLERANCE, ["label"])
    alone = Rand3DElastic(mode="nearest", **options)
    alone.set_random_state(seed)
    check_lowered_alike(alone, item["image"], TOLERANCE, [""])


@settled
@given(shape=st.tuples(*[st.integers(4, 24)] * 2), spacing=st.sampled_from([6, (4, 7)]), **common)
def test_rand_2d_elastic_in_both_forms_gives_what_monai_gives(shape, spacing, seed, prob, padding, is_tracked):
    item = make_item(shape, seed=seed, is_tracked=is_tracked)
    options = {"magnitude_range": (1.0, 2.0), "prob": prob, "rotate_range": 0.3, "padding_mode": padding}
    spacing_of_form = spacing if isinstance(spacing, tuple) else (spacing, spacing)
    transform = Rand2DElasticd(keys=["image", "label"], spacing=spacing, mode=("bilinear", "nearest"), **options)
    transform.set_random_state(seed)
    check_lowered_alike(transform, item, TOLERANCE, ["label"])
    alone = Rand2DElastic(spacing=spacing_of_form, mode="nearest", **options)
    alone.set_random_state(seed)
    check_lowered_alike(alone, item["image"], TOLERANCE, [""])


@pytest.mark.parametrize("form", [Rand2DElastic, Rand3DElastic])
def test_what_cannot_be_equalled_says_why(form):
    options = {"spacing": (4, 4)} if form is Rand2DElastic else {"sigma_range": (1, 2)}
    assert "mode 3 interpolates" in LOWERINGS[form].why_not(form(magnitude_range=(1, 2), mode=3, **options))
    on_device = form(magnitude_range=(1, 2), device=torch.device("cuda"), **options)
    assert "device=cuda moves the work there" in LOWERINGS[form].why_not(on_device)
    assert LOWERINGS[form].why_not(form(magnitude_range=(1, 2), **options)) == ""
