"""Layer-wise relevance propagation by zennit, for the networks of the table."""

from __future__ import annotations

import copy
import operator

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from league.networks import Network, Photo
from league.store import MakeMap


def lrp(composite: str, zero_params: str | None = None) -> MakeMap:
    """Relevance of the pixels for the class's output, by one of zennit's composites.

    Biases take a share of the relevance in every layer unless ``zero_params`` is "bias".
    """

    def make(network: Network, photo: Photo) -> Tensor:
        from zennit import composites
        from zennit.attribution import Gradient

        def wanted(outputs: Tensor) -> Tensor:
            return F.one_hot(torch.tensor([photo.target]), outputs.shape[1]).to(outputs)

        network.passes += 1
        rules = getattr(composites, composite)(zero_params=zero_params)
        with Gradient(for_lrp(network.model), rules) as attributor:
            return attributor(photo.image, wanted)[1][0].sum(0)

    return make


def for_lrp(model: nn.Module) -> nn.Module:
    """A copy of the model with the same outputs, each step of which is a module that runs once.

    zennit's rules belong to modules, and a module may be called once. What is a plain function is
    taken by its gradient, which gives both sides of a skip connection all of the relevance, and
    every place of a mean the same. So batch normalization goes into the convolution before it,
    skip connections become sums of zennit's, and means over places become modules.
    """
    from zennit.layer import Sum

    copied = copy.deepcopy(model)
    copied._forward_pre_hooks.clear()
    graph = _Tracer().trace(copied)
    modules = dict(copied.named_modules())
    for number, node in enumerate(list(graph.nodes)):
        own = f"step_{number}"
        if node.op == "call_module":
            module = modules[node.target]
            before = node.args[0]
            if isinstance(module, nn.BatchNorm2d):
                convolution = copied.get_submodule(before.target)
                copied.set_submodule(before.target, fuse_conv_bn_eval(convolution, module))
                node.replace_all_uses_with(before)
                graph.erase_node(node)
            elif not list(module.parameters()):
                # Activations may be called more than once, or write into what a skip needs.
                single = copy.deepcopy(module)
                if hasattr(single, "inplace"):
                    single.inplace = False
                copied.add_module(own, single)
                node.target = own
        elif node.target in (operator.add, operator.iadd, torch.add):
            copied.add_module(own, Sum())
            with graph.inserting_before(node):
                both = graph.call_function(torch.stack, (list(node.args[:2]), -1))
                total = graph.call_module(own, (both,))
            node.replace_all_uses_with(total)
            graph.erase_node(node)
        elif node.target is F.adaptive_avg_pool2d:
            copied.add_module(own, nn.AdaptiveAvgPool2d(node.args[1]))
            with graph.inserting_before(node):
                pooled = graph.call_module(own, (node.args[0],))
            node.replace_all_uses_with(pooled)
            graph.erase_node(node)
    return fx.GraphModule(copied, graph)


class _Tracer(fx.Tracer):
    """Convolutions that pad in their own way are whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)
