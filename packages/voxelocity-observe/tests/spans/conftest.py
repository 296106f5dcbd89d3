import pytest

from voxelocity_observe.spans.scope import LISTENERS


@pytest.fixture(autouse=True)
def _nobody_listens_but_those_of_the_test(monkeypatch):
    for name in ("NVTX_INJECTION64_PATH", "VOXELOCITY_SPANS", "RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    LISTENERS.forget()
    yield
    LISTENERS.forget()
