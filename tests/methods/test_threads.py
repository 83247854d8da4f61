"""Two attributions on one model in two threads give what they give one after the other."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import make_images
from torch import nn

from captum_pda import (
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianPatchPrior,
    GradientPDA,
    MarginalPrior,
    SampledPDA,
)

WINDOWS = {"sliding_window_shapes": 4, "strides": 2, "target": 1}


def make_model():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)).eval()


def in_threads(*tasks):
    """The results of functions that start together in threads of their own."""
    start = threading.Barrier(len(tasks))

    def run(task):
        start.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run, tasks))


def explain(pda, images):
    extra = {}
    if isinstance(pda, SampledPDA):
        extra = {"n_samples": 2, "generator": torch.Generator().manual_seed(3)}
    return pda.attribute(images, **WINDOWS, **extra)


CASES = [
    (EfficientPDA, {"engine": "dense"}),
    (EfficientPDA, {"engine": "incremental"}),
    (SampledPDA, {"engine": "dense"}),
    (SampledPDA, {"engine": "incremental"}),
    (GradientPDA, {}),
]


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("shared", ["model", "attribution"])
def test_two_threads_on_one_model(method, options, shared):
    model = make_model()
    batches = [make_images(1, 3, 13, 15, seed=seed).float() for seed in (1, 2)]
    expected = [explain(method(model, **options), images) for images in batches]
    both = [method(model, **options)] * 2
    if shared == "model":
        both = [method(model, **options) for _ in batches]
    for _ in range(2):
        tasks = [
            lambda pda=pda, images=images: explain(pda, images)
            for pda, images in zip(both, batches, strict=True)
        ]
        torch.testing.assert_close(in_threads(*tasks), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "make_prior",
    [
        lambda images: GaussianPatchPrior(7).fit(images),
        lambda images: MarginalPrior().fit(images),
        lambda images: EmpiricalMeanPrior(GaussianPatchPrior(7).fit(images), 2),
    ],
    ids=["gaussian", "marginal", "empirical mean"],
)
@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
def test_two_threads_on_one_prior(method, make_prior):
    model, images = make_model(), make_images(1, 3, 13, 15).float()
    expected = explain(method(model, make_prior(images), engine="dense"), images)
    prior = make_prior(images)
    tasks = [lambda: explain(method(model, prior, engine="dense"), images)] * 4
    for actual in in_threads(*tasks):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_a_model_in_training_mode_is_put_back_by_the_last_thread(method):
    model = make_model()
    images = make_images(1, 3, 13, 15).float()
    expected = explain(method(model), images)
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    first_is_inside, second_is_done = threading.Event(), threading.Event()
    seen = []

    def slow(*arguments):
        # The first one to come in stays until the other has been in and out again.
        if threading.current_thread().name == "first" and not first_is_inside.is_set():
            first_is_inside.set()
            second_is_done.wait(30)
        seen.append(model.training)

    handle = model.register_forward_pre_hook(slow)
    results = {}

    def first():
        results["first"] = explain(method(model), images)

    thread = threading.Thread(target=first, name="first")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        thread.start()
        assert first_is_inside.wait(30)
        results["second"] = explain(method(model), images)
        assert not any(module.training for module in model.modules())
        second_is_done.set()
        thread.join()
    handle.remove()
    assert not any(seen)
    assert [module.training for module in model.modules()] == modes
    torch.testing.assert_close(results, {"first": expected, "second": expected})
