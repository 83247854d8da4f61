"""Signatures and docstrings of methods on the site, as ``help`` shows them: arguments that several
methods share are listed once in the source."""

from __future__ import annotations

import inspect
from typing import Any

from griffe import Extension, Parameter, ParameterKind, Parameters, dynamic_import

KINDS = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: ParameterKind.var_keyword,
    inspect.Parameter.VAR_POSITIONAL: ParameterKind.var_positional,
    inspect.Parameter.POSITIONAL_ONLY: ParameterKind.positional_only,
}


class RuntimeDocs(Extension):
    """Reads what the methods say of themselves once they are imported."""

    def on_class_instance(self, *, cls: Any, **_: Any) -> None:
        """The arguments of a class."""
        if cls.path.startswith("captum_pda.methods.") and cls.docstring:
            cls.docstring.value = inspect.getdoc(dynamic_import(cls.path))

    def on_function_instance(self, *, func: Any, **_: Any) -> None:
        """The arguments of a method, and its signature."""
        if not func.path.startswith("captum_pda.methods.") or not func.docstring:
            return
        method = dynamic_import(func.path)
        func.docstring.value = inspect.getdoc(method)
        if not isinstance(method, property):
            func.parameters = Parameters(
                *(
                    Parameter(
                        each.name,
                        annotation=None if each.annotation is each.empty else str(each.annotation),
                        kind=KINDS[each.kind],
                        default=None if each.default is each.empty else repr(each.default),
                    )
                    for each in inspect.signature(method).parameters.values()
                )
            )
