"""Flips, turns and whatever resamples: where each voxel comes from, rounded as MONAI rounds it."""
