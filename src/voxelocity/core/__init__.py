"""Value types and contracts that travel between the stages. Imports nothing else of this package, and no torch.

- What travels: `volume`, `region`, `batch`, `cases`, `records`, `axis_order`, `laterality` (left/right pairs of
  classes).
- What stages promise: `contracts`, `errors`, `config` (the base of every configuration), `rng`, `learning`.
- Files: `whole_file`, `links`, `plain` (JSON and YAML), `remote` (URLs, lost connections), `staging`, `credentials`.
- Words: `quantities`, `time_parts`, `console`, `terminal_text`, `warn_once`.
- Loops and kernels: `jit` and `waiting` (Numba), `numba_interpolation`, `memory_order`, `kernels` and `compiling`
  (Triton), `device`, `first_use` (names imported at their first use).
"""
