"""Expressions of a MONAI bundle (`$...`): a few harmless forms are computed here, and nothing else is.

Python parses an expression and never runs it: each node of the tree is looked up in the tables below. MONAI would
evaluate it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxelocity_observe.core.errors import InputError

_MOST_CHARACTERS = 1000
_MOST_ITEMS = 10_000
_LARGEST = 2**63
_DEEPEST = 50
_MOST_VALUES = 100_000
_REFERENCE = re.compile(r"@(\w+(?:(?:::|#)\w+)*)")
# Stands for a reference while Python parses the rest.
_PLACEHOLDER = "voxelocity_reference_"

_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}


def _list(values: Any = ()) -> list[Any]:
    """Sets are sorted, as Python lists small numbers of one."""
    return sorted(values) if isinstance(values, frozenset) else list(values)


def _range(*ends: int) -> list[int]:
    numbers = range(*ends)
    if len(numbers) > _MOST_ITEMS:
        raise ExpressionError(f"it would have more than {_MOST_ITEMS} items")
    return list(numbers)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "bool": bool, "float": float, "int": int, "len": len, "list": _list, "max": max, "min": min,
    "range": _range, "round": round, "set": frozenset, "sum": sum, "tuple": _list,
}  # fmt: skip
_DTYPES = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
_KEYS = {"IMAGE": "image", "LABEL": "label", "PRED": "pred", "LOSS": "loss", "METADATA": "metadata"}
_NAMES: Mapping[str, Any] = {
    **{f"monai.utils.CommonKeys.{name}": key for name, key in _KEYS.items()},
    **{f"{module}.{name}": name for module in ("torch", "numpy", "np") for name in _DTYPES},
}


class ExpressionError(ValueError):
    """An expression is not one of those that are computed; the text says which part of it."""


@dataclass(frozen=True)
class Sources:
    """Where the values of an expression come from.

    Attributes:
        follow: what a text of the file leads to if it is a reference or an expression; any other value unchanged.
        load: the dictionary in a file that `torch.load` names, read as data.
    """

    follow: Callable[[Any], Any]
    load: Callable[[str], Any]


def evaluate(text: str, sources: Sources) -> Any:
    """The value of an expression, without its `$`.

    Raises:
        ExpressionError: a part of it is not known here, does not fit the others, or would be large.
        InputError: what `sources` raises.
    """
    tree, references = _parse(text)
    try:
        return _Evaluation(references, sources).value(tree)
    except (ExpressionError, InputError):
        raise
    # What operators and functions raise for values of other kinds.
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        raise ExpressionError(f"it cannot be computed: {str(error)[:100]}") from None


def plain_reference(text: str) -> str:
    """The reference `@x` that is all of an expression, without its `$`; "" if there is more."""
    stripped = text.strip()
    return stripped if _REFERENCE.fullmatch(stripped) else ""


def call_of(text: str) -> tuple[str, dict[str, str]] | None:
    """The name and the arguments, as expressions, of an expression that is one call with keywords alone; else None."""
    try:
        tree, references = _parse(text)
    except ExpressionError:
        return None
    match tree:
        case ast.Call(func=function, args=[], keywords=keywords) if all(keyword.arg for keyword in keywords):
            values = {
                str(keyword.arg): _with_references(ast.unparse(keyword.value), references) for keyword in keywords
            }
            return ast.unparse(function), values
    return None


def priorities(text: str) -> list[tuple[int, int]]:
    """The channels and file values of a lambda that makes one label map of masks that overlap, the strongest first.

    Known is the form of MONAI's own bundle for BraTS, with any channels and values:
    `lambda x: torch.where(x[[2]] > 0, 4, torch.where(x[[0]] > 0, 1, 0))`.

    Raises:
        ExpressionError: it has another form.
    """
    tree, _ = _parse(text)
    found: list[tuple[int, int]] = []
    match tree:
        case ast.Lambda(args=ast.arguments(args=[ast.arg(arg=name)], defaults=[]), body=node):
            pass
        case _:
            raise ExpressionError("only lambda x: torch.where(x[[CHANNEL]] > 0, VALUE, ...) is understood")
    while True:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch"), attr="where"),
                args=[
                    ast.Compare(
                        left=ast.Subscript(
                            value=ast.Name(id=used), slice=ast.List(elts=[ast.Constant(value=int(channel))])
                        ),
                        ops=[ast.Gt()],
                        comparators=[ast.Constant(value=0 | 0.5)],
                    ),
                    ast.Constant(value=int(value)),
                    other,
                ],
                keywords=[],
            ) if used == name:
                found.append((channel, value))
                node = other
            case ast.Constant(value=0) if found:
                return found
            case _:
                raise ExpressionError(f"{ast.unparse(node)[:80]} is not torch.where(x[[CHANNEL]] > 0, VALUE, ...) or 0")


def _parse(text: str) -> tuple[ast.expr, list[str]]:
    """The tree of an expression, and what its placeholders refer to."""
    if len(text) > _MOST_CHARACTERS:
        raise ExpressionError(f"it has {len(text):,} characters, more than {_MOST_CHARACTERS}")
    references: list[str] = []

    def replace(found: re.Match[str]) -> str:
        references.append(found[0])
        return f"{_PLACEHOLDER}{len(references) - 1}"

    if _PLACEHOLDER in text:
        raise ExpressionError(f"it has the name {_PLACEHOLDER}")
    try:
        tree = ast.parse(_REFERENCE.sub(replace, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"Python cannot parse it: {str(error)[:100]}") from None
    _check_depth(tree)
    return tree, references


def _check_depth(tree: ast.expr) -> None:
    """Raises if parts lie in parts so often that a walk through them may use up Python's stack."""
    parts: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        parts = [inner for part in parts for inner in ast.iter_child_nodes(part)]
        if not parts:
            return
    raise ExpressionError(f"it is nested more than {_DEEPEST} deep")


class _Evaluation:
    """One expression and what its references lead to."""

    def __init__(self, references: Sequence[str], sources: Sources) -> None:
        self._references, self._sources = references, sources
        self._num_values = 0
        self._items: dict[str, Any] = {}

    def value(self, node: ast.expr) -> Any:
        """What a part of the expression is; lists and dictionaries of the file with their values not followed."""
        self._num_values += 1
        if self._num_values > _MOST_VALUES:
            raise ExpressionError(f"it takes more than {_MOST_VALUES} steps")
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name) if name.startswith(_PLACEHOLDER):
                return self._sources.follow(self._references[int(name.removeprefix(_PLACEHOLDER))])
            case ast.Name(id=name) if name in self._items:
                return self._items[name]
            case ast.ListComp(elt=item, generators=[ast.comprehension(target=ast.Name(id=name), iter=values, ifs=[])]):
                return self._for_each(name, values, item)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item) for item in items]
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self._number(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _bounded(_combine(type(op), self.value(left), self.value(right)))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return _COMPARISONS[type(op)](self._scalar(left), self._scalar(right))
            case ast.BoolOp(op=op, values=values):
                return self._any_or_all(values, stops_at=isinstance(op, ast.Or))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.value(body if self._scalar(test) else other)
            case ast.Subscript(value=container, slice=key):
                return self._sources.follow(self.value(container)[self._scalar(key)])
            case ast.Attribute() if (name := ast.unparse(node)) in _NAMES:
                return _NAMES[name]
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._called(ast.unparse(function), arguments, has_keywords=bool(keywords))
        raise ExpressionError(f"{self._in_words(ast.unparse(node))} is not computed")

    def _called(self, name: str, arguments: Sequence[ast.expr], *, has_keywords: bool) -> Any:
        if name == "torch.device":
            return "device"
        if name == "torch.load" and len(arguments) == 1:
            return self._sources.load(str(self._scalar(arguments[0])))
        if name == "torch.from_numpy" and len(arguments) == 1 and not has_keywords:
            import torch

            return torch.from_numpy(self.value(arguments[0]))
        if name not in _FUNCTIONS or has_keywords:
            raise ExpressionError(f"{self._in_words(name)}(...) is not computed")
        return _bounded(_FUNCTIONS[name](*(self.value(argument) for argument in arguments)))

    def _for_each(self, name: str, values: ast.expr, item: ast.expr) -> list[Any]:
        found, before = [], dict(self._items)
        for value in _list(self.value(values)):
            self._items[name] = self._sources.follow(value)
            found.append(self.value(item))
        self._items = before
        return found

    def _any_or_all(self, values: Sequence[ast.expr], *, stops_at: bool) -> Any:
        value: Any = None
        for node in values:
            value = self._scalar(node)
            if bool(value) is stops_at:
                break
        return value

    def _scalar(self, node: ast.expr) -> Any:
        value = self.value(node)
        if not isinstance(value, None | bool | int | float | str):
            raise ExpressionError(f"{self._in_words(ast.unparse(node))} is neither a number nor a text")
        return value

    def _in_words(self, code: str) -> str:
        """Code with its references, shortened."""
        return _with_references(code, self._references)[:80]

    def _number(self, node: ast.expr) -> Any:
        value = self._scalar(node)
        if isinstance(value, str):
            raise ExpressionError(f"{self._in_words(ast.unparse(node))} is not a number")
        return value


def _with_references(code: str, references: Sequence[str]) -> str:
    return re.sub(rf"{_PLACEHOLDER}(\d+)", lambda found: references[int(found[1])], code)


def _combine(operation: type, left: Any, right: Any) -> Any:
    both = isinstance(left, int | float) and isinstance(right, int | float)
    joins = operation is ast.Add and any(isinstance(left, kind) and isinstance(right, kind) for kind in (str, list))
    repeats = operation is ast.Mult and isinstance(left, list) and isinstance(right, int)
    if repeats and len(left) * right > _MOST_ITEMS:
        raise ExpressionError(f"it would have more than {_MOST_ITEMS} items")
    differs = operation is ast.Sub and isinstance(left, frozenset) and isinstance(right, frozenset)
    if not (both or joins or repeats or differs):
        raise ExpressionError(f"{operation.__name__} of {type(left).__name__} and {type(right).__name__}")
    return _OPERATORS[operation](left, right)


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ExpressionError("it is a number of more than 64 bits")
    if isinstance(value, str | list) and len(value) > _MOST_ITEMS:
        raise ExpressionError(f"it would have more than {_MOST_ITEMS} items")
    return value
