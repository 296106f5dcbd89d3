"""Models on disk, each format read as data: no code in a model's folder is run unless the user names it.

`open` lists the kinds of models and takes the one that a folder holds, recognized by `kinds`; both import no torch.
`run`: ours, with `spec` (`model.json`). `exported`: a network in another runtime's file. `nnunet` (`nnunet_prepare`,
`nnunet_network`) and `bundle` of MONAI (`bundle_config` with `bundle_expressions`; `bundle_prepare` with `bundle_grid`;
`bundle_network`; `bundle_outputs`) bring preparations of their own; `foreign_files` reads what may only be data.
`ensemble`: several as one.
"""
