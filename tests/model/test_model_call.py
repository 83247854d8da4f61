"""What is found out about a model before its maps: arguments, batches, noise."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import make_classifier, make_images
from torch import nn

from captum_pda import PDA, ConstantPrior, EfficientPDA, GradientPDA, LayerPDA, SampledPDA

PRIOR = ConstantPrior(0.0)
WINDOWS = {"sliding_window_shapes": 4, "strides": 2}


def explain(model, images, arguments=None, target=1, method=EfficientPDA, **options):
    return method(model, prior=PRIOR).attribute(
        images, target=target, additional_forward_args=arguments, **WINDOWS, **options
    )


def one_by_one(model, images, **options):
    return torch.cat([explain(model, each[None], **options) for each in images])


@pytest.fixture
def net():
    return make_classifier()


# Arguments that have as many rows as there are examples.


@pytest.mark.parametrize("n_examples", [1, 2, 3, 4])
@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [0.4, -1.0, 2.0], [1.0, 1.0, 2.0]])
@pytest.mark.parametrize("use", ["first", "mean", "channels"])
def test_a_whole_argument_stays_whole_however_it_is_used(net, values, use, n_examples):
    images, values = make_images(n_examples, 3, 9, 11), torch.tensor(values).double()

    def model(x, each):
        if use == "channels":
            return net(x * each[:, None, None])
        return net(x) * (each[0] if use == "first" else each.mean())

    expected = one_by_one(lambda x: model(x, values), images)
    torch.testing.assert_close(explain(model, images, values), expected)


@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA, PDA, GradientPDA])
def test_a_whole_argument_beside_one_with_rows(net, method):
    windows = {"scales": 4} if method is PDA else WINDOWS
    images = make_images(3, 3, 9, 11)
    rows, means = torch.randn(3, 4).double(), torch.tensor([0.4, -1.0, 2.0]).double()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, m, r):
            return self.net(x - m[:, None, None]) + r

    whole = Model().eval()
    found = method(whole, prior=PRIOR).attribute(
        images, target=1, additional_forward_args=(means, rows), **windows
    )
    for n in range(3):
        alone = method(whole, prior=PRIOR).attribute(
            images[n : n + 1], target=1, additional_forward_args=(means, rows[n : n + 1]), **windows
        )
        torch.testing.assert_close(found[n : n + 1], alone)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 4), ()])
def test_one_number_for_one_example_is_taken_as_the_model_takes_it(net, shape):
    image, scale = make_images(1, 3, 9, 11), torch.full(shape, 0.7).double()
    two = nn.Sequential(net, nn.Linear(4, 2).double()).eval()
    for model in (net, two):
        if shape == (1, 4) and model is two:
            continue
        found = explain(lambda x, s, model=model: model(x) * s, image, scale)
        torch.testing.assert_close(found, explain(lambda x, model=model: 0.7 * model(x), image))


@pytest.mark.parametrize(
    ("combine", "arguments", "says"),
    [
        (lambda y, a: y * a["by"], {"by": torch.rand(3, 1)}, r"args\[0\] \(a dict of .*3"),
        (lambda y, a: y + a[0], [torch.rand(3, 4)], r"args\[0\] \(a list"),
        (lambda y, a: y + a.transpose(0, 1), torch.rand(4, 3), r"args\[0\] \(a tensor of shape"),
        (lambda y, a: y + a[: len(y)], torch.rand(5, 4), r"one example at a time"),
    ],
)
def test_an_argument_that_is_divided_in_a_way_of_its_own_is_named(net, combine, arguments, says):
    images = make_images(3, 3, 9, 11)
    with pytest.raises(ValueError, match=says):
        explain(lambda x, a: combine(net(x), a), images, (arguments,))


def test_tensors_with_rows_inside_the_model_are_said_to_be_the_reason(net):
    images, rows = make_images(3, 3, 9, 11), torch.rand(3, 4)
    with pytest.raises(ValueError, match="pass those as additional_forward_args"):
        explain(lambda x: net(x) + rows, images)


def test_arguments_that_a_model_writes_into_are_as_they_were(net):
    images, scale = make_images(2, 3, 9, 11), torch.ones(4).double()

    def writes(x, s):
        return net(x) * s.mul_(2)

    found = explain(writes, images, scale)
    assert torch.equal(scale, torch.ones(4).double())
    torch.testing.assert_close(found, explain(lambda x: 2 * net(x), images))


# Models that look at their batch.


class Normalised(nn.Module):
    """Batch-norm that keeps no statistics."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6, track_running_stats=False)
        self.last = nn.Linear(6 * 4, 4)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return self.last(x.flatten(1))


@pytest.mark.parametrize("n_examples", [1, 2, 3])
@pytest.mark.parametrize("engine", ["dense", "auto"])
def test_copies_of_a_model_that_looks_at_its_batch_are_run_alone(n_examples, engine):
    images, model = make_images(n_examples, 3, 9, 11).float(), Normalised().eval()
    with pytest.warns(UserWarning, match="track_running_stats=False"):
        found = EfficientPDA(model, PRIOR, engine=engine).attribute(images, target=1, **WINDOWS)
    # The oracle: a model that can't look at others.
    alone = lambda x: torch.cat([model(each[None]) for each in x])  # noqa: E731
    expected = EfficientPDA(alone, PRIOR, engine="dense").attribute(images, target=1, **WINDOWS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_examples", [1, 2])
@pytest.mark.parametrize("method", [LayerPDA, PDA, GradientPDA])
def test_so_are_its_feature_maps_and_gradients(method, n_examples):
    images, model = make_images(n_examples, 3, 9, 11).float(), Normalised().eval()
    pda = method(model) if method is GradientPDA else method(model, "first")
    if method is GradientPDA and n_examples == 1:
        return
    with pytest.warns(UserWarning, match="other examples in its batch"):
        found = pda.attribute(images, target=1)
    for n in range(n_examples):
        if method is GradientPDA:
            alone = pda.attribute(images[n : n + 1], target=1)
        else:
            with pytest.warns(UserWarning, match="other examples in its batch"):
                alone = pda.attribute(images[n : n + 1], target=1, perturbations_per_eval=1)
        torch.testing.assert_close(found[n : n + 1], alone, rtol=1e-3, atol=1e-4)


def test_a_model_that_divides_by_its_number_of_examples_is_noticed(net):
    images, offset = make_images(3, 3, 9, 11), torch.rand(3, 4).double()
    with pytest.warns(UserWarning, match="other examples in its batch"):
        found = explain(lambda x, y: (net(x) + y) / len(x), images, offset)
    torch.testing.assert_close(found, explain(lambda x, y: net(x) + y, images, offset))


@pytest.mark.filterwarnings("ignore:out of memory")
def test_a_model_that_has_room_for_some_examples_or_takes_another_way_with_many_is_noticed(net):
    def with_little_memory(x):
        if len(x) > 12:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return torch.cat([net(x[:3]), 0 * net(x[3:])])

    image = make_images(1, 3, 9, 11)
    for model in (
        with_little_memory,
        lambda x: torch.cat([net(x[:3]), 0 * net(x[3:])]),
        lambda x: net(x if len(x) < 5 else x.flip(-1)),
        lambda x: net(x).index_select(0, net(x)[:, 0].argsort()) if len(x) > 9 else net(x),
    ):
        with pytest.warns(UserWarning, match="other examples in its batch"):
            found = explain(model, image)
        torch.testing.assert_close(found, explain(net, image))


@pytest.mark.parametrize("nearly_equal", [False, True])
@pytest.mark.parametrize("n_examples", [1, 2, 3])
def test_a_model_that_divides_by_the_largest_value_of_its_batch_is_noticed(
    net, n_examples, nearly_equal
):
    factors = 1 + torch.arange(n_examples) * (1e-3 if nearly_equal else 1)
    images = make_images(1, 3, 9, 11) * factors.view(-1, 1, 1, 1)
    alone = lambda x: torch.cat([net(each[None] / each.max()) for each in x])  # noqa: E731
    with pytest.warns(UserWarning, match="other examples in its batch"):
        found = explain(lambda x: net(x / x.max()), images)
    torch.testing.assert_close(found, explain(alone, images))
    if n_examples > 1:
        with pytest.warns(UserWarning, match="other examples in its batch"):
            found = explain(lambda x: net(x / x.max()), images.flip(0), method=GradientPDA)
        torch.testing.assert_close(found, explain(alone, images.flip(0), method=GradientPDA))


@pytest.mark.parametrize("looked_at", [0, 1, 2])
@pytest.mark.parametrize("faintest", [0, 1, 2])
def test_a_model_is_noticed_whichever_example_it_looks_at(net, looked_at, faintest):
    images = make_images(3, 3, 9, 11)
    images = images / images.abs().amax((1, 2, 3), keepdim=True)
    images[faintest] *= 0.5
    images[0 if faintest else 2] *= 2

    def model(x):
        return net(x) - 0.5 * net(x[[min(looked_at, len(x) - 1)]])

    for method in (EfficientPDA, GradientPDA) if looked_at != 1 else (EfficientPDA,):
        with pytest.warns(UserWarning, match="other examples in its batch"):
            found = explain(model, images, method=method)
        torch.testing.assert_close(found, explain(lambda x: 0.5 * net(x), images, method=method))


def test_a_model_that_cannot_take_nothing_is_named(net):
    divided = lambda x: net(x / x.amax(dim=(1, 2, 3), keepdim=True))  # noqa: E731
    with pytest.raises(ValueError, match=r"context='empty' starts from .* nothing seen, for which"):
        explain(divided, make_images(1, 3, 9, 11), context="both")


def test_a_model_that_takes_one_example_only_gets_one_at_a_time(net):
    image = make_images(1, 3, 9, 11)

    def single(x):
        return net(x.reshape(1, 3, 9, 11))

    with pytest.warns(UserWarning, match="takes one example, and fails with 2"):
        found = explain(single, image)
    torch.testing.assert_close(found, explain(net, image))


# Models that draw random numbers.


def states():
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        str(np.random.get_state()),  # noqa: NPY002
    )


NOISES = {
    "dropout": lambda x: F.dropout(x),
    "numpy": lambda x: x + float(np.random.rand()),  # noqa: NPY002
    "python": lambda x: x + random.random(),
    "normal": lambda x: x + torch.randn_like(x),
}


@pytest.mark.parametrize("n_examples", [1, 3])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("method", [EfficientPDA, GradientPDA, SampledPDA])
def test_a_random_model_is_noticed_and_the_users_numbers_are_as_they_were(
    net, noise, method, n_examples
):
    images = make_images(n_examples, 3, 9, 11)
    before = states()
    with pytest.warns(UserWarning, match="answers the same input differently"):
        explain(lambda x: net(NOISES[noise](x)), images, method=method)
    assert states() == before


def test_so_are_they_after_an_error(net):
    calls = []

    def model(x):
        calls.append(None)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return net(F.dropout(x))

    before = states()
    with (
        pytest.warns(UserWarning, match="answers the same input differently"),
        pytest.raises(KeyboardInterrupt),
    ):
        explain(model, make_images(1, 3, 9, 11), perturbations_per_eval=1)
    assert states() == before


def test_numbers_that_make_no_difference_are_no_cause_for_alarm(net):
    before = states()
    explain(lambda x: net(x) + 0 * torch.rand(1), make_images(2, 3, 9, 11))
    assert states() == before


def test_noise_that_shows_only_now_and_then_is_not_taken_for_a_look_at_the_batch(net):
    noises = []

    def model(x):
        noises.append(float(torch.rand(())))
        return net(x) + noises[-1] * (len(noises) == 2)

    with pytest.warns(UserWarning, match="answers the same input differently"):
        explain(model, make_images(1, 3, 9, 11))


def test_a_random_model_draws_anew_in_every_pass(net):
    seen = []

    def model(x):
        seen.append(float(torch.rand(())))
        return net(x) + seen[-1]

    with pytest.warns(UserWarning, match="answers the same input differently"):
        explain(model, make_images(1, 3, 9, 11), perturbations_per_eval=1)
    assert len(set(seen)) > len(seen) - 3  # all but those that find out who draws


# No false alarm.


def half(x):
    return x.to(torch.float16).float()


ITSELF = make_images(1, 3, 9, 11).float()
QUIET = {
    "half precision inside": lambda net: lambda x: net(half(x)),
    "half precision outputs": lambda net: lambda x: net(x).half(),
    "group norm": lambda net: lambda x: net(F.group_norm(x, 3)),
    "dict outputs": lambda net: lambda x: {"logits": net(x)},
    "a branch on the values of each": lambda net: (
        lambda x: torch.where(x.mean((1, 2, 3), keepdim=True)[:, 0, 0] > 0, net(x), net(-x))
    ),
    "no modules": lambda net: lambda x: x.flatten(1)[:, :4],
    "a distance to itself": lambda net: lambda x: -(net(x) - net(ITSELF)).norm(dim=1)[:, None],
    "constant outputs": lambda net: lambda x: x.new_full((len(x), 4), 2.0),
    "a large offset": lambda net: lambda x: net(x) + 1e6,
    "a coarse grid": lambda net: lambda x: (net(x) * 8).round() / 8,
    "squeezed outputs": lambda net: lambda x: net(x)[:, :1].squeeze(),
    "a loop over examples": lambda net: lambda x: torch.cat([net(each[None]) for each in x]),
}


@pytest.mark.filterwarnings("ignore:.*one number per example")
@pytest.mark.parametrize("n_examples", [1, 2, 5])
@pytest.mark.parametrize("kind", QUIET)
def test_models_that_are_all_right_hear_nothing(net, kind, n_examples):
    model = QUIET[kind](net.float())
    target = None if kind == "squeezed outputs" else 0
    explain(model, make_images(n_examples, 3, 9, 11).float(), target=target)


def test_the_check_costs_a_small_pass_or_two(net):
    rows = []

    def model(x):
        rows.append(len(x))
        return net(x)

    pda = EfficientPDA(model, PRIOR, engine="dense")
    for n_examples, most in ((1, 2), (2, 3), (5, 2)):
        rows.clear()
        pda.attribute(make_images(n_examples, 3, 9, 11), target=1, **WINDOWS)
        assert rows[:2] == [n_examples, most]
        # For one example also a copy alone, for several the same of a second one; and a copy alone
        # that was in the first large batch.
        n_run = sum(rows) - most - (1 if n_examples == 1 else most) - 1
        n_windows = len(pda.evidence(make_images(1, 3, 9, 11), **WINDOWS).parts[0].regions)
        assert n_run == n_examples * (1 + n_windows)
