"""What everything else stands on: errors, the clock, the machine, plain files and words. Imports no torch.

- `errors`: the one tree of errors. `clock`: where seconds come from. `place`: which of several processes this is, as
  its launcher says.
- `host`, `memory_folders`, `environment`: what this process may use and has used, and what it runs on. `kernel_files`:
  the only access to the kernel's files. `device`: the one that torch uses.
- Files: `whole_file`, `links`, `plain` (JSON and YAML), `events` (of a run), `measured` (kept for each machine),
  `credentials`.
- Words: `quantities`, `time_parts`, `console`, `terminal_text`, `warn_once`.
- `first_use`: names imported at their first use.
- `interleaved_timing`: ways to do one thing timed alternating. `command`: a command as a child, as if it had been
  started without us.
"""
