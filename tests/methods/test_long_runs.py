"""Runs of hours: stopped by ctrl-C, short of memory, watched by a progress bar."""

import subprocess
import sys

import pytest
import torch
from conftest import make_convolutional, make_images
from torch import nn

from captum_pda import ConstantPrior, EfficientPDA, SampledPDA

ENGINES = ["dense", "incremental"]
WINDOWS = {"sliding_window_shapes": 3, "strides": 2, "perturbations_per_eval": 4}
#: Passes before the first batch of a single example: the inputs as they are, and two that check the
#: model. Of several examples there is one less.
UNPERTURBED = 3


class Stopping(nn.Module):
    """A model that is stopped in its n-th pass."""

    def __init__(self, model, after, error):
        super().__init__()
        self.model = model.eval()
        self.passes_left = after
        self.error = error

    def forward(self, *inputs):
        self.passes_left -= 1
        if self.passes_left < 0:
            raise self.error
        return self.model(*inputs)


def arguments_of(method):
    if method is EfficientPDA:
        return WINDOWS
    return {**WINDOWS, "n_samples": 3, "generator": torch.Generator().manual_seed(1)}


def stopped(method, engine, after, error, images, call):
    """The exception of a run that is stopped after some passes."""
    pda = method(Stopping(make_convolutional(), after, error).eval(), engine=engine)
    with pytest.raises(type(error)) as caught:
        call(pda)
    assert caught.value is error
    return caught.value


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("cable pulled")], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_finished_is_carried_by_whatever_stops_a_run(perturbation_method, engine, error):
    images = make_images(2, 3, 9, 11).float()
    whole = perturbation_method(make_convolutional(), engine=engine).evidence(
        images, **arguments_of(perturbation_method)
    )
    # The unperturbed passes, then 20 windows an example in batches of 4: half of the second.
    batches = 5 if perturbation_method is EfficientPDA else 15
    audited = 2 if engine == "incremental" else 0  # five windows of the first example, densely
    # One more pass compares the second example with its copies.
    after = UNPERTURBED + batches + audited + batches // 2
    caught = stopped(
        perturbation_method,
        engine,
        after,
        error,
        images,
        lambda pda: pda.evidence(images, **arguments_of(perturbation_method)),
    )
    values, expected = caught.result.window_values(1), whole.window_values(1)
    torch.testing.assert_close(values[0], expected[0])
    if perturbation_method is EfficientPDA:
        known = values[1].isfinite()
        assert known.sum() == 8
        torch.testing.assert_close(values[1][known], expected[1][known])
    else:
        n_drawn = caught.result.n_drawn[1]
        assert n_drawn.sum() == 28
        assert torch.equal(n_drawn > 0, values[1].isfinite())


@pytest.mark.parametrize("engine", ENGINES)
def test_the_map_of_a_stopped_run_shows_the_finished_windows(engine):
    images = make_images(1, 3, 9, 11).float()
    call = {"target": 1, "strides": 3, "sliding_window_shapes": 3, "perturbations_per_eval": 1}
    whole = EfficientPDA(make_convolutional(), engine=engine).evidence(
        images, sliding_window_shapes=3, strides=3
    )
    caught = stopped(
        EfficientPDA,
        engine,
        UNPERTURBED + 5,
        KeyboardInterrupt(),
        images,
        lambda pda: pda.attribute(images, **call),
    )
    # Columns 6 to 8 and 8 to 10 share a pixel.
    known = caught.result.isfinite()
    assert known[0, 0].sum() in (5 * 9, 5 * 9 - 3, 5 * 9 - 6)
    same = caught.result == caught.result  # not NaN
    assert torch.equal(known, same)
    corners = whole.parts[0].regions.corners
    values = whole.window_values(1)[0]
    for (row, column), value in zip(corners.tolist(), values, strict=True):
        if column == 0 and known[0, 0, row, column]:
            torch.testing.assert_close(caught.result[0, 0, row, column], value)


def test_a_stopped_run_with_a_tolerance_keeps_its_rounds():
    images = make_images(1, 3, 9, 11).float()
    error = KeyboardInterrupt()
    pda = SampledPDA(Stopping(make_convolutional(), UNPERTURBED + 30, error).eval(), engine="dense")
    with pytest.raises(KeyboardInterrupt) as caught:
        pda.evidence(images, **WINDOWS, n_samples=50, tolerance=1e-9)
    # 20 windows: five batches a sample; 5 samples in the first round, one of the second.
    assert set(caught.value.result.n_drawn.unique().tolist()) == {6}
    assert caught.value.result.standard_error(1).isfinite().all()


def test_tensors_that_were_not_reached_are_nan():
    model = make_convolutional()
    calls = []

    def pair(x, y):
        calls.append(len(x))
        if len(calls) > UNPERTURBED + 6:
            raise KeyboardInterrupt
        return model(x) + model(y)

    images = make_images(1, 3, 9, 11).float(), make_images(1, 3, 6, 7).float()
    with pytest.raises(KeyboardInterrupt) as caught:
        EfficientPDA(pair, engine="dense").attribute(images, target=1, **WINDOWS)
    first, second = caught.value.result
    assert first.isfinite().all()
    assert second.shape == images[1].shape
    assert second.isfinite().any()
    assert second.isnan().any()


@pytest.mark.parametrize("after", range(UNPERTURBED + 1))
def test_a_run_that_fails_at_once_carries_nothing(perturbation_method, after):
    error = RuntimeError("no such luck")
    stopping = Stopping(make_convolutional(), after, error).eval()
    with pytest.raises(RuntimeError) as caught:
        perturbation_method(stopping, engine="dense").attribute(
            make_images(1, 3, 9, 11).float(), target=1
        )
    assert not hasattr(caught.value, "result")


# Memory


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_running_out_of_memory_halves_the_batch_whatever_the_engine(perturbation_method, engine):
    images = make_images(1, 3, 19, 21).float()
    model = make_convolutional()

    def limited(x):
        if len(x) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return model(x)

    call = {"target": 1, "sliding_window_shapes": 4, "strides": 2}
    expected = perturbation_method(model, engine="dense").attribute(images, **call)
    with pytest.warns(UserWarning, match="out of memory"):
        actual = perturbation_method(limited, engine=engine).attribute(images, **call)
    torch.testing.assert_close(actual, expected)


# Progress


def test_the_bar_is_there_before_the_first_batch_without_a_time(perturbation_method, capsys):
    shown_before = []

    def model(x):
        shown_before.append(capsys.readouterr().err)
        return x.flatten(1).mean(1, keepdim=True)

    images = make_images(1, 3, 9, 11)
    pda = perturbation_method(model, ConstantPrior(0.0), output="raw", engine="dense")
    pda.attribute(images, show_progress=True, sliding_window_shapes=3, strides=2)
    first_shown = shown_before[UNPERTURBED]
    assert "passes: " in first_shown
    assert "0/" in first_shown
    assert "about" not in first_shown  # it was not measured


#: Maps of 1,089 and of 9,409 windows: the copies of the latter have 1.8 GB, its fills 115 MB.
MEMORY_OF_TWO_MAPS = """
import resource
import torch
from torch import nn
from captum_pda import EfficientPDA

model = nn.Sequential(nn.Conv2d(3, 4, 16, stride=16), nn.Flatten(), nn.Linear(256, 10)).eval()
image, pda = torch.randn(1, 3, 128, 128), EfficientPDA(model, engine="ENGINE")
used = []
for stride in (3, 1):
    pda.evidence(image, sliding_window_shapes=32, strides=stride)
    used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(used[1] - used[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
@pytest.mark.parametrize("engine", ENGINES)
def test_memory_does_not_grow_with_the_number_of_windows(engine):
    program = MEMORY_OF_TWO_MAPS.replace("ENGINE", engine)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 100
