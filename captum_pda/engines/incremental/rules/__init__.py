"""What is done with boxes when the model calls a function; importing this declares all rules."""

from captum_pda.engines.incremental.rules import (
    convolution,
    joining,
    padding,
    pixel,
    pooling,
    shape,
)
from captum_pda.engines.incremental.rules.arguments import arrange, pop_inplace
from captum_pda.engines.incremental.rules.registry import IN_PLACE, RULES, Rule, rule

__all__ = [
    "IN_PLACE",
    "RULES",
    "Rule",
    "arrange",
    "convolution",
    "joining",
    "padding",
    "pixel",
    "pooling",
    "pop_inplace",
    "rule",
    "shape",
]
