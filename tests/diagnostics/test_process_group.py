"""Diagnostics explain with the ranks that the method they are given has."""

import pytest
import torch
import torch.distributed as dist
from conftest import make_classifier, make_images

from captum_pda import EfficientPDA, diagnostics
from captum_pda.methods.perturbation import PerturbationPDA


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'ranks'}", world_size=1, rank=0
    )
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "diagnose",
    [
        lambda pda, image: diagnostics.algorithm_agreement(pda, image, strides=4, n_samples=2),
        lambda pda, image: diagnostics.conditional_mean_error(pda, image, windows=2),
        lambda pda, image: diagnostics.activation_statistics(
            pda, image, pda.forward_func[0], n_samples=2
        ),
    ],
    ids=["agreement", "conditional mean", "activations"],
)
def test_the_process_group_goes_along(group, diagnose, monkeypatch):
    groups = []
    explain = PerturbationPDA._explain
    monkeypatch.setattr(
        PerturbationPDA,
        "_explain",
        lambda pda, *args, **kwargs: (
            groups.append(pda.process_group) or explain(pda, *args, **kwargs)
        ),
    )
    torch.manual_seed(0)
    diagnose(EfficientPDA(make_classifier(), process_group=group), make_images(1, 3, 9, 9))
    assert groups
    assert set(groups) == {group}
