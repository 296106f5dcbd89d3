import pytest
import torch

from voxelocity.step import BackendConfig, backend_as_found, set_backend


def switches():
    backends = torch.backends
    return backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, backends.cudnn.benchmark


@pytest.fixture(autouse=True)
def _switches_are_put_back():
    before = switches()
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = before


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("cudnn_benchmark", [True, False])
def test_a_cuda_device_gets_the_switches_that_were_asked_for(tf32, cudnn_benchmark):
    set_backend(BackendConfig(tf32=tf32, cudnn_benchmark=cudnn_benchmark), torch.device("cuda"))
    assert switches() == (tf32, tf32, cudnn_benchmark)


def test_a_cpu_leaves_the_process_as_it_is():
    before = switches()
    set_backend(BackendConfig(tf32=not before[0], cudnn_benchmark=not before[2]), torch.device("cpu"))
    assert switches() == before


def test_without_a_word_convolutions_are_as_torch_has_them():
    assert BackendConfig().tf32 == torch.backends.cudnn.allow_tf32
    assert BackendConfig().cudnn_benchmark == torch.backends.cudnn.benchmark


def test_switches_are_put_back_as_they_were_found_also_after_an_error():
    before = switches()
    device = torch.device("cuda")
    seen = []

    def change():
        with backend_as_found(device):
            set_backend(BackendConfig(tf32=not before[0], cudnn_benchmark=not before[2]), device)
            seen.append(switches())
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        change()
    assert seen != [before]
    assert switches() == before


def test_nothing_is_put_back_on_a_cpu():
    with backend_as_found(torch.device("cpu")):
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        changed = switches()
    assert switches() == changed
