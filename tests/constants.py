"""The numbers of a package: what its modules name in capitals, and the defaults of arguments and fields."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import attrs

from convgen.ir.node import Node
from tests import samples

_LONG = 100  #: characters; what is longer is told by its digest


def constants(package: str, modules: str = "") -> str:
    """One a line; words, and what prints as an address, are left out. `modules` is a pattern of their names."""
    root = importlib.import_module(package)
    assert root.__file__ is not None
    lines: list[str] = []
    for path in sorted(Path(root.__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", "__main__") and re.match(modules, path.stem):
            module = importlib.import_module(f"{package}.{path.stem}")
            named = dict(_named(module))
            lines += [f"{path.stem}.{name} = {text}" for name, value in named.items() if (text := _shown(value))]
    return "\n".join(lines) + "\n"


def _named(module: ModuleType) -> Iterator[tuple[str, Any]]:
    assigned = _assigned(module)
    for name, value in vars(module).items():
        if name in assigned and not hasattr(value, "__missing__"):  # such a table fills as it is used
            yield name, value
        elif getattr(value, "__module__", None) != module.__name__:
            continue
        elif isinstance(value, FunctionType):
            yield from ((f"{name}({n})", default) for n, default in _defaults(value))
        elif inspect.isclass(value):
            if attrs.has(value):
                yield from ((f"{name}.{f.name}", f.default) for f in attrs.fields(value))
            for method, function in vars(value).items():
                if isinstance(function, FunctionType) and not (method == "__init__" and attrs.has(value)):
                    yield from ((f"{name}.{method}({n})", default) for n, default in _defaults(function))


def _assigned(module: ModuleType) -> set[str]:
    """The capital names that the module itself gives values, rather than importing them."""
    assert module.__file__ is not None
    found: set[str] = set()
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(getattr(node, "value", None), ast.Dict) and not node.value.keys:  # type: ignore[attr-defined]
            continue  # a table that fills as it is used
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and n.id.isupper()}
    return found


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for p in inspect.signature(function).parameters.values():
        if p.default is not p.empty:
            yield p.name, p.default


def _shown(value: Any) -> str:
    """The value as text if there are numbers in it; nothing for what has an address, or for classes by their names."""
    if isinstance(value, dict) and all(_name(k) == _name(v) for k, v in value.items()):
        return ""
    text = repr(_ordered(value))
    tells = re.search(r"\d|True|False", text) and not re.search(r" at 0x|\d{13}", text)
    if not tells or isinstance(value, (str, re.Pattern, type)):
        return ""
    return text if len(text) < _LONG and "\n" not in text else samples.digest(text)


def _name(value: Any) -> Any:
    return value.__name__ if inspect.isclass(value) else value


def _ordered(value: Any) -> Any:
    """The value with sets in order, at any depth; classes by name, for ctypes' pointers are of whoever asks first."""
    match value:
        case type():
            return value.__name__
        case set() | frozenset():
            return sorted(map(repr, value))
        case dict():
            return {repr(_ordered(k)): _ordered(v) for k, v in value.items()}
        case list() | tuple():
            return [_ordered(v) for v in value]
        case _ if attrs.has(type(value)) and not isinstance(value, Node):
            return [type(value).__name__, *(_ordered(v) for v in attrs.asdict(value, recurse=False).values())]
    return value
