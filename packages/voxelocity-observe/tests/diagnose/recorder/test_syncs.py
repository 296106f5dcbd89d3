"""Waits for the device are counted by line, and the calls stay exactly what they were."""

import copy
import inspect
import pickle
import threading

import pytest
import torch

from shared.watched_moment import WatchedMoment
from voxelocity_observe.diagnose.recorder.lines import OwnCode
from voxelocity_observe.diagnose.recorder.syncs import _METHODS, Syncs


@pytest.fixture
def moment():
    return WatchedMoment("forward")


@pytest.fixture
def syncs(moment):
    syncs = Syncs(moment, OwnCode(script=__file__))
    syncs.start()
    yield syncs
    syncs.stop()


def counted(syncs, moment):
    syncs.report(moment)
    return {(event["call"], event["line"]): event["count"] for event in moment.written("sync")}


def test_each_call_is_counted_with_the_line_that_makes_it(syncs, moment):
    loss = torch.tensor(2.0)
    total = 0.0
    for _ in range(3):
        total += loss.item()
    if loss:
        total += float(loss)
    loss.to("cpu").cpu()
    assert counted(syncs, moment) == {
        ("Tensor.item", "total += loss.item()"): 3,
        ("Tensor.__bool__", "if loss:"): 1,
        ("Tensor.__float__", "total += float(loss)"): 1,
        ("Tensor.to", 'loss.to("cpu").cpu()'): 1,
        ("Tensor.cpu", 'loss.to("cpu").cpu()'): 1,
    }
    assert total == 8.0
    first = moment.written("sync")[0]
    assert (first["num_steps"], first["on_device"]) == (10, False)
    assert first["seconds"] > 0
    assert first["where"].endswith(f"test_syncs.py:{inspect.currentframe().f_code.co_firstlineno + 4}")


def test_a_call_within_a_counted_call_is_not_counted_again(syncs, moment):
    repr(torch.ones(3))
    torch.ones(3).tolist()
    before = counted(syncs, moment)
    assert before[("Tensor.tolist", "torch.ones(3).tolist()")] == 1

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    moment.events.clear()
    torch.ones(1).as_subclass(Loud).item()
    assert counted(syncs, moment)[("Tensor.item", "torch.ones(1).as_subclass(Loud).item()")] == 1


@pytest.mark.parametrize(("part", "counting"), [("", True), ("wait", True), ("validation", True), ("forward", False)])
def test_calls_out_of_steps_and_on_items_in_the_making_are_not_counted(syncs, moment, part, counting):
    moment.part, moment.counting = part, counting
    torch.ones(1).item()
    assert counted(syncs, moment) == {}


def test_calls_of_other_threads_are_not_counted(syncs, moment):
    thread = threading.Thread(target=torch.ones(1).item)
    thread.start()
    thread.join()
    assert counted(syncs, moment) == {}


def test_a_copy_that_is_not_waited_for_or_goes_elsewhere_is_no_wait(syncs, moment):
    volume = torch.ones(2)
    volume.to("cpu", non_blocking=True)
    volume.to(torch.float64)
    volume.to(device="meta")
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], foreach=False)
    weight.sum().backward()
    optimizer.step()
    weight.to(torch.device("cpu"))
    assert counted(syncs, moment) == {}


def test_an_error_of_the_call_is_the_programs_own(syncs, moment):
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.ones(3).item()
    torch.ones(1).item()
    assert sum(counted(syncs, moment).values()) == 2


def test_stop_leaves_nothing_behind(moment):
    before = {name: inspect.getattr_static(torch.Tensor, name) for name in _METHODS}
    own = set(vars(torch.Tensor))
    waits = (torch.cuda.synchronize, torch.cuda.Stream.synchronize, torch.cuda.Event.synchronize)
    syncs = Syncs(moment, OwnCode(script=__file__))
    syncs.start()
    syncs.start()
    assert inspect.getattr_static(torch.Tensor, "item") is not before["item"]
    syncs.stop()
    assert all(inspect.getattr_static(torch.Tensor, name) is old for name, old in before.items())
    assert set(vars(torch.Tensor)) == own
    assert (torch.cuda.synchronize, torch.cuda.Stream.synchronize, torch.cuda.Event.synchronize) == waits


def test_methods_stay_equal_to_their_originals():
    original = torch.Tensor.item
    syncs = Syncs(WatchedMoment(), OwnCode(script=__file__))
    syncs.start()
    try:
        assert torch.Tensor.item == original
        assert original in {torch.Tensor.item}
        assert torch.Tensor.item in {original}
        assert torch.Tensor.item != torch.Tensor.cpu
        assert torch.Tensor.item.__name__ == "item"
        assert torch.Tensor.item.__doc__ == original.__doc__
        assert pickle.loads(pickle.dumps(torch.Tensor.item)) is torch.Tensor.item
        assert copy.deepcopy(torch.ones(2, requires_grad=True)).cpu().requires_grad
    finally:
        syncs.stop()


def test_subclasses_are_given_the_original_method():
    seen = []
    original = torch.Tensor.cpu

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(2).as_subclass(Watching)
    syncs = Syncs(WatchedMoment(), OwnCode(script=__file__))
    syncs.start()
    result = tensor.cpu()
    syncs.stop()
    assert type(result) is Watching
    assert seen[0] is original


def test_gradients_flow_through_as_before(syncs):
    x = torch.ones(3, requires_grad=True)
    (x.to("cpu").cpu() * 2).masked_select(torch.tensor([True, False, True])).sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 2.0]


def graph_of_one(x):
    y = x.to("cpu") + x.cpu() + x.sum().item()
    return y, x.nonzero(), x.masked_select(x > 0), torch.Tensor.cpu(x) * float(x.max())


@pytest.fixture
def dynamo():
    import torch._dynamo

    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield torch._dynamo
    torch._dynamo.reset()


@pytest.mark.parametrize("first", ["before", "during"])
def test_compiled_functions_have_one_graph_before_during_and_after(dynamo, moment, first):
    """Whether Dynamo looked at the tensor methods before they were replaced or while they were."""
    syncs = Syncs(moment, OwnCode(script=__file__))
    dynamo.trace_rules.get_tensor_method.cache_clear()
    expected = [part.tolist() for part in graph_of_one(torch.ones(3))]
    for stage in ("before", "during", "after"):
        if stage == "before" and first == "during":
            continue
        if stage == "during":
            syncs.start()
        elif stage == "after":
            syncs.stop()
        dynamo.reset()
        compiled = torch.compile(graph_of_one, backend="eager", fullgraph=True)
        assert [part.tolist() for part in compiled(torch.ones(3))] == expected, stage


def test_of_a_compiled_function_its_run_is_counted_and_its_tracing_is_not(dynamo, syncs, moment):
    torch.compile(graph_of_one, backend="eager", fullgraph=True)(torch.ones(3))
    calls = {call: count for (call, _), count in counted(syncs, moment).items()}
    assert calls == {"Tensor.to": 1, "Tensor.cpu": 2, "Tensor.item": 2, "Tensor.nonzero": 1, "Tensor.masked_select": 1}


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float64) * x.sum().item()


def test_torchscript_and_fx_see_the_same_network(syncs):
    x = torch.ones(2)
    with pytest.warns(DeprecationWarning, match="script"):
        scripted = torch.jit.script(Scaled())
    assert scripted(x).tolist() == [2.0, 2.0]
    assert "item()" in torch.fx.symbolic_trace(Scaled()).code
