"""Crops and pads: boxes given, central, anywhere or about voxels of a kind, and a constant around an image."""
