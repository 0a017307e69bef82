"""Prefill, decode and router are one deployment, not foreign servers of one another; servers that merely share a box are not."""

import json
from typing import Any

import pytest

from optimizer.box.plain.machine import part_of
from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.deployment import described, groups

PREFILL = "python3 -m sglang.launch_server --model-path /m/a --disaggregation-mode prefill --port 30001"
DECODE = "python3 -m sglang.launch_server --model-path /m/a --disaggregation-mode=decode --port=30002"
ROUTER = "python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://10.0.0.1:30001 8998 --decode http://10.0.0.1:30002 --port 8000"
PLAIN = "python3 -m sglang.launch_server --model-path /m/a --port 30003"
KV = '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"%s"}'
PRODUCER = f"vllm serve /m/b --port 8100 {KV % 'kv_producer'}"
CONSUMER = "vllm serve /m/b --port 8200 --kv-transfer-config.kv_role kv_consumer"
PROXY = "python3 toy_proxy_server.py --port 8192 --prefiller-hosts localhost --prefiller-ports 8100 --decoder-hosts localhost --decoder-ports 8200"


@pytest.mark.parametrize(
    ("line", "engine", "part"),
    [
        (PREFILL, "sglang", {"role": "prefill", "port": 30001, "model": "/m/a"}),
        (DECODE, "sglang", {"role": "decode", "port": 30002, "model": "/m/a"}),
        (ROUTER, "sglang-router", {"role": "router", "port": 8000, "workers": [30001, 30002]}),
        (PLAIN, "sglang", {"role": "server", "port": 30003, "model": "/m/a"}),
        (PRODUCER, "vllm", {"role": "prefill", "port": 8100, "model": "/m/b"}),
        (CONSUMER, "vllm", {"role": "decode", "port": 8200, "model": "/m/b"}),
        (PROXY, "router", {"role": "router", "port": 8192, "workers": [8100, 8200]}),
        ("/opt/llama-server -m /m/c.gguf", "llamacpp", {"role": "server", "port": 8080, "model": "/m/c.gguf"}),
        ("vllm serve /m/b --kv-transfer-config broken", "vllm", {"role": "server", "port": 8000, "model": "/m/b"}),
        ("sglang-router --port x --worker-urls", "sglang-router", {"role": "router", "port": 30000, "workers": []}),
    ],
)
def test_the_part_of_a_process_by_its_command_line(line: str, engine: str, part: dict[str, Any]) -> None:
    assert part_of(line.split(" "), engine) == part


def rows(*lines: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"pid": pid, "engine": engine, **part_of(line.split(" "), engine)} for pid, (line, engine) in enumerate(lines, 10)]


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ([(PREFILL, "sglang"), (DECODE, "sglang"), (ROUTER, "sglang-router")], [["router:8000", "prefill:30001", "decode:30002"]]),
        ([(PREFILL, "sglang"), (DECODE, "sglang")], [["prefill:30001", "decode:30002"]]),
        ([(PRODUCER, "vllm"), (PROXY, "router"), (CONSUMER, "vllm")], [["router:8192", "prefill:8100", "decode:8200"]]),
        ([(PLAIN, "sglang"), (PLAIN.replace("30003", "30004"), "sglang")], [["server:30003"], ["server:30004"]]),
        ([(PREFILL, "sglang"), (DECODE.replace("/m/a", "/m/z"), "sglang")], [["prefill:30001"], ["decode:30002"]]),
        ([(PREFILL, "sglang"), (CONSUMER, "vllm")], [["prefill:30001"], ["decode:8200"]]),
        ([(ROUTER, "sglang-router"), (PLAIN, "sglang")], [["router:8000"], ["server:30003"]]),
        ([(PREFILL, "sglang"), (DECODE, "sglang"), (PLAIN, "sglang")], [["prefill:30001", "decode:30002"], ["server:30003"]]),
    ],
)
def test_what_belongs_together(lines: list[tuple[str, str]], parts: list[list[str]]) -> None:
    assert [described(group) for group in groups(rows(*lines))] == parts


def test_a_bundle_of_one_side_counts_one_server_and_names_the_other() -> None:
    def facts(*lines: tuple[str, str]) -> Any:
        host = {"format": 1, "servers": rows(*lines), "server": {"pid": 10, "processes": []}}
        launch = {"engine": "sglang", "argv": PREFILL.split(" "), "ready": True}
        return bundle_from_files({"launch.json": json.dumps(launch).encode(), "host.json": json.dumps(host).encode()}).evidence

    split = facts((PREFILL, "sglang"), (DECODE, "sglang"), (ROUTER, "sglang-router"))
    assert split.value("validity.server_count") == 1
    assert split.value("parallel.roles") == ["router:8000", "prefill:30001", "decode:30002"]
    assert split.value("parallel.disaggregation") == "prefill"
    beside = facts((PREFILL, "sglang"), (PLAIN, "sglang"))
    assert beside.value("validity.server_count") == 2 and beside.get("parallel.roles") is None


@pytest.mark.parametrize("servers", [[], [{}], [{"role": "router", "workers": "x"}], [{"role": 3, "port": []}, {"role": "prefill"}, 7]])
def test_anything_may_stand_there(servers: Any) -> None:
    host = json.dumps({"format": 1, "servers": servers}).encode()
    evidence = bundle_from_files({"launch.json": b'{"engine": "vllm"}', "host.json": host}).evidence
    assert evidence.value("validity.server_count") == len([row for row in servers if isinstance(row, dict)])
