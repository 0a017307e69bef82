"""For all tests: whatever a test starts is gone when the tests are over. A server that outlives its study is the failure that
users fear most after a wrong number, so it is looked for here as well, and not only by the tests that are about it."""

import gc
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.longest import SECONDS

# A shell without job control starts what it sends to the background with Ctrl-C ignored, and every process that a test starts inherits
# that: then nobody could press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A worker holds thousands of tests and all that they import. Looking through it for cycles again and again took a fifth of its processor
# time: it looks less often, and not at what was there when the first test began (pytest_collection_finish).
gc.set_threshold(20_000, 20, 20)

MARK = "TESTS_STARTED_BY"
# Studies of tests neither use nor change what the developer's own studies have learned.
os.environ.setdefault("OPTIMIZE_LEARNED", "off")


def marked(mark: bytes) -> dict[int, str]:
    """Living processes that inherited the mark, other than this one: process id to command line and the test that started it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # gone, or not ours to read
            continue
        # A zombie has no command line; Python's own tracker ends with the process that it serves.
        if mark in variables and line and "multiprocessing.resource_tracker" not in line:
            test = next((text.partition(b"=")[2].decode() for text in variables if text.startswith(b"PYTEST_CURRENT_TEST=")), "?")
            found[int(entry.name)] = f"{line[:300]}  <- {test}"
    return found


def pytest_itemcollected(item: pytest.Item) -> None:
    """``pytest -k S7`` finds what holds gate S7, whatever the test is called."""
    for mark in item.iter_markers("gate"):
        item.extra_keyword_matches.update(mark.args)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest of the slow tests come first; the others keep their order."""
    items.sort(key=lambda item: -SECONDS.get(item.nodeid, 0))


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Every test process (one for each worker of xdist) marks its environment; children of any depth inherit the mark."""
    value = f"{os.getpid()}-{secrets.token_hex(6)}"
    os.environ[MARK] = value
    yield
    mark = f"{MARK}={value}".encode()
    deadline = time.monotonic() + 5
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "tests left processes behind (killed now):\n" + "\n".join(f"  {pid}: {line}" for pid, line in left.items())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A real PostgreSQL server (tests.postgres.Server), started by the first test that asks for one."""
    from tests.postgres import running

    with running() as server:
        yield server
