"""The code that decides a result, as a hash: of a function's source and of all in this package that it refers to.

Comments, docstrings and messages of errors decide nothing and are left out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import resolve_name
from typing import Any, NamedTuple, TypeVar

PACKAGE = "fpmc"
READERS = tuple(                                        # what these read is known by its own checksum
    f"{PACKAGE}.{name}" for name in (
        "data", "files", "errors", "augmentation.recipe", "core.record", "networks.reader", "networks.checkpoint",
        "networks.mapfile", "networks.config", "report", "study.graph", "study.predict",
    )
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PLAIN = (int, float, complex, str, bytes, bool, type(None))
F = TypeVar("F", bound=Callable[..., Any])


def dispatches(function: F) -> F:
    """Marks a function that picks others by name: what it refers to is not followed, `Task.code` says what it picks."""
    function.dispatches = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


@functools.cache
def fingerprint(*things: Any) -> str:
    """A hash of the source of these functions and classes and, transitively, of what they use of the package."""
    found: dict[str, str] = {}
    seen: set[Any] = set()
    waiting = [_unwrapped(thing) for thing in things]
    while waiting:
        thing = waiting.pop()
        if thing not in seen:
            seen.add(thing)
            part = _part(thing)
            found |= part.texts
            waiting += part.used
    return hashlib.sha256("\n".join(f"{name}: {found[name]}" for name in sorted(found)).encode()).hexdigest()


class Part(NamedTuple):
    """A function or class by itself."""

    texts: dict[str, str]                               # its source and the constants it names
    used: list[Any]                                     # functions and classes of the package that it names


@functools.cache
def _part(thing: Any) -> Part:
    node, texts = _definition(thing), {}
    if node is None:
        return Part({}, [])
    used = [] if getattr(thing, "dispatches", False) else [_unwrapped(each) for each in _used(thing, node, texts)]
    texts[f"{thing.__module__}.{thing.__qualname__}"] = ast.unparse(node)
    return Part(texts, [each for each in used if isinstance(each, types.FunctionType | type) and _decides(each)])


def _decides(thing: Any) -> bool:
    module = str(thing.__module__)
    return module.partition(".")[0] == PACKAGE and not module.startswith(READERS)


def _unwrapped(thing: Any) -> Any:
    """The function in a method, property, cache or compiled kernel."""
    for name in ("py_func", "func", "fget", "__func__"):
        inner = getattr(thing, name, None)
        if not isinstance(thing, types.FunctionType | type) and isinstance(inner, types.FunctionType):
            return inner
    return inspect.unwrap(thing) if callable(thing) and not isinstance(thing, type) else thing


@functools.cache
def _definitions(file: str) -> dict[tuple[str, int], ast.AST]:
    """{(name, first line): its tree} of a file."""
    found: dict[tuple[str, int], ast.AST] = {}
    for node in ast.walk(_Silent().visit(ast.parse("".join(linecache.getlines(file))))):
        if isinstance(node, ast.Lambda):
            found["<lambda>", node.lineno] = node
        elif isinstance(node, DEFINITIONS):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name, first] = node
    return found


def _definition(thing: Any) -> ast.AST | None:
    """The tree of a function or class; None where there is no source (a generated method)."""
    if isinstance(thing, types.FunctionType):
        return _definitions(thing.__code__.co_filename).get((thing.__name__, thing.__code__.co_firstlineno))
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    every = _definitions(file) if file else {}
    return next((node for (name, _), node in every.items() if name == thing.__name__), None)


class _Silent(ast.NodeTransformer):
    """Takes away what decides nothing."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.copy_location(ast.Raise(), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.copy_location(ast.Pass(), node) if text else node


def _used(thing: Any, node: ast.AST, found: dict[str, str]) -> Iterator[Any]:
    """Functions and classes that a definition names; constants among them go to `found` at once."""
    if isinstance(thing, type):
        yield from thing.__mro__[1:]
        yield from vars(thing).values()
        scope = vars(sys.modules[thing.__module__])
    else:
        cells = {name: cell.cell_contents for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or ())}
        scope = {**thing.__globals__, **cells}
    parts = [each for each in ast.walk(node) if isinstance(each, ast.Attribute | ast.Name | ast.ImportFrom)]
    attributes = {each.attr for each in parts if isinstance(each, ast.Attribute)}
    values = {each.id: scope[each.id] for each in parts if isinstance(each, ast.Name) and each.id in scope}
    for each in parts:                                  # imported where it is needed
        if isinstance(each, ast.ImportFrom):
            values |= dict(_imported(each, str(scope.get("__package__"))))
    for kind in _annotations(node, scope):              # of parameters: what is called of them
        yield from (vars(base)[name] for base in kind.__mro__ for name in attributes & set(vars(base)))
    for name, value in values.items():
        if isinstance(value, types.ModuleType) and value.__name__.startswith(PACKAGE):
            yield from (getattr(value, attribute) for attribute in attributes if hasattr(value, attribute))
        elif name.strip("_").isupper():                 # a constant; others may change as the process goes
            yield from _within(value, f"{scope.get('__name__')}.{name} =", found)
        else:
            yield value


def _imported(node: ast.ImportFrom, package: str) -> Iterator[tuple[str, Any]]:
    name = resolve_name("." * node.level + (node.module or ""), package)
    for each in node.names if name.partition(".")[0] == PACKAGE else ():
        found = getattr(import_module(name), each.name, None)
        yield each.asname or each.name, import_module(f"{name}.{each.name}") if found is None else found


def _annotations(node: ast.AST, scope: dict[str, Any]) -> Iterator[type]:
    """Classes of the package that parameters are said to be."""
    if isinstance(node, ast.FunctionDef):
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            named = ast.walk(argument.annotation) if argument.annotation is not None else ()
            for each in named:
                kind = scope.get(each.id) if isinstance(each, ast.Name) else None
                if isinstance(kind, type) and _decides(kind):
                    yield kind


def _within(value: Any, name: str, found: dict[str, str]) -> Iterator[Any]:
    """What a constant is made of: plain values, which go to `found`, functions in tables, classes of records."""
    if isinstance(value, PLAIN):
        found[name] = repr(value)
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _within(entry, f"{name}[{key!r}]" if isinstance(key, PLAIN) else name, found)
    elif isinstance(value, tuple | list):
        for place, entry in enumerate(value):
            yield from _within(entry, f"{name}[{place}]", found)
    elif isinstance(value, set | frozenset):
        found[name] = str(sorted(map(str, value)))
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        yield from _within({field.name: getattr(value, field.name) for field in fields(value)}, name, found)
    else:
        yield from (value, type(value))
