"""Whole trainings against each other: MONAI scripts and `voxelocity train` on the same cases, network and patches.

`job` makes the script's settings of a plan, `sides` run one training each in a process of its own, `rounds` run all of
them seed by seed and judge what they leave behind, and `scenario` has the tasks.
"""
