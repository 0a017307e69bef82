"""Says why a fact of the vocabulary was not found: it does not apply here, nothing that could tell it was collected, what was
collected is silent, or this tool never collects it. Decides nothing from it."""

from collections.abc import Callable, Collection, Mapping, Sequence

from optimizer.model.evidence import Evidence

# Facts of the vocabulary that only a case file, a person or a special test states; a test keeps this list honest.
UNYIELDED: Mapping[str, str] = {
    "allreduce.bus_bw_gb_s": "it takes a benchmark on idle GPUs (all_reduce_perf)",
    "allreduce.latency_us": "it takes a benchmark on idle GPUs (all_reduce_perf)",
    "allreduce.share": "it takes a trace of a few decode steps (test gpu_timeline)",
    "client.images_per_request": "the load generator sends text only",
    "client.sampling": "the recorded benchmark does not say how its requests were sampled",
    "client.via_proxy": "the load generator talks to the engine itself; what stands before it for others nobody can see",
    "decode.idle_gap_share": "it takes a trace of a few decode steps (test gpu_timeline)",
    "decode.kernels_per_step": "it takes a trace of a few decode steps (test gpu_timeline)",
    "decode.stall_s_max": "the recorded benchmark keeps no time of each token",
    "feature.structured_output": "what requests ask for stands neither in the log nor in the metrics",
    "host.stack_share": "it takes stack samples of the serving processes (test cpu_profile)",
    "kernel.time_share": "it takes a trace of a few decode steps (test gpu_timeline)",
    "kv.transfer_ms": "no server that was read hands its cache to another one",
    "kv.transfer_timeouts": "no server that was read hands its cache to another one",
    "network.latency_us": "it takes a benchmark between two hosts",
    "prefill.burst_chunks": "the log does not say which prefill lines follow each other without a decode step",
    "prefill.chunk_ms": "the log does not time a single chunk",
    "probe.recovers": "it takes the named change and a second look",
    "scheduler.stall_ops": "it takes stack samples of a server that stands still",
    "validity.foreign_request_share": "it takes the server's counters before and after our own load",
    "validity.kv_pool_ratio": "it takes an earlier launch with the same settings on this box",
    "validity.output_ok": "the recorded benchmark keeps no output",
    "validity.restart_ratio": "it takes several starts with the same settings",
}
# Collector of the vocabulary -> files of a bundle that it reads.
_FILES: Mapping[str, tuple[str, ...]] = {
    "argv": ("launch.json",),
    "environ": ("launch.json", "host.json"),
    "server_info": ("server_info.json", "server.log"),
    "startup_log": ("server.log",),
    "steady_log": ("server.log",),
    "metrics": ("metrics.txt", "metrics_load.txt"),
    "nvidia_smi": ("nvidia-smi-q.txt", "gpu.csv", "gpu_processes.csv", "rocm-smi.json", "amd-smi-metric.json"),
    "topo": ("topo.txt", "topo_p2p.txt", "rocm-smi.json"),
    "lspci": ("lspci.txt",),
    "nccl_log": ("nccl.log", "server.log"),
    "config_json": ("config.json",),
    "client": ("bench.json",),
    "host": ("host.json",),
}
_TESTS: Mapping[str, str] = {
    "microbench": "a benchmark on idle GPUs or hosts",
    "gpu_timeline": "a trace of a few steps",
    "cpu_sample": "stack samples",
    "repeat": "a repeated measurement",
    "journal": "an earlier measurement to compare with (a second --evidence)",
    "client": "load from our own client",
}
_Test = Callable[[Evidence], bool]


def _no_gpu(evidence: Evidence) -> bool:
    return evidence.value("engine.device") == "cpu" or evidence.value("gpu.count") == 0


def _alone(evidence: Evidence) -> bool:
    sizes = [evidence.number(name) for name in ("parallel.tp", "parallel.pp", "parallel.dp", "parallel.nodes")]
    return any(size is not None for size in sizes) and all(size in (None, 1.0) for size in sizes)


def _is(name: str, *values: object) -> _Test:
    return lambda evidence: evidence.value(name) in values


# Prefixes or names, when, why. The first that applies is the reason.
_DOES_NOT_APPLY: tuple[tuple[tuple[str, ...], _Test, str], ...] = (
    (("gpu.", "pcie.", "topology.", "nccl.", "allreduce.", "network.", "roofline.", "host.numa_remote_share", "host.numa_nodes",
      "validity.foreign_gpu_processes", "model.min_gpus"), _no_gpu, "the engine runs on a CPU: there is no GPU to ask"),
    (("graphs.", "decode.graph_", "prefill.graph_"), _no_gpu, "the engine runs on a CPU: nothing is captured there"),
    (("nccl.", "allreduce.", "topology.p2p", "topology.peer_redirect", "network."), _alone, "one rank: nothing is exchanged between GPUs"),
    (("decode.rank_imbalance_ratio", "decode.global_batch", "kernel.moe_a2a"), _alone, "one rank: there is nothing to compare"),
    (("spec.", "graphs.draft_captured", "memory.draft_weights_gib"), _is("spec.method", "none"), "speculation is off"),
    (("kernel.moe_", "model.experts_per_token"), _is("model.moe_experts", 0), "the model has no experts"),
    (("kernel.linear_backend",), _is("model.quantization", "none"), "the weights are not quantised"),
    (("kv.transfer_", "parallel.disaggregation"), _is("parallel.disaggregation", "none"), "one server does both prefill and decode"),
    (("kv.prefix_hit_share",), _is("kv.prefix_cache", False), "the prefix cache is off"),
    (("model.state_bytes_per_request", "kv.aux_usage_p95"), _is("model.hybrid_state", False), "the model keeps no state beside its KV cache"),
    (("startup.cause", "startup.message"), _is("startup.outcome", "ok"), "the start did not fail"),
    (("startup.fallback",), _is("startup.outcome", "ok"), "the log names no setting that it fell back for"),
    (("engine.model_runner", "engine.generation", "kernel.compile_mode"), _is("engine.name", "sglang"), "vLLM says so, SGLang has no such thing"),
    (("scheduler.max_prefill_tokens", "spec.topk", "spec.steps", "memory.fraction_static"), _is("engine.name", "vllm"), "SGLang says so, vLLM has no such setting"),
    (("settings.overridden",), _is("validity.config_as_requested", True), "every flag that was given is in force"),
    (("validity.version_conflict",), lambda _: True, "the files do not contradict each other"),
    (("gpu.models_differ",), lambda evidence: evidence.get("gpu.name") is not None, "the GPUs are all of one kind"),
    (("nccl.error_lines",), lambda evidence: evidence.get("startup.outcome") is not None, "the log shows no error of NCCL"),
    (("validity.servers_in_log", "validity.failed_starts"), _is("startup.outcome", "ok"), "one server wrote the log, and its start succeeded"),
    (("scheduler.stalled",), lambda evidence: evidence.get("startup.outcome") is not None, "the log shows no minute without a finished step"),
    (("parallel.roles",), lambda evidence: evidence.get("validity.server_count") is not None, "the box runs no router and no server with a role of its own"),
    (("host.gc_pause_ms_max",), lambda evidence: evidence.get("startup.outcome") is not None, "the log tells of no long garbage collection"),
    (("kv.token_readings_missing",), lambda evidence: evidence.get("decode.lines") is not None, "every line printed how full the pool was"),
    (("scheduler.policy",), lambda evidence: evidence.get("settings.resolved") is not None, "the policy is the default one"),
)  # fmt: skip


def why_absent(name: str, collectors: Sequence[str], phase: str, evidence: Evidence, files: Collection[str], kind: str = "launch") -> str:
    """The reason why ``name`` is not among the facts. ``collectors``, ``phase``: of its vocabulary entry; ``files``: what the
    bundle held."""
    for item in evidence.missing:
        if item.name == name and not item.reason.startswith("the bundle has no "):
            return item.reason
    for names, applies, reason in _DOES_NOT_APPLY:
        if any(name == one or (one[-1] in "._" and name.startswith(one)) for one in names) and applies(evidence):
            return reason
    if kind == "case":
        return "the case does not state it"
    if (reason := UNYIELDED.get(name, "")) or (reason := _needed(phase, collectors)):
        return reason
    wanted = [file for collector in collectors for file in _FILES.get(collector, ())]
    read = [file for file in dict.fromkeys(wanted) if file in files]
    if wanted and not read:
        needed = sorted(set(wanted))
        return f"{needed[0]} was not collected" if len(needed) == 1 else f"none of {', '.join(needed)} was collected"
    if "steady_log" in collectors and not evidence.number("decode.lines") and not evidence.number("prefill.lines") and "server.log" in files:
        return "the log shows no step under load" + ("" if "metrics" not in collectors else ", and the metrics do not tell it")
    if read:
        return f"{', '.join(read)} {'does' if len(read) == 1 else 'do'} not say it"
    return "it follows from other facts, and one of those is missing"


def _needed(phase: str, collectors: Sequence[str]) -> str:
    if phase == "probe" or (collectors and all(collector in ("microbench", "gpu_timeline", "cpu_sample", "repeat", "journal") for collector in collectors)):
        needs = [_TESTS[collector] for collector in collectors if collector in _TESTS]
        return f"it takes {' or '.join(dict.fromkeys(needs))}" if needs else "it takes a test"
    return ""
