from __future__ import annotations

import platform

import pytest

from voxelocity.observe import cpu_has_fast_bfloat16, cpu_name


def test_the_name_is_the_first_model_or_the_architecture(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast CPU: 3 GHz\nmodel name\t: Other\n")
    assert cpu_name(cpuinfo) == "Fast CPU: 3 GHz"
    cpuinfo.write_text("processor\t: 0\n")
    assert cpu_name(cpuinfo) == platform.machine()
    assert cpu_name(tmp_path / "absent")


@pytest.mark.parametrize(
    ("vendor", "flags", "is_fast"),
    [
        ("AuthenticAMD", "avx512f avx512_bf16", True),
        ("GenuineIntel", "avx512f avx512_bf16", False),
        ("GenuineIntel", "avx512_bf16 amx_bf16", True),
        ("AuthenticAMD", "avx512f", False),
    ],
)
def test_avx512_alone_makes_bfloat16_fast_on_amd_only(tmp_path, vendor, flags, is_fast):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id\t: {vendor}\nflags\t\t: {flags}\n\nvendor_id\t: Other\n")
    assert cpu_has_fast_bfloat16(cpuinfo) is is_fast
    assert not cpu_has_fast_bfloat16(tmp_path / "absent")
