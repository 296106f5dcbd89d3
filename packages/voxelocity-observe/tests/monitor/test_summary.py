from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from voxelocity_observe.monitor.columns import Columns, phases_of
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import GpuSample, HostSample, RankSample, Sample
from voxelocity_observe.monitor.summary import (
    cards,
    device_table,
    ended_text,
    phase_table,
    rank_table,
    sentence,
    summary_lines,
    title_of,
)


def test_the_sentence_tells_cores_gpu_memory_and_the_end(record, gpu):
    assert sentence(Columns(record(60, gpus=[gpu()]))) == (
        "In 1 min, 1.00 of 2 cores were busy (0.500 of them by the program); the GPU was busy 80.0 % of the time; "
        "memory reached 6.00 GiB of 24.0 GiB (25.0 %); the command ended with status 0."
    )


def test_several_gpus_are_listed_from_the_idlest_to_the_busiest(record, gpu):
    text = sentence(Columns(record(5, gpus=[gpu(0, busy_share=0.3), gpu(1, busy_share=0.9)])))
    assert "2 GPUs were busy 30.0 % to 90.0 % of the time" in text


def test_what_could_not_be_asked_is_not_spoken_of(record, gpu):
    bare = record(
        5, core_shares=(), program_cores=None, memory_used_bytes=None, gpus=[gpu(busy_share=None)], command=()
    )
    assert sentence(Columns(bare)) == "In 5.0 s, this machine gave no data."
    only_program = record(5, core_shares=(), memory_used_bytes=None, command=())
    assert sentence(Columns(only_program)) == "In 5.0 s, the program kept 0.500 cores busy."


def test_a_record_without_samples_says_so(record):
    assert sentence(Columns(record(0, status=3))) == "No sample was taken in 0.30 s; the command ended with status 3."
    assert sentence(Columns(MonitorRecord(seconds=0.2, period_s=1.0))) == "No sample was taken in 0.20 s."


def test_swap_is_reported_where_it_was_used(record):
    assert "(25.0 %), swap 2.00 GiB;" in sentence(Columns(record(5, swap_used_bytes=2 * 1024**3)))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "the command ended with status 0"),
        (2, "the command ended with status 2"),
        (-9, "the command was ended by SIGKILL"),
        (-77, "the command was ended by signal 77"),
        (None, "the command has not ended yet"),
    ],
)
def test_how_the_command_ended_is_reported_in_words(record, status, text):
    assert ended_text(record(1, status=status)) == text
    assert ended_text(record(1, status=status, command=())) == ""


def test_a_long_command_is_cut_for_the_heading(record):
    assert title_of(record(1, command=("python", "my train.py"))) == "python 'my train.py'"
    assert title_of(record(1, command=("python", "x" * 100))) == f"python {'x' * 57} ..."
    assert title_of(record(1, command=("python", *["--wordy"] * 12))) == f"python{' --wordy' * 7} ..."
    assert title_of(record(1, command=())) == "Monitor"


def test_the_heading_names_programs_without_their_folders(record):
    assert title_of(record(1, command=("/opt/venv/bin/python", "/home/a/train.py", "a/b"))) == "python train.py a/b"


def test_cards_show_means_and_peaks(record, gpu):
    shown = {card.name: (card.value, card.note) for card in cards(Columns(record(3600, gpus=[gpu()])))}
    assert shown == {
        "Watched": ("1 h", "3,600 samples, one every 1.0 s"),
        "CPU busy": ("50.0 %", "mean of 2 cores"),
        "The program": ("0.500 cores", "mean; at most 0.500 cores"),
        "Memory": ("6.00 GiB", "at most, of 24.0 GiB"),
        "Memory of the program": ("2.00 GiB", "at most"),
        "GPU busy": ("80.0 %", "of the time a kernel ran"),
        "GPU memory": ("20.0 GiB", "at most, 25.0 % of the device's own"),
        "Energy of the GPU": ("360 Wh", "power over time"),
    }


def test_cards_of_what_is_not_there_are_left_out(record):
    assert [card.name for card in cards(Columns(record(0)))] == ["Watched"]
    assert "GPU busy" not in [card.name for card in cards(Columns(record(3)))]


def test_a_phase_has_the_means_of_the_samples_that_it_fills(record, gpu, mark):
    idle, busy = record(10, gpus=[gpu(busy_share=0.2)], program_cores=0.0), record(10, gpus=[gpu(busy_share=0.6)])
    both = replace(idle, samples=[*idle.samples[:4], *busy.samples[4:]])
    marks = [mark("wait", 0.0, 4.0), mark("train", 4.0, 6.0), mark("half", 3.0, 2.0)]
    table = phase_table(Columns(both), phases_of(marks))
    assert table.heads == ("Phase", "Time", "Of all", "Times", "CPU busy", "Program, cores", "Disk read", "GPU busy")
    assert table.rows == [
        ("wait", "4.0 s", "40.0 %", "1", "50.0 %", "0.000", "100 MiB/s", "20.0 %"),
        ("half", "2.0 s", "20.0 %", "1", "50.0 %", "0.250", "100 MiB/s", "40.0 %"),
        ("train", "6.0 s", "60.0 %", "1", "50.0 %", "0.500", "100 MiB/s", "60.0 %"),
    ]


def test_a_phase_that_no_sample_saw_has_no_means(record, mark):
    whole = record(10, core_shares=(0.5,), program_cores=None, disk_read_bytes_per_s=None)
    late = replace(whole, samples=whole.samples[5:])
    table = phase_table(Columns(late), phases_of([mark("early", 0.0, 2.0)]))
    assert table.rows == [("early", "2.0 s", "20.0 %", "1", "n/a")]


def test_each_device_has_a_row_with_why_its_clocks_were_held_back(record, gpu):
    gpus = [gpu(0, throttle_reasons=("sw_power_cap", "hw_slowdown")), gpu(1, power_w=None, temperature_c=None, name="")]
    table = device_table(Columns(record(4, gpus=gpus)))
    assert table.rows == [
        ("GPU 0", "NVIDIA H100 80GB HBM3", "80.0 %", "20.0 GiB of 80.0 GiB", "360 W", "60.0 °C",
         "hw slowdown, sw power cap"),
        ("GPU 1", "n/a", "80.0 %", "20.0 GiB of 80.0 GiB", "n/a", "n/a", "none seen"),
    ]  # fmt: skip


GIB = 2**30


def command_record(*samples, status=0, missing=()):
    return MonitorRecord(
        command=("train",), status=status, seconds=75.0, period_s=1.0, samples=samples, missing=missing
    )


def sample(second, cores, gib, busy, period_s=1.0):
    host = HostSample(
        core_shares=(1.0, 1.0), program_cores=cores, others_cores=0.25, program_memory_bytes=int(gib * GIB)
    )
    gpus = (
        GpuSample(index=0, busy_share=busy, memory_used_bytes=int(gib * GIB), memory_total_bytes=80 * GIB),
        GpuSample(index=1, slice=3),
    )
    return Sample(time_s=second, period_s=period_s, host=host, gpus=gpus)


def test_means_are_over_time_and_memory_is_the_highest():
    lines = summary_lines(
        command_record(sample(1, 1.0, 2, 0.0), sample(4, 2.0, 1, 1.0, period_s=3.0)), Path("out/monitor.html")
    )
    assert lines == [
        "the command ended with status 0 after 1 min 15 s",
        "CPU: 1.75 of 2 cores on average, others took 0.25, memory: 2.00 GiB at most",
        "GPU 0: busy 75.0 % of the time, memory 2.00 GiB of 80.0 GiB at most",
        "GPU 1.3: no data",
        "see out/monitor.html",
    ]


def test_each_rank_has_a_line_and_a_row():
    ranks = (RankSample(rank=0, cores=1.0, memory_bytes=GIB), RankSample(rank=1, cores=0.25, memory_bytes=2 * GIB))
    record = command_record(Sample(time_s=1.0, period_s=1.0, host=HostSample(ranks=ranks)))
    assert summary_lines(record, Path("out"))[2:4] == [
        "rank 0: 1.00 cores on average, memory: 1.00 GiB at most",
        "rank 1: 0.25 cores on average, memory: 2.00 GiB at most",
    ]
    assert list(rank_table(Columns(record)).rows) == [
        ("rank 0", "1.00", "1.00", "1.00 GiB"),
        ("rank 1", "0.250", "0.250", "2.00 GiB"),
    ]


def test_what_is_missing_is_said_and_so_is_a_time_too_short():
    assert summary_lines(command_record(missing=["GPUs: none", "said"]), Path("x"), reported=["said"])[1:] == [
        "it was too short for a sample",
        "not measured: GPUs: none",
        "see x",
    ]
