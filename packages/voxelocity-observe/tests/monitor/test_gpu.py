"""GPUs of a made-up driver: healthy, absent, in slices, half silent, lost."""

from types import SimpleNamespace

import pytest

from shared.fake_nvml import GIB, FakeNvml, Refused, gpu_answers
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.monitor.gpu import GpuSampler
from voxelocity_observe.monitor.samples import GpuSample

NO_SUPPORT, NO_PERMISSION, NO_LIBRARY, NO_DRIVER, LOST, UNKNOWN = 3, 4, 12, 9, 15, 999
HOST, CONTAINER = "pid:[4026531836]", "pid:[4026532000]"


def sampler(driver, *, environ=None, clock=None, namespace=HOST):
    return GpuSampler(load=lambda: driver, environ=environ or {}, clock=clock or FakeClock(), namespace=namespace)


def test_a_healthy_gpu_tells_everything():
    (sample,) = sampler(FakeNvml(gpu_answers())).sample(pids=[100])
    assert sample == GpuSample(
        index=0,
        name="Made-up H100",
        uuid="GPU-0000-aaaa",
        busy_share=0.75,
        memory_busy_share=0.2,
        memory_used_bytes=10 * GIB,
        memory_total_bytes=80 * GIB,
        program_memory_bytes=3 * GIB,
        num_other_processes=1,
        power_w=250.5,
        power_limit_w=700.0,
        temperature_c=55.0,
        sm_clock_mhz=1980.0,
        memory_clock_mhz=2619.0,
        pcie_receive_bytes_per_s=2e6,
        pcie_send_bytes_per_s=1e6,
        throttle_reasons=("SwPowerCap",),
    )


def test_two_gpus_give_two_samples_and_nothing_is_missing():
    gpus = sampler(FakeNvml(gpu_answers(0), gpu_answers(1, nvmlDeviceGetTemperature=70)))
    assert [(s.index, s.temperature_c) for s in gpus.sample()] == [(0, 55.0), (1, 70.0)]
    assert gpus.missing == ()


def test_the_library_is_given_back_as_often_as_it_was_taken():
    driver = FakeNvml(gpu_answers())
    gpus = sampler(driver)
    assert driver.num_open == 1
    gpus.close()
    gpus.close()
    assert driver.num_open == 0
    assert gpus.sample() == ()


@pytest.mark.parametrize(
    ("code", "words"), [(NO_LIBRARY, "NVML Shared Library Not Found"), (NO_DRIVER, "Driver Not Loaded")]
)
def test_without_library_or_driver_nothing_is_sampled_and_the_reason_is_reported(code, words):
    driver = FakeNvml(begin=Refused(code))
    gpus = sampler(driver)
    assert gpus.sample() == ()
    assert gpus.missing == (f"GPUs: none can be sampled ({words}); install NVIDIA's driver if this machine has one",)
    gpus.close()
    assert driver.num_open == 0


def test_without_the_package_nothing_is_sampled_and_the_reason_is_reported():
    def load():
        raise ModuleNotFoundError("No module named 'pynvml'")

    assert "the package nvidia-ml-py, which queries the driver, is not installed" in GpuSampler(load=load).missing[0]


def test_a_driver_without_gpus_is_reported():
    assert "the driver reports none" in sampler(FakeNvml()).missing[0]


def test_what_is_not_supported_is_none_reported_once_for_all_gpus_and_never_asked_again():
    silent = {"nvmlDeviceGetPowerUsage": Refused(NO_SUPPORT)}
    driver = FakeNvml(gpu_answers(0, **silent), gpu_answers(1, **silent))
    gpus = sampler(driver)
    samples = [*gpus.sample(), *gpus.sample()]
    assert [s.power_w for s in samples] == [None] * 4
    assert all(s.temperature_c == 55.0 for s in samples)
    assert gpus.missing == ("GPU 0, GPU 1: no power (Not Supported)",)
    assert driver.calls["nvmlDeviceGetPowerUsage", 0] == 1


def test_what_fails_for_once_is_reported_once_and_asked_again():
    answers = gpu_answers(nvmlDeviceGetTemperature=Refused(UNKNOWN))
    gpus = sampler(FakeNvml(answers))
    gpus.sample()
    gpus.sample()
    answers["nvmlDeviceGetTemperature"] = 60
    assert gpus.sample()[0].temperature_c == 60.0
    assert gpus.missing == ("GPU 0: no temperature (Unknown Error)",)


def test_a_driver_that_answers_nothing_but_names_still_gives_a_sample():
    names = ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode")
    answers = {key: value if key in names else Refused(NO_PERMISSION) for key, value in gpu_answers().items()}
    gpus = sampler(FakeNvml(answers))
    assert gpus.sample() == (GpuSample(index=0, name="Made-up H100", uuid="GPU-0000-aaaa"),)
    assert "GPU 0: no utilization (Insufficient Permissions)" in gpus.missing
    assert len(gpus.missing) == len(set(gpus.missing)) == 10


def test_older_drivers_are_asked_under_older_names():
    answers = gpu_answers(
        nvmlDeviceGetMemoryInfo=lambda *version: (
            FakeNvml()._answer(Refused(13), ()) if version else SimpleNamespace(used=1, total=2)
        ),
        nvmlDeviceGetCurrentClocksThrottleReasons=0x40,
    )
    gpus = sampler(FakeNvml(answers, without=("nvmlDeviceGetCurrentClocksEventReasons",)))
    (sample,) = gpus.sample()
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (1, 2)
    assert sample.throttle_reasons == ("HwThermalSlowdown",)
    assert gpus.missing == ()


def test_a_gpu_that_is_lost_is_left_out_from_then_on_and_the_other_continues():
    answers = gpu_answers(0)
    driver = FakeNvml(answers, gpu_answers(1))
    gpus = sampler(driver)
    assert len(gpus.sample()) == 2
    answers["nvmlDeviceGetMemoryInfo"] = Refused(LOST)
    assert [s.index for s in gpus.sample()] == [1]
    asked = driver.calls["nvmlDeviceGetUtilizationRates", 0]
    assert [s.index for s in gpus.sample()] == [1]
    assert driver.calls["nvmlDeviceGetUtilizationRates", 0] == asked
    assert gpus.missing == ("GPU 0: lost while it was watched (GPU is lost)",)
    assert [gpu.index for gpu in gpus.gpus] == [0, 1]


def test_a_gpu_that_cannot_be_opened_does_not_hide_the_others():
    gpus = sampler(FakeNvml({"handle": Refused(LOST)}, gpu_answers(1)))
    assert [s.index for s in gpus.sample()] == [1]
    assert gpus.missing == ("GPU 0: cannot be queried (GPU is lost)",)


@pytest.fixture
def sliced():
    """GPU 0 in two slices of four possible ones, GPU 1 whole."""

    def handle_of(number):
        return {0: "a", 2: "b"}[number] if number in (0, 2) else FakeNvml()._answer(Refused(6), ())

    mig = {
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetMaxMigDeviceCount": 4,
        "nvmlDeviceGetMigDeviceHandleByIndex": handle_of,
        "nvmlDeviceGetUtilizationRates": Refused(NO_SUPPORT),
    }
    driver = FakeNvml(gpu_answers(0, **mig), gpu_answers(1))
    for letter, used in (("a", 2 * GIB), ("b", 4 * GIB)):
        driver.table[letter] = gpu_answers(
            nvmlDeviceGetName="Made-up H100 MIG 1g.10gb",
            nvmlDeviceGetUUID=f"MIG-{letter}{letter}",
            nvmlDeviceGetUtilizationRates=Refused(NO_SUPPORT),
            nvmlDeviceGetMemoryInfo=SimpleNamespace(used=used, total=10 * GIB),
            nvmlDeviceGetPowerUsage=Refused(NO_SUPPORT),
        )
    return driver


def test_slices_have_memory_of_their_own_and_power_of_their_device(sliced):
    gpus = sampler(sliced)
    seen = [(s.index, s.slice, s.memory_used_bytes, s.power_w, s.busy_share) for s in gpus.sample()]
    assert seen == [(0, 0, 2 * GIB, 250.5, None), (0, 2, 4 * GIB, 250.5, None), (1, None, 10 * GIB, 250.5, 0.75)]
    assert gpus.missing == ("GPU 0 slice 0, GPU 0 slice 2: no utilization (Not Supported)",)


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        ("0", [(0, 0), (0, 2)]),
        ("1", [(1, None)]),
        ("1,0", [(0, 0), (0, 2), (1, None)]),
        ("GPU-1", [(1, None)]),
        ("GPU-0000-aaaa", [(0, 0), (0, 2)]),
        ("MIG-bb", [(0, 2)]),
        ("1,7,0", [(1, None)]),
    ],
)
def test_only_devices_that_the_program_may_see_are_sampled(sliced, variable, shown):
    gpus = sampler(sliced, environ={"CUDA_VISIBLE_DEVICES": variable})
    assert [(s.index, s.slice) for s in gpus.sample()] == shown


@pytest.mark.parametrize("variable", ["", "-1", "none", "GPU-9"])
def test_hidden_gpus_are_reported(sliced, variable):
    gpus = sampler(sliced, environ={"CUDA_VISIBLE_DEVICES": variable})
    assert gpus.sample() == ()
    assert gpus.missing == (f"GPUs: CUDA_VISIBLE_DEVICES={variable!r} hides all 3 from the program",)


def test_dear_questions_are_asked_seldom_and_their_answers_kept():
    clock, driver = FakeClock(), FakeNvml(gpu_answers())
    gpus = sampler(driver, clock=clock)
    for _ in range(9):
        assert gpus.sample()[0].pcie_send_bytes_per_s == 1e6
        clock.advance(1.0)
    assert driver.calls["nvmlDeviceGetPcieThroughput", 0] == 2 * 2
    assert driver.calls["nvmlDeviceGetEnforcedPowerLimit", 0] == 1
    assert driver.calls["nvmlDeviceGetComputeRunningProcesses", 0] == 5
    assert driver.calls["nvmlDeviceGetUtilizationRates", 0] == 9


def test_in_a_container_numbers_of_processes_count_only_once_the_program_is_among_them():
    gpus = sampler(FakeNvml(gpu_answers()), namespace=CONTAINER)
    (sample,) = gpus.sample(pids=[7])
    assert (sample.program_memory_bytes, sample.num_other_processes) == (None, None)
    assert gpus.missing == (
        "GPU 0: no memory by process (this is a container, and the driver numbers processes as the host does)",
    )
    (sample,) = gpus.sample(pids=[200])
    assert (sample.program_memory_bytes, sample.num_other_processes) == (GIB, 1)
    assert gpus.missing == ()


def test_memory_that_the_driver_does_not_tell_by_process_is_unknown_not_none_at_all():
    hidden = [SimpleNamespace(pid=100, usedGpuMemory=None)]
    (sample,) = sampler(FakeNvml(gpu_answers(nvmlDeviceGetComputeRunningProcesses=hidden))).sample(pids=[100])
    assert (sample.program_memory_bytes, sample.num_other_processes) == (None, 0)
