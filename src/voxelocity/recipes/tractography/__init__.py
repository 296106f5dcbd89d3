"""Streamlines of white matter by diffusion: trained on bundles, made by the thousand, and judged against real ones."""
