"""The simulated servers as processes: started from their own command lines, loaded over HTTP, read and stopped."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from optimizer.engines.simulator import box_names, prepare_box
from optimizer.errors import UsageError
from tests.unit.simulator.client import Running, chunks, rate, request, start, until_ready

RECORDINGS = Path(__file__).parents[2] / "recordings" / "sglang-0.5.12-h200"


@pytest.fixture
def servers() -> list[Running]:
    running: list[Running] = []
    yield running  # type: ignore[misc]
    for server in running:
        server.stop()


def test_boxes_are_listed_and_an_unknown_name_says_so(tmp_path: Path) -> None:
    assert box_names() == ("a6000x2-qwen27b", "h200-7b", "rtx6000x8-dsv4", "rtx6000x8-k26")
    with pytest.raises(UsageError, match="sim:h200-7b"):
        prepare_box("h100", tmp_path)
    with pytest.raises(UsageError, match="time scale"):
        prepare_box("h200-7b", tmp_path, 0.0)


def test_any_folder_will_do_for_a_box(tmp_path: Path) -> None:
    """Its tools are scripts of a shell, which reads names in its own way."""
    made = prepare_box("h200-7b", tmp_path / "it's a $HOME \"ü\"")
    asked = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], env=made.env, capture_output=True, text=True, timeout=60, check=False)
    assert (asked.returncode, asked.stdout.split()) == (0, ["0"]), asked.stderr


def test_a_seed_is_another_box_of_its_kind_and_stays_it(tmp_path: Path) -> None:
    def seed(root: Path) -> int:
        return int(json.loads((root / "sim-h200-7b/box.json").read_text())["seed"])

    prepare_box("h200-7b", tmp_path / "own")
    prepare_box("h200-7b", tmp_path / "other", seed=3)
    assert seed(tmp_path / "own") != seed(tmp_path / "other")
    prepare_box("h200-7b", tmp_path / "other")  # as a study does that is resumed
    prepare_box("h200-7b", tmp_path / "third", seed=4)
    assert len({seed(tmp_path / name) for name in ("own", "other", "third")}) == 3
    prepare_box("h200-7b", tmp_path / "again", seed=3)
    assert seed(tmp_path / "other") == seed(tmp_path / "again")



async def measured(
    server: Running, expected: float, tolerance: float, load: tuple[int, int, int, float, float]
) -> None:
    """A starved machine distorts a window of one or two real seconds, so a miss is measured again."""
    seen = []
    for _ in range(4):
        seen.append(await rate(server, *load))
        if abs(seen[-1] / expected - 1) < tolerance:
            break
    assert seen[-1] == pytest.approx(expected, rel=tolerance), (server.box.name, seen)


async def test_h200_end_to_end(tmp_path: Path, servers: list[Running]) -> None:
    eager = start(tmp_path / "a", "h200-7b", 50)
    graphs = start(tmp_path / "b", "h200-7b", 50, "--cuda-graph-max-bs", "32", drop=("--disable-cuda-graph",))
    servers += [eager, graphs]
    await asyncio.gather(until_ready(eager), until_ready(graphs))
    await measured(eager, 704, 0.10, (16, 156, 128, 10, 25))
    await measured(eager, 38, 0.10, (1, 156, 128, 5, 25))
    load = asyncio.create_task(rate(eager, 1, 156, 128, 10, 60))
    shown = []
    while not load.done():
        await asyncio.sleep(0.1)
        row = await asyncio.to_thread(
            smi_lines, eager, "--query-gpu=utilization.gpu,memory.used,power.draw", "--format=csv,noheader,nounits"
        )
        shown.append([float(part) for part in row[0].split(",")])
    utilisation, used, power = max(shown)
    assert 12 <= utilisation <= 25  # recorded: 15 to 22
    assert used == pytest.approx(131392, rel=0.02) and 80 < power < 250
    await measured(graphs, 2600, 0.12, (16, 156, 128, 10, 25))
    await measured(graphs, 207, 0.08, (1, 156, 128, 5, 25))
    text = eager.text()
    assert "cuda graph: False, gen throughput" in text and "Capture cuda graph bs" not in text
    assert "Capture cuda graph bs [1, 2, 4, 8, 12, 16, 24, 32]" in graphs.text()


@pytest.mark.slow
async def test_untuned_boxes_end_to_end(tmp_path: Path, servers: list[Running]) -> None:
    cases = [
        ("a6000x2-qwen27b", 100, (1, 512, 256, 20, 80), 37.5),
        ("rtx6000x8-k26", 100, (1, 256, 512, 20, 80), 26.0),
        ("rtx6000x8-dsv4", 400, (16, 512, 256, 60, 520), 25.0),
    ]
    servers += [start(tmp_path, name, scale) for name, scale, _, _ in cases]
    await asyncio.gather(*(until_ready(server) for server in servers))
    for server, (_, _, load, expected) in zip(servers, cases, strict=True):
        await measured(server, expected, 0.07, load)


@pytest.mark.slow
async def test_k26_tuned_reaches_its_target(tmp_path: Path, servers: list[Running]) -> None:
    server = start(
        tmp_path,
        "rtx6000x8-k26",
        32,
        "--max-running-requests",
        "32",
        "--cuda-graph-max-bs",
        "32",
        drop=("--disable-cuda-graph",),
        env={"NCCL_PROTO": "LL"},
    )
    servers.append(server)
    await until_ready(server)
    before = cpu_seconds(server.process.pid)
    began = time.monotonic()
    await measured(server, 1100, 0.06, (32, 256, 512, 10, 50))
    share = (cpu_seconds(server.process.pid) - before) / (time.monotonic() - began)
    assert share < 0.5  # of one core, at 35,000 tokens per real second
    await measured(server, 105, 0.06, (1, 256, 512, 4, 24))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_protocol_endpoints_and_process_tree(tmp_path: Path, servers: list[Running]) -> None:
    server = start(
        tmp_path,
        "rtx6000x8-k26",
        100,
        "--served-model-name",
        "k@study-7",
        "--enable-cache-report",
        env={"NCCL_DEBUG": "INFO", "NCCL_PROTO": "LL"},
    )
    servers.append(server)
    await until_ready(server)
    port = server.port
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "one two three"}],
        "max_tokens": 9,
        "ignore_eos": True,
    }
    status, raw = await request(port, "POST", "/v1/chat/completions", body)
    whole = json.loads(raw)
    assert (
        status == 200 and whole["usage"]["completion_tokens"] == 9 and whole["choices"][0]["finish_reason"] == "length"
    )
    status, raw = await request(
        port, "POST", "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    events = [line[6:] for line in raw.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]" and json.loads(events[-2])["usage"]["completion_tokens"] == 9
    assert json.loads(events[0])["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(json.loads(event)["choices"][0]["delta"]["content"] for event in events[1:-2])
    assert len(text.split()) == 9
    prompt = " ".join(f"word{i}" for i in range(64))
    for cached in (0, 63):
        status, raw = await request(
            port, "POST", "/generate", {"text": prompt, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        )
        assert json.loads(raw)["meta_info"]["cached_tokens"] == cached
    assert (await request(port, "POST", "/flush_cache"))[0] == 200
    status, raw = await request(port, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 70000})
    assert status == 400 and b"maximum context length" in raw
    assert (await request(port, "GET", "/nothing"))[0] == 404
    info = json.loads((await request(port, "GET", "/get_server_info"))[1])
    recorded = (
        json.loads((RECORDINGS / "tp1-7b-graph32" / "server_info.json").read_text()) if RECORDINGS.is_dir() else {}
    )
    assert set(recorded) - set(info) == set()
    assert info["tp_size"] == 8 and info["internal_states"][0]["effective_max_running_requests_per_dp"] == 16
    assert json.loads((await request(port, "GET", "/v1/models"))[1])["data"][0]["id"] == "k@study-7"
    metrics = (await request(port, "GET", "/metrics"))[1].decode()
    for name in (
        "cuda_graph_passes_total",
        "num_queue_reqs",
        "time_to_first_token_seconds_bucket",
        "generation_tokens_total",
    ):
        assert f"sglang:{name}" in metrics
    log = server.text()
    assert log.count("CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs") == 8
    assert "NCCL INFO NCCL_PROTO set by environment to LL." in log and "via P2P/IPC" in log

    children = descendants(server.process.pid)
    titles = {Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode() for pid in children}
    assert titles == {*(f"sglang::scheduler_TP{rank}" for rank in range(8)), "sglang::detokenizer"}
    smi = smi_lines(server, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert len(smi) == 8 and {int(line.split(",")[0]) for line in smi} <= set(children)
    assert all(int(line.split(",")[1]) > 60000 for line in smi)
    assert len(smi_lines(server, "topo", "-m")) >= 9
    assert "Product Name" in "\n".join(smi_lines(server, "-q"))

    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert "SIGTERM received" in server.text()
    assert smi_lines(server, "--query-compute-apps=pid", "--format=csv,noheader") == []


async def test_a_killed_rank_takes_the_server_down_and_a_killed_server_its_ranks(
    tmp_path: Path, servers: list[Running]
) -> None:
    first, second = start(tmp_path / "a", "a6000x2-qwen27b", 300), start(tmp_path / "b", "a6000x2-qwen27b", 300)
    servers += [first, second]
    await asyncio.gather(until_ready(first), until_ready(second))
    os.kill(descendants(first.process.pid)[0], signal.SIGKILL)
    assert first.process.wait(5) == -signal.SIGKILL
    children = descendants(second.process.pid)
    second.process.kill()
    second.process.wait()
    for _ in range(100):
        if not any(alive(pid) for pid in children):
            break
        await asyncio.sleep(0.02)
    assert not any(alive(pid) for pid in children)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def smi_lines(server: Running, *args: str) -> list[str]:
    done = subprocess.run(["nvidia-smi", *args], env=server.box.env, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.strip()]


def test_out_of_memory_bad_flag_and_impossible_starts(tmp_path: Path) -> None:
    cases = [
        (("--cuda-graph-max-bs", "256", "--mem-fraction-static", "0.995"), -9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB"),
        (("--cuda-graph-maxbs", "8"), 2, "sglang serve: error: unrecognized arguments: --cuda-graph-maxbs 8"),
        (("--cuda-graph-max-bs", "many"), 2, "invalid int value: 'many'"),
        (("--mem-fraction-static", "0.05"), -9, "Not enough memory. Please try to increase --mem-fraction-static"),
        (("--tp", "2"), 1, "invalid device ordinal"),
        (("--model-path", "/nowhere"), 1, "is not a local folder"),
        (("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "2"), 1, "NoneType"),
    ]  # fmt: skip
    running = [
        (start(tmp_path / str(number), "h200-7b", 200, *extra), code, text)
        for number, (extra, code, text) in enumerate(cases)
    ]
    for server, code, text in running:
        assert server.process.wait(10) == code, server.text()[-1500:]
        assert text in server.text()
    oom = running[0][0].text()
    assert oom.rstrip().endswith("Received sigquit from a child process. It usually means the child failed.")


def test_help_and_version_are_the_real_ones(tmp_path: Path) -> None:
    box = prepare_box("h200-7b", tmp_path)
    done = subprocess.run(
        ["python3", "-m", "sglang.launch_server", "--help"], env=box.env, capture_output=True, text=True, check=True
    )
    if RECORDINGS.is_dir() and (RECORDINGS / "help.txt").is_file():
        real = set(re.findall(r"^  (--[\w-]+)", (RECORDINGS / "help.txt").read_text(), re.M))
        assert set(re.findall(r"^  (--[\w-]+)", done.stdout, re.M)) == real
    version = subprocess.run(
        ["python3", "-c", "import sglang; print(sglang.__version__)"],
        env=box.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert version.stdout.strip() == "0.5.12"


def test_the_server_imports_nothing_but_the_standard_library(tmp_path: Path) -> None:
    box = prepare_box("h200-7b", tmp_path)
    code = "import sglang.launch_server, sys; print('\\n'.join(sorted({n.split('.')[0] for n in sys.modules})))"
    done = subprocess.run(["python3", "-S", "-c", code], env=box.env, capture_output=True, text=True, check=True)
    assert "pydantic" not in done.stdout and "optimizer" not in done.stdout and "simbox" in done.stdout


def test_speculation_messages_and_overrides(tmp_path: Path) -> None:
    server = start(
        tmp_path,
        "h200-7b",
        300,
        "--speculative-algorithm",
        "NEXTN",
        "--speculative-num-steps",
        "3",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "9",
    )
    try:
        asyncio.run(until_ready(server))
        text = server.text()
        assert (
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
            in text
        )
        assert "Max running requests is reset to 48 for speculative decoding." in text
        assert "speculative_num_draft_tokens=4" in text and "max_running_requests=48, context_len=32768" in text
    finally:
        server.stop()


async def test_launches_of_one_box_differ_a_little_and_repeat_on_a_fresh_box(
    tmp_path: Path, servers: list[Running]
) -> None:
    """The load time carries the factor of the launch lottery to four digits."""
    seconds = []
    for root in ("a", "a", "b"):
        server = start(tmp_path / root, "rtx6000x8-k26", 1000)
        servers.append(server)
        await until_ready(server)
        seconds.append(float(re.findall(r"Load weight end. elapsed=([\d.]+) s", server.text())[0]))
        server.stop()
    first, second, again = seconds
    assert first == again
    assert 1e-3 < abs(first / second - 1) < 0.08


def test_chunk_reader() -> None:
    assert chunks(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") == [b"abc", b"de"]
