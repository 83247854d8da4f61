"""Mistakes that other implementations made, each with a test that would catch it."""

import pytest
import torch
from conftest import make_classifier, make_images

from captum_pda import ConstantPrior, EfficientPDA


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
    # by itself.
    assert [batch.tolist() for batch in touched[:3]] == [[False], [True, False], [True]]
    assert sum(len(batch) for batch in touched[3:]) == 5 * 5
    # Every window adds one to each of its nine pixels, so every window's evidence is -9.
    torch.testing.assert_close(attributions, torch.full_like(image, -9))


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
    # The two copies are in the passes that check the model.
    assert calls == {"index_copy_": 1, "copy_": 2}
