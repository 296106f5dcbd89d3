"""Diagnoses of programs that could be, with all their facts: what screens, pages and files are tested with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from voxelocity_observe.core.time_parts import TimeShare
from voxelocity_observe.diagnose.facts import (
    CallFacts,
    CompileFacts,
    Ending,
    ExperimentFacts,
    Facts,
    FetchFacts,
    FileFacts,
    HostFacts,
    KernelGroup,
    LoaderFacts,
    NetworkFacts,
    OperatorTime,
    OptimizerFacts,
    OwnCost,
    Pass,
    ProcessFacts,
    ProfileFacts,
    SettingFacts,
    StackFacts,
    Step,
    SyncFacts,
    TransformFacts,
)
from voxelocity_observe.diagnose.result import Ceiling, Diagnosis, Finding

NAMES = ("data-bound", "clean", "validation-bound", "on a GPU", "killed", "nothing seen")

ENVIRONMENT = {
    "python": "3.11.9",
    "torch": "2.13.0",
    "monai": "1.6.1",
    "cpu": "AMD EPYC 9354",
    "num_cpus": 2,
    "memory_bytes": 25_769_803_776,
    "gpu": None,
}
SPLIT_NAMES = {
    "wait": "waiting for data",
    "copy": "copy to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
}


def example(name: str) -> Diagnosis:
    """The diagnosis of that name, made again."""
    makers = (data_bound, clean, validation_bound, on_a_gpu, killed, nothing_seen)
    return dict(zip(NAMES, makers, strict=True))[name]()


def with_facts(diagnosis: Diagnosis, **changes: Any) -> Diagnosis:
    """The same diagnosis of other facts."""
    return replace(diagnosis, facts=replace(diagnosis.facts, **changes))


def steps_of(parts: Mapping[str, float], *, count: int, num_images: int = 4, start_s: float = 6.0) -> list[Step]:
    """Three steps to warm up, the counted ones, each a little different from the one before, then five resident."""
    steps, now_s = [], start_s
    for index in range(-3, count + 5):
        phase = "warm-up" if index < 0 else "watched" if index < count else "resident"
        wobble = 1.0 + 0.1 * ((index * 7) % 5 - 2) / 2
        own = {name: seconds * wobble for name, seconds in parts.items()}
        if phase == "resident":
            own["wait"] = 0.0
        seconds = math.fsum(own.values())
        steps.append(
            Step(start_s=now_s, seconds=seconds, parts=own, host_parts=own, num_images=num_images, phase=phase)
        )
        now_s += seconds
    return steps


def split_of(steps: Sequence[Step], passes: Sequence[Pass] = ()) -> list[TimeShare]:
    """As the judge makes it: of counted steps and passes, in order; sums to the watched seconds."""
    counted = [step for step in steps if step.phase == "watched"]
    seconds = {name: sum(step.parts.get(key, 0.0) for step in counted) for key, name in SPLIT_NAMES.items()}
    for kind in ("validation", "saving", "epoch start"):
        seconds[kind] = sum(interval.seconds for interval in passes if interval.kind == kind)
    seconds["other"] = sum(step.parts.get("other", 0.0) for step in counted)
    whole_s = math.fsum(seconds.values())
    return [TimeShare(name=name, seconds=s, share=s / whole_s) for name, s in seconds.items() if s > 0.0]


def data_bound() -> Diagnosis:
    """Gunzip and transforms in the training's own thread, which waits 61 % of the time."""
    parts = {"wait": 0.305, "forward": 0.07, "backward": 0.105, "optimizer": 0.01, "other": 0.01}
    steps = steps_of(parts, count=40)
    passes = [Pass(kind="epoch start", start_s=6.0, seconds=0.2, where="train.py:40")]
    split = split_of(steps, passes)
    of_s = sum(share.seconds for share in split)
    own_thread = Finding(
        code="VX101",
        title="Batches are made in the training's own thread, one after the other",
        cause="The loader at train.py:38 has num_workers=0, so the network waits 305 ms of each step of 500 ms.",
        evidence=["waiting: 61 % of the watched time", "train.py:38: DataLoader(num_workers=0)", "2 cores, 1.0 in use"],
        change="loader = DataLoader(\n    dataset, batch_size=4, num_workers=2, persistent_workers=True\n)",
        saves_s=of_s * 0.6, of_s=of_s, basis="measured", risk="safe", where="train.py:38",
    )  # fmt: skip
    again = Finding(
        code="VX113",
        title="The same fixed preparation is done again each epoch",
        cause="LoadImaged and Spacingd take 71 % of an item and give the same each time.",
        evidence=["LoadImaged: 52 ms of an item", "Spacingd: 21 ms of an item", "64 files opened 3 times each"],
        change="from voxelocity.monai import compile\n\ntransforms = compile(transforms, cache='cache')",
        saves_s=of_s * 0.43, of_s=of_s, basis="estimated", risk="safe", where="train.py:21",
    )  # fmt: skip
    gunzip = Finding(
        code="VX112",
        title="Unpacking gzip is most of making a batch",
        cause="38 % of the time in which the network waits, gzip unpacks scans.",
        evidence=["gunzip: 38 % of 412 looks at train.py:21"],
        change="python -m gzip -d data/*.nii.gz",
        saves_s=of_s * 0.02, of_s=of_s, basis="estimated", risk="safe", where="train.py:21", is_cause=False,
    )  # fmt: skip
    bf16 = Finding(
        code="VX303",
        title="The CPU is faster in bfloat16, and the network computes in float32",
        cause="This processor multiplies bfloat16 twice as fast; autocast is off.",
        evidence=["autocast: off", "AVX512-BF16: yes"],
        change="with torch.autocast('cpu', torch.bfloat16):\n    loss = loss_function(network(images), labels)",
        saves_s=of_s * 0.05, of_s=of_s, basis="estimated", risk="changes results", where="train.py:44",
    )  # fmt: skip
    facts = Facts(
        command=["python", "train.py", "--lr", "1e-3"],
        main=ProcessFacts(pid=4242, parent_pid=1, role="main", argv=["train.py"], versions={"torch": "2.13.0"}),
        seconds=34.0,
        ended=Ending(reason="limit", time_s=34.0),
        status=0,
        steps=steps,
        passes=passes,
        **_data_facts(),
        settings=SettingFacts(num_threads=2, environment={"OMP_NUM_THREADS": "2"}),
        network=NetworkFacts(
            name="UNet",
            num_parameters=1_200_000,
            parameter_dtypes={"torch.float32": 1_200_000},
            input_shapes=[([4, 1, 64, 64, 64], 40)],
            channels=[(64, 128), (32, 64)],
            kernel_dimensions=3,
            memory_format="contiguous",
            input_dtype="torch.float32",
            where="train.py:30",
        ),
        optimizer=OptimizerFacts(name="AdamW", implementation="foreach", where="train.py:33"),
        compiled=CompileFacts(num_frames=1, num_recompiles=2, seconds=3.2, reasons=["size of x changed"]),
        experiments=[
            ExperimentFacts(name="resident batch", unit="step", seconds=[0.2, 0.195, 0.19]),
            ExperimentFacts(name="loader", unit="batch", seconds=[0.31, 0.3]),
            ExperimentFacts(name="items", unit="item", seconds=[0.076]),
            ExperimentFacts(name="storage", unit="byte", seconds=[4.0e-9]),
            ExperimentFacts(name="collate", unit="batch", seconds=[], note="the collate function takes two arguments"),
        ],
        host=_host(),
        cost=OwnCost(seconds=0.2, of_s=20.0),
        not_measured=["kernels: there is no CUDA device"],
        environment=ENVIRONMENT,
    )
    return Diagnosis(
        verdict="The network spends 61 % of the training time waiting for data: batches are made in the training's own "
        "thread, one after the other.",
        split=split,
        ceiling=Ceiling(step_s=0.5, resident_s=0.195, basis="measured"),
        findings=[own_thread, again, bf16, gunzip],
        not_measured=facts.not_measured,
        own_share=0.01,
        facts=facts,
    )


def _data_facts() -> dict[str, Any]:
    return {
        "loaders": [
            LoaderFacts(
                key=1, kind="DataLoader", dataset="Dataset", batch_size=4, collate="monai.data.utils.list_data_collate",
                num_batches=16, num_epochs=3, is_for_training=True, where="train.py:40",
            ),
            LoaderFacts(key=2, kind="DataLoader", dataset="Dataset", batch_size=1, num_batches=4, where="train.py:52"),
        ],
        "fetches": [
            FetchFacts(
                key=1, worker=-1, num_batches=48, num_items=192, item_s=14.6, item_cpu_s=14.1, collate_s=0.4,
                collate_cpu_s=0.4, batch_s=[0.3, 0.31, 0.29, 0.9], batch_bytes=4_194_304,
            )
        ],
        "transforms": [
            TransformFacts(
                name="LoadImaged", library="monai", num_calls=192, self_s=9.9, self_cpu_s=9.6, is_random=False, order=0
            ),
            TransformFacts(
                name="Spacingd", library="monai", num_calls=192, self_s=4.0, self_cpu_s=3.9, is_random=False, order=1
            ),
            TransformFacts(
                name="RandFlipd", library="monai", num_calls=192, self_s=0.3, self_cpu_s=0.3, is_random=True, order=2
            ),
        ],
        "files": FileFacts(
            kinds={".nii.gz": 192, ".json": 1}, num_opens=193, num_files=65, read_bytes=1_932_735_283,
            largest=["/data/case_1.nii.gz"],
        ),
        "stacks": [
            StackFacts(
                part="wait", where="train.py:21", line="image = nib.load(path).get_fdata()", kind="gunzip",
                function="gzip.GzipFile.read", num_samples=157, period_s=0.02,
            ),
            StackFacts(
                part="wait", where="train.py:21", line="image = nib.load(path).get_fdata()", kind="resample",
                function="scipy.ndimage.zoom", num_samples=90, period_s=0.02,
            ),
            StackFacts(
                part="forward", where="train.py:44", line="loss = loss_function(network(images), labels)",
                kind="other", function="", num_samples=60, period_s=0.02,
            ),
        ],
        "syncs": [
            SyncFacts(
                call="Tensor.item", where="train.py:47", line="total += loss.item()", count=40, num_steps=40,
                seconds=0.001, on_device=False,
            )
        ],
        "calls": [
            CallFacts(call="torch.save", where="train.py:60", line="torch.save(x)", count=1, num_steps=40, seconds=0.2)
        ],
    }  # fmt: skip


def _host() -> HostFacts:
    return HostFacts(
        num_cpus=2,
        num_machine_cpus=16,
        cpu_share=0.52,
        others_share=0.1,
        num_threads=14,
        memory_bytes=2_147_483_648,
        memory_limit_bytes=25_769_803_776,
        shm_used_bytes=1_048_576,
        shm_size_bytes=67_108_864,
        disk_read_bytes_per_s=54_000_000.0,
        file_system="ext4",
    )


def clean() -> Diagnosis:
    """At its ceiling: the network computes nearly all of the time."""
    parts = {"wait": 0.002, "forward": 0.07, "backward": 0.115, "optimizer": 0.01, "other": 0.003}
    steps = steps_of(parts, count=60)
    facts = Facts(
        command=["python", "fast.py"],
        main=ProcessFacts(pid=77, parent_pid=1, role="main"),
        seconds=19.0,
        ended=Ending(reason="limit", time_s=19.0),
        status=0,
        steps=steps,
        loaders=[LoaderFacts(key=1, kind="DataLoader", dataset="Volumes", num_workers=2, is_for_training=True)],
        settings=SettingFacts(num_threads=2),
        experiments=[ExperimentFacts(name="resident batch", unit="step", seconds=[0.198, 0.199])],
        host=HostFacts(num_cpus=2, cpu_share=0.97),
        cost=OwnCost(seconds=0.05, of_s=12.0),
        environment=ENVIRONMENT,
    )
    return Diagnosis(
        verdict="Nothing holds this program back: the network computes 98 % of the time; a faster device, a smaller "
        "network or lower precision would help.",
        split=split_of(steps),
        ceiling=Ceiling(step_s=0.2, resident_s=0.198, basis="measured"),
        findings=[],
        not_measured=["validation: none ran while the program was watched"],
        own_share=0.004,
        facts=facts,
    )


def validation_bound() -> Diagnosis:
    """A validation window by window, with gradients, takes most of the time."""
    parts = {"wait": 0.01, "forward": 0.03, "backward": 0.05, "optimizer": 0.005, "other": 0.005}
    steps = steps_of(parts, count=50)
    passes = [
        Pass(
            kind="validation", start_s=12.0, seconds=16.0, num_forwards=812, has_gradients=True,
            parts={"forward": 14.0, "other": 2.0}, batch_shapes=[([1, 1, 64, 64, 64], 812)], where="val.py:70",
        ),
        Pass(kind="saving", start_s=28.0, seconds=0.4, where="val.py:80"),
    ]  # fmt: skip
    split = split_of(steps, passes)
    of_s = sum(share.seconds for share in split)
    finding = Finding(
        code="VX403",
        title="Validation runs the network on one window at a time",
        cause="One validation takes 16 s, 50 steps take 5 s: 812 windows go through the network one by one.",
        evidence=["812 forward passes of shape 1 x 1 x 64 x 64 x 64", "gradients are recorded: val.py:70"],
        change="@torch.inference_mode()\ndef validate(): ...",
        saves_s=of_s * 0.045, of_s=of_s, basis="estimated", risk="safe", where="val.py:70",
    )  # fmt: skip
    facts = Facts(
        command=["python", "val.py"],
        main=ProcessFacts(pid=99, parent_pid=1, role="main"),
        seconds=30.0,
        ended=Ending(reason="program", time_s=30.0),
        status=0,
        steps=steps,
        passes=passes,
        settings=SettingFacts(num_threads=2),
        environment=ENVIRONMENT,
    )
    return Diagnosis(
        verdict="75 % of the time goes to validation: 812 windows go through the network one by one.",
        split=split,
        ceiling=Ceiling(step_s=0.1, resident_s=0.09, basis="estimated"),
        findings=[finding],
        not_measured=["the ceiling: the program ended before an experiment could be done"],
        own_share=None,
        facts=facts,
    )


def on_a_gpu() -> Diagnosis:
    """Many small kernels and a wait for the device in each step, with a profile."""
    parts = {"wait": 0.001, "copy": 0.003, "forward": 0.02, "backward": 0.03, "optimizer": 0.006, "other": 0.01}
    steps = steps_of(parts, count=200, num_images=2)
    split = split_of(steps)
    of_s = sum(share.seconds for share in split)
    sync = SyncFacts(
        call="Tensor.item", where="gpu.py:51", line="losses.append(loss.item())", count=400, num_steps=200, seconds=2.0,
        on_device=True,
    )  # fmt: skip
    finding = Finding(
        code="VX204",
        title="A line in the loop waits for the device at each step",
        cause="gpu.py:51 reads a loss in each step, so that the device runs dry for 10 ms.",
        evidence=["Tensor.item: 2.0 times a step, gpu.py:51", "device idle while the host is busy: 14 %"],
        change="losses.append(loss.detach())  # read them once an epoch",
        saves_s=of_s * 0.14, of_s=of_s, basis="estimated", risk="safe", where="gpu.py:51",
    )  # fmt: skip
    profile = ProfileFacts(
        groups={
            "All kernels": KernelGroup(number=5210, cpu_ns=24_000_000, gpu_ns=151_000_000),
            "Tensor-core kernels": KernelGroup(number=310, cpu_ns=1_900_000, gpu_ns=52_000_000),
            "Memory copies": KernelGroup(number=24, cpu_ns=400_000, gpu_ns=9_000_000),
            "All other kernels": KernelGroup(number=4876, cpu_ns=21_700_000, gpu_ns=90_000_000),
        },
        operators=[
            OperatorTime(name="aten::cudnn_convolution", number=63, cpu_ns=8_000_000, gpu_ns=61_000_000, shape="2x32"),
            OperatorTime(name="aten::native_batch_norm", number=57, cpu_ns=5_000_000, gpu_ns=22_000_000),
        ],
        num_steps=3,
        wall_ns=210_000_000,
        gpu_busy_ns=160_000_000,
        launch_bound_ns=29_000_000,
        tensor_core_share=0.344,
        syncs=[sync],
        trace="trace.json.gz",
    )
    facts = Facts(
        command=["torchrun", "--nproc-per-node=1", "gpu.py"],
        main=ProcessFacts(pid=11, parent_pid=1, role="main", world_size=1),
        seconds=40.0,
        ended=Ending(reason="limit", time_s=40.0),
        status=0,
        steps=steps,
        syncs=[sync],
        settings=SettingFacts(
            device="cuda", device_name="NVIDIA H100 80GB HBM3", capability=[9, 0], has_cuda=True,
            autocast="torch.float16",
        ),
        profile=profile,
        experiments=[ExperimentFacts(name="resident batch", unit="step", seconds=[0.069])],
        host=HostFacts(
            num_cpus=16, gpu_busy=[0.84], gpu_memory_bytes=[21_474_836_480], gpu_memory_total_bytes=[85_899_345_920],
            gpu_throttle_reasons={"SW power cap": 0.02},
        ),
        environment={**ENVIRONMENT, "gpu": "NVIDIA H100 80GB HBM3"},
    )  # fmt: skip
    return Diagnosis(
        verdict="14 % of the time the device has nothing to do because gpu.py:51 reads a loss in each step.",
        split=split,
        ceiling=Ceiling(step_s=0.07, resident_s=0.069, basis="measured"),
        findings=[finding],
        not_measured=[],
        own_share=0.012,
        facts=facts,
    )


def killed() -> Diagnosis:
    """Ended by SIGKILL after a few steps."""
    steps = [
        step
        for step in steps_of({"wait": 0.1, "forward": 0.1, "backward": 0.2, "other": 0.1}, count=4)
        if step.phase != "resident"
    ]
    facts = Facts(
        command=["python", "big.py"],
        main=ProcessFacts(pid=5, parent_pid=1, role="main"),
        seconds=9.0,
        status=137,
        steps=steps,
        environment=ENVIRONMENT,
    )
    return Diagnosis(
        verdict="The program was killed after 4 counted steps; of these 20 % was waiting for data.",
        split=split_of(steps),
        ceiling=Ceiling(step_s=0.5, resident_s=0.4, basis="estimated"),
        findings=[],
        not_measured=["experiments: the program was killed before them", "only 4 steps were seen; 20 make a diagnosis"],
        own_share=None,
        facts=facts,
    )


def nothing_seen() -> Diagnosis:
    """A Python program that never trained."""
    facts = Facts(
        command=["python", "prepare.py"],
        main=ProcessFacts(pid=6, parent_pid=1, role="main"),
        seconds=2.0,
        ended=Ending(reason="program", time_s=2.0),
        status=0,
        not_measured=["steps: the program never imported torch"],
    )
    return Diagnosis(
        verdict="No training step was seen: the program never imported torch.",
        split=[],
        ceiling=None,
        findings=[],
        not_measured=facts.not_measured,
        own_share=None,
        facts=facts,
    )
