"""Real SGLang and vLLM on this machine's CPU, and the command line tool as a person uses it: its own process, its own home,
nothing replaced. Everything that a test starts is ended by it, and what the tool leaves behind is looked for in ``/proc``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from optimizer.bench.calibrate import LOADGEN
from optimizer.bench.run import build_job, longest_s, summarise
from optimizer.model.workload import Workload
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[2]
READY_S = 240.0
STUDY_S = 1080.0
ENGINES = ("vllm", "sglang")

# Short enough for a study of two minutes on two cores, long enough for effects of a factor two: a server with one slot answers
# some twenty requests in a window, one with a slot for everybody five waves of sixteen.
WORKLOAD: dict[str, Any] = {
    "vocabulary": "ascii", "concurrency": 16, "prompt_tokens": 128, "output_tokens": 48, "warmup_min_s": 2, "warmup_max_s": 5,
    "window_s": 8, "side_levels": [], "confirm_window_s": 10,
}  # fmt: skip
SECRET = "sup3rs3cretvalue99"  # in the environment of the servers that several tests share: nothing may repeat it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker gets all tests that name an engine behind their file: they share its server. The marks that xdist has for this do
    nothing with pytest 9.2, where a test's id cannot be changed any more."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByEngine(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((name for name in ENGINES if name in nodeid.partition("::")[2]), nodeid)

    return ByEngine(config, log)


@dataclass(frozen=True)
class Launch:
    """A server's command line and the environment that it needs beside the login's."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    model: str

    def file(self, folder: Path) -> Path:
        path = folder / "launch.json"
        path.write_text(json.dumps({"argv": list(self.argv), "env": dict(self.env)}), encoding="utf-8")
        return path


@dataclass(frozen=True)
class Engines:
    """What ``make engines`` installed."""

    folder: Path

    def vllm(self, *extra: str, model: str = "model") -> Launch:
        """One thread for OpenMP and one for numba, which drafts n-grams: with two on two busy cores their barriers stall the
        server for seconds (seen: 10 to 600 tok/s within one window)."""
        port, served = free_port(), str(self.folder / model)
        argv = (str(self.folder / "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", served, "--enforce-eager",
                "--distributed-executor-backend", "uni", "--host", "127.0.0.1", "--port", str(port), *extra)  # fmt: skip
        env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "NUMBA_NUM_THREADS": "1"}  # fmt: skip
        return Launch(argv, env, port, served)

    def sglang(self, *extra: str, model: str = "model") -> Launch:
        port, served = free_port(), str(self.folder / model)
        argv = (str(self.folder / "sglang/bin/python"), "-m", "sglang.launch_server", "--model-path", served, "--device", "cpu",
                "--attention-backend", "torch_native", "--max-total-tokens", "16384", "--enable-metrics", "--host", "127.0.0.1",
                "--port", str(port), *extra)  # fmt: skip
        shims = self.folder / "shims"
        env = {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1",
               "PYTHONPATH": str(shims if shims.is_dir() else REPOSITORY / "scripts/engines/shims")}  # fmt: skip
        return Launch(argv, env, port, served)

    def llamacpp(self, *extra: str, model: str = "model") -> Launch:
        """One thread, and none that spins at a barrier: with two on two busy cores llama.cpp stalls for seconds too."""
        port, served = free_port(), str(self.folder / f"{model}.gguf")
        argv = (str(self.folder / "llamacpp/bin/llama-server"), "--model", served, "--ctx-size", "8192", "--threads", "1", "--metrics",
                "--host", "127.0.0.1", "--port", str(port), *extra)  # fmt: skip
        return Launch(argv, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}, port, served)


def rate_of(launch: Launch, window_s: float = 6.0, **load: Any) -> float:
    """Output tokens/s of a running server under the tests' load: targets follow the machine, which may be twice as fast tomorrow."""
    workload = Workload(**{**WORKLOAD, **load})
    job = build_job(workload, concurrency=workload.concurrency, window_s=window_s, base_url=f"http://127.0.0.1:{launch.port}", model=launch.model,
                    seed=1, salt="before")  # fmt: skip
    done = subprocess.run([sys.executable, str(LOADGEN)], input=json.dumps(job).encode() + b"\n", capture_output=True, timeout=longest_s(job),
                          check=True)  # fmt: skip
    return summarise(done.stdout.splitlines(), workload, workload.concurrency).metrics["output_tokens_per_s"]


@pytest.fixture(scope="session")
def engines() -> Engines:
    """Fails where they were promised (OPTIMIZER_ENGINES) and are missing; skips where nobody promised them."""
    promised = os.environ.get("OPTIMIZER_ENGINES")
    folder = Path(promised).resolve() if promised else REPOSITORY / ".engines"
    missing = [name for name in ENGINES if not (folder / name / "bin/python").exists()]
    missing += [name for name in ("model", "model-cycle") if not (folder / name / "config.json").exists()]
    if missing and promised:
        pytest.fail(f"OPTIMIZER_ENGINES={promised} holds no {', '.join(missing)}: run `make engines`.")
    if missing:
        pytest.skip(f"no {', '.join(missing)} in {folder}: run `make engines`")
    return Engines(folder)


@pytest.fixture(scope="session")
def llamacpp() -> Engines:
    """The same for llama.cpp alone, which is installed in seconds."""
    promised = os.environ.get("OPTIMIZER_ENGINES")
    folder = Path(promised).resolve() if promised else REPOSITORY / ".engines"
    if (folder / "llamacpp/bin/llama-server").exists() and (folder / "model.gguf").exists():
        return Engines(folder)
    if promised:
        pytest.fail(f"OPTIMIZER_ENGINES={promised} holds no llamacpp: run `make engines`.")
    pytest.skip(f"no llamacpp in {folder}: run `make engines`")


@dataclass
class Done:
    """How a command of the tool ended."""

    exit: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.out)
        except ValueError:
            raise AssertionError(f"exit {self.exit}, no JSON on stdout: {self.out[-2000:]!r}\n{self.err[-6000:]}") from None
        return found


@dataclass
class Tool:
    """``optimize`` in a home and a folder of its own."""

    home: Path
    knowledge: Path = REPOSITORY
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    closed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPTIMIZE", "PYTEST"))}
        return {**kept, "HOME": str(self.home)}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "optimizer", "--runs", str(self.runs), "--knowledge", str(self.knowledge), *words]

    def start(self, *words: str, name: str = "tool") -> subprocess.Popen[str]:
        """Runs it in the background; its two streams go into files of the home."""
        with (self.home / f"{name}.out").open("w") as out, (self.home / f"{name}.err").open("w") as err:
            process = subprocess.Popen(self.command(*words), env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       text=True, start_new_session=True)  # fmt: skip
        self.running.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], timeout_s: float = STUDY_S, name: str = "tool") -> Done:
        code = process.wait(timeout_s)
        return Done(code, (self.home / f"{name}.out").read_text(), (self.home / f"{name}.err").read_text())

    def __call__(self, *words: str, timeout_s: float = STUDY_S) -> Done:
        return self.finish(self.start(*words), timeout_s)

    def study(self, name: str, target: str, *words: str, **load: Any) -> list[str]:
        """The words of a `run` under the workload of these tests. ``load``: what differs in it."""
        workload = self.home / "workload.json"
        workload.write_text(json.dumps({**WORKLOAD, **load}), encoding="utf-8")
        return ["run", "--host", "localhost", "--study", name, "--target", target, "--workload", str(workload), "--yes", "--json", *words]

    def run(self, name: str, target: str, *words: str, **load: Any) -> Done:
        return self(*self.study(name, target, *words, **load))

    def entries(self, study: str) -> list[dict[str, Any]]:
        """The study's journal; that of a closed one, which changes no more, is asked for once."""
        found: list[dict[str, Any]] = self.closed.get(study) or self("journal", study, "--json").json["entries"]
        if found[-1]["kind"] == "closed":
            self.closed[study] = found
        return found

    def marked(self) -> dict[int, str]:
        """Live processes that carry this home's marker in their environment: pid -> launch id."""
        root = f"OPTIMIZER_ROOT={self.home}/.optimizer".encode()
        found: dict[int, str] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    pairs = (folder / "environ").read_bytes().split(b"\0")
                    if root in pairs:
                        launch = [pair.split(b"=", 1)[1].decode() for pair in pairs if pair.startswith(b"OPTIMIZER_LAUNCH_ID=")]
                        found[int(folder.name)] = launch[0] if launch else ""
        return found

    def left(self, study: str, *, launched: bool = True) -> dict[int, str]:
        """Everything that a study started and that lives: also engine processes that overwrote their environment with a title
        (setproctitle), which only their session gives away. pid -> launch id."""
        leaders: dict[int, str] = {}
        key = ""
        for entry in self.entries(study):
            body = entry["body"]
            if entry["kind"] == "intent" and body["step"]["kind"] == "launch":
                key = body["step"]["key"]
            elif entry["kind"] == "outcome" and body["step"] == "launch" and body["outcome"]["status"] == "done":
                leaders[body["outcome"]["body"]["pid"]] = f"{study}:{key}"
        assert leaders or not launched, "nothing was ever launched"
        by_session = {pid: leaders[session] for pid, session in sessions().items() if session in leaders}
        return {**self.marked(), **by_session}

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()
        end = time.monotonic() + 20
        ours: set[int] = set()
        while time.monotonic() < end:
            living = sessions()
            ours |= {living[pid] for pid in self.marked() if pid in living}
            left = [pid for pid, session in living.items() if session in ours]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)


def sessions() -> dict[int, int]:
    """pid -> session id of every living process that is no zombie."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                if words[0] != "Z":
                    found[int(folder.name)] = int(words[3])
    return found


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    home = tmp_path / "home"
    home.mkdir()
    made = Tool(home)
    yield made
    made.close()


@dataclass
class Servers:
    """A user's own servers, each with its log in a file of ``folder``. What listens on their ports at the end, whoever brought it
    there, is ended too."""

    folder: Path
    started: list[tuple[subprocess.Popen[bytes], Launch]] = field(default_factory=list)

    def begin(self, launch: Launch) -> Path:
        """Starts it and waits for nothing; the path is its log's."""
        log = self.folder / f"server-{len(self.started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(launch.argv, env={**os.environ, **launch.env}, stdin=subprocess.DEVNULL, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder)  # fmt: skip
        self.started.append((process, launch))
        return log

    def ready(self, launch: Launch, ask: Callable[[Launch], bool] | None = None) -> Launch:
        """Waits until it answers; fails with the end of its log when it dies first."""
        index, process = next((at, one) for at, (one, known) in enumerate(self.started) if known is launch)
        end = time.monotonic() + READY_S
        while not (ask or answers)(launch):
            assert process.poll() is None, (self.folder / f"server-{index}.log").read_text()[-3000:]
            assert time.monotonic() < end, f"not ready in {READY_S:.0f} s"
            time.sleep(0.5)
        return launch

    def __call__(self, launch: Launch, ask: Callable[[Launch], bool] | None = None) -> Launch:
        self.begin(launch)
        return self.ready(launch, ask)

    def again(self, launch: Launch) -> Launch:
        """The same server as it runs, which may be one that the tool brought back; another one when it runs no more."""
        now = owners(launch.port)
        if now and all(argv_of(pid)[-len(launch.argv) :] == list(launch.argv) for pid in now) and answers(launch):  # a script has its interpreter before it
            return launch
        self.close()
        return self(launch)

    def close(self) -> None:
        for process, launch in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pid in owners(launch.port):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
        self.started.clear()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Servers]:
    """Starts servers that live as long as the test."""
    servers = Servers(tmp_path)
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def user_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A server that the tests of one file take over from each other: a study ends with the original as it was, or another starts."""
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


def _lasting(factory: pytest.TempPathFactory, made: Launch, name: str) -> Iterator[Launch]:
    if "PYTEST_XDIST_WORKER" in os.environ:  # the workers' folders lie beside each other
        try:
            (factory.getbasetemp().parent / f"shared-{name}").touch(exist_ok=False)
        except FileExistsError:
            pytest.fail(f"Two workers start the shared {name}, which costs half a minute: a test that uses it does not name it behind its file.")
    servers = Servers(factory.mktemp("servers"))
    try:
        yield servers(Launch(made.argv, {**made.env, "HF_TOKEN": f"hf_{SECRET * 2}", "SGLANG_API_TOKEN": SECRET}, made.port, made.model))
    finally:
        servers.close()


@pytest.fixture(scope="session")
def shared_vllm(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """One server for all tests that only read and count: with four slots, and with a secret in its environment."""
    yield from _lasting(tmp_path_factory, engines.vllm("--max-num-seqs", "4", "--dtype", "bfloat16"), "vllm")


@pytest.fixture(scope="session")
def shared_sglang(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Writes a line for every tenth step: a slow machine makes few steps."""
    yield from _lasting(tmp_path_factory, engines.sglang("--max-running-requests", "4", "--decode-log-interval", "10"), "sglang")


def answers(launch: Launch) -> bool:
    """Healthy, and it generates under the name that its users know."""
    base = f"http://127.0.0.1:{launch.port}"
    body = json.dumps({"model": launch.model, "prompt": "abc", "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{base}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(f"{base}/health", timeout=20):
            pass
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(json.load(answer)["choices"])
    except (urllib.error.URLError, OSError, ValueError):
        return False


def owners(port: int) -> set[int]:
    """Processes that listen on a port of this machine."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{words[9]}]")
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                for handle in (folder / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        if str(handle.readlink()) in inodes:
                            found.add(int(folder.name))
    return found


def argv_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.3)
