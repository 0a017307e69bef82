"""What runs on the box is plain: standard library, Python 3.8 syntax, and it works under every older Python found here."""

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.program import BOOTSTRAP, guard_program, shim_program
from optimizer.transport.local import LocalTransport
from tests.interpreters import interpreters, supported
from tests.old_syntax import parsed

FOLDER = Path(__file__).parents[3] / "optimizer" / "box"
FILES = [FOLDER / "shim.py", FOLDER / "guard.py", *sorted((FOLDER / "plain").glob("*.py"))]
ALLOWED = {
    "__future__", "base64", "collections", "ctypes", "errno", "fcntl", "glob", "http", "json", "os", "pwd", "re", "resource", "select", "selectors",
    "shutil", "signal", "stat", "struct", "subprocess", "sys", "threading", "time",
    "traceback", "types", "typing",
}  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_syntax_and_imports(file: Path) -> None:
    tree = parsed(file.read_text())
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in ALLOWED or name.startswith("optimizer.box.plain"), name
            assert not name.startswith("optimizer") or node in tree.body, f"{name} is imported within a function: two modules need each other"


def test_the_program_is_plain_text() -> None:
    assert shim_program().isascii()
    parsed(guard_program().decode())


class Other(LocalTransport):
    """The local box with another interpreter."""

    def __init__(self, python: str, home: Path) -> None:
        super().__init__(home=home)
        self.python, self.same_python = python, False

    async def run(self, stdin, timeout_s, on_stdout=None):  # type: ignore[no-untyped-def]
        real, sys.executable = sys.executable, self.python
        try:
            return await super().run(stdin, timeout_s, on_stdout)
        finally:
            sys.executable = real


@pytest.mark.parametrize("edge", [min, max], ids=["oldest", "newest"])
async def test_under_other_interpreters(edge: Callable[..., tuple[int, int]], home: Path) -> None:
    """The oldest and the newest Python here that a box may have."""
    version = edge(supported())
    box = Box(Other(interpreters()[version], home))
    assert (await box.hello()).python[:2] == version
    await box.lock("s1")
    guard = await box.secure("s1")
    assert (await box.launch("s1", "1", ["sleep", "60"])).alive
    lines: list[bytes] = []
    assert (await box.run_job(b"print('job')", b"", "s1:j", 20, lines.append)).exit == 0 and lines == [b"job"]
    assert (await box.find_servers()).port_owner_hidden is False
    assert (await box.sweep("s1", term_s=1)).clean
    assert (await box.state("s1", "1")).exit_signal == 15
    assert (await box.restore_original("s1")).pid is None
    assert not Path(f"/proc/{guard.pid}/exe").exists()
    await box.cleanup("s1")
    await box.unlock("s1")
    assert not (home / ".optimizer").exists()


def test_an_old_python_is_refused_by_the_shim_itself(tmp_path: Path) -> None:
    old = [python for version, python in interpreters().items() if version < (3, 8)]
    if not old:
        pytest.skip("no Python older than 3.8 here")
    done = subprocess.run([old[0], "-I", "-c", BOOTSTRAP], input=b"%d\n" % len(shim_program()) + shim_program() + b"{}",
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode != 0  # the probe of the SSH transport asks before any of this is sent


async def test_concurrent_calls_share_nothing(home: Path) -> None:
    box = Box(LocalTransport(home=home))
    outputs = await asyncio.gather(*(box.command(["echo", str(number)]) for number in range(6)))
    assert [output.stdout for output in outputs] == [b"%d\n" % number for number in range(6)]
