"""The methods of Table 1 in plain loops, each from the formula of its original paper: crops, patches, filter rows.

Nothing here knows of (Q, R, V), and nothing is shared with the package: this is the other witness. All of it is
float64; x are the training images (N, C, H, W) in [-1, 1] and z the noisy ones (B, C, H, W).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray


def posterior_mean(query: Array, keys: Array, values: Array, sigma: float) -> Array:
    """Σ_i p(key_i | query) value_i: query of any shape, keys (M, *query.shape), values (M, ...)."""
    distance = ((keys - query) ** 2).reshape(len(keys), -1).sum(1)
    weight = np.exp(-(distance - distance.min()) / (2 * sigma**2))
    return np.tensordot(weight / weight.sum(), values, axes=1)


def each(one: Callable[[Array], Array], z: Array) -> Array:
    return np.stack([one(image) for image in z])


def optimal(z: Array, sigma: float, x: Array) -> Array:
    """The posterior mean over whole images (Eq. 5)."""
    return each(lambda image: posterior_mean(image, x, x, sigma), z)


def wiener_filter(sigma: float, x: Array) -> Array:
    """W (d, d) from the singular values of the centred images, no covariance matrix formed."""
    flat = x.reshape(len(x), -1)
    _, values, rows = np.linalg.svd((flat - flat.mean(0)) / np.sqrt(len(x)), full_matrices=False)
    return (rows.T * (values**2 / (values**2 + sigma**2))) @ rows


def wiener(z: Array, sigma: float, x: Array) -> Array:
    """μ + W(z − μ), pixel by pixel the dot product with a row of W."""
    mean = x.mean(0)
    filter_ = wiener_filter(sigma, x)
    return each(lambda image: mean + (filter_ @ (image - mean).ravel()).reshape(mean.shape), z)


def ls(z: Array, sigma: float, x: Array, size: int) -> Array:
    """Kamb and Ganguli's local score machine: zero-padded patches around each pixel, the centre of the mean patch."""
    k = size // 2
    frame = ((0, 0), (0, 0), (k, k), (k, k))
    padded_x, padded_z = np.pad(x, frame), np.pad(z, frame)
    out = np.empty_like(z)
    for b, row, column in np.ndindex(len(z), *z.shape[2:]):
        window = np.s_[..., row : row + size, column : column + size]
        out[b, :, row, column] = posterior_mean(padded_z[b][window], padded_x[window], x[:, :, row, column], sigma)
    return out


def els(z: Array, sigma: float, x: Array, size: int) -> Array:
    """The boundary-broken equivariant machine: patches inside meet all such patches, edges slide, corners stay."""
    k = size // 2
    height, width = z.shape[2:]
    out = np.empty_like(z)
    for b, row, column in np.ndindex(len(z), height, width):
        inside = [k <= row <= height - k - 1, k <= column <= width - k - 1]  # room for a whole patch along that axis
        rows = range(k, height - k) if inside[0] else [row]
        columns = range(k, width - k) if inside[1] else [column]
        up, down = min(k, row), min(k, height - 1 - row)  # a patch at the border is clipped, as are those it meets
        left, right = min(k, column), min(k, width - 1 - column)
        keys, values = [], []
        for image in x:
            for i in rows:
                for j in columns:
                    keys.append(image[:, i - up : i + down + 1, j - left : j + right + 1])
                    values.append(image[:, i, j])
        patch = z[b, :, row - up : row + down + 1, column - left : column + right + 1]
        out[b, :, row, column] = posterior_mean(patch, np.array(keys), np.array(values), sigma)
    return out


def pspc_square(z: Array, sigma: float, x: Array, size: int) -> Array:
    """Niedoba et al.'s square patches by their upper-left corners; overlapping mean patches are averaged."""
    total, count = np.zeros_like(z), np.zeros_like(z)
    for b in range(len(z)):
        for row in range(z.shape[2] - size + 1):
            for column in range(z.shape[3] - size + 1):
                window = np.s_[..., row : row + size, column : column + size]
                total[b][window] += posterior_mean(z[b][window], x[window], x[window], sigma)
                count[b][window] += 1
    return total / count


def flex_mask(sensitivity: Array, tau: float) -> Array:
    """Pixels in descending order of sensitivity until their share of the whole exceeds tau: (H, W) -> bool (H, W)."""
    mask = np.zeros(sensitivity.shape, bool)
    if tau >= 1:
        return ~mask
    taken = 0.0
    for pixel in sorted(np.ndindex(*sensitivity.shape), key=lambda pixel: -sensitivity[pixel]):
        if taken > tau:
            break
        mask[pixel] = True
        taken += sensitivity[pixel] / sensitivity.sum()
    return mask


def pspc_flex(z: Array, sigma: float, x: Array, maps: Array, tau: float) -> Array:
    """Niedoba et al.'s data-driven patches: one crop per pixel (maps (H, W, H, W)), the mean crops averaged."""
    total, count = np.zeros_like(z), np.zeros_like(z)
    for row, column in np.ndindex(*z.shape[2:]):
        mask = flex_mask(maps[row, column], tau)
        for b in range(len(z)):
            total[b][:, mask] += posterior_mean(z[b][:, mask], x[:, :, mask], x[:, :, mask], sigma)
            count[b][:, mask] += 1
    return total / count


def wiener_maps(sigma: float, x: Array) -> Array:
    """The sensitivities a Wiener filter has: |∂D_c(pixel) / ∂z_c(other)| summed over channels, (H, W, H, W)."""
    channels, height, width = x.shape[1:]
    filter_ = wiener_filter(sigma, x).reshape(channels, height, width, channels, height, width)
    return np.sum([np.abs(filter_[c, :, :, c]) for c in range(channels)], axis=0)


def lukoianov_mask(sigma: float, x: Array, tau: float, rule: str) -> Array:
    """(d, d) bool, the mask of output dimension l in row l; a dimension that never varies sees itself alone."""
    filter_ = wiener_filter(sigma, x)
    mask = np.eye(len(filter_), dtype=bool)
    live = np.flatnonzero(np.ptp(x.reshape(len(x), -1), axis=0))
    if rule == "paper":
        for row in live:
            mask[row] |= filter_[row] / filter_[row].max() > tau
    else:  # the authors' code: each row by its own diagonal, one threshold for all, and a *column* for each output
        scaled = np.zeros_like(filter_)
        for row in live:
            scaled[row, live] = np.abs(filter_[row, live]) / filter_[row, row]
        for column in live:
            mask[column] |= scaled[:, column] >= tau * scaled.max()
    return mask


def lukoianov(z: Array, sigma: float, x: Array, tau: float, rule: str = "paper") -> Array:
    """Lukoianov et al.: one posterior per output dimension, from the dimensions its Wiener row leaves."""
    masks = lukoianov_mask(sigma, x, tau, rule)
    flat_x, flat_z = x.reshape(len(x), -1), z.reshape(len(z), -1)
    out = np.empty_like(flat_z)
    for b, dimension in np.ndindex(*flat_z.shape):
        mask = masks[dimension]
        out[b, dimension] = posterior_mean(flat_z[b, mask], flat_x[:, mask], flat_x[:, dimension], sigma)
    return out.reshape(z.shape)
