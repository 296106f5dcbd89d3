"""Samples a machine while a program runs, and draws what it saw.

- `watch`, `monitor`: a command, or this process, from start to end. `live`: the last lines of the terminal meanwhile.
  `gpu_stats`: the monitor under another guide's names.
- `sampling`: the machine at regular intervals, by `host_sampling`, `program` (a command and its children) and `gpu`,
  which asks the driver through `nvml` alone; a refused query is a gap. `samples` has the records and thins long ones.
- `record`, `files`: what was sampled, as a record and as rows of a table, with the phases that spans wrote.
- `columns`, `summary`, `timelines`: numbers and phases (every mean and peak is computed here), tables, charts.
- `page`, `comparison`: a record, or two, as a `Document`. `exposition`, `grafana`: for collectors and
  dashboards.
"""
