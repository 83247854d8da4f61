"""What every attribution class owes to Captum's users."""

import inspect
from contextlib import nullcontext

import matplotlib as mpl
import pytest
import torch
from captum.attr import Occlusion, visualization
from conftest import make_classifier, make_images
from torch import nn

from captum_pda import ConstantPrior, EfficientPDA, GradientPDA, SampledPDA

mpl.use("agg")


def explain(method, model, images, target=1, **arguments):
    """A small map: few windows, and few samples where there are any."""
    if "sliding_window_shapes" not in arguments:
        arguments = {"sliding_window_shapes": 4, "strides": 4, **arguments}
    if method is SampledPDA:
        arguments.setdefault("n_samples", 2)
    return method(model).attribute(images, target=target, **arguments)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attributions_have_the_shape_and_dtype_of_the_inputs(method, dims, dtype):
    classifier = make_classifier(dims).to(dtype)
    images = make_images(2, 3, *(7, 8, 5)[:dims]).to(dtype)
    attributions = explain(method, classifier, images, sliding_window_shapes=3)
    assert attributions.shape == images.shape
    assert attributions.dtype == dtype
    assert attributions.isfinite().all()
    assert attributions.abs().max() > 0
    assert not attributions.requires_grad
    torch.testing.assert_close(attributions[:, 0], attributions[:, 1], rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["(N,)", "(N, 1)"])
def test_models_with_one_output_need_no_target(method, classifier, images, shape):
    def single(x):
        return classifier(x)[:, 1].reshape(-1, *shape)

    with nullcontext() if shape else pytest.warns(UserWarning, match="logit"):
        attributions = explain(method, single, images, target=None)
    two_logits = explain(
        method, lambda x: torch.stack([torch.zeros(len(x)), single(x).flatten()], 1), images
    )
    torch.testing.assert_close(attributions, two_logits)


def test_tuple_inputs_give_tuples(method, classifier):
    images, waves = make_images(2, 3, 9, 11), make_images(2, 2, 12, seed=2)

    def model(x, y):
        return classifier(x) * y.mean(dim=(1, 2))[:, None]

    maps = explain(method, model, (images, waves), sliding_window_shapes=(3, 4))
    assert isinstance(maps, tuple)
    assert [part.shape for part in maps] == [images.shape, waves.shape]
    with_argument = explain(
        method, model, images, additional_forward_args=waves, sliding_window_shapes=3
    )
    torch.testing.assert_close(maps[0], with_argument)
    single = explain(method, classifier, (images,))
    assert isinstance(single, tuple)
    torch.testing.assert_close(single[0], explain(method, classifier, images))


def test_additional_arguments_go_with_their_example(method, classifier, images):
    scale = torch.tensor([1.0, -2.0], dtype=torch.float64)
    bias = torch.zeros(4, dtype=torch.float64)
    option = {"sign": -1}

    def model(x, scale, bias, option):
        assert scale.shape == (len(x),)
        assert bias.shape == (4,)
        return option["sign"] * classifier(x) * scale[:, None] + bias

    maps = explain(method, model, images, additional_forward_args=(scale, bias, option))
    for number in range(2):
        alone = explain(
            method,
            lambda x, number=number: -classifier(x) * scale[number],
            images[number : number + 1],
        )
        torch.testing.assert_close(maps[number : number + 1], alone)


def test_plain_functions_and_bound_methods(method, classifier, images):
    expected = explain(method, classifier, images)
    for model in (lambda x: classifier(x), classifier.forward, classifier.__call__):
        torch.testing.assert_close(explain(method, model, images), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_any_gradient_mode_of_the_caller(method, classifier, images, mode):
    expected = explain(method, classifier, images)
    with mode():
        torch.testing.assert_close(explain(method, classifier, images), expected)
        fresh = images + 0
        torch.testing.assert_close(explain(method, classifier, fresh), expected)


def test_an_example_alone_equals_the_example_in_a_batch(method, classifier, images):
    other = make_images(3, 3, 9, 11, seed=9) * 5
    together = explain(method, classifier, torch.cat([other[:1], images[:1], other[1:]]))
    torch.testing.assert_close(together[1:2], explain(method, classifier, images[:1]))


def test_captums_pictures(method, classifier, images):
    attributions = explain(method, classifier, images)[0].permute(1, 2, 0).numpy()
    image = (images[0] - images[0].min()) / (images[0].max() - images[0].min())
    picture = image.permute(1, 2, 0).numpy()
    _, axis = visualization.visualize_image_attr(
        attributions, picture, method="blended_heat_map", sign="all", use_pyplot=False
    )
    assert axis.images
    _, axes = visualization.visualize_image_attr_multiple(
        attributions,
        picture,
        ["original_image", "heat_map"],
        ["all", "all"],
        use_pyplot=False,
    )
    assert len(axes) == 2


def test_captums_pictures_of_time_series(method, monkeypatch):
    # Captum 0.9 calls a function that Matplotlib 3.9 removed.
    monkeypatch.setattr(mpl.cm, "get_cmap", mpl.colormaps.get_cmap, raising=False)
    waves = make_images(1, 2, 40)
    attributions = explain(method, make_classifier(1, 2), waves)
    figure, _ = visualization.visualize_timeseries_attr(
        attributions[0].numpy(), waves[0].numpy(), channels_last=False, use_pyplot=False
    )
    assert figure.axes


def test_a_constant_prior_is_captums_occlusion(classifier, images):
    """On a grid where Captum cuts no window, and with raw outputs."""
    ours = EfficientPDA(classifier, ConstantPrior(0.0), output="raw").attribute(
        images, target=1, sliding_window_shapes=(3, 3), strides=(2, 2)
    )
    theirs = Occlusion(classifier).attribute(
        images, target=1, sliding_window_shapes=(3, 3, 3), strides=(3, 2, 2)
    )
    torch.testing.assert_close(ours.float(), theirs)


def test_every_class_comes_from_the_passes_of_one_map(perturbation_method, classifier, images):
    passes = []

    def counting(x):
        passes.append(len(x))
        return classifier(x)

    pda = perturbation_method(counting, engine="dense")
    arguments = {"n_samples": 2} if perturbation_method is SampledPDA else {}
    expected = [pda.attribute(images, target=target, **arguments) for target in range(4)]
    of_one_map = sum(passes) / 4
    passes.clear()
    evidence = pda.evidence(images, **arguments)
    assert sum(passes) == of_one_map
    for target in range(4):
        torch.testing.assert_close(evidence.attribution(target), expected[target])
    torch.testing.assert_close(evidence.probabilities, classifier(images).softmax(1).detach())
    mixed = evidence.attribution([2, 3])
    torch.testing.assert_close(mixed[0], expected[2][0])
    torch.testing.assert_close(mixed[1], expected[3][1])


def test_evidence_of_tuples_and_dense_outputs(images):
    torch.manual_seed(0)
    dense = nn.Conv2d(3, 4, 3).double().eval()
    evidence = EfficientPDA(dense).evidence((images,), sliding_window_shapes=3)
    (attribution,) = evidence.attribution((2, 0, 0))
    expected = EfficientPDA(dense).attribute(images, target=(2, 0, 0), sliding_window_shapes=3)
    torch.testing.assert_close(attribution, expected)
    (values,) = evidence.window_values((2, 0, 0))
    assert values.shape == (2, len(evidence.parts[0].regions))
    with pytest.raises(ValueError, match="target"):
        evidence.attribution(2)
    with pytest.raises(ValueError, match="second"):
        evidence.contrast((2, 0, 0), (9, 0, 0))


def test_gradient_pda_takes_one_forward_one_backward_and_one_checking_pass(classifier, images):
    passes = []
    classifier.register_forward_hook(lambda *_: passes.append("forward"))
    classifier.register_full_backward_hook(lambda *_: passes.append("backward"))
    GradientPDA(classifier).attribute(images, target=1, strides=1)
    # The last finds out whether the model gives the same again, and beside other examples.
    assert passes == ["forward", "backward", "forward"]


def test_sampled_draws_follow_the_seed_and_nothing_else(classifier, images):
    pda = SampledPDA(classifier)
    call = {"target": 1, "n_samples": 3, "strides": 3}
    torch.manual_seed(3)
    first = pda.attribute(images, **call)
    torch.randn(5)
    again = pda.attribute(images, **call, perturbations_per_eval=5)
    torch.testing.assert_close(first, again)
    torch.manual_seed(4)
    assert not torch.allclose(first, pda.attribute(images, **call))
    generator = torch.Generator().manual_seed(0)
    one = pda.attribute(images, **call, generator=generator)
    two = pda.attribute(images, **call, generator=generator)
    assert not torch.allclose(one, two)
    same = pda.attribute(images, **call, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(one, same)


def test_the_arguments_are_captums_in_order(method):
    names = list(inspect.signature(method.attribute).parameters)
    assert names[:6] == [
        "self",
        "inputs",
        "target",
        "additional_forward_args",
        "sliding_window_shapes",
        "strides",
    ]


@pytest.mark.parametrize("rows", [4, 5, 7, 11, 64])
def test_the_last_batch_counts_no_window_twice(rows):
    """A last batch that was not full kept a stale window of the batch before."""
    image = make_images(1, 1, 10, 10)
    touched = []

    def model(x):
        touched.append((x != image).flatten(1).any(dim=1))
        return (x - image).flatten(1).sum(dim=1, keepdim=True)

    pda = EfficientPDA(model, ConstantPrior(image[0] + 1), output="raw")
    attributions = pda.attribute(
        image, sliding_window_shapes=3, strides=2, perturbations_per_eval=rows
    )
    # The image as it is, and two passes that check the model: a changed copy beside the image, and
    # by itself. In a batch of more than five copies, one of them is run by itself too.
    assert [batch.tolist() for batch in touched[:3]] == [[False], [True, False], [True]]
    assert sum(len(batch) for batch in touched[3:]) == 5 * 5 + (rows > 5)
    # Every window adds one to each of its nine pixels, so every window's evidence is -9.
    torch.testing.assert_close(attributions, torch.full_like(image, -9))
