"""``feature_mask=``: pixels with one number are hidden together, in every method and engine."""

import captum
import pytest
import torch
from captum.attr import FeatureAblation
from conftest import make_classifier, make_images

from captum_pda import ConstantPrior, EfficientPDA, GradientPDA, MapMeanPrior, SampledPDA

IMAGES = make_images(2, 3, 9, 12)
MODEL = make_classifier()
#: Three blots that are no rectangles.
BLOTS = torch.arange(9 * 12).reshape(1, 1, 9, 12) * 7 % 50 // 17
#: Rectangles of 3 x 4, as windows of that shape and strides have them.
TILES = (torch.arange(9)[:, None] // 3 * 3 + torch.arange(12) // 4).reshape(1, 1, 9, 12)


def bits(images, target):
    with torch.no_grad():
        outputs = MODEL(images)
    others = torch.cat([outputs[:, :target], outputs[:, target + 1 :]], dim=1)
    return (outputs[:, target] - others.logsumexp(1)) / torch.log(torch.tensor(2.0))


def slow_map(image, mask, target, context):
    """One pass for each number of the mask, which is (*space)."""
    nothing = image.mean(dim=(1, 2), keepdim=True).expand_as(image)
    result = torch.zeros(mask.shape).double()
    for label in mask.unique():
        inside = mask == label
        rest = image[:, ~inside].mean(dim=1)[:, None, None]
        without = torch.where(inside, rest, image)
        alone = torch.where(inside, image, nothing)
        pairs = {"full": (image, without), "empty": (alone, nothing)}
        more, less = (bits(each[None], target) for each in pairs[context])
        result[inside] = more - less
    return result


@pytest.mark.parametrize("engine", ["dense", "incremental"])
@pytest.mark.parametrize("context", ["full", "empty"])
@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
def test_regions_of_any_shape_are_hidden_one_at_a_time(method, context, engine):
    masks = torch.cat([BLOTS, BLOTS.flip(3)])
    found = method(MODEL, MapMeanPrior(), engine=engine).attribute(
        IMAGES, target=2, feature_mask=masks, context=context
    )
    for n in range(2):
        expected = slow_map(IMAGES[n], masks[n, 0], 2, context)
        torch.testing.assert_close(found[n, 0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pixelwise", [False, True])
def test_the_first_order_form_takes_masks_too(pixelwise):
    pda = GradientPDA(MODEL, MapMeanPrior())
    windows = pda.attribute(
        IMAGES, target=1, sliding_window_shapes=(3, 4), strides=(3, 4), pixelwise=pixelwise
    )
    found = pda.attribute(IMAGES, target=1, feature_mask=TILES, pixelwise=pixelwise)
    torch.testing.assert_close(found, windows, rtol=1e-9, atol=1e-9)


def test_first_order_values_belong_to_their_own_regions():
    """Regions come in groups of like boxes, in another order than their numbers."""
    mask = torch.zeros(2, 1, 9, 12, dtype=torch.int64)
    mask[0, 0, 2:8, 1:11] = 4
    mask[:, 0, 4, 5:7] = 2
    pda = GradientPDA(MODEL, ConstantPrior(0.1))
    each = pda.attribute(IMAGES, target=1, feature_mask=mask, pixelwise=True).sum(1, keepdim=True)
    expected = torch.zeros_like(each)
    for label in (0, 2, 4):
        inside = mask == label
        sums = (each * inside).sum(dim=(2, 3), keepdim=True)
        expected = torch.where(inside, sums, expected)
    found = pda.attribute(IMAGES, target=1, feature_mask=mask)
    torch.testing.assert_close(found, expected.expand_as(found))


def test_each_tensor_of_a_tuple_has_a_mask_of_its_own():
    signals = make_images(2, 2, 10, seed=5)

    def model(x, y):
        return MODEL(x) * y.mean(dim=(1, 2))[:, None]

    pda = EfficientPDA(model, MapMeanPrior())
    halves = 100 + torch.arange(10).reshape(1, 1, 10) // 5
    one, two = pda.attribute((IMAGES, signals), target=0, feature_mask=(TILES, halves))
    expected = pda.attribute(
        (IMAGES, signals), target=0, sliding_window_shapes=((3, 4), 5), strides=((3, 4), 5)
    )
    torch.testing.assert_close((one, two), expected)
    with pytest.raises(ValueError, match="feature_mask has 1 tensors for 2 inputs"):
        pda.attribute((IMAGES, signals), target=0, feature_mask=TILES)
    with pytest.raises(ValueError, match=r"feature_mask\[1\] has shape"):
        pda.attribute((IMAGES, signals), target=0, feature_mask=(TILES, TILES))


@pytest.mark.skipif(captum.__version__ < "0.9", reason="masks of tensors were apart before")
@pytest.mark.parametrize("rows", [None, 2])
def test_numbers_that_two_masks_share_are_one_feature_as_in_captum(rows):
    signals = make_images(2, 2, 10, seed=5)
    # Feature 0 is in both tensors, 7 in the image and 1 in the signal only; of the second example,
    # the signal has no 0.
    image = torch.where(TILES % 3 == 0, 0, 7).expand(1, 1, -1, -1)
    signal = torch.stack([torch.arange(10) // 5, torch.ones(10, dtype=torch.int64)])[:, None]
    masks = (image, signal)

    def model(x, y):
        return MODEL(x) * (1 + y.pow(2).mean(dim=(1, 2))[:, None])

    pda = EfficientPDA(model, ConstantPrior(0.25), output="raw")
    found = pda.attribute((IMAGES[:2], signals), 3, feature_mask=masks, perturbations_per_eval=rows)
    expected = FeatureAblation(model).attribute(
        (IMAGES[:2], signals), baselines=(0.25, 0.25), target=3, feature_mask=masks
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    apart = pda.attribute((IMAGES[:2], signals), 3, feature_mask=(image, signal + 100))
    assert not torch.allclose(found[0], apart[0])
    # To first order, what two parts say together is the sum of what each says.
    slopes = GradientPDA(model, ConstantPrior(0.25), output="raw")
    one, two = slopes.attribute((IMAGES[:2], signals), 3, feature_mask=masks)
    first, second = slopes.attribute((IMAGES[:2], signals), 3, feature_mask=(image, signal + 100))
    torch.testing.assert_close(one[0, 0, 0, 0], first[0, 0, 0, 0] + second[0, 0, 0])
    torch.testing.assert_close(two[0, 0, 0], one[0, 0, 0, 0])
    torch.testing.assert_close(two[0, 0, -1], second[0, 0, -1])
    sampled = SampledPDA(model, ConstantPrior(0.25), output="raw")
    several = sampled.attribute((IMAGES[:2], signals), 3, feature_mask=masks, n_samples=3)
    torch.testing.assert_close(several, expected, rtol=1e-9, atol=1e-9)


def test_a_mask_and_windows_together_are_refused():
    for other in ({"sliding_window_shapes": 3}, {"scales": (2, 4)}, {"strides": 2}):
        with pytest.raises(ValueError, match=r"feature_mask and .* both say what to hide"):
            EfficientPDA(MODEL).attribute(IMAGES, target=1, feature_mask=TILES, **other)


def test_evidence_of_a_mask_has_a_value_for_each_number():
    evidence = EfficientPDA(MODEL, MapMeanPrior()).evidence(IMAGES, feature_mask=TILES + 5)
    (part,) = evidence.parts
    values = dict(zip(part.regions.labels, part.values(3)[1].tolist(), strict=True))
    assert sorted(values) == list(range(5, 14))
    assert evidence.attribution(3)[1, 0, 4, 5] == pytest.approx(values[5 + 4])
