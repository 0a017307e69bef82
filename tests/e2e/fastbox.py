"""A box for tests of the whole product: a scratch home with a simulated SGLang that starts in half a second and runs on the
real clock, and `optimize` as a person uses it there, in its own process. A study takes a quarter of a minute. What the box
has started and what is left on it is read from the box (its own ledger, ``/proc``), never from the tool's word."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from optimizer.engines.simulator import box as simulator
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[2]
STUDY_S = 100.0
# A machine that is busy with something else may take this many times as long; only a thing that never happens fails a test.
PATIENCE = 4
TARGET = "170tps@8"  # more than it does as found (no graphs), less than it does with graphs
WORKLOAD: dict[str, Any] = {
    "concurrency": 8, "prompt_tokens": 64, "output_tokens": 16, "warmup_min_s": 0.4, "warmup_max_s": 2.0, "window_s": 2.0,
    "confirm_window_s": 2.0, "side_levels": [],
}  # fmt: skip
# Between the owner's command and the simulator: an entry in the box's own ledger, and a start-up without its waiting times.
LAUNCH_SERVER = """
import dataclasses, json, os, sys, time
from pathlib import Path

sys.path.insert(0, {root!r})
from simbox import server

home = Path(__file__).parents[2]
if __name__ == "__main__" and "--help" not in sys.argv:
    line = json.dumps({{"pid": os.getpid(), "argv": sys.argv[1:], "launch": os.environ.get("OPTIMIZER_LAUNCH_ID")}}) + "\\n"
    handle = os.open(home / "state" / "starts.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line.encode())
    os.close(handle)
    mode = (home / "mode").read_text() if (home / "mode").exists() else ""
    if mode == "dies":
        sys.exit("RuntimeError: this server was told to fail")
    if mode == "never-ready":
        time.sleep(600)
    if (home / "slow").exists() and not os.environ.get("OPTIMIZER_LAUNCH_ID"):
        time.sleep(float((home / "slow").read_text()))  # the owner's server alone
    if (home / "talk").exists():
        print((home / "talk").read_text(), file=sys.stderr, flush=True)
    play = server.script
    server.script = lambda *given: (dataclasses.replace(phase, delay_s=0.0) for phase in play(*given))
    server.main(sys.argv[1:], home)
elif __name__ == "__main__":
    server.main(sys.argv[1:], home)
"""


def listening(port: int) -> bool:
    """Whether anybody accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False


def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """``timeout_s``: enough on a quiet machine."""
    end = time.monotonic() + timeout_s * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {timeout_s * PATIENCE:.0f} s"
        time.sleep(0.03)
    return found


@dataclass(frozen=True)
class Done:
    """How a command of the tool ended; ``exit`` is negative when a signal ended it."""

    exit: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.out)
        except ValueError:
            raise AssertionError(f"exit {self.exit}, no JSON on stdout: {self.out[-2000:]!r}\n{self.err[-5000:]}") from None
        return found

    @property
    def decision(self) -> tuple[str, list[Any]]:
        """What a study decided in the end."""
        return self.json["ending"], self.json["promoted"]


@dataclass
class FastBox:
    """``home`` is the box's home; ``here`` is where the tool is called and keeps its studies."""

    folder: Path
    home: Path = field(init=False)
    here: Path = field(init=False)
    port: int = field(init=False)
    env: dict[str, str] = field(init=False)
    argv: tuple[str, ...] = field(init=False)
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)
    tool: ClassVar[tuple[str, str, str]] = (sys.executable, "-m", "optimizer")

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        made = simulator.prepare_box("h200-7b", self.folder, 1.0)
        self.home, self.env, self.port = made.home, dict(made.env), free_port()
        description = json.loads((self.home / "box.json").read_text())
        description["speed"] |= {"eager_us_per_layer": 1600.0, "noise_sd": 0.004}
        (self.home / "box.json").write_text(json.dumps(description))
        (self.home / "site/sglang/launch_server.py").write_text(LAUNCH_SERVER.format(root=str(simulator.ROOT)))
        argv = list(made.argv)
        argv[argv.index("--port") + 1] = str(self.port)
        self.argv = tuple(argv)
        self.here = self.folder / "here"
        self.here.mkdir()
        (self.here / "launch.json").write_text(json.dumps({"argv": argv, "cwd": str(self.home)}))
        for name in ("playbooks", "search_spaces"):  # of this test's own: a study pins them, and people edit them
            shutil.copytree(REPOSITORY / name, self.folder / "knowledge" / name)
        self.write_workload()

    def write_workload(self, **changes: Any) -> None:
        (self.here / "w.json").write_text(json.dumps({**WORKLOAD, **changes}))

    # ---- the tool -----------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> Path:
        return self.here / "runs"

    def command(self, *words: str) -> list[str]:
        return [*self.tool, "--runs", str(self.runs), "--knowledge", str(self.folder / "knowledge"), *words]

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """The tool in the background, in a session of its own; its streams go to ``out`` and ``err`` files."""
        number = len(self.processes)
        with (self.here / f"{number}.out").open("w") as out, (self.here / f"{number}.err").open("w") as err:
            process = subprocess.Popen(self.command(*words), env={**self.env, **env}, cwd=self.here, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=err, text=True, start_new_session=True)  # fmt: skip
        process.number = number  # type: ignore[attr-defined]
        self.processes.append(process)
        return process

    def told(self, process: subprocess.Popen[str]) -> str:
        return (self.here / f"{process.number}.err").read_text()  # type: ignore[attr-defined]

    def finish(self, process: subprocess.Popen[str], timeout_s: float = STUDY_S) -> Done:
        """``timeout_s``: enough on a quiet machine."""
        try:
            code = process.wait(timeout_s * PATIENCE)
        except subprocess.TimeoutExpired as error:  # what it was at says more than that it took too long
            raise AssertionError(f"no end after {error.timeout:g} s of {error.cmd}; it told: {self.told(process)[-4000:]}") from None
        return Done(code, (self.here / f"{process.number}.out").read_text(), self.told(process))  # type: ignore[attr-defined]

    def __call__(self, *words: str, timeout_s: float = STUDY_S, **env: str) -> Done:
        return self.finish(self.start(*words, **env), timeout_s)

    def study(self, name: str, *words: str, launch: bool = True, host: str = "localhost", target: str = TARGET) -> list[str]:
        """The words of a `run`."""
        described = ["--launch", str(self.here / "launch.json")] if launch else ["--port", str(self.port)]
        return ["run", "--host", host, "--study", name, "--target", target, "--workload", str(self.here / "w.json"), "--yes", "--json",
                *described, *words]  # fmt: skip

    # ---- what the box itself says ---------------------------------------------------------------------------------------

    def starts(self) -> list[dict[str, Any]]:
        """Every server process that was ever started here."""
        path = self.home / "state/starts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def marked(self) -> dict[int, str]:
        """Living processes that a study started here: pid -> launch id."""
        root = f"OPTIMIZER_ROOT={self.home}/.optimizer".encode()
        found: dict[int, str] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    pairs = (folder / "environ").read_bytes().split(b"\0")
                    if root in pairs:
                        launch = [pair.partition(b"=")[2].decode() for pair in pairs if pair.startswith(b"OPTIMIZER_LAUNCH_ID=")]
                        found[int(folder.name)] = launch[0] if launch else ""
        return found

    def residents(self) -> set[int]:
        """Living processes whose home this is, the tool's own included."""
        home = f"HOME={self.home}".encode()
        found = set()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if home in (folder / "environ").read_bytes().split(b"\0"):
                        found.add(int(folder.name))
        return found

    def leftovers(self) -> list[str]:
        """Files below ``~/.optimizer``."""
        root = self.home / ".optimizer"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*")) + ([".optimizer"] if root.exists() else [])

    def assert_clean(self, *, serving: bool = False) -> None:
        """No process, file or port of a study is left; ``serving``: but the owner's server answers."""
        assert self.marked() == {}
        assert self.leftovers() == []
        assert listening(self.port) == serving

    # ---- the owner's server -----------------------------------------------------------------------------------------------

    def serve(self) -> subprocess.Popen[bytes]:
        """The owner starts the server, and waits until it answers."""
        with (self.home / "server.log").open("ab") as log:
            process = subprocess.Popen(self.argv, env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        self.processes.append(process)
        wait_until(self.answers, 20, "the owner's server answers")
        return process

    def answers(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, OSError):
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/health_generate")
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        return False

    def serving_argv(self) -> list[tuple[str, ...]]:
        """Command lines of the servers that live here."""
        found = []
        for pid in self.residents():
            with contextlib.suppress(OSError):
                words = tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0"))
                if "sglang.launch_server" in words and "--help" not in words:
                    found.append(words)
        return sorted(set(found))

    def close(self) -> None:
        """Ends everything that lives in this home."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        end = time.monotonic() + 15
        while (left := self.residents()) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for process in self.processes:
            process.wait()


def entries(folder: Path) -> list[Any]:
    """A study's journal, read and verified by the store itself: SQLite's check, chain, order of intents and outcomes."""
    from optimizer.journal import Journal

    with Journal.open(folder / "journal.db", write=False) as journal:
        journal.verify()
        return journal.read()


def check_ledger(box: FastBox, study: str) -> None:
    """Every server that was started had its intent, and no intent started two."""
    intents = {f"{study}:{entry.key}" for entry in entries(box.runs / study) if entry.kind == "intent" and entry.body["step"]["kind"] == "launch"}
    started = [start["launch"] for start in box.starts() if start["launch"]]
    assert set(started) <= intents, f"started without an intent: {set(started) - intents}"
    assert len(started) == len(set(started)), f"a launch was started twice: {started}"
