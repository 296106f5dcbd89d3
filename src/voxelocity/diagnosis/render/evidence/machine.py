"""The machine while the program ran, and the versions of its software."""

from __future__ import annotations

from voxelocity.core.quantities import bytes_text, share_text
from voxelocity.diagnosis.facts import Facts, HostFacts
from voxelocity.diagnosis.render.evidence.section import section
from voxelocity.report.document import Section, Table
from voxelocity.report.tables import machine_table


def host_section(facts: Facts) -> Section | None:
    """Cores, memory, disk and devices while the program ran."""
    if facts.host is None:
        return None
    tables = [_host_table(facts.host)]
    if facts.host.gpu_busy:
        tables.append(_gpu_table(facts.host))
    return section("host", "The machine during the run", tables)


def _host_table(host: HostFacts) -> Table:
    of_limit = f" of {bytes_text(host.memory_limit_bytes)}" if host.memory_limit_bytes else ""
    of_shm = f" of {bytes_text(host.shm_size_bytes)}" if host.shm_size_bytes else ""
    rows = [
        ("Cores it may use", f"{host.num_cpus} of {host.num_machine_cpus or host.num_cpus}"),
        ("Of these in use by the program", share_text(host.cpu_share)),
        ("In use by others", f"{host.others_share:.2g} cores"),
        ("Held back by the control group", share_text(host.throttled_share)),
        ("Processes and threads, at most", f"{host.num_processes:,} and {host.num_threads:,}"),
        *([("Memory, at most", f"{bytes_text(host.memory_bytes)}{of_limit}")] if host.memory_bytes else []),
        ("Swapped in and out", f"{bytes_text(host.swap_in_bytes)} and {bytes_text(host.swap_out_bytes)}"),
        ("Pages read from disk", f"{host.major_faults_per_s:.3g} a second"),
        ("/dev/shm, at most", f"{bytes_text(host.shm_used_bytes)}{of_shm}"),
        ("Read from disks", f"{bytes_text(host.disk_read_bytes_per_s)}/s"),
        *([("File system of the data", host.file_system)] if host.file_system else []),
    ]
    return Table(caption="The host", heads=("What", "Value"), rows=rows, text_columns=frozenset({1}))


def _gpu_table(host: HostFacts) -> Table:
    used, whole = list(host.gpu_memory_bytes), list(host.gpu_memory_total_bytes)
    rows = []
    for index, busy in enumerate(host.gpu_busy):
        memory = bytes_text(used[index]) if index < len(used) else ""
        total = f" of {bytes_text(whole[index])}" if index < len(whole) and whole[index] else ""
        rows.append((f"GPU {index}", share_text(busy), f"{memory}{total}"))
    reasons = ", ".join(f"{reason} ({share_text(share)})" for reason, share in host.gpu_throttle_reasons.items())
    if reasons:
        rows.append(("Clocks held back", reasons, ""))
    if host.gpu_other_processes:
        rows.append(("Other programs on it", f"{host.gpu_other_processes:,}", ""))
    heads = ("Device", "A kernel running", "Memory, at most")
    return Table(caption="The GPUs", heads=heads, rows=rows, text_columns=frozenset({2}))


def environment_section(facts: Facts) -> Section | None:
    """The machine, and versions of its software and of the packages the program imported."""
    tables = [machine_table(facts.environment)] if facts.environment else []
    if facts.main.versions:
        rows = list(facts.main.versions.items())
        tables.append(
            Table(
                caption="Packages the program imported",
                heads=("Package", "Version"),
                rows=rows,
                text_columns=frozenset({1}),
            )
        )
    return section("environment", "What it ran on", tables) if tables else None
