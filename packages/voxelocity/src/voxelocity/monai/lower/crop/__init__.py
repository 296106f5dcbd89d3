"""Crops and pads: boxes given, central, anywhere or around voxels of a kind, and a constant around an image."""
