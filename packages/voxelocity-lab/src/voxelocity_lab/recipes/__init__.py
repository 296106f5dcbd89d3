"""Complete, named examples that run unchanged. Recipes use the package; nothing in the package uses them.

- `call`: what a recipe is asked for; the module `recipe` of each has `train`, `predict` and `benchmark`, which take it.
- `run`: a training's folder, new or resumed. `fit`: the training they share: any step on numbered batches, by steps or
  by the clock, on any ranks.
- `trained`, `division`, `results`: their models on disk, what was held out, where predictions go.
- `segmentation`: what `spleen` and `brain` share. `demo`: what `voxelocity demo` runs.
- `pages`: what the pages of `tractography` and `pathology` share.
"""
