"""What ranks exchange, on two processes."""

import json

import torch

from shared.limits import HANGS_S
from shared.ranks import finish, start_ranks
from voxelocity.parallel import ALONE
from voxelocity_observe.core.host import cpu_budget

_EXCHANGE = """
import json, sys
import torch
torch.set_num_threads(7)
from voxelocity_observe.core.errors import RankLostError
from voxelocity.parallel import join_world
def print_found(kind, error, traceback):
    print(json.dumps({**found, "raised": [str(error), *error.__notes__]}))
sys.excepthook = print_found
with join_world() as world:
    rank, num_threads = world.place.rank, torch.get_num_threads()
    def fail_on(failing):
        if rank in failing:
            raise ValueError(f"of rank {rank}")
        return rank
    def outcome(work, *arguments):
        try:
            return work(*arguments)
        except (ValueError, RankLostError) as error:
            return f"{type(error).__name__}: {error}"
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    network = world.wrap_network(torch.nn.Linear(2, 1, bias=False), bucket_mb=1.0)
    found = {
        "num_threads": num_threads,
        "from_leader": world.from_leader({"rank": rank}),
        "gather": world.gather(rank),
        "agree": world.agree([rank + 0.25, -1.5], flag=rank == 1),
        "no flag": world.agree([], flag=False),
        "led": outcome(world.run_on_leader, lambda: fail_on([])),
        "led fails": outcome(world.run_on_leader, lambda: fail_on([0])),
        "together": outcome(world.together, lambda: fail_on([])),
        "one fails": outcome(world.run_on_all, lambda: fail_on([1])),
        "both fail": outcome(world.run_on_all, lambda: fail_on([0, 1])),
    }
    total = world.total((rank + 1.0) * weight)
    (total ** 2).sum().backward()
    found["total"], found["slope"] = total.tolist(), weight.grad.tolist()
    raise ValueError("planted")
"""
_LOST = "RankLostError: parallel: rank {} failed; see its own message"


def test_two_ranks_exchange_values_and_hear_of_each_others_failures(tmp_path):
    ended = finish(start_ranks(2, [], memory=tmp_path, script=_EXCHANGE))
    assert [status for status, _, _ in ended] == [1, 1], ended
    found = [json.loads(out) for _, out, _ in ended]
    for rank, values in enumerate(found):
        assert values["raised"] == ["planted", f"raised on rank {rank} of 2"]
        assert values["num_threads"] == cpu_budget(num_local_ranks=2), "whatever the launcher set"
        assert values["from_leader"] == {"rank": 0}
        assert values["gather"] == values["together"] == [0, 1]
        assert values["agree"] == [[0.25, -1.5], True]
        assert values["no flag"] == [[], False]
        assert values["led"] == 0
        assert values["led fails"] == ("ValueError: of rank 0" if rank == 0 else _LOST.format(0))
        assert values["one fails"] == ("ValueError: of rank 1" if rank == 1 else _LOST.format(1))
        assert values["both fail"] == ("ValueError: of rank 0" if rank == 0 else _LOST.format(0))
        # (1 + 2) times the weights on both; each has its part of the slope, times the number that a mean divides by.
        assert values["total"] == [3.0, 6.0]
        assert values["slope"] == [2 * 2 * (rank + 1) * value for value in values["total"]]


def test_a_rank_alone_exchanges_nothing():
    values = torch.ones(2)
    assert ALONE.total(values) is values
    assert ALONE.gather(1) == ALONE.together(lambda: 1) == [1]
    assert ALONE.run_on_leader(lambda: 2) == ALONE.from_leader(2) == ALONE.run_on_all(lambda: 2) == 2
    assert ALONE.agree([1.0], flag=True) == ([1.0], True)
    network = torch.nn.Linear(1, 1)
    assert ALONE.wrap_network(network, bucket_mb=1.0) is network


_TWICE = """
from voxelocity.parallel import join_world, one_group
with one_group():
    for number in range(2):
        with join_world() as world:
            found = world.gather((number, world.place.rank))
print(found)
"""


def test_ranks_that_have_met_once_join_as_often_as_they_like(tmp_path):
    ended = finish(start_ranks(2, [], memory=tmp_path, script=_TWICE), timeout_s=HANGS_S)
    assert ended == [(0, "[(1, 0), (1, 1)]\n", "")] * 2
