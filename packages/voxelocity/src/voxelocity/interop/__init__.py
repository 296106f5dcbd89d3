"""Other toolkits' names and formats on top of this package's engine.

`monai`: MONAI's names. `auto3dseg`: Auto3DSeg's customization by `tuning`. `ray`: trainings and caches on a Ray
cluster; only it imports Ray.
"""
