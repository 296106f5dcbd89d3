"""The path of a voxel, one folder per step. Only `data.pipeline` knows the order."""
