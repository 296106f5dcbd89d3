"""A recipe that is called on a CPU, as its command calls it."""

import torch
from rich.console import Console

from voxelocity_lab.recipes.call import Call


def call_of(data, out, **options):
    """Of a silent terminal; `options` are fields of `Call`."""
    options = {"console": Console(quiet=True), **options}
    return Call(data=data, out=out, device=torch.device("cpu"), fast_bfloat16=False, **options)
