"""The shape of the code: short files, short functions, few fields; exceptions with their reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "hpcdi").rglob("*.py"))

MAX_LINES = 300
MAX_FUNCTION_LINES = 40
MAX_FIELDS = 8

LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
MANY_FIELDS: dict[str, str] = {}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def classes(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring and signature."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def fields(cls: ast.ClassDef) -> set[str]:
    """Names that instances hold: annotated in the class body, or set by __init__."""
    held = {
        n.target.id
        for n in cls.body
        if isinstance(n, ast.AnnAssign)
        and isinstance(n.target, ast.Name)
        and "ClassVar" not in ast.unparse(n.annotation)
    }
    for function in cls.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            for node in ast.walk(function):
                is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                if is_set and ast.unparse(node.value) == "self":
                    held.add(node.attr)
    return held


def is_configuration(cls: ast.ClassDef) -> bool:
    """Settings are exempt: their keys are the predecessor's."""
    return cls.name.endswith("Config")


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES or name_of(path) in LONG_FILES, f"{lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    tree = ast.parse(path.read_text())
    long = {
        f"{name_of(path)}:{function.name}": body_lines(function)
        for function in functions(tree)
        if body_lines(function) > MAX_FUNCTION_LINES
    }
    assert not long.keys() - LONG_FUNCTIONS.keys(), long


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_classes_have_few_fields(path: Path) -> None:
    tree = ast.parse(path.read_text())
    many = {
        f"{name_of(path)}:{cls.name}": sorted(fields(cls))
        for cls in classes(tree)
        if len(fields(cls)) > MAX_FIELDS and not is_configuration(cls)
    }
    assert not many.keys() - MANY_FIELDS.keys(), many


def test_exceptions_are_still_needed() -> None:
    known = {name_of(path) for path in SOURCES}
    for listed in (LONG_FILES, LONG_FUNCTIONS, MANY_FIELDS):
        assert all(entry.split(":")[0] in known for entry in listed)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_swallowed(path: Path) -> None:
    """No handler drops an unnamed error without a word."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type is not None else "everything"
            is_empty = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not is_empty, f"line {node.lineno}: `except {caught}: pass`"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "no module docstring"


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name == "__init__.py"], ids=name_of
)
def test_packages_say_owns_may_import_why_so(path: Path) -> None:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    if path.parent.name == "hpcdi" or path.parent.parent.parent.name == "worker":
        return  # the map of the whole package, and the parts of a part
    for word in ("Owns:", "May import:", "Why so:"):
        assert word in text, f"the docstring does not say {word}"
