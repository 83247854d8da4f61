"""Mistakes that other implementations made, each with a test that would catch it."""

import pytest
import torch
from conftest import make_classifier, make_images
from torch import nn

from captum_pda import ConstantPrior, EfficientPDA, GaussianPatchPrior, SampledPDA, WindowGrid


def test_each_channel_has_its_own_operators():
    """A cache keyed without the channel filled green and blue with red's matrices."""
    smooth, rough = make_images(1, 1, 12, 13), torch.randn(1, 1, 12, 13, dtype=torch.float64)
    images = torch.cat([smooth, rough, -2 * smooth + 7], dim=1)
    grid = WindowGrid((12, 13), (3, 3), (1, 1))
    together = GaussianPatchPrior(7, channels="independent").fit(images)
    for channel in range(3):
        one = images[:, channel : channel + 1]
        alone = GaussianPatchPrior(7).fit(one)
        torch.testing.assert_close(
            together.conditional_mean(images[0], grid)[:, channel : channel + 1],
            alone.conditional_mean(one[0], grid),
        )


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
    # The image as it is, and the pass that checks the model: a changed copy and the image again.
    assert [batch.tolist() for batch in touched[:2]] == [[False], [True, False]]
    assert sum(len(batch) for batch in touched[2:]) == 5 * 5
    # Every window adds one to each of its nine pixels, so every window's evidence is -9.
    torch.testing.assert_close(attributions, torch.full_like(image, -9))


def test_log_odds_are_not_taken_of_logits_as_if_they_were_probabilities():
    """Odds of clipped logits gave an empty map."""
    classifier = make_classifier()
    classifier[4].bias.data += torch.tensor([-20.0, 30.0, 5.0, 0.0])
    image = make_images(1, 3, 9, 11)
    attributions = EfficientPDA(classifier).attribute(image, target=1)
    assert attributions.abs().max() > 1e-3


def test_a_fill_replaces_and_does_not_multiply():
    """Multiplying by the fill leaves a black window black whatever the fill is."""
    black = torch.zeros(1, 1, 8, 8)
    seen = []

    def model(x):
        seen.append(x.amax(dim=(1, 2, 3)))
        return x.flatten(1).mean(dim=1, keepdim=True)

    EfficientPDA(model, ConstantPrior(5.0), output="raw").attribute(black)
    # After the image as it is, and the pass that checks the model.
    assert len(seen) > 2
    assert (torch.cat(seen[2:]) == 5).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("classes", [1, 3])
def test_sigmoid_or_softmax_follows_the_outputs_not_the_inputs(channels, classes):
    """Some chose a sigmoid for grey images, whatever the model's outputs."""
    classifier = make_classifier(channels=channels, classes=classes)
    image = make_images(1, channels, 9, 11)
    evidence = EfficientPDA(classifier).evidence(image)
    logits = classifier(image).detach()
    expected = logits.softmax(dim=1) if classes > 1 else logits.sigmoid()
    torch.testing.assert_close(evidence.probabilities, expected)


def test_perturbing_costs_no_python_step_a_window(monkeypatch):
    """Masks built one window at a time cost more than the model."""
    calls = {}
    for name in ("index_copy_", "copy_"):
        original = getattr(torch.Tensor, name)

        def counted(self, *arguments, original=original, name=name):
            calls[name] = calls.get(name, 0) + 1
            return original(self, *arguments)

        monkeypatch.setattr(torch.Tensor, name, counted)
    image = make_images(1, 1, 32, 32)
    EfficientPDA(lambda x: x.mean((2, 3)), ConstantPrior(), output="raw", engine="dense").attribute(
        image, sliding_window_shapes=4, strides=1, perturbations_per_eval=29 * 29
    )
    # One of the two copies is in the pass that checks the model.
    assert calls == {"index_copy_": 1, "copy_": 2}


@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
def test_no_forward_pass_keeps_a_graph(method):
    """A first pass with gradients kept its graph, and filled the memory."""
    outputs = []
    classifier = make_classifier()
    classifier.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    method(classifier).attribute(make_images(1, 3, 9, 11).requires_grad_(), target=1)
    assert len(outputs) > 1
    assert all(output.grad_fn is None for output in outputs)


def test_samples_average_probabilities_and_differ_from_averaged_logits():
    """The mean of probabilities is not the probability of the mean logit."""
    torch.manual_seed(0)
    steep = nn.Sequential(nn.Flatten(), nn.Linear(75, 2)).double().eval()
    steep[1].weight.data *= 20
    image = make_images(1, 3, 5, 5)
    arguments = {"sliding_window_shapes": 3, "strides": 1}
    prior = GaussianPatchPrior(5).fit(image)
    sampled = SampledPDA(steep, prior).attribute(image, target=1, n_samples=4000, **arguments)
    mean = EfficientPDA(steep, prior).attribute(image, target=1, **arguments)
    assert (sampled - mean).abs().max() > 0.1
