import pytest
import torch
from monai.transforms import Compose, Lambda, OneOf, RandLambda, RandomOrder, SomeOf

from voxelocity.interop.monai.datasets.chain import first_random, fixed_content, run_fixed, run_random, run_whole

ONE = torch.ones(1)
PLUS, TIMES = Lambda(lambda x: x + 1), RandLambda(lambda x: x * 10)


@pytest.mark.parametrize(
    ("transforms", "place"),
    [([PLUS, TIMES], 1), ([TIMES, PLUS], 0), ([PLUS, PLUS], None), ([PLUS, str], 1), ([], None)],
)
def test_the_first_random_transform_is_where_monai_finds_it(transforms, place):
    assert first_random(Compose(transforms)) == place


@pytest.mark.parametrize("kind", [OneOf, SomeOf, RandomOrder])
def test_a_chain_that_draws_as_a_whole_has_no_fixed_part(kind):
    chain = kind([PLUS, PLUS])
    assert first_random(chain) == 0
    assert run_fixed(chain, 1) == 1
    assert run_random(chain, 1) in (1, 2, 3)


@pytest.mark.parametrize("transforms", [[PLUS, TIMES], [TIMES, PLUS], [PLUS, PLUS], [PLUS, torch.neg], []])
def test_the_two_parts_together_are_the_whole(transforms):
    chain = Compose(transforms)
    assert run_random(chain, run_fixed(chain, ONE)) == run_whole(chain, ONE)


def test_parts_may_be_cut_elsewhere():
    chain = Compose([PLUS, TIMES, PLUS])
    assert run_random(chain, run_fixed(chain, ONE, end=2), start=2) == 21
    assert [one for one in fixed_content(chain, end=2) if not isinstance(one, dict)] == [PLUS, TIMES]
    assert fixed_content(chain)[-1]["map_items"] is True
