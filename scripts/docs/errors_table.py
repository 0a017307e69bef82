"""Writes the table of all errors into docs/errors.md, from the classes themselves. `--check` writes nothing and fails if it is stale."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
BEGIN, END = "<!-- errors: made by scripts/docs/errors_table.py -->", "<!-- end of errors -->"
RAISED = re.compile(r"^class \w+\((?:\w*Error|BoxBusy|LinkLost)\):", re.MULTILINE)


def classes() -> list[type]:
    """OptimizerError and everything below it, parents first, by exit code."""
    from optimizer.errors import OptimizerError

    for path in sorted((ROOT / "optimizer").rglob("*.py")):
        if "plain" not in path.parts and path.stem != "__main__" and RAISED.search(path.read_text(encoding="utf-8")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))

    def below(kind: type) -> Iterator[type]:
        yield kind
        for child in sorted(kind.__subclasses__(), key=lambda each: (each.exit_code, each.__name__)):  # type: ignore[attr-defined]
            yield from below(child)

    return [kind for kind in below(OptimizerError) if kind.__module__.startswith("optimizer.")]


def said(kind: type) -> tuple[str, str, str]:
    """(what happened, why it matters, what to do) of a class; the last two are the parent's where a class says nothing."""
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("\n\n")[0]
    return " ".join(text.replace("``", "`").split()), kind.matters, kind.todo  # type: ignore[attr-defined]


def table() -> str:
    rows = ["| error | exit code | what happened | why it matters | what to do |", "|---|---|---|---|---|"]
    for kind in classes():
        depth = len([base for base in kind.__mro__ if base.__module__.startswith("optimizer.")]) - 1
        meaning, matters, remedy = said(kind)
        again = " It may succeed by itself later." if kind.__dict__.get("retryable") else ""
        cells = ("↳ " * (depth > 1) + f"`{kind.__name__}`", str(kind.exit_code), meaning, matters + again, remedy)  # type: ignore[attr-defined]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def messages() -> list[tuple[str, str, str, str]]:
    """(class, message, why, hint) of every place in the code that raises an error with a text of its own, as it is shown: what the
    place leaves out is its class's. `…` stands for a value."""
    names = {kind.__name__: kind for kind in classes()}
    found = set()
    for path in sorted((ROOT / "optimizer").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in names):
            continue  # nothing to find: parsing all of it takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
                given = {word.arg: _text(word.value) for word in node.keywords}
                message = _text(node.args[1 if node.func.id == "ShimRefused" else 0])
                if message.strip("… "):
                    _, matters, todo = said(names[node.func.id])
                    found.add((node.func.id, message, given.get("why") or matters, given.get("hint") or todo))
    return sorted(found)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def page(text: str) -> str:
    """The page with today's table in it."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Write nothing; exit 1 if the page is stale.")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if check and before != after:
        print("docs/errors.md is stale: run python scripts/docs/errors_table.py", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
