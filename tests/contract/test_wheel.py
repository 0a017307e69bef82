"""What a user installs is complete: the wheel carries playbooks and spaces, and its command works from any directory, without
the source tree."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (found,) = out.glob("optimize-*.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script in an environment that holds the wheel alone; its dependencies are those of this environment."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert install.returncode == 0, install.stderr
    # Dependencies only: a .pth line is appended after the wheel's own folder and runs no other .pth, so that the editable
    # installation of the source tree stays out.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "optimize"


def run(command: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV", "OPTIMIZER"))}
    return subprocess.run([str(command), *args], cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_wheel_carries_every_playbook_and_space(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("playbooks", "search_spaces"):
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.yaml")}
        assert sources, f"{folder} is empty"
        assert {f"optimizer/_data/{source}" for source in sources} <= names
    assert {name for name in names if name.startswith("optimizer/box/") and name.endswith(".py")} >= {"optimizer/box/shim.py", "optimizer/box/guard.py"}
    assert "optimizer/py.typed" in names  # the library's types are for its users
    assert not [name for name in names if name.startswith(("tests/", "runs/", "scripts/"))]


def test_it_is_the_wheel_that_runs(command: Path) -> None:
    python = command.with_name("python")
    where = subprocess.run([str(python), "-c", "import optimizer; print(optimizer.__file__)"], cwd="/", capture_output=True, text=True, check=True)
    assert str(command.parents[1]) in where.stdout


def test_commands_work_from_the_root_directory(command: Path) -> None:
    version = run(command, "--version")
    assert version.returncode == 0, version.stderr
    assert "0." in version.stdout
    lint = run(command, "lint")
    assert lint.returncode == 0, lint.stderr + lint.stdout


def test_the_packaged_knowledge_plans_a_study_from_the_root_directory(command: Path) -> None:
    plan = run(command, "--json", "plan", "--host", "sim:h200-7b", "--target", "1000tps@16")
    if plan.returncode == 2 and "No such option" in plan.stderr:
        plan = run(command, "plan", "--host", "sim:h200-7b", "--target", "1000tps@16", "--json")
    assert plan.returncode == 0, plan.stderr
    assert json.loads(plan.stdout)
