"""One dependency, one door: each outside package is imported by exactly one place, so that it can be replaced there, and so
that whoever reads that place has read all of its use. Import linters differ on the standard library, so this reads the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "optimizer"

# Package -> the modules that may import it. A trailing dot allows the package and everything in it.
DOORS = {
    "asyncssh": ("optimizer.transport.ssh",),
    "httpx": ("optimizer.endpoint.",),
    "optuna": ("optimizer.search.",),
    "numpy": ("optimizer.search.",),
    "sqlite3": ("optimizer.journal.",),
    "sqlite_utils": ("optimizer.journal.",),
    "psycopg": ("optimizer.journal.postgres.",),
    "yaml": ("optimizer.knowledge.load", "optimizer.engines.deploy"),
    "click": ("optimizer.cli.",),
    "rich": ("optimizer.cli.", "optimizer.report."),
    "mcp": ("optimizer.mcp_server",),
    "jinja2": ("optimizer.report.page",),
    "markupsafe": ("optimizer.report.page",),
    "matplotlib": ("optimizer.report.charts",),
    "structlog": ("optimizer.log",),
    "prometheus_client": ("optimizer.telemetry.page",),
    "opentelemetry": ("optimizer.telemetry.otlp",),
    "uvloop": ("optimizer.bench.loadgen", "optimizer.bench.nullserver"),  # never needed, only tried
}
# Packages that may be imported anywhere; whatever is in neither list nor the standard library needs a door.
EVERYWHERE = {"pydantic", "optimizer", "typing_extensions"}


def imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Every imported module of a file, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "optimizer" if node.level else node.module or "", node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module", "import_module"):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, ast.Expr(node, lineno=node.lineno)


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def allowed(module: str, doors: tuple[str, ...]) -> bool:
    return any(module == door.rstrip(".") or (door.endswith(".") and module.startswith(door)) for door in doors)


def test_every_outside_package_has_one_door() -> None:
    import sys

    wrong = []
    for module, path in modules().items():
        if module.startswith("optimizer.testing"):
            continue
        for name, node in imports(path):
            top = name.partition(".")[0]
            if top in DOORS:
                if not allowed(module, DOORS[top]):
                    wrong.append(f"{path}:{node.lineno}: {top} belongs to {', '.join(DOORS[top])}")
            elif top not in EVERYWHERE and top not in sys.stdlib_module_names:
                wrong.append(f"{path}:{node.lineno}: {top} is an outside package without a door")
    assert not wrong, "\n".join(wrong)


def test_contract_suites_are_used_by_tests_only() -> None:
    users = [module for module, path in modules().items() for name, _ in imports(path) if name.startswith("optimizer.testing")]
    assert not [module for module in users if not module.startswith("optimizer.testing")]


def test_every_door_is_used() -> None:
    """A door that nobody uses is a dependency to remove, or a misspelt rule."""
    used = {name.partition(".")[0] for path in modules().values() for name, _ in imports(path)}
    # numpy is forbidden outside search, not required in it.
    assert set(DOORS) - {"numpy"} <= used


@pytest.mark.parametrize("name", ["loadgen", "nullserver"])
def test_uvloop_is_only_tried(name: str) -> None:
    tree = ast.parse((PACKAGE / "bench" / f"{name}.py").read_text(encoding="utf-8"))
    tried = [node for block in ast.walk(tree) if isinstance(block, ast.Try) for part in block.body for node in ast.walk(part)]
    everywhere = [node for node in ast.walk(tree) if isinstance(node, ast.Import) and node.names[0].name == "uvloop"]
    assert everywhere
    assert all(node in tried for node in everywhere)


def test_every_package_is_one() -> None:
    """A folder without __init__.py is invisible to the import contracts."""
    bare = {path.parent for path in PACKAGE.rglob("*.py")} - {path.parent for path in PACKAGE.rglob("__init__.py")}
    assert not bare


@pytest.mark.parametrize("text", ["import yaml", "def f():\n    from optuna import trial", "import importlib\nimportlib.import_module('httpx')"])
def test_the_check_sees_imports_wherever_they_stand(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(text)
    assert {name.partition(".")[0] for name, _ in imports(tmp_path / "x.py")} & {"yaml", "optuna", "httpx"}


def test_listed_dependencies_are_the_used_ones() -> None:
    """pyproject names no runtime dependency that the code does not import, and the other way round."""
    import tomllib

    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    spelled = {"pyyaml": "yaml", "sqlite-utils": "sqlite_utils"}
    listed = {requirement.partition(">")[0].strip().lower() for requirement in project["dependencies"]}
    listed = {spelled.get(name, name) for name in listed}
    used = {name.partition(".")[0] for path in modules().values() for name, _ in imports(path)}
    assert listed <= used
    assert (used & (set(DOORS) | EVERYWHERE)) - {"optimizer", "sqlite3", "uvloop", "numpy", "typing_extensions", "mcp", "psycopg", "prometheus_client", "opentelemetry"} <= listed  # of extras
