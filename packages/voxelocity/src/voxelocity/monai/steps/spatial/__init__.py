"""Where the voxels of a patch come from: boxes, flips, turns, warps and resizing, gathered in few passes."""
