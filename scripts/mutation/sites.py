"""Small faults that can be put into a module's syntax tree.

A *site* is a place that can be changed; it has one or more alternatives. Strings, annotations, decorators and imports
are left alone: a changed message is no wrong figure, and annotations are never evaluated here.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

BINARY: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
}
COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOT_CODE = ("annotation", "returns", "format_spec", "decorator_list")


class Site(NamedTuple):
    """One place: where it is held, and the nodes that may stand there instead."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.expr | ast.stmt
    alternatives: tuple[ast.AST, ...]
    statement: ast.stmt
    inside: ast.FunctionDef | ast.AsyncFunctionDef | None
    """The function it runs in; None: when the module is imported."""

    def put(self, node: ast.AST) -> None:
        """Set an alternative in the tree."""
        ast.copy_location(node, self.node)
        ast.fix_missing_locations(node)
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def sites(tree: ast.Module) -> list[Site]:
    """Every site of a module, in the order of its text."""
    return list(_walk(tree, None, None))


def _walk(
    node: ast.AST, statement: ast.stmt | None, inside: ast.FunctionDef | ast.AsyncFunctionDef | None
) -> Iterator[Site]:
    body_of = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else inside
    for field, value in ast.iter_fields(node):
        if field in NOT_CODE:
            continue
        runs_in = body_of if field == "body" else inside
        items = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, child in items:
            if not isinstance(child, ast.AST) or _only_types(child):
                continue
            own = child if isinstance(child, ast.stmt) else statement
            others = tuple(_alternatives(child, node, runs_in is not None))
            if others and own is not None and isinstance(child, ast.expr | ast.stmt):
                yield Site(node, field, index, child, others, own, runs_in)
            yield from _walk(child, own, runs_in)


def _only_types(node: ast.AST) -> bool:
    named = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return named or isinstance(node, ast.Import | ast.ImportFrom)


def _alternatives(node: ast.AST, parent: ast.AST, in_function: bool) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(left, op, right) if in_function or not isinstance(op, ast.BitOr):
            for new in BINARY.get(type(op), ()):
                yield ast.BinOp(left, new(), right)
        case ast.Compare(left, ops, comparators):
            for at, op in enumerate(ops):
                for new_op in COMPARED[type(op)]:
                    yield ast.Compare(left, [*ops[:at], new_op(), *ops[at + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else copy.copy(rest[0])
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield copy.copy(operand)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Call(ast.Name(name), args, keywords) if name in SWAPPED:
            yield ast.Call(ast.Name(SWAPPED[name], ast.Load()), args, keywords)
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.AugAssign(target, op, value):
            yield ast.Pass()
            for new in BINARY.get(type(op), ()):
                yield ast.AugAssign(target, new(), value)
        case ast.Expr(ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Name() | ast.Call() | ast.Attribute() if _is_test(node, parent):
            yield ast.UnaryOp(ast.Not(), node)


def _is_test(node: ast.AST, parent: ast.AST) -> bool:
    if isinstance(parent, ast.comprehension):
        return node in parent.ifs
    return isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert) and parent.test is node
