"""What is sent to a box runs there with the Python it happens to have: no newer syntax than 3.8, nothing but the standard
library, no file of ours that is not sent along, and nothing that only later releases of the standard library offer."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.bench.program import loadgen_program
from optimizer.box.program import conductor_program, guard_program, sampler_program, shim_program
from tests.interpreters import supported
from tests.old_syntax import parsed

PACKAGE = Path(__file__).parents[2] / "optimizer"
# The shim and the load generator are each sent as one text, made of their file and what lies in plain/ beside it; the others are sent
# as they are.
PARTS = [
    main if part is None else f"{folder}/plain/{part.name}"
    for folder, main in (("box", "box/shim.py"), ("bench", "bench/loadgen.py"))
    for part in (None, *sorted((PACKAGE / folder / "plain").glob("*.py")))
]
WHOLE = ["box/guard.py", "bench/nullserver.py"]
FILES = [*PARTS, *WHOLE]
OPTIONAL = {"bench/loadgen.py": {"uvloop"}, "bench/nullserver.py": {"uvloop"}}

# Methods and functions that came after 3.8: (name of the attribute) -> since.
LATER = {
    "removeprefix": "3.9", "removesuffix": "3.9", "to_thread": "3.9", "randbytes": "3.9", "waitstatus_to_exitcode": "3.9",
    "is_relative_to": "3.9", "with_stem": "3.9", "pidfd_open": "3.9", "bit_count": "3.10", "pairwise": "3.10",
    "aiter": "3.10", "anext": "3.10", "hardlink_to": "3.10", "file_digest": "3.11", "timeout": "3.11 (asyncio)", "TaskGroup": "3.11",
    "Runner": "3.11 (asyncio)", "batched": "3.12",
}  # fmt: skip
MODULE_LATER = {"tomllib", "zoneinfo", "graphlib"}
GENERIC = {"list", "dict", "tuple", "set", "frozenset", "type"}


def tree(name: str) -> ast.Module:
    return parsed((PACKAGE / name).read_text(encoding="utf-8"))


def postponed(code: ast.Module) -> set[ast.AST]:
    """The nodes inside annotations of a file that postpones their evaluation: they never run."""
    if not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations" for node in code.body):
        return set()
    notes: list[ast.expr | None] = []
    for node in ast.walk(code):
        if isinstance(node, ast.arg | ast.AnnAssign):
            notes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            notes.append(node.returns)
    return {inner for note in notes if note is not None for inner in ast.walk(note)}


def problems(code: ast.Module, optional: set[str], *, part: str = "") -> list[str]:
    found = []
    never_run = postponed(code)
    # What a file asks for before it uses it, hasattr(os, "pidfd_open"), or tries and can do without.
    asked = {
        node.attr
        for block in ast.walk(code)
        if isinstance(block, ast.Try) and any("AttributeError" in ast.unparse(handler.type or block) for handler in block.handlers)
        for part in block.body
        for node in ast.walk(part)
        if isinstance(node, ast.Attribute)
    } | {
        node.args[1].value
        for node in ast.walk(code)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr") and isinstance(node.args[1], ast.Constant)
    }
    for node in ast.walk(code):
        if node in never_run:
            continue
        line = getattr(node, "lineno", 0)
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "." * node.level]
        for name in names:
            top = name.partition(".")[0]
            if part and (name + ".").startswith(f"optimizer.{part}.plain."):
                continue
            if top in MODULE_LATER or (top not in sys.stdlib_module_names and top not in optional):
                found.append(f"line {line}: imports {name}")
        if isinstance(node, ast.Attribute) and node.attr in LATER and node.attr not in asked:
            only_asyncio = "asyncio" in LATER[node.attr]
            if not only_asyncio or ast.unparse(node.value) == "asyncio":
                found.append(f"line {line}: .{node.attr} came with Python {LATER[node.attr]}")
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in GENERIC:
            found.append(f"line {line}: {ast.unparse(node)} needs Python 3.9")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            notes = [arg.annotation for arg in (*node.args.args, *node.args.kwonlyargs) if arg.annotation]
            for note in (*notes, *([node.returns] if node.returns else [])):
                if note not in never_run and isinstance(note, ast.BinOp) and isinstance(note.op, ast.BitOr):
                    found.append(f"line {line}: {ast.unparse(note)} needs Python 3.10")
    return found


@pytest.mark.parametrize("name", FILES)
def test_syntax_and_imports(name: str) -> None:
    assert not problems(tree(name), OPTIONAL.get(name, set()), part=name.partition("/")[0] if name in PARTS else "")


@pytest.mark.parametrize(
    "code",
    ["import requests", "from optimizer import errors", "x: 'a' = 'b'.removeprefix('a')", "def f(a: int | None): ...",
     "def f() -> list[int]: ...", "from __future__ import annotations\nx = list[int]", "import tomllib", "async def f():\n    async with asyncio.timeout(1): ..."],
)  # fmt: skip
def test_the_check_can_fail(code: str) -> None:
    assert problems(ast.parse(code), set())


@pytest.mark.parametrize("code", ["match x:\n    case 1: ...", "try: ...\nexcept* ValueError: ...", "type X = int", "with (open(a) as b, open(c) as d): ..."])
def test_later_syntax_is_refused(code: str) -> None:
    with pytest.raises(SyntaxError):
        parsed(code)


LOAD = """
import sys
exec(compile(sys.stdin.buffer.read(), "<sent>", "exec"), {"__name__": sys.argv[1], "__file__": "<sent>"})
"""


def test_every_python_of_this_machine_loads_what_is_sent() -> None:
    texts = {name: (PACKAGE / name).read_bytes() for name in WHOLE}
    texts["the guard as sent"] = guard_program()
    # Everything is loaded, and nothing run: the program's last line calls main.
    for name, sent in (("the shim as sent", shim_program()), ("the conductor as sent", conductor_program()), ("the sampler as sent", sampler_program()), ("the load generator as sent", loadgen_program())):
        program, call, end = sent.rpartition(b"sys.modules[_main].main()")
        assert call
        assert not end.strip()
        texts[name] = program + b"for _name in _sources: __import__(_name)\n"  # as it runs, it loads what a call needs
    tried = supported().values()
    assert tried, "not even the Python that runs this test was found"
    for interpreter in tried:
        for name, text in texts.items():
            run = subprocess.run(
                [interpreter, "-I", "-S", "-W", "error", "-c", LOAD, "sent"], input=text, capture_output=True, check=False, timeout=60
            )
            assert run.returncode == 0, f"{name} under {interpreter}: {run.stderr.decode()[-800:]}"
            assert run.stdout == b"", name
