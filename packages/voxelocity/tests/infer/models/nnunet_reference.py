"""What nnU-Net 2.8.1 computes between a prepared scan and its labels, in plain calls: sums and logits in float16."""

import itertools
import math

import numpy as np
import torch
from infer.models.test_nnunet_prepare import as_skimage, in_planes
from scipy.ndimage import gaussian_filter

from voxelocity.data.prepare import is_resampled, restore_labels


def labels_as_nnunet(networks, volume, patch, mirror_axes, *, order=(), thick=None):
    """Class indices on the scan's grid, of the mean of several networks.

    `patch` and `mirror_axes` are those of nnU-Net, whose planes have two axes; `order` is that of overlapping classes.
    """
    logits, trace = logits_as_nnunet(networks, volume, patch, mirror_axes, thick=thick)
    if not order:
        return restore_labels(logits.argmax(axis=0).astype(np.uint8), trace)
    return restore_labels(_drawn(logits > 0, order), trace)


def mean_as_nnunet(members, *, order=()):
    """As `nnUNetv2_ensemble`, of several (logits, trace) that have one trace."""
    tensors = [torch.from_numpy(logits).float() for logits, _ in members]
    probabilities = [tensor.sigmoid() if order else tensor.softmax(0) for tensor in tensors]
    mean = (sum(probabilities) / len(members)).numpy()
    labels = _drawn(mean > 0.5, order) if order else mean.argmax(axis=0).astype(np.uint8)
    return restore_labels(labels, members[0][1])


def _drawn(masks, order):
    labels = np.zeros(masks.shape[1:], np.uint8)
    for index, mask in zip(order, masks, strict=True):
        labels[mask] = index
    return labels


def logits_as_nnunet(networks, volume, patch, mirror_axes, *, thick=None):
    """The mean logits of several networks on the spacing of the scan, float16, and what is left of the trace."""
    data = torch.from_numpy(volume.intensities())
    total = _logits(networks[0], data, patch, mirror_axes)
    for network in networks[1:]:
        total += _logits(network, data, patch, mirror_axes)
    if len(networks) > 1:
        total /= len(networks)
    logits, trace = total.numpy(), volume.trace
    if is_resampled(trace):
        shape, trace = tuple(trace[-1]["shape"]), trace[:-1]
        wide = logits.astype(float)
        resampled = [as_skimage(one, shape, 1) if thick is None else in_planes(one, shape, 1, thick, 0) for one in wide]
        logits = np.stack(resampled).astype(np.float16)
    return logits, trace


def _logits(network, data, patch, mirror_axes):
    """`predict_sliding_window_return_logits` on a CPU."""
    is_planar = len(patch) == 2
    sides = [*([1] if is_planar else []), *patch]
    missing = [max(0, side - n) for side, n in zip(sides, data.shape[1:], strict=True)]
    pairs = [(n // 2, n - n // 2) for n in missing]
    padded = torch.nn.functional.pad(data, [n for pair in reversed(pairs) for n in pair])
    starts = [_starts(n, side) for n, side in zip(padded.shape[1:], sides, strict=True)]
    weights = _gaussian(patch)
    sums = counts = None
    for corner in itertools.product(*starts):
        box = tuple(slice(start, start + side) for start, side in zip(corner, sides, strict=True))
        window = padded[(slice(None), *box)][None]
        with torch.no_grad():
            prediction = _mirrored(network, window, [axis + is_planar for axis in mirror_axes])[0]
        prediction *= weights
        if sums is None:
            sums = torch.zeros(len(prediction), *padded.shape[1:], dtype=torch.half)
            counts = torch.zeros(padded.shape[1:], dtype=torch.half)
        sums[(slice(None), *box)] += prediction
        counts[box] += weights
    sums /= counts
    return sums[(slice(None), *(slice(a, n - b) for (a, b), n in zip(pairs, padded.shape[1:], strict=True)))]


def _starts(length, side):
    if side == 1:
        return list(range(length))
    num = math.ceil((length - side) / (side * 0.5)) + 1
    step = (length - side) / (num - 1) if num > 1 else 0.0
    return [round(step * number) for number in range(num)]


def _gaussian(patch):
    peak = np.zeros(patch)
    peak[tuple(n // 2 for n in patch)] = 1
    weights = gaussian_filter(peak, [n / 8 for n in patch], 0, mode="constant", cval=0)
    weights = torch.from_numpy(weights / (weights.max() / 10)).half()
    weights[weights == 0] = weights[weights != 0].min()
    return weights


def _mirrored(network, window, axes):
    prediction = network(window).clone()
    flips = [chosen for num in range(1, len(axes) + 1) for chosen in itertools.combinations([a + 2 for a in axes], num)]
    for chosen in flips:
        prediction += torch.flip(network(torch.flip(window, chosen)), chosen)
    prediction /= len(flips) + 1
    return prediction
