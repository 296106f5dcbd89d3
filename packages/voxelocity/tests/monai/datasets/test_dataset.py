import pickle

import pytest
import torch
from monai.transforms import Compose, EnsureType, Lambda, OneOf, RandFlip, RandLambda, RandomOrder, SomeOf

from voxelocity.monai.chain import compile
from voxelocity.monai.datasets.dataset import DataChain, first_random

ONE = torch.ones(1)
PLUS, TIMES = Lambda(lambda x: x + 1), RandLambda(lambda x: x * 10)


def _run(chain, item, **part):
    kept = chain.fixed(item, end=part.get("start"))
    return chain.make(chain.defer(kept, **part))


@pytest.mark.parametrize(
    ("transforms", "place"),
    [([PLUS, TIMES], 1), ([TIMES, PLUS], 0), ([PLUS, PLUS], None), ([PLUS, str], 1), ([], None)],
)
def test_the_first_random_transform_is_where_monai_finds_it(transforms, place):
    assert first_random(Compose(transforms)) == place


@pytest.mark.parametrize("kind", [OneOf, SomeOf, RandomOrder])
def test_a_chain_that_draws_as_a_whole_has_no_fixed_part(kind):
    compose = kind([PLUS, PLUS])
    assert first_random(compose) == 0
    chain = DataChain(compose)
    assert chain.fixed(1) == 1
    assert _run(chain, 1) in (1, 2, 3)


@pytest.mark.parametrize("transforms", [[PLUS, TIMES], [TIMES, PLUS], [PLUS, PLUS], [PLUS, torch.neg], []])
@pytest.mark.parametrize("log_stats", [False, True])
def test_the_two_parts_together_are_the_whole(transforms, log_stats):
    compose = Compose(transforms, log_stats=log_stats)
    chain = DataChain(compose)
    assert (chain.chain is None) is log_stats
    assert _run(chain, ONE) == compose(ONE)


def test_parts_may_be_cut_elsewhere():
    chain = DataChain(Compose([PLUS, TIMES, PLUS]))
    assert _run(chain, ONE, start=2) == 21
    assert [part for part in chain.fixed_content(end=2) if not isinstance(part, dict)] == [PLUS, TIMES]
    assert chain.fixed_content()[-1]["map_items"] is True


class _Own(Compose):
    pass


@pytest.mark.parametrize(
    ("compose", "words"),
    [
        (_Own([PLUS]), "_Own is a custom container"),
        (Compose([PLUS], log_stats="a logger"), "log_stats is set: only MONAI's code logs"),
        (Compose([RandFlip()], lazy=True), "lazy=True cannot be split"),
    ],
)
def test_a_chain_that_only_monai_can_run_says_why(compose, words):
    chain = DataChain(compose)
    assert chain.chain is None
    assert words in chain.refusal


def test_a_compiled_chain_keeps_its_settings():
    compose = Compose([RandFlip()])
    chain = DataChain(compile(compose, lower=False)).chain
    assert chain is not None
    assert not chain.random.is_lowered
    assert DataChain(compose).chain.random.is_lowered


def test_other_transforms_in_the_same_chain_are_noticed():
    compose = Compose([PLUS])
    chain = DataChain(compose)
    assert chain.is_of(compose)
    compose.transforms = [PLUS]
    chain = DataChain(compose)
    compose.transforms[0] = TIMES
    assert not chain.is_of(compose)
    assert not chain.is_of(Compose([PLUS]))
    nested = OneOf([PLUS])
    compose = Compose([nested])
    chain = DataChain(compose)
    nested.transforms = (TIMES,)
    assert not chain.is_of(compose)


def test_a_chain_travels_to_other_processes():
    chain = pickle.loads(pickle.dumps(DataChain(Compose([EnsureType(), RandFlip(prob=1.0)]))))
    assert torch.equal(
        _run(chain, torch.arange(8.0).reshape(1, 2, 2, 2)), torch.arange(8.0).reshape(1, 2, 2, 2).flip(1, 2, 3)
    )
