"""Changes to the values of a patch, in place: voxel by voxel, by its statistics, or by fields over it."""
