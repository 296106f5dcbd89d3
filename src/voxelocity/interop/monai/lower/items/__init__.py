"""Types, devices and keys of items: no voxel is changed."""
