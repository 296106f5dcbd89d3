"""Names that scripts import from here in vain: where they are, or what took their place."""

from __future__ import annotations

import importlib

# Gone from MONAI: the class that does the same, with its arguments.
_REPLACED = {
    "AddChannel": 'EnsureChannelFirst{d}({keys}channel_dim="no_channel")',
    "AsChannelFirst": "EnsureChannelFirst{d}({keys}channel_dim=-1)",
    "SplitChannel": "SplitDim{d}({keys}dim=0)",
}
_PLACES = (
    "monai.transforms", "monai.losses", "monai.networks.nets", "monai.data", "monai.inferers", "monai.metrics",
    "monai.engines", "monai.handlers", "monai.utils", "monai.optimizers",
)  # fmt: skip


def where_else(name: str) -> str:
    """What to write in place of a name that `voxelocity.monai` lacks; "" for a name that MONAI does not know either."""
    for place in _PLACES:
        if hasattr(importlib.import_module(place), name):
            return f"it stays MONAI's own: from {place} import {name}"
    for suffix in ("", "d", "D", "Dict"):
        if (old := name.removesuffix(suffix)) in _REPLACED and name == old + suffix:
            text = _REPLACED[old].format(d="d" if suffix else "", keys="keys, " if suffix else "")
            return f"MONAI has removed it; use {text} from monai.transforms"
    return ""
