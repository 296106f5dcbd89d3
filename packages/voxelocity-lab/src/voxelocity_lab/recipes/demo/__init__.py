"""The demonstration on phantoms: a story of two minutes, and the careful race.

- `plain_script`: the MONAI script that people have; it imports nothing of this package.
- `story`: the script, its diagnosis, one import line changed, `voxelocity train`; `parts` runs and times each,
  `film` shows predictions as they improve, `page` is the page.
- `race`: trainings of all sides with several seeds.
"""
