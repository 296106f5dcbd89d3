"""Value types and contracts that travel between the stages. Imports nothing else of this package, and no torch.

- What travels: `volume`, `region`, `batch`, `cases`, `records`, `axis_order`, `laterality` (left/right pairs of
  classes).
- What stages promise: `contracts`, `config` (the base of every configuration), `rng`, `learning`.
- What users ask for: `requests`, a module for each. `scan_formats`: the facts of every format of scans.
- Files: `remote` (URLs, lost connections), `staging`.
- Loops and kernels: `native` (C; `build_loops` compiles it), `memory_order`, `kernels` and `compiling` (Triton).
- `quiet_import`: packages imported without what their import changes in the process.
"""
