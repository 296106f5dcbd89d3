"""What Linux reports about the processor: its name, and whether bfloat16 is worth computing in."""

from __future__ import annotations

import platform
from pathlib import Path

from voxelocity.observe.kernel_files import file_text

_CPUINFO = Path("/proc/cpuinfo")


def cpu_name(cpuinfo: Path = _CPUINFO) -> str:
    """The model of the CPU as its maker calls it, or its architecture where the system does not say."""
    text = file_text(cpuinfo)
    if not text:
        return platform.processor() or platform.machine()
    return cpu_field(text, "model name") or platform.machine()


def cpu_has_fast_bfloat16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether convolutions take less time in bfloat16 than in float32.

    With AMX, or with AVX-512 BF16 on AMD's cores: 0.57 to 0.71 of the time of float32 on Zen 4. With AVX-512 BF16 alone
    Intel's cores (Emerald Rapids, AMX hidden by the hypervisor) took 1.15 to 1.4 times as long (docs/log.md).
    """
    text = file_text(cpuinfo)
    flags = cpu_field(text, "flags").split()
    return "amx_bf16" in flags or ("avx512_bf16" in flags and cpu_field(text, "vendor_id") == "AuthenticAMD")


def cpu_field(text: str, name: str) -> str:
    """A field of the first core in the text of /proc/cpuinfo; "" if there is none."""
    for line in text.splitlines():
        field, separator, value = line.partition(":")
        if separator and field.strip() == name:
            return value.strip()
    return ""
