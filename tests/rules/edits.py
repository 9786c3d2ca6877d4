"""Edits of a module's syntax tree: comments, docstrings, line breaks don't matter.

An edit names a file, a class, function or variable in it by its qualified name, and
what is replaced there by what, both as Python. What is replaced must stand there
exactly once:

- `__name` fits any expression, the same one wherever the name comes again; in the
  replacement it stands for that expression.
- `...` as a statement fits any number of statements. As an argument of a call it fits
  all arguments that the pattern does not name. In the replacement, the first `...`
  stands for what the first one was, and so on.
- An expression is replaced by an expression wherever it stands. Anything else is a run
  of statements; an empty replacement drops them.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_REST: Final = "..."
_NOT_COMPARED: Final = {"ctx", "kind", "type_comment"}


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a module that is replaced.

    Args:
        file: below the project's root.
        where: qualified name of a class, function or variable, or the end of one that
            is the only such in the file; empty for the module.
        old: what is replaced: Python, or words of a string constant.
        new: what it is replaced by.
        in_text: `old` and `new` are a part of a string constant, not Python.
    """

    file: str
    where: str
    old: str
    new: str
    in_text: bool = False

    def __str__(self) -> str:
        return f"{self.file}, `{self.where or 'the module'}`, `{_one_line(self.old)}`"


class DoesNotApplyError(Exception):
    """The source is not what a mutation was written for: mend the mutation."""


def edited(edits: Iterable[Edit], source: Path) -> dict[str, str]:
    """Return the text that each edited file would have; write nothing.

    Raises:
        DoesNotApplyError: there is no such place, or more than one.
    """
    trees: dict[str, ast.Module] = {}
    for edit in edits:
        if edit.file not in trees:
            path = source / edit.file
            if not path.is_file():
                where = _files_defining(edit.where, source)
                raise DoesNotApplyError(f"{edit}: there is no such file{where}")
            trees[edit.file] = ast.parse(path.read_text())
        trees[edit.file] = _apply(edit, trees[edit.file], source)
    return {file: f"{ast.unparse(tree)}\n" for file, tree in trees.items()}


def apply(edits: Iterable[Edit], to: Path) -> None:
    """Make the edits in a copy.

    Raises:
        DoesNotApplyError: as `edited`.
    """
    for file, text in edited(edits, to).items():
        (to / file).write_text(text)


def _apply(edit: Edit, tree: ast.Module, source: Path) -> ast.Module:
    scope = _scope(edit, tree, source)
    if edit.in_text:
        return _apply_in_text(edit, tree, scope)
    old, new = _pattern(edit.old), _pattern(edit.new)
    _check_names(edit, tree, old, new)
    of_expressions = isinstance(old, ast.expr) and isinstance(new, ast.expr)
    find = _expressions if of_expressions else _runs
    matches = list(find(old, scope))
    if len(matches) != 1:
        raise DoesNotApplyError(_not_once(edit, len(matches), scope, tree, find, old))
    replace, bound = matches[0]
    replace(_Fill(bound), new, tree)
    return ast.fix_missing_locations(tree)


# --- where ---------------------------------------------------------------------------


def _definitions(node: ast.AST, *, variables: bool) -> Iterator[tuple[str, ast.AST]]:
    """Yield what is defined in a scope, with its name; not inside of definitions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            yield child.name, child
            continue
        if variables and isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for name in (n for t in targets for n in ast.walk(t)):
                if isinstance(name, ast.Name):
                    yield name.id, child
        yield from _definitions(child, variables=variables)


def _qualified(node: ast.AST, before: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield all that is defined in a module; of functions not their variables."""
    variables = isinstance(node, ast.Module | ast.ClassDef)
    for name, defined in _definitions(node, variables=variables):
        yield before + name, defined
        if isinstance(defined, _DEFINITIONS):
            yield from _qualified(defined, f"{before}{name}.")


def _scope(edit: Edit, tree: ast.Module, source: Path) -> ast.AST:
    if not edit.where:
        return tree
    every = list(_qualified(tree))
    defined = [node for name, node in every if name == edit.where] or [
        node for name, node in every if name.endswith(f".{edit.where}")
    ]
    if len(defined) == 1:
        return defined[0]
    if defined:
        raise DoesNotApplyError(f"{edit}: it is defined {len(defined)} times there")
    last = edit.where.rpartition(".")[2]
    near = [name for name, _ in every if name.rpartition(".")[2] == last]
    near += difflib.get_close_matches(edit.where, [name for name, _ in every], 4)
    raise DoesNotApplyError(
        f"{edit}: the file has no such class, function or variable. Near it: "
        f"{', '.join(dict.fromkeys(near)) or 'nothing'}"
        f"{_files_defining(edit.where, source)}"
    )


def _files_defining(where: str, source: Path) -> str:
    """Say in which other files the name is defined."""
    last = where.rpartition(".")[2]
    files = [
        path.relative_to(source).as_posix()
        for path in sorted((source / "tracing_2pc").rglob("*.py"))
        if last
        and re.search(rf"\b(def|class) {last}\b|^{last}\b.*=", path.read_text(), re.M)
    ]
    return f". `{last}` is defined in {', '.join(files)}" if files else ""


def _not_once(
    edit: Edit, count: int, scope: ast.AST, tree: ast.Module, find: Any, old: Any
) -> str:
    text = f"{edit}: stands there {count} times, not once."
    if count:
        return text
    elsewhere = [
        name
        for name, node in _qualified(tree)
        if isinstance(node, _DEFINITIONS) and list(find(old, node))
    ]
    if elsewhere:
        text += f" It stands in `{'`, `'.join(elsewhere)}`."
    lines = ast.unparse(scope).splitlines()
    near = difflib.get_close_matches(_one_line(edit.old), lines, 3, 0.4)
    return f"{text} Lines like it there:\n" + "\n".join(near or lines[:40])


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- what ----------------------------------------------------------------------------


def _pattern(text: str) -> ast.expr | list[ast.stmt]:
    """Parse a pattern: an expression, or statements. Each `...` gets a number."""
    tree = ast.parse(text)
    numbers = iter(range(1_000))
    for node in ast.walk(tree):
        rests = node.args if isinstance(node, ast.Call) else []
        for n, child in enumerate(rests):
            if _is_ellipsis(child):
                rests[n] = ast.Name(f"{_REST}a{next(numbers)}", ast.Load())
        if isinstance(node, ast.Expr) and _is_ellipsis(node.value):
            node.value = ast.Name(f"{_REST}s{next(numbers)}", ast.Load())
    if len(tree.body) == 1 and isinstance(statement := tree.body[0], ast.Expr):
        return statement.value
    return tree.body


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _rest(node: ast.AST) -> str | None:
    """Return the name of a `...`."""
    if isinstance(node, ast.Expr):
        node = node.value
    return node.id if isinstance(node, ast.Name) and node.id[:3] == _REST else None


def _check_names(edit: Edit, tree: ast.Module, old: Any, new: Any) -> None:
    """Refuse a replacement with names that the module does not have any more."""
    known = {*dir(builtins), *(n.id for n in _walk(old, ast.Name))}
    for node in [*ast.walk(tree), *_walk(new, ast.Import), *_walk(new, ast.Name)]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(n.asname or n.name).partition(".")[0] for n in node.names}
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, _DEFINITIONS):
            known.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
    bound = {n.id for n in _walk(old, ast.Name)}
    for name in (n.id for n in _walk(new, ast.Name)):
        if name[:2] == "__" and name not in bound:
            raise DoesNotApplyError(f"{edit}: {name} is not in what is replaced")
        if name[:2] != "__" and name[:3] != _REST and name not in known:
            raise DoesNotApplyError(
                f"{edit}: the replacement uses `{name}`, which the file does not define"
            )


def _walk(pattern: Any, kind: type[Any]) -> list[Any]:
    roots = pattern if isinstance(pattern, list) else [pattern]
    return [n for root in roots for n in ast.walk(root) if isinstance(n, kind)]


Bound = dict[str, Any]


def _fits(pattern: Any, node: Any, bound: Bound) -> bool:
    """Whether a node is as the pattern says; notes in `bound` what `__names` are."""
    if isinstance(pattern, ast.Name) and pattern.id[:2] == "__":
        if pattern.id in bound:
            return _same(bound[pattern.id], node)
        bound[pattern.id] = node
        return isinstance(node, ast.expr)
    if isinstance(pattern, ast.Call) and any(map(_rest, pattern.args)):
        return _fits_call(pattern, node, bound)
    if isinstance(pattern, list):
        consumed = _fits_run(pattern, node, bound) if isinstance(node, list) else None
        return consumed == len(node) if consumed is not None else False
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and bool(pattern == node)
    return type(pattern) is type(node) and all(
        _fits(value, getattr(node, field), bound)
        for field, value in ast.iter_fields(pattern)
        if field not in _NOT_COMPARED
    )


def _same(one: ast.AST, other: Any) -> bool:
    return isinstance(other, ast.AST) and ast.unparse(one) == ast.unparse(other)


def _fits_run(patterns: list[Any], nodes: list[Any], bound: Bound) -> int | None:
    """Return how many nodes, from the first on, fit the patterns; None for no fit."""
    if not patterns:
        return 0
    if rest := _rest(patterns[0]):
        for taken in range(len(nodes), -1, -1):
            trial = dict(bound)
            more = _fits_run(patterns[1:], nodes[taken:], trial)
            if more is not None and (len(patterns) > 1 or taken == len(nodes)):
                bound |= {**trial, rest: nodes[:taken]}
                return taken + more
        return None
    if not nodes or not _fits(patterns[0], nodes[0], bound):
        return None
    more = _fits_run(patterns[1:], nodes[1:], bound)
    return None if more is None else 1 + more


def _fits_call(pattern: ast.Call, node: Any, bound: Bound) -> bool:
    """Match a call with `...`: arguments before it by place, keywords by name."""
    if not isinstance(node, ast.Call) or not _fits(pattern.func, node.func, bound):
        return False
    first = next(n for n, arg in enumerate(pattern.args) if _rest(arg))
    if len(node.args) < first:
        return False
    keywords = {k.arg: k for k in node.keywords}
    for wanted in pattern.keywords:
        given = keywords.pop(wanted.arg, None)
        if given is None or not _fits(wanted.value, given.value, bound):
            return False
    rest = _rest(pattern.args[first]) or ""
    bound[rest] = (node.args[first:], list(keywords.values()))
    placed = zip(pattern.args[:first], node.args, strict=False)
    return all(_fits(wanted, given, bound) for wanted, given in placed)


class _Fill(ast.NodeTransformer):
    """Puts what was matched into a replacement."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> Any:
        return copy.deepcopy(self._bound.get(node.id, node))

    def visit_Expr(self, node: ast.Expr) -> Any:
        if rest := _rest(node):
            return copy.deepcopy(self._bound[rest])
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        rest = next((rest for arg in node.args if (rest := _rest(arg))), None)
        if rest:
            args, keywords = copy.deepcopy(self._bound[rest])
            node.args = [arg for arg in node.args if not _rest(arg)] + args
            node.keywords = node.keywords + keywords
        return self.generic_visit(node)


def _expressions(old: Any, scope: ast.AST) -> Iterator[tuple[Any, Bound]]:
    for node in ast.walk(scope):
        bound: Bound = {}
        if isinstance(node, ast.expr) and _fits(old, node, bound):
            yield _replacing_expression(node), bound


def _replacing_expression(target: ast.expr) -> Any:
    class Replace(ast.NodeTransformer):
        def __init__(self, by: ast.expr) -> None:
            self.by = by

        def visit(self, node: ast.AST) -> Any:
            return self.by if node is target else self.generic_visit(node)

    def replace(fill: _Fill, new: ast.expr, tree: ast.Module) -> None:
        Replace(fill.visit(copy.deepcopy(new))).visit(tree)

    return replace


def _runs(old: Any, scope: ast.AST) -> Iterator[tuple[Any, Bound]]:
    patterns = [ast.Expr(old)] if isinstance(old, ast.expr) else old
    for node in ast.walk(scope):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if not isinstance(body, list):
                continue
            for start in range(len(body)):
                bound: Bound = {}
                length = _fits_run(patterns, body[start:], bound)
                if length:
                    yield _replacing_run(body, slice(start, start + length)), bound


def _replacing_run(body: list[ast.stmt], where: slice) -> Any:
    def replace(fill: _Fill, new: Any, _: ast.Module) -> None:
        statements = [ast.Expr(new)] if isinstance(new, ast.expr) else new
        module = ast.Module(copy.deepcopy(statements), [])
        body[where] = fill.visit(module).body or [ast.Pass()]

    return replace


def _apply_in_text(edit: Edit, tree: ast.Module, scope: ast.AST) -> ast.Module:
    """Replace words of a string constant, however many spaces are between them."""
    words = re.compile(r"\s+".join(map(re.escape, edit.old.split())))
    docstrings = {
        id(node.value) for node in ast.walk(scope) if isinstance(node, ast.Expr)
    }
    texts = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]
    count = sum(len(words.findall(str(node.value))) for node in texts)
    if count != 1:
        strings = "\n".join(str(node.value) for node in texts)
        text = f"{edit}: stands in string constants there {count} times, not once."
        raise DoesNotApplyError(f"{text} Those there:\n{strings}")
    for node in texts:
        node.value = words.sub(lambda _: edit.new, str(node.value))
    return tree
