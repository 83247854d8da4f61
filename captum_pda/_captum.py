"""Everything taken from Captum: the only file that imports its private helpers."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from captum._utils.common import (
    _format_additional_forward_args,
    _format_output,
    _format_tensor_into_tuples,
)
from captum._utils.typing import TargetType as TargetType
from captum._utils.typing import TensorOrTupleOfTensorsGeneric as TensorOrTupleOfTensorsGeneric
from captum.attr import GradientAttribution as GradientAttribution
from captum.attr import LayerAttribution as LayerAttribution
from captum.attr import PerturbationAttribution as PerturbationAttribution
from captum.log import log_usage
from torch import Tensor

#: Further arguments of a model as a tuple, or None.
format_additional_forward_args: Callable[[object], tuple[Any, ...] | None]
format_additional_forward_args = _format_additional_forward_args
#: A tuple where the inputs were one, otherwise its only tensor.
format_output: Callable[[bool, tuple[Tensor, ...]], Tensor | tuple[Tensor, ...]] = _format_output
#: The inputs as a tuple.
format_tensor_into_tuples: Callable[[Tensor | tuple[Tensor, ...]], tuple[Tensor, ...]]
format_tensor_into_tuples = _format_tensor_into_tuples

P = ParamSpec("P")
R = TypeVar("R")

#: Arguments of Captum's other methods, and their counterparts here.
ELSEWHERE = {
    "abs": "attributions have signs; take .abs() of them",
    "attribute_to_layer_input": "LayerPDA explains a layer",
    "baselines": "what stands in for a window is the constructor's prior=; for a constant, "
    "prior=ConstantPrior(0.0)",
    "engine": "it is an argument of the constructor",
    "internal_batch_size": "perturbations_per_eval= of EfficientPDA, SampledPDA and PDA says how "
    "many copies go through the model at once",
    "measure": "it is an argument of the constructor",
    "n_samples": "SampledPDA draws samples",
    "n_steps": "nothing is integrated; strides= says how fine the map is",
    "nt_samples": "wrap the method: captum.attr.NoiseTunnel(method).attribute(...)",
    "nt_type": "wrap the method: captum.attr.NoiseTunnel(method).attribute(...)",
    "output": "it is an argument of the constructor",
    "perturbations_per_eval": "one pass explains all windows at once",
    "prior": "it is an argument of the constructor",
    "process_group": "it is an argument of the constructor",
    "return_convergence_delta": "differences of predictions do not add up to the output, so there "
    "is no convergence delta",
    "show_progress": "one pass explains all windows at once",
    "stdevs": "wrap the method: captum.attr.NoiseTunnel(method).attribute(...)",
    "target": "evidence holds every output; ask it for one, evidence.attribution(target)",
    "windows": "regions=grid.pick([...]) takes some windows only",
}


def refusing_unknown(name: str, known: Iterable[str]) -> Callable[[object, Iterable[str]], None]:
    """A function that refuses unknown arguments and names their counterparts here."""
    names = [each for each in known if each != "self"]

    def refuse(owner: object, given: Iterable[str]) -> None:
        for each in given:
            if each not in names:
                said = ELSEWHERE.get(each, f"it takes {', '.join(names)}")
                raise TypeError(f"{type(owner).__name__}.{name} has no argument {each}: {said}")

    return refuse


def captum_method(method: Callable[P, R]) -> Callable[P, R]:
    """Log the use of ``attribute`` as Captum's methods do, and refuse their other arguments."""
    refuse = refusing_unknown(method.__name__, inspect.signature(method).parameters)
    logged: Callable[P, R] = log_usage(part_of_slo=True)(method)

    @wraps(method)
    def attribute(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse(args[0], kwargs)
        return logged(*args, **kwargs)

    return attribute
