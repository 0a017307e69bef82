"""Sockets between ranks are the fallback of a network only where there is one: several hosts, by the command line, the wiring, or
NCCL's own count."""

import json
from pathlib import Path

import pytest

from optimizer.evidence.bundle import bundle_from_case, bundle_from_files
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.runner.diagnose import diagnose

ROOT = Path(__file__).parents[3]
SOCKETS: dict[str, Value] = {"nccl.transport": "net_socket", "network.rdma_devices": 0, "nccl.error_lines": ["Failed to open libibverbs.so[.1]"]}


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(ROOT))


@pytest.mark.parametrize(
    ("hosts", "named"),
    [({"parallel.nodes": 2}, True), ({"topology.gpu_link": "network"}, True), ({}, False), ({"parallel.nodes": 1}, False)],
)
def test_the_fallback_of_a_network_needs_a_network(library: Library, hosts: dict[str, Value], named: bool) -> None:
    facts = [{"name": name, "value": value} for name, value in {**SOCKETS, **hosts}.items()]
    found = diagnose(bundle_from_case(json.dumps({"engine": "vllm", "facts": facts}).encode()), library)
    told = found.verdict == "diagnosed" and found.hypotheses[0].id == "nccl-socket-fallback"
    assert told is named
    if hosts.get("parallel.nodes") == 1:
        assert found.hypotheses[0].id != "nccl-socket-fallback" and "between the hosts" not in (found.next_step or "")


@pytest.mark.parametrize(("hosts", "named"), [(1, False), (2, True)])
def test_nccl_says_how_many_hosts_there_are(library: Library, hosts: int, named: bool) -> None:
    said = (f"h:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes {hosts} localRanks {4 // hosts} localRank 0 MNNVL 0\n"
            "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0\n")  # fmt: skip
    launch = {"name": "a", "engine": "vllm", "argv": ["vllm", "serve", "m", "--distributed-executor-backend", "ray"], "ready": True}
    found = diagnose(bundle_from_files({"launch.json": json.dumps(launch).encode(), "nccl.log": said.encode()}), library)
    nodes = next(fact for fact in found.facts if fact.fact == "parallel.nodes")
    assert (nodes.value, nodes.source, nodes.line) == (hosts, "nccl.log", 1)
    best = next(item for item in found.hypotheses if item.id == "nccl-socket-fallback")
    assert (best.score_db > 0) is named
