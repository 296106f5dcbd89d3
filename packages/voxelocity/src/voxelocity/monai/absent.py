"""Names that scripts import from here in vain: where they are, or what took their place."""

from __future__ import annotations

from types import ModuleType

# Gone from MONAI: the class that does the same, with its arguments.
_REPLACED = {
    "AddChannel": 'EnsureChannelFirst{d}({keys}channel_dim="no_channel")',
    "AsChannelFirst": "EnsureChannelFirst{d}({keys}channel_dim=-1)",
    "SplitChannel": "SplitDim{d}({keys}dim=0)",
}


def where_else(name: str) -> str:
    """What to write in place of a name that `voxelocity.monai` lacks; "" for a name that MONAI does not know either."""
    for module in _modules():
        if hasattr(module, name):
            return f"it stays MONAI's own: from {module.__name__} import {name}"
    for suffix in ("", "d", "D", "Dict"):
        if (old := name.removesuffix(suffix)) in _REPLACED and name == old + suffix:
            text = _REPLACED[old].format(d="d" if suffix else "", keys="keys, " if suffix else "")
            return f"MONAI has removed it; use {text} from monai.transforms"
    return ""


def _modules() -> tuple[ModuleType, ...]:
    """Those that MONAI's documentation imports names from."""
    from monai import data, engines, handlers, inferers, losses, metrics, optimizers, transforms, utils
    from monai.networks import nets

    return (transforms, losses, nets, data, inferers, metrics, engines, handlers, utils, optimizers)
