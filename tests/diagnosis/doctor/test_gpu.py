from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from voxelocity.diagnosis.doctor.gpu import see_driver


class RefusalError(Exception):
    """What the fake raises in place of NVMLError: not supported, as a rule."""

    value = 3


class FakeNvml:
    """A driver with one GPU. Answers are by function; one that is missing is refused, as by real drivers."""

    NVMLError = RefusalError

    def __init__(self, **answers):
        self.answers = answers
        self.num_shutdowns = 0
        self.asked = set()

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*arguments):
            self.asked.add(name)
            if name == "nvmlShutdown":
                self.num_shutdowns += 1
                return None
            if name not in self.answers:
                raise RefusalError("Not Supported")
            found = self.answers[name]
            return found(*arguments) if callable(found) else found

        return answer


FULL = {
    "nvmlInit": None,
    "nvmlSystemGetDriverVersion": "580.65.06",
    "nvmlSystemGetCudaDriverVersion_v2": 12_080,
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetName": "NVIDIA A100",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 * 2**30, used=2**30),
    "nvmlDeviceGetCudaComputeCapability": (8, 0),
    "nvmlDeviceGetMigMode": (0, 0),
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetEccMode": (1, 1),
    "nvmlDeviceGetTotalEccErrors": 3,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetComputeMode": 3,
}


def card(root, name, vendor="0x10de", kind="0x030200"):
    folder = root / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_every_answer_finds_its_place(tmp_path):
    nvml = FakeNvml(**FULL)
    driver = see_driver(lambda: nvml, root=tmp_path)
    assert (driver.version, driver.cuda, driver.silence, driver.num_cards) == ("580.65.06", (12, 8), "", 1)
    (gpu,) = driver.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.memory_used_bytes) == ("NVIDIA A100", 40 * 2**30, 2**30)
    assert (gpu.capability, gpu.has_mig, gpu.num_slices) == ((8, 0), False, None)
    assert (gpu.is_persistent, gpu.has_ecc, gpu.num_uncorrected) == (True, True, 3)
    assert (gpu.pcie_width, gpu.pcie_width_max, gpu.pcie_generation, gpu.pcie_generation_max) == (8, 16, 1, 4)
    assert gpu.compute_mode == "exclusive"
    assert nvml.num_shutdowns == 1


@pytest.mark.parametrize("refused", sorted(set(FULL) - {"nvmlInit"}))
def test_a_question_that_is_refused_leaves_the_other_answers(tmp_path, refused):
    driver = see_driver(
        lambda: FakeNvml(**{name: answer for name, answer in FULL.items() if name != refused}), root=tmp_path
    )
    whole = see_driver(lambda: FakeNvml(**FULL), root=tmp_path)
    assert driver != whole
    if refused in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        assert driver.gpus == whole.gpus
    elif refused not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert driver.gpus[0].index == 0
        assert refused == "nvmlDeviceGetName" or driver.gpus[0].name == "NVIDIA A100"


def slice_at(handle, index):
    if index > 1:
        raise RefusalError("Not Found")
    return f"slice {index}"


SLICED = {
    **FULL,
    "nvmlDeviceGetMigMode": (1, 1),
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": slice_at,
}


def test_slices_of_a_gpu_are_counted(tmp_path):
    (gpu,) = see_driver(lambda: FakeNvml(**SLICED), root=tmp_path).gpus
    assert (gpu.has_mig, gpu.num_slices) == (True, 2)


def test_answers_in_bytes_are_read_as_text(tmp_path):
    old = {**FULL, "nvmlDeviceGetName": b"Tesla V100", "nvmlSystemGetDriverVersion": b"470.10"}
    driver = see_driver(lambda: FakeNvml(**old), root=tmp_path)
    assert (driver.version, driver.gpus[0].name) == ("470.10", "Tesla V100")


def test_a_driver_that_does_not_start_says_why_and_cards_are_counted_on_the_bus(tmp_path):
    card(tmp_path, "0000:01:00.0")
    card(tmp_path, "0000:02:00.0", kind="0x030000")
    card(tmp_path, "0000:02:00.1", kind="0x040300")  # its sound
    card(tmp_path, "0000:03:00.0", vendor="0x8086", kind="0x030000")
    (tmp_path / "sys/bus/pci/devices/0000:09:00.0").mkdir()

    def mismatch():
        raise RefusalError("Driver/library version mismatch")

    driver = see_driver(lambda: FakeNvml(nvmlInit=mismatch), root=tmp_path)
    assert (driver.silence, driver.num_cards, driver.gpus) == ("Driver/library version mismatch", 2, ())


def test_all_that_is_asked_exists_in_the_binding_of_nvidia(tmp_path):
    pynvml = pytest.importorskip("pynvml")
    nvml = FakeNvml(**SLICED)
    see_driver(lambda: nvml, root=tmp_path)
    assert nvml.asked == {*SLICED, "nvmlShutdown"}
    assert [name for name in sorted(nvml.asked) if not callable(getattr(pynvml, name, None))] == []
    assert (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC) == (1, 0)
    modes = (
        pynvml.NVML_COMPUTEMODE_DEFAULT,
        pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD,
        pynvml.NVML_COMPUTEMODE_PROHIBITED,
        pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    )
    assert modes == (0, 1, 2, 3)


def test_without_the_binding_the_driver_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py, which asks the driver, is not installed" in see_driver(root=tmp_path).silence
