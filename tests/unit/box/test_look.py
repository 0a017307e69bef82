"""What the box says about itself, its servers and its files."""

import asyncio
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.plain import look, procfs
from optimizer.box.plain.look import APART, NO_NETWORK
from optimizer.box.results import ShimRefused
from optimizer.errors import PythonMissing, UsageError
from optimizer.model.canonical import canonical_json
from optimizer.model.study import HostSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.runner.doctor import _logs
from optimizer.runner.hosts import parse_launch
from optimizer.runner.survey import Unfit, _refuse_out_of_reach, _refuse_unreached

from .test_launch import Server, said


async def test_hello(box: Box, home: Path) -> None:
    facts = await box.hello()
    assert facts.home == str(home) and facts.home_writable and facts.root == f"{home}/.optimizer"
    assert facts.cpus == len(os.sched_getaffinity(0)) and facts.memory_bytes > 1 << 28 and facts.python >= (3, 8, 0)
    assert abs(facts.clock_unix_s - time.time()) < 60 and facts.sees_other_processes
    assert list(home.iterdir()) == []  # it writes nothing


async def test_command(box: Box) -> None:
    done = await box.command(["sh", "-c", "echo out; echo err >&2; echo $A; exit 3"], {"A": "b", "HOME": None})
    assert (done.exit, done.stdout, done.stderr) == (3, b"out\nb\n", b"err\n")
    assert (await box.command(["/no/such"])).not_started
    assert (await box.command(["cat"])).stdout == b""  # nothing to read, no waiting


async def test_command_is_bounded(box: Box, tmp_path: Path) -> None:
    done = await box.command(["sh", "-c", "yes | head -c 100000"], max_bytes=1000)
    assert done.truncated and len(done.stdout) == 1000 and done.exit == 0
    began = time.monotonic()
    done = await box.command(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"], timeout_s=0.5)
    assert done.timed_out and done.exit is None and time.monotonic() - began < 5
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/exe").exists()
    began = time.monotonic()
    done = await box.command(["sh", "-c", "sleep 4 >/dev/null 2>&1 & echo hi"], timeout_s=20)
    assert done.stdout == b"hi\n" and not done.timed_out and time.monotonic() - began < 4


@pytest.mark.fault("H19")
async def test_read_file(box: Box, tmp_path: Path) -> None:
    file = tmp_path / "bad \udcff name"
    file.write_bytes(bytes(range(256)))
    part = await box.read_file(str(file), 250, 3)
    assert (part.data, part.offset, part.end, part.size, part.inode) == (
        b"\xfa\xfb\xfc",
        250,
        253,
        256,
        file.stat().st_ino,
    )
    assert (await box.read_file(str(file), -2)).data == b"\xfe\xff"
    assert (await box.read_file(str(file), 1000)).data == b""


@pytest.mark.fault("H20")
async def test_what_is_no_readable_file_is_refused(box: Box, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    os.mkfifo(tmp_path / "fifo")
    for path in (loop, tmp_path / "fifo", tmp_path, "/dev/zero", tmp_path / "none"):
        with pytest.raises(ShimRefused) as caught:
            await box.read_file(str(path))
        assert caught.value.kind == "unreadable"


async def test_credentials_in_files_are_masked_in_place(make_box: Callable[..., Box], tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    box = make_box(MY_PASSWORD=secret, SHORT_TOKEN="true")
    file = tmp_path / "log"
    text = f"true start {secret} and sk-abcdefghijklmnopqrstuvwxyz end\n"
    file.write_text(text)
    whole = (await box.read_file(str(file))).data.decode()
    assert len(whole) == len(text) and secret not in whole and "sk-abc" not in whole
    assert whole.startswith("true start <secret>***") and whole.endswith(" end\n")
    for cut in range(0, len(text), 9):  # no cut shows a piece of it
        assert (await box.read_file(str(file), cut, 4)).data.decode() == whole[cut : cut + 4]


ENGINES = [
    ("python3 -m sglang.launch_server --model-path m", "sglang"),
    ("/venv/bin/python3.11 -u -X faulthandler -m sglang.launch_server", "sglang"),
    ("sglang serve --model-path m", "sglang"),
    ("/v/bin/python /v/bin/vllm serve m", "vllm"),
    ("vllm serve m", "vllm"),
    ("python -m vllm.entrypoints.openai.api_server --model m", "vllm"),
    ("/opt/llama.cpp/llama-server -m m.gguf", "llamacpp"),
    ("python3 -m sglang_router.launch_router", "sglang-router"),
    ("python -m my.simulator --port 1", "sglang"),
    ("bash -c python3 -m sglang.launch_server", None),
    ("grep vllm serve", None),
    ("vllm bench serve", None),
    ("vim sglang.launch_server", None),
    ("python -c import sglang.launch_server", None),
    ("tail -f vllm.log", None),
    ("ssh box vllm serve m", None),
    ("sglang::scheduler_TP0", None),
    ("python", None),
    ("", None),
]


@pytest.mark.parametrize(("line", "engine"), ENGINES)
def test_which_command_lines_are_servers(line: str, engine: str | None) -> None:
    assert look.engine_of(line.split(), {"my.simulator": "sglang"}) == engine


async def test_servers_are_found_with_their_workers_counted_in(
    box: Box, server: Server, free_port: int, spawn: Callable, tmp_path: Path
) -> None:
    """By its look, although a worker of the same look hangs below it; and by its port."""
    (tmp_path / "vllm").mkdir()
    text = Path(server(0)[1]).read_text()
    (tmp_path / "vllm" / "vllm").write_text(
        text.replace("port, *options = sys.argv[1:]", "port, options = sys.argv[2], ['setsid']")
    )
    log = tmp_path / "vllm.log"
    program = [sys.executable, str(tmp_path / "vllm" / "vllm"), "serve", str(free_port)]
    process = spawn(program, stdout=log.open("ab"), env={**os.environ, "NUMBER": "1"}, cwd=str(tmp_path))
    while await box.port_free(free_port):
        pass
    found = [one for one in (await box.find_servers()).servers if one.pid == process.pid]
    assert [(one.engine, one.ports, one.cwd, one.logs) for one in found] == [
        ("vllm", (free_port,), str(tmp_path), (str(log),))
    ]
    assert found[0].argv == tuple(program) and found[0].env["NUMBER"] == "1" and found[0].launch_id is None
    by_port = (await box.find_servers(free_port, same_home=True)).servers
    assert [one.pid for one in by_port if free_port in one.ports] == [process.pid]


@pytest.mark.fault("H19")
def test_what_is_no_utf8_is_text_and_becomes_the_same_bytes_again() -> None:
    parts = [b"caf", b"\xe9", b"\xff", "é😀".encode(), "\U0010eee9".encode(), b"\xf4\x8e\xba", b""]
    for data in (b"".join(one) for one in itertools.product(parts, repeat=3)):
        carried = procfs.text(data)
        assert carried.encode("utf-8").decode("utf-8") == carried and procfs.raw(carried) == data


@pytest.mark.fault("H19")
async def test_a_server_whose_environment_is_no_utf8(box: Box, server: Server, free_port: int, spawn: Callable) -> None:
    """Whatever is known of it can be written down and sent to a database, and a launch of it has its bytes."""
    process = spawn([*server(free_port), b"caf\xe9"], stdout=-3, env={**os.environb, b"LATIN": b"\xe9\xff"})
    while await box.port_free(free_port):
        await asyncio.sleep(0.02)
    (seen,) = [one for one in (await box.find_servers(free_port)).servers if one.pid == process.pid]
    canonical = json.loads(canonical_json(seen.model_dump(mode="json")).encode())
    assert canonical["argv"] == list(seen.argv) and canonical["env"]["LATIN"] == seen.env["LATIN"]
    launched = await box.launch("s1", "1", [*server(0), seen.argv[-1]], {"LATIN": seen.env["LATIN"]})
    await said(box, "s1", "1")
    assert Path(f"/proc/{launched.pid}/cmdline").read_bytes().endswith(b"\0caf\xe9\0")
    assert b"LATIN=\xe9\xff" in Path(f"/proc/{launched.pid}/environ").read_bytes().split(b"\0")
    assert (await box.sweep("s1", term_s=1)).clean


@pytest.mark.fault("H19")
def test_a_described_launch_keeps_what_is_no_utf8(tmp_path: Path) -> None:
    spec = parse_launch("A=\udcff python3 -m sglang.launch_server --model-path '/caf\udce9'")
    assert (procfs.raw(spec.argv[-1]), procfs.raw(spec.env["A"])) == (b"/caf\xe9", b"\xff")
    spec.model_dump_json().encode()
    (tmp_path / "l.json").write_text(json.dumps({"argv": ["python3", "/caf\ud800"]}))
    with pytest.raises(UsageError, match="surrogates not allowed"):
        parse_launch(str(tmp_path / "l.json"))


@pytest.mark.fault("F49")
async def test_no_gpu_tools(box: Box) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    assert await box.sample_gpu(1) == ""
    assert (await box.hello()).nvidia_smi is None


async def test_gpu_samples(make_box: Callable[..., Box], tmp_path: Path) -> None:
    row = "2026/11/29 20:12:09.570, 0, 71 %, 55 %, 131252 MiB, 186.69 W, 1980 MHz, 40"
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nwhile true; do echo '{row}'; sleep 0.2; done\n")
    tool.chmod(0o755)
    box = make_box(PATH=f"{tool.parent}:{os.environ['PATH']}")
    lines = (await box.sample_gpu(0.7)).splitlines()
    assert 2 <= len(lines) <= 5 and set(lines) == {row}


@pytest.mark.fault("F12")
async def test_box_without_python(tmp_path: Path) -> None:
    from optimizer.transport.base import CommandResult

    class NoPython:
        name, same_python = "bare", False

        async def run(self, stdin: bytes, timeout_s: float, on_stdout: object = None) -> CommandResult:
            return CommandResult(127, b"", b"sh: 1: python3: not found", False)

    with pytest.raises(PythonMissing, match="python3: not found"):
        await Box(NoPython()).hello()  # type: ignore[arg-type]


@pytest.mark.parametrize("own_files", [True, False])
async def test_a_server_whose_files_only_its_own_mounts_hold_is_kept_apart(
    own_files: bool, box: Box, server: Callable[..., list[str]], free_port: int, tmp_path: Path, spawn: Callable
) -> None:
    """apptainer, enroot, `unshare -m`: no control group tells of them, and nobody outside could start the server again."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespace may be made here")
    folder = tmp_path / "image"
    folder.mkdir()
    python, script, *rest = server(free_port)
    program = shlex.join([python, str(folder / "server.py" if own_files else script), *rest])
    mount = f"mount -t tmpfs none {folder} && cp {script} {folder}/server.py && " if own_files else ""
    process = spawn(["unshare", "-m", "sh", "-c", f"{mount}exec {program}"], stdout=subprocess.DEVNULL)
    while await box.port_free(free_port):
        assert process.poll() is None
        await asyncio.sleep(0.02)
    (found,) = (one for one in (await box.find_servers(free_port)).servers if one.pid == process.pid)
    if not own_files:
        assert found.supervisor is None
        return
    assert found.supervisor == f"{APART} ({folder}/server.py is not the same outside)"
    with pytest.raises(Unfit, match="nobody outside could start it again"):
        _refuse_out_of_reach(box, StudySpec(study="s", host=HostSpec(name="here", kind="local"), target=Target(), workload=Workload()), found)
    with pytest.raises(ShimRefused) as refused:
        await box.secure("s1", found)
    assert refused.value.kind == "supervised"


@pytest.mark.parametrize("network", ["another", "ours"])
async def test_a_server_in_another_network_is_told_from_one_that_still_loads(network: str, box: Box, tmp_path: Path, spawn: Callable) -> None:
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace may be made here")
    (tmp_path / "vllm").write_text("import sys, time\nprint('here', flush=True)\ntime.sleep(600)\n")
    words = [*(["unshare", "-n"] if network == "another" else []), sys.executable, str(tmp_path / "vllm"), "serve", "m"]
    process = spawn(words, stdout=subprocess.PIPE)
    assert await asyncio.to_thread(process.stdout.readline) == b"here\n"
    (found,) = (one for one in (await box.find_servers(8000)).servers if one.pid == process.pid)
    assert (found.supervisor, found.ports) == (NO_NETWORK if network == "another" else None, ())


HELD = """import socket, sys
one = socket.socket()
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
one.bind((sys.argv[2], int(sys.argv[1])))
one.listen()
print("up", flush=True)
sys.stdin.read()"""


@pytest.mark.parametrize(
    ("own", "other", "why"),
    [
        ("127.0.0.1", "127.0.0.2", None),
        ("0.0.0.0", None, None),
        ("127.0.0.2", None, "it listens at 127.0.0.2 alone"),
        ("127.0.0.2", "127.0.0.1", "there process {other} listens, at 127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "there process {other} listens, at 127.0.0.1"),
    ],
)
async def test_a_server_that_the_loopback_does_not_reach_is_told(
    own: str, other: str | None, why: str | None, box: Box, free_port: int, spawn: Callable
) -> None:
    """Load would go to whoever answers at 127.0.0.1, and that may be somebody else's service."""
    started = [spawn([sys.executable, "-c", HELD, str(free_port), at, "--port", str(free_port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for at in (own, other) if at]  # fmt: skip
    assert [one.stdout.readline() for one in started] == [b"up\n"] * len(started)
    servers = (await box.find_servers(free_port)).servers
    (found,) = (one for one in servers if one.pid == started[0].pid)
    said = why.format(other=started[-1].pid) if why else None
    assert found.unreached.get(str(free_port)) == said
    if said is None:
        _refuse_unreached(box, found, free_port)
    else:
        with pytest.raises(Unfit, match=f"does not answer at 127.0.0.1, port {free_port}: {said}"):
            _refuse_unreached(box, found, free_port)


async def test_output_that_cannot_be_opened_again_is_told(box: Box, server: Server, free_port: int, spawn: Callable) -> None:
    reader = spawn(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process = spawn(server(free_port), stdout=reader.stdin)
    while await box.port_free(free_port):
        await asyncio.sleep(0.02)
    (found,) = (one for one in (await box.find_servers(free_port)).servers if one.pid == process.pid)
    assert found.logs == () and found.lost_output == f"a pipe to process {reader.pid} (cat)"
    (finding,) = await _logs(box, found)
    assert finding.said == f"The running server writes into a pipe to process {reader.pid} (cat)." and "~/.optimizer/kept" in finding.why
