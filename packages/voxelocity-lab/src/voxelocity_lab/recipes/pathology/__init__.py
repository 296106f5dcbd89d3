"""Tumor in slides of tissue: a patch classifier, heat maps of whole slides, and lesions found in them.

`slides` (the only module that knows OpenSlide), `annotations`, `tissue` and `dataset` say what there is; `patches`,
`model` and `train` learn; `heatmap`, `froc`, `score`, `handmade`, `baselines`, `resampling` and `judging` judge;
`page`, `picture` and `benchmark` show; `recipe` and `settings` join them.
"""
