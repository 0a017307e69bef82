"""``doctor`` on real boxes: a scratch home on this machine, the simulated boxes, and a host that does not exist."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from optimizer.box.box import Box
from optimizer.box.results import CommandOutput, ServerProcess
from optimizer.cli import main
from optimizer.engines.registry import engine
from optimizer.model.entry import GENESIS, Entry, EntryKind
from optimizer.model.study import HostSpec, LaunchSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.report.doctor_view import doctor_text
from optimizer.report.prose import sentence
from optimizer.runner import doctor, logins
from optimizer.transport.local import LocalTransport

SGLANG = ("-m", "sglang.launch_server", "--model-path", "/nonexistent/model", "--port", "39999")


def spec(*argv: str) -> StudySpec:
    launch = LaunchSpec(argv=argv) if argv else None
    return StudySpec(study="doctor", host=HostSpec(name="localhost", kind="local"), target=Target(), workload=Workload(), launch=launch)


def examine(home: Path, study: StudySpec, **env: str) -> dict[str, doctor.Finding]:
    async def go() -> list[doctor.Finding]:
        box = Box(LocalTransport(env=dict(env), home=home))
        try:
            return await doctor.examine(box, study)
        finally:
            await box.close()

    home.mkdir(exist_ok=True)
    return {item.check: item for item in asyncio.run(go())}


def tool(folder: Path, text: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_simulated_box_is_fit_and_nothing_is_written(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--runs", str(tmp_path / "runs"), "doctor", "--host", "sim:h200-7b", "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["verdict"] == "ok"
    assert {"python", "home", "disk", "clock", "lock", "gpu", "server", "engine", "model"} <= {item["check"] for item in found["findings"]}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_no_word_is_cut_in_a_narrow_terminal(columns: int) -> None:
    """Neither a word nor a command: whatever is longer than the terminal stands whole on its line."""
    text = "The loopback answers, and nvidia-smi tells of /usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1 and of the eight GPUs behind it."
    finding = {"check": "driver", "level": "warning", "said": text, "why": text, "do": text}
    document = {"findings": [finding, {**finding, "level": "ok", "check": "connection"}], "host": "box", "verdict": "warning", "seconds": 1.0}
    shown = doctor_text(document, columns)
    assert shown.split() == doctor_text(document).split()
    assert all(len(line) <= columns or len(line.split()) == 1 for line in shown.splitlines()), shown


def test_a_host_that_cannot_be_reached_is_a_finding_with_its_remedy(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--runs", str(tmp_path), "doctor", "--host", "no-such-host-of-anybody", "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 4 and found["verdict"] == "problem"
    [connection] = [item for item in found["findings"] if item["check"] == "connection"]
    assert "no-such-host-of-anybody" in connection["said"] and "ssh" in connection["do"]


def test_a_program_that_does_not_start_is_told_before_a_launch_is_spent(tmp_path: Path) -> None:
    found = examine(tmp_path / "home", spec("/nonexistent/python3", *SGLANG))
    assert found["engine"].level == "problem" and "/nonexistent/python3" in found["engine"].said
    assert found["model"].level == "warning" and "/nonexistent/model" in found["model"].said


def test_nothing_to_tune_is_told_with_an_example(tmp_path: Path) -> None:
    study = spec().model_copy(update={"port": 39998})
    found = examine(tmp_path / "home", study)
    assert found["server"].level == "problem" and "--launch" in found["server"].do


def test_a_broken_driver_and_a_busy_gpu(tmp_path: Path) -> None:
    broken = examine(tmp_path / "home", spec("python3", *SGLANG), **tool(tmp_path / "broken", "echo 'NVML: Driver/library version mismatch' >&2; exit 18"))
    assert broken["gpu"].level == "problem" and "version mismatch" in broken["gpu"].said
    busy = examine(tmp_path / "home", spec("python3", *SGLANG), **tool(tmp_path / "busy", "echo 'NVIDIA H200, 143771 MiB, 90000 MiB'"))
    assert busy["gpu"].level == "ok" and "NVIDIA H200" in busy["gpu"].said
    assert busy["foreign load"].level == "problem" and "GPU 0: 90000 MiB" in busy["foreign load"].said


def test_a_box_that_another_study_holds_is_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    async def lock() -> None:
        box = Box(LocalTransport(home=home))
        await box.lock("other")
        await box.close()

    asyncio.run(lock())
    before = sorted(path.name for path in home.rglob("*"))
    found = examine(home, spec("python3", *SGLANG))
    assert found["lock"].level == "problem" and "Study other holds the box" in found["lock"].said
    assert "optimize resume other" in found["lock"].do
    assert sorted(path.name for path in home.rglob("*")) == before  # looking added nothing


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({"supervisor": "vllm.service"}, "supervisor", "problem"),
        ({"ports": ()}, "port", "warning"),
        ({"hidden_arguments": 1}, "credentials", "ok"),
    ],
)
def test_what_is_odd_about_the_running_server(change: dict[str, object], check: str, level: str) -> None:
    server = ServerProcess(pid=1, start_time=1, boot_id="b", engine="vllm", argv=("vllm", "serve", "m"), hidden_arguments=0, cwd="/", exe=None, uid=0,
                           ports=(8000,), env={}, env_readable=True, logs=(), supervisor=None, launch_id=None)  # fmt: skip
    rows = {item.check: item for item in doctor._server(server.model_copy(update=change))}
    assert rows[check].level == level
    assert check not in {item.check for item in doctor._server(server)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_journal_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert doctor.local(tmp_path / "runs")[0].level == "problem"


def test_a_server_whose_program_was_upgraded_under_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What runs is 0.5.12, what every launch would start is 0.5.13."""
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho 0.5.13\n")
    program.chmod(0o755)
    running = {"server_info.json": b'{"version": "0.5.12+cu129"}'}

    async def served(*_: object) -> dict[str, bytes]:
        return dict(running)

    async def build() -> list[doctor.Finding]:
        box = Box(LocalTransport(env={}, home=tmp_path))
        try:
            return await doctor._build(box, engine("sglang"), LaunchSpec(argv=(str(program), *SGLANG)))
        finally:
            await box.close()

    monkeypatch.setattr(doctor, "endpoint_files", served)
    (finding,) = asyncio.run(build())
    assert (finding.check, finding.level) == ("build", "warning") and finding.said == "The running server is sglang 0.5.12+cu129; installed is 0.5.13."
    running["server_info.json"] = b'{"version": "0.5.13+cu130"}'
    assert asyncio.run(build()) == []
    running.clear()
    assert asyncio.run(build()) == []


@pytest.mark.parametrize(("told", "said"), [("0.5.12", True), ("0.5.13", False), (None, False)])
def test_the_journal_says_that_launches_are_of_another_build_than_what_runs(told: str | None, said: bool) -> None:
    facts = [{"name": "engine.version", "value": told}] if told else []
    body = {"step": "observe", "outcome": {"status": "done", "duration_s": 1.0, "body": {
        "engine": "sglang", "engine_version": "0.5.13", "original": True, "evidence": {"facts": facts, "missing": []}}}}  # fmt: skip
    entry = Entry(seq=2, at_utc="", epoch=1, kind=EntryKind.OUTCOME, key="2", cause=None, body=body, prev=GENESIS, hash=GENESIS)
    assert ("The server that runs is 0.5.12: every launch" in sentence(entry)) is said


@pytest.mark.parametrize(("shell", "warned"), [("while true; do {}; sleep 1; done", True), ("{} & exec sleep 60", False)])
async def test_a_loop_above_the_server_is_told_before_an_outage(tmp_path: Path, shell: str, warned: bool) -> None:
    """Its living parent is what would start it again; a program that only waits beside it is named as well, a login shell is not."""
    server = f"{sys.executable} -c \"import time; print('up', flush=True); time.sleep(60)\""
    above = subprocess.Popen(["bash", "-c", shell.format(server)], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert above.stdout is not None and above.stdout.readline() == b"up\n"
        pid = next(int(one) for one in Path(f"/proc/{above.pid}/task/{above.pid}/children").read_text().split())
        original = ServerProcess.model_construct(pid=pid, before=(), supervisor=None, launch_id=None)
        found = await doctor._watched_over(Box(LocalTransport(home=tmp_path)), original)
        assert [one.check for one in found] == ["parent"] and found[0].level == "warning"
        assert (f"Process {above.pid} (bash -c while true; do" in found[0].said) is warned
        login = ServerProcess.model_construct(pid=os.getpid(), before=(), supervisor="x.service", launch_id=None)
        assert await doctor._watched_over(Box(LocalTransport(home=tmp_path)), login) == []
    finally:
        os.killpg(above.pid, signal.SIGKILL)
        above.wait()


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        ('b true\nas 0\nas 1 "root"\n', True), ("b false\nas 0\nas 0\n", False), ('b true\nas 0\nas 2 "root" "ml"\n', False), ('b true\nas 1 "ml"\nas 0\n', True),
        ('b true\nas 1 "other"\nas 0\n', False), ("", False), ("Failed to connect to bus\n", False),
    ],
)  # fmt: skip
def test_a_guard_that_logind_would_end_with_the_login(told: str, lost: bool) -> None:
    assert logins.ends_with_session(told, "ml") is lost


@pytest.mark.parametrize(("place", "lost"), [("0::/user.slice/user-1000.slice/session-3.scope", True), ("0::/system.slice/ssh.service", False)])
def test_logind_is_asked_only_where_there_is_a_session(place: str, lost: bool) -> None:
    """The words are what a box with logind answers; none is here."""
    asked: list[list[str]] = []

    class LoginBox:
        async def command(self, words: list[str], **_: object) -> CommandOutput:
            asked.append(words)
            said = place if words[0] == "cat" else 'b true\nas 0\nas 1 "root"'
            return CommandOutput(exit=0, stdout=said.encode(), stderr=b"", timed_out=False, truncated=False, not_started=None)

    box: Any = LoginBox()
    assert asyncio.run(logins.lost_at_logout(box, "ml")) is lost
    assert (len(asked) == 2) is lost
