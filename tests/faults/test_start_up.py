"""What can go wrong between a launch and its measurement, with real processes and real HTTP servers that misbehave: each ends as
its own cause, and the search is told whether the setting or the machine is to blame."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from optimizer.box.box import Box
from optimizer.knowledge.library import Library
from optimizer.model.measurement import Measurement, ValidityCode
from optimizer.model.outcome import INFEASIBLE, Done, Failed
from optimizer.model.settings import Settings
from optimizer.model.step import AwaitReady, Launch, Level, Measure, Stop
from optimizer.model.study import HostSpec, LaunchSpec, Member, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.runner import execute
from optimizer.runner.context import BoxContext
from optimizer.runner.execute import LiveExecutor
from optimizer.transport.local import LocalTransport
from tests.ports import free_port

SERVER = Path(__file__).with_name("bad_server.py")
MEMORY = Path("/sys/fs/cgroup/memory")
SPEC = StudySpec(study="faults", host=HostSpec(name="localhost", kind="local"), target=Target(), time_scale=2.0, consent=True,
                 workload=Workload(concurrency=2, prompt_tokens=16, output_tokens=4, warmup_min_s=0.2, warmup_max_s=0.4, window_s=1.0))  # fmt: skip


class Study:
    """The executor of a study on a secured scratch box."""

    numbers = itertools.count(2, 2)

    def __init__(self, home: Path) -> None:
        self.home = home
        self.box = Box(LocalTransport(home=home))
        self.executor = LiveExecutor(self.box, SPEC, Library.model_construct())

    async def launch(self, mode: str, settings: Settings = Settings(), members: tuple[Member, ...] = (), **env: str) -> Launch:
        number, self.port = next(self.numbers), free_port()
        self.name = f"faults-{number}"
        argv = (sys.executable, "-m", "sglang.launch_server", "--model-path", "/m", "--port", "1")
        described = LaunchSpec(argv=argv, env={"PYTHONPATH": str(self.home / "site"), "MODE": mode, **env})
        if members:
            described = LaunchSpec(argv=members[1].argv, env=members[1].env, members=members)
        self.executor.session.context = BoxContext(engine="sglang", launch=described, original_port=1, boot_id="b", hostname="h")
        step = Launch(key=str(number), settings=settings, purpose="candidate", port=self.port, served_name=self.name)
        outcome = (await self.executor.execute(step)).outcome
        assert isinstance(outcome, Done), outcome
        return step

    async def ready(self, launch: Launch, deadline_s: float = 60.0) -> Any:
        step = AwaitReady(key=str(int(launch.key) + 1), launch=launch.key, deadline_s=deadline_s)
        return (await self.executor.execute(step)).outcome

    async def measured(self, launch: Launch) -> Any:
        level = Level(concurrency=2, warmup_min_s=0.2, warmup_max_s=0.4, window_s=1.0)
        step = Measure(key=f"{launch.key}9", launch=launch.key, purpose="candidate", levels=(level,), run_index=0)
        return (await self.executor.execute(step)).outcome


async def until_listening(port: int) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("nobody listens")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The box, secured once; at the end nothing of the study may be left on it."""
    folder = tmp_path_factory.mktemp("home")
    package = folder / "site/sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_bytes(SERVER.read_bytes())

    async def secure() -> None:
        await Box(LocalTransport(home=folder)).lock(SPEC.study)
        await Box(LocalTransport(home=folder)).secure(SPEC.study, None, minutes=10)

    async def give_back() -> None:
        box = Box(LocalTransport(home=folder))
        await box.sweep(SPEC.study, term_s=1)
        await box.disarm(SPEC.study)
        await box.cleanup(SPEC.study)
        await box.unlock(SPEC.study)

    asyncio.run(secure())
    yield folder
    asyncio.run(give_back())
    assert not (folder / ".optimizer").exists()


@pytest.fixture
async def study(home: Path) -> AsyncIterator[Study]:
    one = Study(home)
    yield one
    swept = await one.box.sweep(SPEC.study, term_s=1)
    await one.executor.close()
    assert swept.clean


@contextlib.contextmanager
def stranger(study: Study, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's server on the port, without our marker, under the very name that is expected; it has to live on."""
    argv = [sys.executable, str(SERVER), "--port", str(study.port), "--served-model-name", study.name]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "MODE": "serves", **env})
    assert process.stdout is not None and process.stdout.readline()
    try:
        yield process
        assert process.poll() is None, "somebody else's process was ended"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def failed(outcome: Any, cause: str, said: str = "") -> Failed:
    assert isinstance(outcome, Failed), outcome
    assert outcome.cause == cause and said in outcome.message, outcome
    return outcome


@pytest.mark.fault("F13")
async def test_it_exits_at_once_without_a_word(study: Study) -> None:
    outcome = failed(await study.ready(await study.launch("exits")), "exited", "code 0")
    assert outcome.cause in INFEASIBLE and not outcome.retryable


@pytest.mark.slow
@pytest.mark.fault("F15")
async def test_it_hangs_while_it_loads(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = await study.launch("hangs")
    assert failed(await study.ready(launch, deadline_s=1.0), "not_ready_in_time").cause in INFEASIBLE
    monkeypatch.setattr(execute, "SILENT_START_S", 0.4)
    assert failed(await study.ready(launch), "hang_loading").cause in INFEASIBLE


@pytest.mark.slow
@pytest.mark.fault("F15")
@pytest.mark.parametrize(("late", "named"), [(("router",), "router"), (("prefill", "decode"), "prefill")])
async def test_a_member_of_a_deployment_that_hangs_while_the_others_are_ready(
    study: Study, monkeypatch: pytest.MonkeyPatch, late: tuple[str, ...], named: str
) -> None:
    """What hangs is named, its log is kept, and the members that were ready go with it."""
    package = study.home / "site/sglang_router"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "launch_router.py").write_bytes(SERVER.read_bytes())
    ports = {name: free_port() for name in ("prefill", "decode", "router")}
    words: dict[Literal["prefill", "decode", "router"], tuple[str, ...]] = {
        "prefill": ("sglang.launch_server", "--model-path", "/m", "--disaggregation-mode", "prefill"),
        "decode": ("sglang.launch_server", "--model-path", "/m", "--disaggregation-mode", "decode"),
        "router": ("sglang_router.launch_router", "--pd-disaggregation", "--prefill", f"http://127.0.0.1:{ports['prefill']}", "8998",
                   "--decode", f"http://127.0.0.1:{ports['decode']}"),
    }  # fmt: skip
    members = tuple(
        Member(name=name, role=name, port=ports[name], argv=(sys.executable, "-m", *said, "--port", str(ports[name])),
               env={"PYTHONPATH": str(study.home / "site"), "MODE": "hangs" if name in late else "serves"})
        for name, said in words.items()
    )  # fmt: skip
    launch = await study.launch("", members=members)
    monkeypatch.setattr(execute, "SILENT_START_S", 4.0)
    outcome = failed(await study.ready(launch), "hang_loading", f"{named} (port {ports[named] if named != 'router' else study.port})")
    assert outcome.cause in INFEASIBLE and all((name in outcome.message) == (name in late) for name in ports)
    assert b"Load weight begin." in await execute.launch_log(study.box, SPEC.study, launch.key, late[0])
    assert (await study.box.sweep(f"{SPEC.study}:{launch.key}", term_s=1)).clean
    assert [await study.box.port_free(port) for port in ports.values()] == [True] * 3


@pytest.mark.fault("F17")
async def test_the_kernel_kills_it_for_memory(study: Study) -> None:
    """A real memory limit where one can be set; else what is left of such a kill: signal 9 and a log without an error."""
    group = MEMORY / f"optimize-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(48 << 20))
        with contextlib.suppress(OSError):
            (group / "memory.memsw.limit_in_bytes").write_text(str(48 << 20))
    except OSError:
        group = study.home / "no such group"
    try:
        outcome = failed(await study.ready(await study.launch("eats", GROUP=str(group))), "oom_load", "out-of-memory killer")
        if outcome.retryable:  # no limit could be set, and nothing was killed by the kernel: seen twice, it counts
            outcome = failed(await study.ready(await study.launch("eats", GROUP=str(group))), "oom_load", "out-of-memory killer")
        assert outcome.cause in INFEASIBLE and not outcome.retryable
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
            if not group.exists():
                break
            await asyncio.sleep(0.05)


@pytest.mark.fault("F17")
async def test_somebody_kills_it(study: Study) -> None:
    """Not the kernel for want of memory: the same settings are launched once more, and only then given up."""
    settings = Settings(values={"max_running_requests": 3})
    for again in (False, True):
        launch = await study.launch("hangs", settings)
        ready = asyncio.create_task(study.ready(launch))
        os.kill((await study.box.state(SPEC.study, launch.key)).pid, signal.SIGKILL)
        outcome = await ready
        assert isinstance(outcome, Failed) and outcome.cause in ("crashed", "oom_load") and "Killed by signal 9" in outcome.message, outcome
        assert outcome.retryable is not again, outcome
        assert ("launched once more before they are judged" in outcome.message) is not again


@pytest.mark.fault("F24")
async def test_the_port_is_taken_between_the_check_and_the_bind(study: Study) -> None:
    """The machine's fault, not the setting's: it is tried again."""
    launch = await study.launch("binds-late")
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", study.port))
        owner.listen()
        while (await study.box.state(SPEC.study, launch.key)).alive:
            await asyncio.sleep(0.1)
    outcome = failed(await study.ready(launch), "port_busy", "already in use")
    assert outcome.retryable and outcome.cause not in INFEASIBLE


@pytest.mark.fault("F25")
async def test_another_server_answers_on_the_port(study: Study) -> None:
    """One of an earlier study, which even serves the right name: ours never got the port, and nothing is measured."""
    launch = await study.launch("binds-nothing")
    with stranger(study) as other:
        outcome = failed(await study.ready(launch), "wrong_server", str(other.pid))
    assert outcome.cause not in INFEASIBLE


@pytest.mark.fault("F26")
async def test_a_second_server_shares_the_port(study: Study) -> None:
    launch = await study.launch("serves", REUSE_PORT="1")
    await until_listening(study.port)
    with stranger(study, REUSE_PORT="1"):
        failed(await study.ready(launch), "wrong_server", "alone")


@pytest.mark.fault("F27", "F28")
@pytest.mark.parametrize(("mode", "said"), [("says-ok", "serves []"), ("wrong-name", "serves ['another-model']")])
async def test_what_answers_is_no_server_of_this_model(study: Study, mode: str, said: str) -> None:
    """A proxy that answers 200 to everything; a server with another model."""
    assert failed(await study.ready(await study.launch(mode)), "wrong_server", said).cause not in INFEASIBLE


@pytest.mark.fault("F29")
async def test_a_setting_that_is_ignored(study: Study) -> None:
    """It reports 7 whatever was asked for: no result may be booked on a setting that was not in force."""
    launch = await study.launch("serves", settings=Settings(values={"max_running_requests": 48}))
    outcome = failed(await study.ready(launch), "setting_not_effective", "max_running_requests was asked to be 48, the server uses 7")
    assert outcome.cause in INFEASIBLE


@pytest.mark.fault("F14", "F16")
@pytest.mark.parametrize(("mode", "cause"), [("dies-under-load", "crashed"), ("oom-under-load", "oom_kv")])
async def test_it_dies_under_load(study: Study, mode: str, cause: str) -> None:
    launch = await study.launch(mode)
    assert isinstance(await study.ready(launch), Done)
    outcome = failed(await study.measured(launch), cause)
    assert outcome.cause in INFEASIBLE and not outcome.retryable


@pytest.mark.slow
@pytest.mark.fault("F18")
async def test_its_worker_is_dead_and_its_api_answers_on(study: Study) -> None:
    """Health and name are answered, every request fails: the measurement is kept, invalid, and says so."""
    launch = await study.launch("dead-worker")
    assert isinstance(await study.ready(launch), Done)
    outcome = await study.measured(launch)
    assert isinstance(outcome, Done), outcome
    found = Measurement.model_validate(outcome.body["measurement"])
    assert ValidityCode.ERRORS in {item.code for item in found.invalid}
    assert found.points[0].requests_ok == 0 and set(found.points[0].errors) == {"http_500"}


@pytest.mark.slow
@pytest.mark.fault("F21")
async def test_a_zombie_child_is_no_process(study: Study) -> None:
    """Its parent never reaps it; the stop ends all the same and calls the box clean."""
    launch = await study.launch("zombie")
    assert isinstance(await study.ready(launch), Done)
    assert len((await study.box.state(SPEC.study, launch.key)).pids) == 1  # the zombie counts for nothing
    outcome = (await study.executor.execute(Stop(key="998", launch=launch.key))).outcome
    assert isinstance(outcome, Done), outcome


@pytest.mark.slow
@pytest.mark.fault("G8")
async def test_a_first_start_that_compiles_for_minutes_is_waited_for(study: Study) -> None:
    """Its log grows all the time and its deadline is not over: slow is not dead."""
    launch = await study.launch("compiles")
    outcome = await study.ready(launch)
    assert isinstance(outcome, Done) and outcome.body["ready_s"] > 2.0
