"""Nsight's command and its tables, with an executable of that name which answers as it does."""

import subprocess
import sys

import pytest

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.facts import KernelGroup
from voxelocity_observe.diagnose.tracing import nsys

GPU = """Start (ns),Duration (ns),CorrId,GrdX,Bytes (MB),Device,Strm,Name
1000,300,11,64,,NVIDIA A100 (0),7,ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_tn
1400,100,12,64,,NVIDIA A100 (0),7,"void at::native::elementwise_kernel<128, 4>(int)"
1600,50,13,,8.000,NVIDIA A100 (0),7,[CUDA memcpy Host-to-Device]
"""
API = """Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
900,10,cudaLaunchKernel,0,11,7,7,20,python
950,20,cudaLaunchKernel,0,12,7,7,20,python
1550,30,cudaMemcpyAsync,0,13,7,7,20,python
"""


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """Puts an `nsys` on PATH that knows tables by name; `profile` runs the command and leaves a report."""

    def install(tables, *, known_profile=True):
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, text in tables.items():
            (folder / f"{name}.csv").write_text(text)
        script = folder / "nsys"
        script.write_text(
            f"#!{sys.executable}\n"
            "import pathlib, subprocess, sys\n"
            "here = pathlib.Path(__file__).parent\n"
            "verb, *rest = sys.argv[1:]\n"
            "if verb == 'profile':\n"
            "    flags = [word for word in rest if word.startswith('--')]\n"
            "    out = next(word for word in flags if word.startswith('--output=')).partition('=')[2]\n"
            f"    if {known_profile}: pathlib.Path(out + '.nsys-rep').write_text(' '.join(flags))\n"
            "    sys.exit(subprocess.run(rest[len(flags):]).returncode)\n"
            "name = rest[rest.index('--report') + 1]\n"
            "if not (here / f'{name}.csv').exists():\n"
            "    print(f'ERROR: Report {name} could not be found.', file=sys.stderr); sys.exit(1)\n"
            "print('Processing [report.sqlite] with [report.py]...\\n')\n"
            "print((here / f'{name}.csv').read_text())\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


def test_the_program_runs_under_nsight_and_keeps_its_exit_status(fake_nsys, tmp_path):
    fake_nsys({})
    wrapped = nsys.wrap([sys.executable, "-c", "print('--trained'); raise SystemExit(3)"], tmp_path)
    run = subprocess.run(wrapped, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (3, "--trained\n")
    assert {
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--kill=none",
    } <= set((tmp_path / "nsys.nsys-rep").read_text().split())


def test_a_folder_whose_name_looks_like_a_pattern_of_nsight_keeps_it(fake_nsys, tmp_path):
    fake_nsys({})
    assert f"--output={tmp_path}/50%%p/nsys" in nsys.wrap(["train"], tmp_path / "50%p")


def test_without_nsight_nothing_is_wrapped(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nsys.wrap(["python", "train.py"], tmp_path) is None


def test_a_program_that_never_came_to_the_steps_is_told(fake_nsys, tmp_path):
    fake_nsys({}, known_profile=False)
    subprocess.run(nsys.wrap([sys.executable, "-c", ""], tmp_path), check=True)
    with pytest.raises(InputError, match=r"no report in .* let it train a few dozen steps on a GPU"):
        nsys.report_groups(tmp_path)


@pytest.fixture
def reported(tmp_path):
    """A folder with a report."""
    (tmp_path / "nsys.nsys-rep").touch()
    return tmp_path


@pytest.mark.parametrize("names", [("cuda_gpu_trace", "cuda_api_trace"), ("gputrace", "cudaapitrace")])
def test_tables_of_newer_and_older_versions_come_to_the_groups(fake_nsys, reported, names):
    fake_nsys(dict(zip(names, (GPU, API), strict=True)))
    assert nsys.report_groups(reported) == {
        "All kernels": KernelGroup(number=3, cpu_ns=60, gpu_ns=450),
        "Tensor-core kernels": KernelGroup(number=1, cpu_ns=10, gpu_ns=300),
        "Memory copies": KernelGroup(number=1, cpu_ns=30, gpu_ns=50),
        "All other kernels": KernelGroup(number=1, cpu_ns=20, gpu_ns=100),
    }


def test_a_report_without_kernels_has_empty_groups(fake_nsys, reported):
    nothing = "SKIPPED: nsys.sqlite does not contain CUDA trace data."
    fake_nsys({"cuda_gpu_trace": nothing, "cuda_api_trace": nothing})
    groups = nsys.report_groups(reported)
    assert {group.number for group in groups.values()} == {0}


def test_a_version_that_knows_no_such_table_is_told_with_its_words(fake_nsys, reported):
    fake_nsys({})
    with pytest.raises(InputError, match=r"cuda_api_trace' on .* could not be found\.; open the report in Nsight"):
        nsys.report_groups(reported)
