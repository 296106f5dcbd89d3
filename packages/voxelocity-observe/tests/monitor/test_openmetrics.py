import json
import re
import subprocess
import sys

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from voxelocity_observe.core.environment import python_path
from voxelocity_observe.monitor.exposition import Gauge, openmetrics_text, sample_values, write_openmetrics
from voxelocity_observe.monitor.grafana import dashboard
from voxelocity_observe.monitor.samples import GpuSample, HostSample, RankSample, Sample
from voxelocity_observe.sinks import openmetrics as run_metrics

DEVICE = {"gpu": "0", "uuid": "GPU-1", "model": "H100"}


def sample(**fields):
    fields = {"host": HostSample(), **fields}
    return Sample(time_s=1.0, period_s=1.0, **fields)


OF_A_SAMPLE = {gauge.name for gauge, _ in sample_values(sample(), {})}
OF_A_RUN = {value.name for value in vars(run_metrics).values() if isinstance(value, Gauge)}


def found(text):
    """The values in a text, which both of Prometheus' dialects must read alike."""
    as_openmetrics = [(s.name, s.labels, s.value) for family in parse_openmetrics(text) for s in family.samples]
    as_prometheus = [(s.name, s.labels, s.value) for family in parse_prometheus(text) for s in family.samples]
    assert as_openmetrics == as_prometheus
    return as_openmetrics


def test_a_sample_of_a_gpu_is_reported_in_base_units():
    gpu = GpuSample(
        index=0,
        name="H100",
        uuid="GPU-1",
        busy_share=0.75,
        memory_used_bytes=2**40 + 1,
        sm_clock_mhz=1980.0,
        power_w=None,
        throttle_reasons=("sw_power_cap",),
    )
    assert found(openmetrics_text(sample(gpus=(gpu,)))) == [
        ("voxelocity_gpu_busy_ratio", DEVICE, 0.75),
        ("voxelocity_gpu_memory_used_bytes", DEVICE, 2**40 + 1),
        ("voxelocity_gpu_clock_hertz", DEVICE, 1.98e9),
        ("voxelocity_gpu_throttled", {**DEVICE, "reason": "sw_power_cap"}, 1.0),
    ]


def test_cores_and_the_host_are_reported_and_zero_is_a_value():
    text = openmetrics_text(sample(host=HostSample(core_shares=(0.5, 0.0), swap_used_bytes=0, program_cores=1.25)))
    assert found(text) == [
        ("voxelocity_cpu_busy_ratio", {"core": "0"}, 0.5),
        ("voxelocity_cpu_busy_ratio", {"core": "1"}, 0.0),
        ("voxelocity_swap_used_bytes", {}, 0.0),
        ("voxelocity_program_cpu_cores", {}, 1.25),
    ]


def test_what_could_not_be_asked_is_left_out_and_not_reported_as_zero():
    assert openmetrics_text(sample()) == "# EOF\n"
    assert found(openmetrics_text(sample(host=HostSample(program_cores=float("nan"))))) == []


def test_slices_and_given_labels_tell_values_apart():
    gpus = (GpuSample(index=0, slice=1, busy_share=0.1), GpuSample(index=0, slice=2, busy_share=0.2))
    values = found(openmetrics_text(sample(gpus=gpus), labels={"job_id": "42"}))
    assert [labels for _, labels, _ in values] == [
        {"job_id": "42", "gpu": "0", "slice": "1"},
        {"job_id": "42", "gpu": "0", "slice": "2"},
    ]


def test_every_field_of_a_sample_that_is_a_number_is_reported():
    others = {"core_shares", "ranks", "throttle_reasons", "index", "slice", "name", "uuid"}
    host = HostSample(
        **{name: 1 for name in HostSample.__dataclass_fields__ if name not in others},
        core_shares=(1.0,),
        ranks=(RankSample(rank=1, cores=1.0, memory_bytes=1),),
    )
    numbers = {name: 1 for name in GpuSample.__dataclass_fields__ if name not in others}
    text = openmetrics_text(sample(host=host, gpus=(GpuSample(index=0, throttle_reasons=("x",), **numbers),)))
    assert {name for name, _, _ in found(text)} == OF_A_SAMPLE


def test_names_follow_the_conventions():
    names = OF_A_SAMPLE | OF_A_RUN
    assert len(names) == len(OF_A_SAMPLE) + len(OF_A_RUN)
    # Endings that OpenMetrics keeps for types other than gauges.
    assert not [name for name in names if re.search(r"_(total|created|bucket|count|sum|info)$", name)]
    assert all(name.startswith("voxelocity_") for name in names)


def test_a_file_is_replaced_whole_and_others_may_read_it(tmp_path):
    path = tmp_path / "voxelocity.prom"
    for cores in (1.0, 2.0):
        assert write_openmetrics(sample(host=HostSample(program_cores=cores)), path) == path
    assert found(path.read_text()) == [("voxelocity_program_cpu_cores", {}, 2.0)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["voxelocity.prom"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.fixture(scope="module")
def panels():
    return [panel for panel in json.loads(dashboard())["panels"] if panel["type"] != "row"]


def test_the_dashboard_asks_for_every_metric_there_is_and_for_no_other(panels):
    asked = {name for p in panels for t in p["targets"] for name in re.findall(r"voxelocity_\w+", t["expr"])}
    assert asked == OF_A_SAMPLE | OF_A_RUN


def test_the_dashboard_reads_the_source_that_its_variable_names(panels):
    whole = json.loads(dashboard())
    variables = {variable["name"]: variable for variable in whole["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = [part["datasource"] for p in panels for part in (p, *p["targets"])]
    sources += [variable["datasource"] for name, variable in variables.items() if name != "datasource"]
    assert {source["uid"] for source in sources} == {"${datasource}"}
    used = {name for p in panels for t in p["targets"] for name in re.findall(r"\$(\w+)", t["expr"])}
    assert used == variables.keys() - {"datasource"}
    for variable in variables.values():
        assert set(re.findall(r"voxelocity_\w+", variable.get("definition", ""))) <= OF_A_SAMPLE | OF_A_RUN


def test_the_panels_of_the_dashboard_lie_side_by_side():
    every = json.loads(dashboard())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells = [
        (x, y)
        for box in (panel["gridPos"] for panel in every)
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_dashboard_is_printed_by_a_command():
    source = python_path()
    command = [sys.executable, "-m", "voxelocity_observe.monitor.grafana"]
    done = subprocess.run(command, env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True)
    assert done.stdout == dashboard()
