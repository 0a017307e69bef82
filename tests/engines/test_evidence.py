"""Everything that applies is read from a live server: what is missing has a reason that a person accepts, and no secret leaves."""

from __future__ import annotations

import time

import pytest

from .conftest import SECRET, Launch, Tool, owners, rate_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

# What one server of one rank on a CPU must tell, by whichever source.
BOTH = {
    "engine.name", "engine.version", "engine.device", "model.params_total_b", "model.weights_gib", "model.kv_bytes_per_token",
    "model.quantization", "model.moe_experts", "model.hybrid_state", "model.max_context_tokens", "model.family", "model.mtp_layers", "parallel.tp",
    "parallel.pp", "parallel.dp", "parallel.ep", "parallel.nodes", "parallel.disaggregation", "feature.lora", "feature.cpu_offload",
    "graphs.mode", "graphs.disable_flag", "decode.batch_p50", "decode.batch_p90", "decode.throughput_tps", "prefill.throughput_tps",
    "kv.pool_tokens", "kv.usage_p95", "kv.dtype", "kv.block_tokens", "kv.preemptions", "kv.prefix_cache", "kv.prefix_hit_share",
    "kv.bytes_per_token", "queue.depth_p95", "scheduler.max_running", "spec.method", "kernel.attention_forced", "host.cpu_count",
    "host.cpu_steal_pct", "host.cpu_sat", "host.proc_cpu_pct", "host.frontend_workers", "host.memory_available_gib", "startup.outcome",
    "startup.phase_s", "validity.server_count", "settings.asked", "settings.env_differs", "settings.env_added", "server.requests_total",
    "server.output_tokens_total", "server.mean_ttft_ms", "log.unrecognised_lines",
}  # fmt: skip
OWN = {
    "sglang": {"settings.resolved", "validity.config_as_requested", "scheduler.overlap", "prefill.chunk_tokens", "kernel.attention_backend",
               "kernel.sampler_backend", "memory.weights_gib", "decode.step_ms_p50"},
    "vllm": {"engine.generation"},
}  # fmt: skip
# Reasons that explain themselves: it does not apply here, or it takes something that reading alone does not have.
ACCEPTED = (
    "the engine runs on a CPU", "one rank", "speculation is off", "the model ", "the weights are not", "one server ", "the start ", "it takes ",
    "bench.json", "every ", "the files do not", "the policy is", "the box ", "no CPU limit", "nobody ", "SGLang says so", "vLLM says so", "the log ",
    "what requests ask", "the recorded benchmark", "the load generator", "no server that was read", "it follows from", "no line ",
)  # fmt: skip
# The source was read and is silent on this machine: a CPU build, or a counter that this release does not have.
SILENT = {
    "queue.reason", "client.running_share", "client.served_share", "client.engine_itl_ratio", "server.in_flight_p90", "server.aborted_requests",
    "server.mean_itl_ms", "host.cpu_governor", "host.proc_cpu_s", "kv.token_readings_missing", "validity.servers_in_log", "validity.failed_starts",
    "prefill.chunk_tokens", "scheduler.overlap", "kernel.attention_backend", "kernel.attention_prefill", "kernel.sampler_backend",
    "memory.weights_gib", "memory.kv_gib", "memory.free_gib", "prefill.tokens_per_step_p50", "prefill.lines", "prefill.eager_passes",
    "decode.eager_passes", "decode.step_ms_p50", "startup.reason", "kernel.jit_in_serving",
}  # fmt: skip


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_fact_that_applies_is_there(name: str, request: pytest.FixtureRequest, tool: Tool) -> None:
    launch: Launch = request.getfixturevalue(f"shared_{name}")
    where = ("--host", "localhost", "--port", str(launch.port))
    before = owners(launch.port)
    rate_of(launch, window_s=10.0)
    began = time.monotonic()
    sheet = tool("diagnose", *where)
    first_s = time.monotonic() - began
    assert sheet.exit == 0, sheet.err
    assert "Evidence" in sheet.out and "Missing, and why" in sheet.out and len(sheet.out.splitlines()) < 130
    began = time.monotonic()
    again = tool("diagnose", *where, "--json")
    again_s = time.monotonic() - began
    assert again_s < max(30.0, 2 * first_s), f"the second look takes {again_s:.0f} s, the first took {first_s:.0f} s"
    found = again.json
    facts = {fact["fact"] for fact in found["facts"]}
    assert (BOTH | OWN[name]) - facts == set()
    silent = {item["fact"]: item["reason"] for item in found["missing"] if not item["reason"].startswith(ACCEPTED)}
    assert {fact: reason for fact, reason in silent.items() if fact not in SILENT} == {}
    assert [fact for fact in found["facts"] if "." in fact["source"] and fact.get("line") is None and "span" not in fact] == []
    assert [fact["fact"] for fact in found["facts"] if fact.get("odd") == "impossible"] == []
    assert SECRET not in sheet.out + sheet.err + again.out + again.err
    assert owners(launch.port) == before and tool.marked() == {}


@pytest.mark.parametrize(
    ("name", "version", "slots"),
    [("vllm", "0.32.0", "max_num_seqs"), ("sglang", "0.5.23", "max_running_requests")],
)
def test_a_plan_for_a_running_server_leaves_it_alone(name: str, version: str, slots: str, request: pytest.FixtureRequest, tool: Tool) -> None:
    launch: Launch = request.getfixturevalue(f"shared_{name}")
    before = owners(launch.port)
    planned = tool("plan", "--host", "localhost", "--port", str(launch.port), "--json")
    assert planned.exit == 0, planned.err
    assert (planned.json["engine"], planned.json["engine_version"], planned.json["running_server"]) == (name, version, True)
    # Only a build whose --help was read refuses anything; SGLang's needs the server's own PYTHONPATH.
    assert planned.json["given"][slots] == 4 and planned.json["unknown_flags"] == [] and planned.json["spaces"]
    assert planned.json["would_restore"] == list(launch.argv)
    assert SECRET not in planned.out + planned.err
    assert owners(launch.port) == before and tool.marked() == {}
