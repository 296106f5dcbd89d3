"""The path of a voxel, one folder an arrow. Only `data.pipeline` knows the order."""
