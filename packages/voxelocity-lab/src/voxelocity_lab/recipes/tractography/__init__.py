"""Streamlines of white matter by diffusion: trained on bundles, made by the thousand, and judged against real ones.

`files`, `foreign`, `write` and `shapes` (streamlines), `bundles` (cached arrays, split), `exemplars` (real streamlines
nearby), `volume` (images along them), `diffusion` and `model`, `train`, `generate`, `judge` with `baselines`, `page`
and `benchmark`; `recipe` and `settings` join them.
"""
