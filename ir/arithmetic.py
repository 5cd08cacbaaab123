"""Evaluate arithmetic written as in Python, on numbers (at launch) or on expressions (in a program)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}


def value(text: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the value of a text of integers, names, `+ - * // %` and functions; ValueError names the wrong part."""
    try:
        return _value(ast.parse(text, mode="eval").body, names, functions)
    except (SyntaxError, TypeError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(text) from error


def _value(tree: ast.AST, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    match tree:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(a, names, functions), _value(b, names, functions))
        case ast.UnaryOp(op=op, operand=a) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(a, names, functions))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in functions:
            return functions[name](*(_value(a, names, functions) for a in args))
    raise ValueError(ast.unparse(tree))
