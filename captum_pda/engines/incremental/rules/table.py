"""The table of rules: what is done with boxes when the model calls a function.

A rule is called as ``rule(run, func, *args, **kwargs)`` with a ``Boxed`` in the place of every
perturbed tensor, and answers with a ``Boxed`` (or several, or a finished tensor), or raises
``GoDense``. What is not in the table goes dense. To add a rule, write it and name it here; the
tests run every rule against the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda._torch import nn_functions
from captum_pda.engines.incremental.rules import convolution as convolutions
from captum_pda.engines.incremental.rules import joining as joining
from captum_pda.engines.incremental.rules import padding as padding
from captum_pda.engines.incremental.rules import pixel as pixels
from captum_pda.engines.incremental.rules import pooling as pooling
from captum_pda.engines.incremental.rules import shape as shapes

Rule = Callable[..., Any]

#: Functions of every number by itself, under all the names that PyTorch gives them.
POINTWISE = (
    "abs acos acosh asin asinh atan atanh bfloat16 ceil celu celu clamp clamp_max clamp_min clip "
    "cos cosh deg2rad double elu erf erfc exp exp2 expm1 float floor frac gelu half hardshrink "
    "hardsigmoid hardswish hardtanh leaky_relu log log10 log1p log2 logit logsigmoid mish "
    "nan_to_num neg negative positive rad2deg reciprocal relu relu6 round rsqrt selu sigmoid sign "
    "silu sin sinc sinh softplus softshrink softsign sqrt square tan tanh tanhshrink threshold "
    "trunc __neg__ __abs__"
)
#: Functions of two maps, number by number.
ELEMENTWISE = (
    "add div divide eq ge gt le lt maximum minimum mul multiply ne pow rsub sub subtract "
    "true_divide __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ "
    "__rdiv__ __div__ __pow__ __rpow__"
)
UNCHANGED = "contiguous detach clone alias requires_grad_"


def _named(names: str) -> Iterator[Callable[..., Any]]:
    """The functions of these names, wherever PyTorch has them."""
    for name in names.split():
        for owner in (torch, F, Tensor, nn_functions, torch.special):
            if callable(getattr(owner, name, None)):
                yield getattr(owner, name)


RULES: dict[Callable[..., Any], Rule] = {
    **dict.fromkeys(_named(POINTWISE), pixels.pointwise),
    **dict.fromkeys(_named("dropout dropout1d dropout2d dropout3d"), pixels.dropout),
    **dict.fromkeys(_named("alpha_dropout feature_dropout"), pixels.dropout),
    **dict.fromkeys(_named(UNCHANGED), pixels.unchanged),
    **dict.fromkeys(_named("to cpu cuda type_as"), pixels.convert),
    **dict.fromkeys(_named("prelu local_response_norm"), pixels.channels_first),
    **dict.fromkeys(_named("linear"), pixels.linear),
    **dict.fromkeys(_named("layer_norm"), pixels.layer_norm),
    **dict.fromkeys(_named("softmax log_softmax"), pixels.softmax),
    **dict.fromkeys([F.batch_norm], convolutions.batch_norm),
    **dict.fromkeys(_named("conv1d conv2d conv3d"), convolutions.convolution),
    **dict.fromkeys(_named("max_pool1d max_pool2d max_pool3d"), pooling.max_pool),
    **dict.fromkeys(_named("avg_pool1d avg_pool2d avg_pool3d"), pooling.average_pool),
    **dict.fromkeys(
        _named("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"),
        pooling.adaptive_average_pool,
    ),
    **dict.fromkeys(
        _named("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"),
        pooling.adaptive_max_pool,
    ),
    **dict.fromkeys(_named("mean"), pooling.mean_over_space),
    **dict.fromkeys(_named(ELEMENTWISE), joining.elementwise),
    **dict.fromkeys([torch.cat, torch.concat, torch.concatenate], joining.concatenate),
    **dict.fromkeys(_named("permute"), shapes.permute),
    **dict.fromkeys(_named("transpose swapaxes swapdims"), shapes.transpose),
    **dict.fromkeys(_named("movedim moveaxis"), shapes.movedim),
    **dict.fromkeys(_named("view reshape"), shapes.reshape),
    **dict.fromkeys(_named("flatten"), shapes.flatten),
    **dict.fromkeys(_named("unsqueeze"), shapes.unsqueeze),
    **dict.fromkeys(_named("chunk split split_with_sizes tensor_split"), shapes.split),
    Tensor.__getitem__: shapes.index,
    F.pad: padding.pad,
}

#: Functions that write into their first argument, and their twins that do not.
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(owner, f"{name}_"): getattr(owner, name)
    for name in f"{POINTWISE} {ELEMENTWISE}".split()
    for owner in (torch, F, Tensor, nn_functions)
    if hasattr(owner, f"{name}_") and hasattr(owner, name)
} | {
    Tensor.__iadd__: Tensor.add,
    Tensor.__isub__: Tensor.sub,
    Tensor.__imul__: Tensor.mul,
    Tensor.__itruediv__: Tensor.div,
    Tensor.__ipow__: Tensor.pow,
}

#: Rules whose result shares memory with its input in PyTorch, so that writing into one of them
#: would be seen in the other.
ALIASING = {
    pixels.unchanged,
    pixels.dropout,
    pixels.convert,
    shapes.permute,
    shapes.transpose,
    shapes.movedim,
    shapes.reshape,
    shapes.flatten,
    shapes.unsqueeze,
    shapes.split,
    shapes.index,
}

#: Rules that save work; without them boxes are of no use.
SAVING = {
    convolutions.convolution,
    pixels.linear,
    pooling.max_pool,
    pooling.average_pool,
    pooling.adaptive_average_pool,
    pooling.adaptive_max_pool,
    pooling.mean_over_space,
}

#: What can be asked of a tensor without reading its values.
PROPERTIES = (
    "device dtype grad grad_fn is_cpu is_cuda is_leaf is_meta is_mkldnn is_mps is_nested "
    "is_quantized is_sparse itemsize layout names nbytes ndim output_nr requires_grad "
    "retains_grad shape"
)
METHODS = (
    "dim element_size get_device has_names is_complex is_conj is_contiguous is_floating_point "
    "is_inference is_neg is_pinned is_same_size is_shared is_signed ndimension nelement numel "
    "size storage_offset stride __len__"
)
DESCRIPTIVE = {
    *(getattr(Tensor, name).__get__ for name in PROPERTIES.split() if hasattr(Tensor, name)),
    *_named(METHODS),
}
