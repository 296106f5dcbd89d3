"""Flips, turns and resampling: where each voxel comes from, rounded as MONAI rounds it."""
