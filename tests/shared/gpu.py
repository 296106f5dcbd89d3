"""What tests of a GPU share."""

import contextlib
import warnings

import torch


@contextlib.contextmanager
def nothing_waits():
    """Anything within that makes the host wait for the GPU raises an error."""
    with warnings.catch_warnings():
        # torch warns that it does not notice all waits; as an error it would leave the mode on.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
