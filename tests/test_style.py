"""The conventions that a machine can hold: sizes, the environment, what stages may import."""

from __future__ import annotations

import ast
from importlib import resources
from pathlib import Path

import pytest

PACKAGE = Path(str(resources.files("flashgen"))).resolve()
FOLDERS = {
    name: Path(str(resources.files(f"flashgen.{name}"))).resolve()
    for name in ("generator", "runtime", "templates")
}
MODULES = sorted(
    {file.resolve() for root in (PACKAGE, *FOLDERS.values()) for file in root.rglob("*.py")}
)
TEMPLATES = sorted(
    file for file in FOLDERS["templates"].rglob("*") if file.suffix in (".j2", ".h", ".cuh")
)
TESTS = sorted(Path(__file__).parent.rglob("test_*.py"))
PURE = frozenset({"os", "subprocess", "shutil", "tempfile", "time", "random", "torch", "tvm_ffi"})


def ids(file):
    return "/".join(file.parts[-3:])


def tree(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def code_lines(function):
    """Lines of a function without its docstring, which may be as long as shapes need."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function):
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    return lines


@pytest.mark.parametrize("file", MODULES, ids=ids)
def test_modules_and_functions_are_small(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert code_lines(node) <= 50, node.name


@pytest.mark.parametrize("file", TESTS, ids=ids)
def test_test_files_are_small(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("file", TEMPLATES, ids=ids)
def test_templates_are_small(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= (120 if file.parent.name == "partials" else 400)


@pytest.mark.parametrize("file", MODULES, ids=ids)
def test_the_environment_is_read_in_knobs_alone(file):
    if file == FOLDERS["runtime"] / "knobs.py":
        return
    read = [
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Attribute | ast.Name)
    ]
    assert not {"environ", "environb", "getenv"} & set(read)
    assert "from os import environ" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", MODULES, ids=ids)
def test_modules_say_what_they_are(file):
    module = tree(file)
    assert ast.get_docstring(module)
    has_code = any(isinstance(n, ast.FunctionDef | ast.ClassDef) for n in module.body)
    if has_code and file.name != "spec_fields.py":  # it says why
        assert "from __future__ import annotations" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted(FOLDERS["generator"].rglob("*.py")), ids=ids)
def test_the_generator_is_pure(file):
    for node in ast.walk(tree(file)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0]]
            assert not (node.level and (node.module or "").startswith(("runtime", "cli")))
        assert not PURE & set(names), names
