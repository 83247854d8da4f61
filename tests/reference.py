"""The published definitions in plain NumPy: slow, obvious, float64, one loop for each "for every".

Written from the paper's pseudo-code, and sharing no code with the library, so that the two can be
compared. An image is an array (C, *space); a model is a callable on a batch of one double tensor.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
import torch

LN2 = np.log(2.0)

# Where the windows and their outer patches lie


def window_starts(size, width, stride):
    """0, s, 2s, ... while the window fits, and a last window moved back to end at the border."""
    starts = []
    start = 0
    while start + width <= size:
        starts.append(start)
        start += stride
    if starts[-1] + width < size:
        starts.append(size - width)
    return starts


def window_corners(space, window, strides):
    """The first pixel of every window, in row-major order."""
    return list(product(*map(window_starts, space, window, strides)))


def block(corner, shape):
    """The index of a box of all channels: image[block(corner, shape)]."""
    return (slice(None), *(slice(c, c + width) for c, width in zip(corner, shape, strict=True)))


def outer_patch(corner, window, patch, space):
    """Corner and shape of a window's outer patch: centred, then moved inside the image.

    An odd margin has its larger half after the window; a patch larger than the image is cut to it.
    """
    corners, shape = [], []
    for start, width, wanted, size in zip(corner, window, patch, space, strict=True):
        length = min(wanted, size)
        centred = start - (length - width) // 2
        corners.append(min(max(centred, 0), size - length))
        shape.append(length)
    return tuple(corners), tuple(shape)


# The Gaussian patch prior


class PatchGaussian(NamedTuple):
    """Mean (C, *patch) and covariance (C, *patch, C, *patch) of an outer patch."""

    mean: np.ndarray
    covariance: np.ndarray


def stationary_mean(images):
    """The mean of each channel over the pixels of all images."""
    total, pixels = 0.0, 0
    for image in images:
        total = total + image.reshape(len(image), -1).sum(axis=1)
        pixels += image[0].size
    return total / pixels


def autocovariance(images, patch):
    """R[h][c, d] = 1/P sum_p (x_c(p) - m_c)(x_d(p + h) - m_d); pixels outside count as nothing."""
    mean = stationary_mean(images)
    pixels = sum(image[0].size for image in images)
    lags = product(*(range(1 - width, width) for width in patch))
    result = {lag: np.zeros((len(mean), len(mean))) for lag in lags}
    for image in images:
        deviation = {
            p: image[(slice(None), *p)] - mean for p in product(*map(range, image.shape[1:]))
        }
        for lag, summed in result.items():
            for p, here in deviation.items():
                there = deviation.get(tuple(a + b for a, b in zip(p, lag, strict=True)))
                if there is not None:
                    summed += here[:, None] * there[None, :] / pixels
    return result


def stationary_gaussian(images, patch):
    """Every pixel has its channel's mean; two pixels covary as their distance says."""
    mean = stationary_mean(images)
    by_lag = autocovariance(images, patch)
    channels = len(mean)
    means = np.zeros((channels, *patch))
    covariance = np.zeros((channels, *patch, channels, *patch))
    for p in product(*map(range, patch)):
        means[(slice(None), *p)] = mean
        for q in product(*map(range, patch)):
            lag = tuple(b - a for a, b in zip(p, q, strict=True))
            covariance[(slice(None), *p, slice(None), *q)] = by_lag[lag]
    return PatchGaussian(means, covariance)


def full_gaussian(images, patch):
    """Mean and covariance (divided by the count) of patches a quarter of a patch apart."""
    patches = []
    for image in images:
        starts = [
            range(0, size - width + 1, max(1, width // 4))
            for size, width in zip(image.shape[1:], patch, strict=True)
        ]
        for corner in product(*starts):
            patches.append(image[block(corner, patch)])
    mean = sum(patches) / len(patches)
    covariance = 0.0
    for one in patches:
        deviation = (one - mean).ravel()
        covariance = covariance + deviation[:, None] * deviation[None, :] / len(patches)
    return PatchGaussian(mean, covariance.reshape(*mean.shape, *mean.shape))


def fit_gaussian(images, patch, covariance, channels, regularization):
    """Fit, then raise the diagonal by ``regularization`` times the mean variance.

    Independent channels have no covariance with each other, and each its own mean variance.
    """
    fit = {"stationary": stationary_gaussian, "full": full_gaussian}[covariance]
    mean, cov = fit(images, patch)
    n_channels, pixels = len(mean), int(np.prod(patch))
    matrix = cov.reshape(n_channels, pixels, n_channels, pixels).copy()
    variance = np.zeros((n_channels, pixels))
    for c in range(n_channels):
        for p in range(pixels):
            variance[c, p] = matrix[c, p, c, p]
    for c in range(n_channels):
        for d in range(n_channels):
            if channels == "independent" and c != d:
                matrix[c, :, d, :] = 0.0
        mean_variance = variance[c].mean() if channels == "independent" else variance.mean()
        for p in range(pixels):
            matrix[c, p, c, p] += regularization * mean_variance
    return PatchGaussian(mean, matrix.reshape(cov.shape))


def cut_to(gaussian, shape):
    """The middle part of a patch, for images that are smaller than the patch."""
    patch = gaussian.mean.shape[1:]
    corner = tuple((width - own) // 2 for width, own in zip(patch, shape, strict=True))
    middle = block(corner, shape)
    return PatchGaussian(gaussian.mean[middle], gaussian.covariance[(*middle, *middle)])


def condition(gaussian, x_patch, offset, window):
    """Mean (C, *window) and covariance (values, values) of a window given the ring around it."""
    in_window = np.zeros(x_patch.shape, dtype=bool)
    in_window[block(offset, window)] = True
    w, r = np.flatnonzero(in_window), np.flatnonzero(~in_window)
    x, m = x_patch.ravel(), gaussian.mean.ravel()
    s = gaussian.covariance.reshape(len(m), len(m))
    s_wr, s_rr = s[np.ix_(w, r)], s[np.ix_(r, r)]
    mean = m[w] + s_wr @ np.linalg.solve(s_rr, x[r] - m[r])
    covariance = s[np.ix_(w, w)] - s_wr @ np.linalg.solve(s_rr, s_wr.T)
    return mean.reshape(len(x_patch), *window), covariance


def condition_window(gaussian, image, corner, window):
    """The same for a window of an image, wherever it lies."""
    space = image.shape[1:]
    at, shape = outer_patch(corner, window, gaussian.mean.shape[1:], space)
    offset = tuple(c - p for c, p in zip(corner, at, strict=True))
    return condition(cut_to(gaussian, shape), image[block(at, shape)], offset, window)


def condition_region(gaussian, image, region, margin=None):
    """Mean (C, pixels) and covariance (values, values) of a boolean region (*space) of any shape,
    given the pixels of its outer patch that are not in it.

    The patch is that of the region's bounding box; with a margin it reaches so far beyond the box.
    """
    places = np.argwhere(region)
    low, high = places.min(axis=0), places.max(axis=0) + 1
    window = tuple(high - low)
    patch = gaussian.mean.shape[1:]
    if margin is not None:
        patch = tuple(min(p, w + 2 * margin) for p, w in zip(patch, window, strict=True))
    at, shape = outer_patch(tuple(low), window, patch, image.shape[1:])
    own = cut_to(gaussian, shape)
    patch_of_region = region[block(at, shape)[1:]]
    return condition_on(own, image[block(at, shape)], patch_of_region, ~patch_of_region)


def condition_on(gaussian, x_patch, wanted, given):
    """Mean (C, pixels) and covariance (values, values) of some pixels of a patch given others, both
    boolean (*patch)."""
    channels = len(x_patch)
    w = np.flatnonzero(np.broadcast_to(wanted, x_patch.shape))
    r = np.flatnonzero(np.broadcast_to(given, x_patch.shape))
    x, m = x_patch.ravel(), gaussian.mean.ravel()
    s = gaussian.covariance.reshape(len(m), len(m))
    s_wr, s_rr = s[np.ix_(w, r)], s[np.ix_(r, r)]
    mean = m[w] + s_wr @ np.linalg.solve(s_rr, x[r] - m[r])
    covariance = s[np.ix_(w, w)] - s_wr @ np.linalg.solve(s_rr, s_wr.T)
    return mean.reshape(channels, -1), covariance


def conditional_means(gaussian, image, window, strides):
    """The conditional mean of every window, (W, C, *window)."""
    corners = window_corners(image.shape[1:], window, strides)
    return np.stack([condition_window(gaussian, image, c, window)[0] for c in corners])


# The Gaussian field


def grid_laplacian(space):
    """L with x^T L x = sum over neighbouring pixels (x_p - x_q)^2, (pixels, pixels)."""
    number = np.arange(np.prod(space)).reshape(space)
    matrix = np.zeros((number.size, number.size))
    for p in product(*map(range, space)):
        for axis in range(len(space)):
            q = tuple(c + (a == axis) for a, c in enumerate(p))
            if q[axis] < space[axis]:
                one, other = number[p], number[q]
                matrix[one, one] += 1
                matrix[other, other] += 1
                matrix[one, other] -= 1
                matrix[other, one] -= 1
    return matrix


def condition_field(image, region, length=np.inf, smoothness=0.0, mean=None):
    """Mean (C, pixels) of a boolean region (*space) given all other pixels, and its covariance
    (pixels, pixels) without that of the colours, under Q = 1 / length^2 + L + smoothness^2 L^2.

    Without a fitted mean nothing is expected where nothing is seen, and nothing varies.
    """
    laplacian = grid_laplacian(region.shape)
    q = np.eye(len(laplacian)) / length**2 + laplacian + smoothness**2 * laplacian @ laplacian
    h, s = np.flatnonzero(region), np.flatnonzero(~region)
    level = np.zeros(len(image)) if mean is None else np.asarray(mean)
    if mean is None and not len(s):
        return np.zeros((len(image), len(h))), np.zeros((len(h), len(h)))
    seen = image.reshape(len(image), -1)[:, s] - level[:, None]
    covariance = np.linalg.inv(q[np.ix_(h, h)])
    return level[:, None] - seen @ q[np.ix_(s, h)] @ covariance, covariance


def surrounding_colours(image, region, corner, window):
    """sum d d^T / (n - 1) of the differences d between neighbours, both of them seen, among the n
    seen pixels of a box and a quarter of its width around it, 4 pixels or more, (C, C)."""
    space = region.shape
    near = np.zeros(space, dtype=bool)
    margins = [max(4, round(width / 4)) for width in window]
    near[
        tuple(
            slice(max(0, c - m), c + width + m)
            for c, width, m in zip(corner, window, margins, strict=True)
        )
    ] = True
    seen = near & ~region
    total = np.zeros((len(image), len(image)))
    for p in product(*map(range, space)):
        for axis in range(len(space)):
            q = tuple(c + (a == axis) for a, c in enumerate(p))
            if q[axis] < space[axis] and seen[p] and seen[q]:
                d = image[(slice(None), *q)] - image[(slice(None), *p)]
                total += d[:, None] * d[None, :]
    return total / max(1, seen.sum() - 1)


def field_means(image, window, strides, **field):
    """The conditional mean of every window, (W, C, *window)."""
    means = []
    for corner in window_corners(image.shape[1:], window, strides):
        region = np.zeros(image.shape[1:], dtype=bool)
        region[block(corner, window)[1:]] = True
        mean, _ = condition_field(image, region, **field)
        means.append(mean.reshape(len(image), *window))
    return np.stack(means)


# The empty context


def gaussian_weights(space, p, sigmas, reach=None):
    """g(p - q) for every pixel q, (*space); nothing beyond ``reach`` standard deviations."""
    weights = np.ones(space)
    for axis, (center, sigma) in enumerate(zip(p, sigmas, strict=True)):
        apart = np.abs(np.indices(space)[axis] - center)
        weights *= np.exp(-(apart**2) / (2 * sigma**2))
        if reach is not None:
            weights[apart > np.ceil(reach * sigma)] = 0.0
    return weights


def gaussian_blur(image, sigma):
    """n(p) = sum_q g(p - q) x(q) / sum_q g(p - q) over the pixels q of the image."""
    space = image.shape[1:]
    result = np.zeros(image.shape)
    for p in product(*map(range, space)):
        weights = gaussian_weights(space, p, [sigma] * len(space))
        for channel, values in enumerate(image):
            result[(channel, *p)] = np.sum(weights * values) / np.sum(weights)
    return result


def nothing_seen(image, pixels=20):
    """The image blurred by 20/224 of its shorter side, or another number of pixels of 224."""
    return gaussian_blur(image, pixels / 224 * min(image.shape[1:]))


def run_length(region, axis):
    """The mean length of a region's runs of pixels along an axis; 1 for an empty region."""
    lengths = []
    for line in np.moveaxis(region, axis, -1).reshape(-1, region.shape[axis]):
        length = 0
        for inside in [*line, False]:
            if inside:
                length += 1
            elif length:
                lengths.append(length)
                length = 0
    return np.mean(lengths) if lengths else 1.0


def seen_share(region):
    """s(p) = sum_{q in region} g(p - q) / sum_q g(p - q), g cut at three standard deviations, of
    1/16 of the run length along each axis, (*space) for a boolean region (*space)."""
    sigmas = [run_length(region, axis) / 16 for axis in range(region.ndim)]
    share = np.zeros(region.shape)
    for p in product(*map(range, region.shape)):
        weights = gaussian_weights(region.shape, p, sigmas, reach=3)
        share[p] = np.sum(weights * region) / np.sum(weights)
    return share


def seen_alone(image, nothing, region):
    """The image with one boolean region (*space) seen alone."""
    return nothing + seen_share(region) * (image - nothing)


def empty_efficient_pda(model, image, nothing, regions, target, output, measure):
    """Each region's evidence by itself: measured(only the region) - measured(nothing)."""
    before = measured(predict(model, nothing, target, output), measure)
    values = []
    for region in regions:
        alone = seen_alone(image, nothing, region)
        values.append(measured(predict(model, alone, target, output), measure) - before)
    return np.array(values)


# Predictions and measures


def logsumexp(values):
    largest = np.max(values)
    return largest + np.log(np.sum(np.exp(values - largest)))


class Prediction(NamedTuple):
    """log p(c) and log(1 - p(c)), each without rounding the other away."""

    log_p: float
    log_not_p: float


def read_prediction(outputs, target, output):
    """What a row of outputs (K,) says of one class; a plain number for raw outputs.

    Several logits go through a softmax and a single one through a sigmoid.
    """
    if output == "raw":
        return outputs[target]
    if output == "logits" and len(outputs) == 1:
        z = outputs[0]
        return Prediction(-np.logaddexp(0.0, -z), -np.logaddexp(0.0, z))
    if output == "logits":
        everything, others = logsumexp(outputs), logsumexp(np.delete(outputs, target))
        return Prediction(outputs[target] - everything, others - everything)
    return Prediction(np.log(outputs[target]), np.log1p(-outputs[target]))


def average_predictions(predictions):
    """sum_w / S of Algorithm 1: the mean of probabilities, taken in log space; raw as they are."""
    if not isinstance(predictions[0], Prediction):
        return sum(predictions) / len(predictions)
    log_s = np.log(len(predictions))
    log_p = logsumexp(np.array([prediction.log_p for prediction in predictions])) - log_s
    log_not_p = logsumexp(np.array([prediction.log_not_p for prediction in predictions])) - log_s
    return Prediction(log_p, log_not_p)


def measured(prediction, measure="weight_of_evidence"):
    """The quantity whose difference is the evidence; raw values are compared as they are."""
    if not isinstance(prediction, Prediction):
        return prediction
    if measure == "weight_of_evidence":
        return (prediction.log_p - prediction.log_not_p) / LN2
    if measure == "probability_difference":
        return np.exp(prediction.log_p)
    return {"information_difference": prediction.log_p / LN2}[measure]


def predict(model, image, target, output):
    with torch.no_grad():
        outputs = model(torch.from_numpy(image.copy())[None])[0]
    return read_prediction(outputs.numpy().reshape(-1), target, output)


def gradient(model, image, target, output, measure):
    """d measured(prediction) / dx by automatic differentiation."""
    x = torch.from_numpy(image.copy())[None].requires_grad_()
    outputs = model(x)[0].reshape(-1)
    if output == "raw":
        value = outputs[target]
    else:
        if output == "probabilities":
            log_p, log_not_p = torch.log(outputs[target]), torch.log1p(-outputs[target])
        else:
            # A sigmoid is a softmax with a second logit of zero.
            logits = outputs if len(outputs) > 1 else torch.cat([outputs, torch.zeros(1).double()])
            others = torch.stack([z for c, z in enumerate(logits) if c != target])
            everything = torch.logsumexp(logits, 0)
            log_p = logits[target] - everything
            log_not_p = torch.logsumexp(others, 0) - everything
        value = {
            "weight_of_evidence": (log_p - log_not_p) / LN2,
            "probability_difference": torch.exp(log_p),
            "information_difference": log_p / LN2,
        }[measure]
    value.backward()
    return x.grad[0].numpy()


# The three algorithms


def average_by_counts(values, space, window, strides):
    """WE / counts: each pixel gets the mean of the values of the windows that cover it."""
    total, counts = np.zeros(space), np.zeros(space)
    for value, corner in zip(values, window_corners(space, window, strides), strict=True):
        covered = block(corner, window)[1:]
        total[covered] += value
        counts[covered] += 1
    return total / counts


def replace_each_window(image, fills, window, strides):
    """Copies x' of the image, each with one window replaced by its fill (W, C, *window)."""
    corners = window_corners(image.shape[1:], window, strides)
    for fill, corner in zip(fills, corners, strict=True):
        perturbed = image.copy()
        perturbed[block(corner, window)] = fill
        yield perturbed


def sampled_pda(model, image, draws, window, strides, target, output, measure):
    """Algorithm 1, prediction difference analysis with draws (S, W, C, *window), (*space)."""
    seen = measured(predict(model, image, target, output), measure)
    by_sample = [
        [predict(model, x, target, output) for x in replace_each_window(image, d, window, strides)]
        for d in draws
    ]
    values = []
    for predictions in zip(*by_sample, strict=True):
        values.append(seen - measured(average_predictions(predictions), measure))
    return average_by_counts(values, image.shape[1:], window, strides)


def efficient_pda(model, image, means, window, strides, target, output, measure):
    """Algorithm 2, each window replaced by its conditional mean (W, C, *window), (*space)."""
    seen = measured(predict(model, image, target, output), measure)
    values = []
    for x in replace_each_window(image, means, window, strides):
        values.append(seen - measured(predict(model, x, target, output), measure))
    return average_by_counts(values, image.shape[1:], window, strides)


def gradient_pda(model, image, means, window, strides, target, output, measure):
    """Algorithm 3: grad^T (x - x') of each window, (*space)."""
    grad = gradient(model, image, target, output, measure)
    values = []
    for x in replace_each_window(image, means, window, strides):
        values.append(np.sum(grad * (image - x)))
    return average_by_counts(values, image.shape[1:], window, strides)


def pixelwise_gradient_pda(model, image, means, window, strides, target, output, measure):
    """R_i = df/dx_i (x_i - x_i'), x_i' the mean of what the windows over i expect, (C, *space)."""
    total, counts = np.zeros(image.shape), np.zeros(image.shape)
    for mean, corner in zip(means, window_corners(image.shape[1:], window, strides), strict=True):
        total[block(corner, window)] += mean
        counts[block(corner, window)] += 1
    return gradient(model, image, target, output, measure) * (image - total / counts)


# Removing pixels in the order of a map


def impute_linearly(image, seen):
    """Each removed pixel is the weighted mean of its neighbours: one dense linear system."""
    space = image.shape[1:]
    places = list(np.ndindex(space))
    matrix, values = np.eye(len(places)), image.reshape(len(image), -1).T.copy()
    for row, place in enumerate(places):
        if seen[place]:
            continue
        weights = np.zeros(len(places))
        for column, other in enumerate(places):
            steps = np.abs(np.subtract(place, other))
            if steps.max() == 1:
                weights[column] = 1 / np.count_nonzero(steps)
        matrix[row] -= weights / weights.sum()
        values[row] = 0
    return np.linalg.solve(matrix, values).T.reshape(image.shape)


def removal_curve(model, image, order, n_steps, fill, target, output):
    """P(c) as more and more of the pixels in ``order`` are removed, (steps + 1,)."""
    curve = []
    for step in range(n_steps + 1):
        seen = np.ones(image.shape[1:], dtype=bool)
        for pixel in order[: int(np.round(step * len(order) / n_steps))]:
            seen[np.unravel_index(pixel, seen.shape)] = False
        removed = np.where(seen, image, fill(image, seen))
        curve.append(np.exp(predict(model, removed, target, output).log_p))
    return np.array(curve)


def symmetric_relevance_gain(model, image, relevance, n_steps, fill, target, output):
    """The area under the curve with the least relevant pixels removed first, less the other."""
    order = np.argsort(-relevance.reshape(-1), kind="stable")
    areas = []
    for each in (order[::-1], order):
        curve = removal_curve(model, image, each, n_steps, fill, target, output)
        fractions = [np.round(s * len(order) / n_steps) / len(order) for s in range(n_steps + 1)]
        pairs = zip(np.diff(fractions), curve[1:] + curve[:-1], strict=True)
        areas.append(sum(width * both / 2 for width, both in pairs))
    return areas[0] - areas[1]


# Several sizes, contexts and depths as one map


def combined(questions):
    """The mean of the maps of each question, and then their weighted mean."""
    return weighted_mean([sum(maps) / len(maps) for maps in questions])


def mean_in_regions(values, numbers):
    """Each pixel with the mean of a map over its region."""
    result = np.zeros_like(values)
    for number in np.unique(numbers):
        result[numbers == number] = values[numbers == number].mean()
    return result


def weighted_mean(maps, weights=None):
    """M = sum_k (w_k M_k / s_k) / sum_k (w_k / s_k), with s_k the standard deviation of M_k."""
    total, norm = 0.0, 0.0
    for number, one in enumerate(maps):
        weight = 1.0 if weights is None else weights[number]
        spread = np.sqrt(np.mean((one - np.mean(one)) ** 2))
        total = total + weight * one / spread
        norm = norm + weight / spread
    return total / norm


def seen_alone_pda(model, image, nothing, window, strides, target, output, measure):
    """Each window by itself: measured(only the window) - measured(nothing), (*space).

    The window stands in the image with nothing seen as it is, with sharp edges.
    """
    before = measured(predict(model, nothing, target, output), measure)
    corners = window_corners(image.shape[1:], window, strides)
    values = []
    for corner in corners:
        alone = nothing.copy()
        alone[block(corner, window)] = image[block(corner, window)]
        values.append(measured(predict(model, alone, target, output), measure) - before)
    return average_by_counts(values, image.shape[1:], window, strides)


# What regions say together


def hide_together(image, regions, hidden):
    """The image with the union of some boolean regions (R, *space) at the field's mean given all
    other pixels; with everything hidden, the image with nothing seen."""
    region = np.any([one for one, is_hidden in zip(regions, hidden, strict=True) if is_hidden], 0)
    if not np.any(region):
        return image.copy()
    if np.all(region):
        return nothing_seen(image)
    copy = image.copy()
    copy[:, region] = condition_field(image, region)[0]
    return copy


def see_together(image, regions, hidden, pixels=20):
    """Only the pixels outside of the hidden regions, pasted into the image with nothing seen, or
    blurred by other ``pixels`` of 224, with edges as soft as 2/224 of the shorter side."""
    region = np.any([one for one, is_hidden in zip(regions, hidden, strict=True) if is_hidden], 0)
    seen = np.broadcast_to(~np.asarray(region), image.shape[1:])
    share = gaussian_blur(seen[None].astype(float), 2 / 224 * min(seen.shape))[0]
    share[share < 1e-4], share[share > 1 - 1e-4] = 0.0, 1.0
    nothing = nothing_seen(image, pixels)
    return nothing + share * (image - nothing)


def interactions(model, image, regions, target, output, measure="weight_of_evidence"):
    """I(a, b) = R(a and b) - R(a) - R(b), with R what is lost without regions, (R, R)."""
    whole = measured(predict(model, image, target, output), measure)

    def lost(*numbers):
        hidden = [number in numbers for number in range(len(regions))]
        copy = hide_together(image, regions, hidden)
        return whole - measured(predict(model, copy, target, output), measure)

    values = np.zeros((len(regions), len(regions)))
    for a, b in product(range(len(regions)), repeat=2):
        if a != b:
            values[a, b] = lost(a, b) - lost(a) - lost(b)
    return values


def owen_values(tree, value):
    """The mean of what each player adds over all orders in which the players of every node of a
    tree come one after the other; a tree is a player's number or a pair of trees."""

    def players(node):
        return [node] if isinstance(node, int) else players(node[0]) + players(node[1])

    def orders(node):
        if isinstance(node, int):
            return [[node]]
        firsts, seconds = (orders(child) for child in node)
        both = [[*one, *two] for one in firsts for two in seconds]
        return both + [[*two, *one] for one in firsts for two in seconds]

    n = len(players(tree))
    total = np.zeros(n)
    every = orders(tree)
    for order in every:
        present = np.zeros(n, dtype=bool)
        before = value(present)
        for player in order:
            present[player] = True
            after = value(present)
            total[player] += after - before
            before = after
    return total / len(every)


def added_to_others(model, image, regions, sets, target, output, ridge):
    """What each boolean region (R, *space) adds to random sets (K, R) of those that are seen.

    The b that minimise sum_k (f_k - a - sum_r b_r (z_kr - 1/2))^2 + ridge sum_r b_r^2, in bits of
    log-odds (or raw outputs), as a least-squares problem with a row more for each b_r.
    """
    scores = [
        measured(predict(model, see_together(image, regions, ~seen, 10), target, output))
        for seen in sets
    ]
    rows = [[*(seen - 0.5), 1.0] for seen in np.asarray(sets, dtype=float)]
    penalties = np.sqrt(ridge) * np.eye(len(regions), len(regions) + 1)
    found, *_ = np.linalg.lstsq(
        np.vstack([rows, penalties]), np.array([*scores, *np.zeros(len(regions))]), rcond=None
    )
    return found[:-1]


def added_by_divisions(shown, divisions, asked, scores, ridge):
    """What seeing each region of one division (*space) adds, by a regression on several.

    The b that minimise sum_k |f_k - a - sum_q b_q (z_kq - 1/2)|^2 + ridge sum_q |b_q|^2, where z_kq
    is the share of the pixels of region q, of any division, that set k shows; a region r adds b_q
    times the share of q's pixels that lie in r, summed over q.
    """
    regions = [division == number for division in divisions for number in range(division.max() + 1)]
    rows = np.array([[*(seen[q].mean() - 0.5 for q in regions), 1.0] for seen in shown])
    penalties = np.sqrt(ridge) * np.eye(len(regions), len(regions) + 1)
    nothing = np.zeros((len(regions), scores.shape[1]))
    found, *_ = np.linalg.lstsq(
        np.vstack([rows, penalties]), np.vstack([scores, nothing]), rcond=None
    )
    added = [
        sum(b * (asked == number)[q].mean() for b, q in zip(found[:-1], regions, strict=True))
        for number in range(asked.max() + 1)
    ]
    return found[-1], np.array(added)
