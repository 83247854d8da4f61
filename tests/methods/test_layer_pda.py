"""LayerPDA against a forward hook that replaces the values, one window and one pass at a time."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from conftest import make_classifier, make_convolutional, make_images
from torch import Tensor, nn

from captum_pda import LayerPDA
from captum_pda.model.layers import NoFeatureMapError


def bits(outputs: Tensor, target: int) -> Tensor:
    others = torch.cat([outputs[:, :target], outputs[:, target + 1 :]], dim=1)
    return (outputs[:, target] - others.logsumexp(1)) / torch.log(torch.tensor(2.0))


def outputs_with(model: nn.Module, layer: nn.Module, x: Tensor, change: Callable) -> Tensor:
    """The model's outputs when a layer's output is changed, by nothing but a hook."""
    handle = layer.register_forward_hook(lambda module, arguments, output: change(output))
    try:
        with torch.no_grad():
            return model(x)
    finally:
        handle.remove()


def slow_map(model, layer, x, target, size=1, context="full"):
    """Every window of a layer's (1, C, H, W) output, each in a pass of its own."""
    kept = []
    outputs = outputs_with(model, layer, x, lambda output: kept.append(output.clone()))
    features = kept[0]
    mean = features.mean(dim=(2, 3), keepdim=True)
    height, width = features.shape[2:]
    total, count = torch.zeros(height, width).double(), torch.zeros(height, width).double()
    step = max(1, size // 4)
    tops, lefts = ([*range(0, side - size, step), side - size] for side in (height, width))
    nothing = bits(
        outputs_with(model, layer, x, lambda _: mean.expand_as(features).clone()), target
    )
    for top in tops:
        for left in lefts:
            inside = torch.zeros(height, width, dtype=torch.bool)
            inside[top : top + size, left : left + size] = True
            if context == "full":
                rest = features[..., ~inside].mean(dim=2)[..., None, None]
                changed = torch.where(inside, rest, features)
                value = bits(outputs, target) - bits(
                    outputs_with(model, layer, x, lambda _, new=changed: new.clone()), target
                )
            else:
                changed = torch.where(inside, features, mean)
                value = (
                    bits(outputs_with(model, layer, x, lambda _, new=changed: new.clone()), target)
                    - nothing
                )
            total[inside] += value
            count[inside] += 1
    return total / count


class CountedConvolution(nn.Conv2d):
    """Counts the rows that it is computed for."""

    def __init__(self, *arguments: int, **options: int) -> None:
        super().__init__(*arguments, **options)
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return super().forward(x)


class Joined(nn.Module):
    """A layer, and after it a residual sum, a product or a concatenation with earlier tensors."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = CountedConvolution(3, 4, 3, padding=1)
        self.layer = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4 if how != "cat" else 8, 5)
        self.how = how
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        earlier = torch.tanh(self.first(x))
        features = self.layer(earlier)
        if self.how == "add":
            features = features + earlier
        elif self.how == "add in place":
            earlier += features
            features = earlier
        elif self.how == "relu in place":
            features = nn.functional.relu_(features)
        elif self.how == "cat":
            features = torch.cat([features, earlier], dim=1)
        elif self.how == "early batch size":
            features = features.reshape(len(x), 4, *x.shape[2:])
        elif self.how == "mean of rows":
            # On one copy up to the layer, this would look at other rows without an error.
            features = features + features.mean(dim=0) if len(x) == 1 else features * 2
        return self.last(features.mean(dim=(2, 3)))


IMAGE = make_images(1, 3, 6, 5)


@pytest.mark.parametrize(
    "how", ["add", "relu in place", "plain", "cat", "add in place", "early batch size"]
)
def test_only_what_follows_the_layer_is_run_on_every_copy(how):
    model = Joined(how)
    pda = LayerPDA(model, model.layer)
    found = pda.attribute(IMAGE, target=2)
    expected = slow_map(model, model.layer, IMAGE, 2)
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-9, atol=1e-9)
    assert found.shape == (1, 4, 6, 5)
    assert "only what follows layer" in pda.engine_report.reason
    model.first.rows.clear()
    pda.attribute(IMAGE, target=2)
    # Two copies are run to check the model, and three as a whole, to compare.
    assert sorted(model.first.rows) == [1] * (len(model.first.rows) - 2) + [2, 3]
    assert "forward" not in vars(model.first)


class Again(Joined):
    """Calls a module before the layer again after it."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.layer(self.first(x))
        return self.last(self.first(features[:, :3]).mean(dim=(2, 3)))


class Mixed(Joined):
    """Mixes the rows of a batch before the layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x.sum(dim=0, keepdim=True) * (len(x) - 1))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Joined("mean of rows"), None),
        (Again("plain"), None),
        (Mixed("cat"), "other examples in its batch"),
    ],
    ids=["mean of rows", "again", "mixed"],
)
def test_a_model_that_looks_at_its_batch_gives_what_it_gives_as_a_whole(model, says):
    with pytest.warns(UserWarning, match=says) if says else nullcontext():
        found = LayerPDA(model, "layer").attribute(IMAGE, target=1, perturbations_per_eval=7)
    expected = slow_map(model, model.layer, IMAGE, 1)
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("context", ["full", "empty"])
@pytest.mark.parametrize("size", [1, 3])
def test_windows_of_any_size_and_context_equal_a_hook_that_replaces_the_values(size, context):
    model = make_classifier()
    x = make_images(2, 3, 9, 11)
    found = LayerPDA(model, model[1]).attribute(
        x, target=[1, 3], sliding_window_shapes=size, context=context
    )
    for n, target in enumerate((1, 3)):
        expected = slow_map(model, model[1], x[n : n + 1], target, size, context)
        torch.testing.assert_close(found[n, 0], expected, rtol=1e-9, atol=1e-9)


def test_several_sizes_and_both_contexts_are_parts_of_one_evidence():
    model = make_classifier()
    evidence = LayerPDA(model, model[1]).evidence(IMAGE, scales=(1, 3), context="both")
    assert [(part.size, part.context, part.depth) for part in evidence.parts] == [
        ((1, 1), "full", "1"),
        ((3, 3), "full", "1"),
        ((1, 1), "empty", "1"),
        ((3, 3), "empty", "1"),
    ]
    one = evidence.at(3).in_context("empty").attribution(2)
    torch.testing.assert_close(one[0, 0], slow_map(model, model[1], IMAGE, 2, 3, "empty"))
    difference = evidence.contrast(0, 1) + evidence.contrast(1, 0)
    assert evidence.contrast(0, 1).shape == (1, 6, 6, 5)
    assert difference.abs().max() < 1e-9


class TwoOutputs(nn.Module):
    """A layer that returns two maps and a number for each example, behind a function of both."""

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x.tanh(), x[:, :2, ::2].sin(), x.mean(dim=(1, 2, 3))

    def __init__(self) -> None:
        super().__init__()
        self.layer = self.Layer()
        torch.manual_seed(0)
        self.head = nn.Linear(6, 3)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        one, two, three = self.layer(x)
        pooled = [one.mean(dim=(2, 3)), two.amax(dim=(2, 3)), three[:, None]]
        return self.head(torch.cat(pooled, dim=1))


def test_every_feature_map_of_a_layer_with_several_outputs_is_explained():
    model = TwoOutputs()
    first, second = LayerPDA(model, model.layer).attribute(IMAGE, target=1)
    assert first.shape == (1, 3, 6, 5)
    assert second.shape == (1, 2, 3, 5)
    before = bits(model(IMAGE), 1)
    for number, found in enumerate((first, second)):
        for row in range(found.shape[2]):

            def change(outputs, number=number, row=row):
                changed = [output.clone() for output in outputs]
                features = changed[number]
                inside = torch.zeros(features.shape[2:], dtype=torch.bool)
                inside[row, 4] = True
                features[:, :, row, 4] = features[..., ~inside].mean(dim=2)
                return tuple(changed)

            value = before - bits(outputs_with(model, model.layer, IMAGE, change), 1)
            torch.testing.assert_close(found[:, 0, row, 4], value, rtol=1e-9, atol=1e-9)


def test_what_a_layer_is_called_with_is_explained_on_request():
    model = make_classifier()
    found = LayerPDA(model, model[1]).attribute(IMAGE, target=1, attribute_to_layer_input=True)
    torch.testing.assert_close(found, LayerPDA(model, model[0]).attribute(IMAGE, target=1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x)).mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("model", "layer", "says"),
    [
        (Twice().double().eval(), "layer", "layer 'layer' is called 2 times"),
        (make_classifier(), nn.Conv2d(3, 3, 1), "'Conv2d' is not called"),
        (make_classifier(), "3", r"layer '3' holds no spatial feature map: .*\(1, 24\)"),
    ],
    ids=["called twice", "of another model", "without places"],
)
def test_layers_that_cannot_be_explained_are_refused_by_name(model, layer, says):
    with pytest.raises(ValueError, match=says):
        LayerPDA(model, layer).attribute(IMAGE, target=0)


@pytest.mark.parametrize("layer", ["nothing", 3])
def test_what_is_no_layer_is_refused_at_once(layer):
    with pytest.raises((TypeError, ValueError), match="layer"):
        LayerPDA(make_classifier(), layer)


def test_without_a_layer_the_last_feature_map_is_found_and_named():
    model = make_classifier()
    pda = LayerPDA(model)
    assert "layer='last'" in repr(pda)
    found = pda.attribute(IMAGE, target=1)
    assert pda.layer_name == "1"
    assert "layer='1'" in repr(pda)
    torch.testing.assert_close(found, LayerPDA(model, model[1]).attribute(IMAGE, target=1))


def test_a_model_without_feature_maps_says_so_plainly():
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 3)).double().eval()
    with pytest.raises(NoFeatureMapError, match="Sequential has no layer with a spatial feature"):
        LayerPDA(model).attribute(IMAGE, target=0)
    with pytest.raises(NoFeatureMapError, match="is a function"):
        LayerPDA(lambda x: model(x)).attribute(IMAGE, target=0)


class Transformer(nn.Module):
    """Patches of 2 x 2 as tokens after a class token, and one block that mixes them."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.mix = nn.Linear(6, 6)
            self.mlp = nn.Linear(6, 6)

        def forward(self, tokens: Tensor) -> Tensor:
            values = self.norm(tokens)
            weights = (values @ self.mix(values).transpose(1, 2)).softmax(dim=-1)
            tokens = tokens + weights @ values
            return tokens + self.mlp(tokens)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 6, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.block = self.Block()
        self.head = nn.Linear(6, 3)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1)
        return self.head(self.block(tokens)[:, 0])


def test_tokens_of_a_transformer_are_a_grid_and_its_class_token_is_left_alone():
    model, x = Transformer(), make_images(1, 3, 8, 12)
    pda = LayerPDA(model)
    pda.attribute(x, target=1)
    # After the block the outputs depend on the class token alone: its attention's input is the
    # last map.
    assert pda.layer_name == "block.mix"
    found = LayerPDA(model, "block.norm").attribute(x, target=1)
    assert found.shape == (1, 6, 4, 6)
    before = bits(model(x), 1)
    for place in range(24):

        def change(tokens, place=place):
            tokens = tokens.clone()
            others = [1 + other for other in range(24) if other != place]
            tokens[:, 1 + place] = tokens[:, others].mean(dim=1)
            return tokens

        value = before - bits(outputs_with(model, model.block.norm, x, change), 1)
        torch.testing.assert_close(found[:, 0].flatten(1)[:, place], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dims", [1, 3])
def test_signals_and_volumes_have_feature_maps_too(dims):
    x = make_images(1, 3, *(5, 4, 6)[:dims])
    found = LayerPDA(make_classifier(dims), "1").attribute(x, target=1)
    assert found.shape == (1, 6, *x.shape[2:])
    assert found.abs().max() > 0


def test_no_hook_is_left_behind_even_after_an_error():
    class Stops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 3:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(nn.Conv2d(3, 4, 1), Stops(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = model.double().eval()
    with pytest.raises(KeyboardInterrupt):
        LayerPDA(model, "0").attribute(IMAGE, target=0)
    assert not any(module._forward_hooks for module in model.modules())


def test_threads_in_the_same_layers_at_once_give_the_model_back():
    class Slow(nn.Module):
        def forward(self, x):
            time.sleep(0.001)  # another thread goes on meanwhile
            return x

    model = nn.Sequential(*make_classifier(), Slow())
    alone = LayerPDA(model, model[1]).attribute(IMAGE, target=1)
    with ThreadPoolExecutor(4) as threads:
        pda = LayerPDA(model, model[1])
        futures = [threads.submit(pda.attribute, IMAGE, 1) for _ in range(12)]
        for future in futures:
            torch.testing.assert_close(future.result(), alone)
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_last_feature_map_is_found_under_half_precision():
    model = make_convolutional()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = LayerPDA(model).attribute(IMAGE.float(), target=1)
    assert found.isfinite().all()
    assert found.abs().max() > 0
