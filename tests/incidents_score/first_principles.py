"""One made-up incident or more for every cause, written from what the cause does to a server and not from the published
cases: what its operator would plausibly have seen, with other numbers, often without the most telling line. Each has to
come out first on both engines, alone and beside the facts of a healthy launch.

A line is ``name{label=value,...}=value``; a list is written with ``|``; ``test:`` in front puts it under a cheap test."""

from collections.abc import Iterator
from typing import Any

GPU = "gpu.count=1"
TWO = "gpu.count=2 parallel.tp=2"
FOUR = "gpu.count=4 parallel.tp=4"

# cause -> incidents. Engines: both unless a line starts with "engine=".
STORIES: dict[str, tuple[str, ...]] = {
    "cuda-graph-disabled": (
        f"{GPU} graphs.disable_flag=true decode.idle_gap_share=0.45 client.output_tps=31",
        f"{GPU} graphs.mode=none decode.graph_off_share=1.0 decode.kernels_per_step=820 client.itl_ms_p50=34",
    ),
    "cuda-graph-batch-uncovered": (
        f"{GPU} graphs.capture_max=24 decode.batch_p90=40 client.knee_concurrency=24 graphs.disable_flag=false queue.depth_p95=0",
        f"{GPU} graphs.covers_batch=false graphs.mode=full decode.graph_off_share=0.7 client.concurrency=96",
    ),
    "cuda-graph-dp-attention-sum": (
        "engine=sglang gpu.count=8 parallel.dp=8 parallel.dp_attention=true decode.batch_p90=20 decode.global_batch=160 graphs.capture_max=80 "
        "decode.graph_off_share=0.95 graphs.disable_flag=false",
    ),
    "cuda-graph-spec-tokens-uncovered": (
        f"engine=vllm {GPU} spec.method=mtp spec.draft_tokens=5 decode.batch_p90=16 graphs.required_size=96 graphs.capture_max=64 spec.accept_trend=stable",
        f"engine=vllm {GPU} spec.method=eagle3 spec.draft_tokens=3 startup.warnings=graph_capture_truncated graphs.covers_batch=false decode.batch_p90=2 graphs.capture_max=4",
    ),
    "cuda-graph-context-uncovered": (
        f"engine=vllm {GPU} graphs.max_context_tokens=4096 client.input_tokens=12000 graphs.disable_flag=false feature.lora=loaded",
        f"engine=vllm {GPU} graphs.max_context_tokens=8192 client.input_tokens=9000 model.max_context_tokens=32768 client.output_tps=6",
    ),
    "cuda-graph-piecewise-only": (
        f"{GPU} graphs.mode=piecewise decode.kernels_per_step=130 decode.idle_gap_share=0.2 model.params_total_b=4",
        f"{GPU} graphs.mode=piecewise model.params_total_b=1.5 graphs.disable_flag=false",
    ),
    "cuda-graph-mixed-step-uncovered": (
        f"{GPU} graphs.covers_prefill=false client.itl_ms_p50=11 client.itl_ms_p99=190 decode.step_ms_p50{{phase=decode_only}}=10 "
        "test:probe.recovers{probe=smaller_prefill_chunk}=false",
        f"{GPU} graphs.covers_prefill=false client.itl_ms_p50=20 client.itl_ms_p99=160 decode.step_ms_p50{{phase=mixed}}=140 decode.step_ms_p50{{phase=decode_only}}=19",
    ),
    "cuda-graph-feature-forced-eager": (
        f"{GPU} feature.lora=active decode.graph_off_share=1.0 graphs.disable_flag=false client.output_tps=40",
        f"{GPU} graphs.mode=none spec.accept_len=1.0 spec.method=adaptive graphs.disable_flag=false",
    ),
    "tp-too-wide": (
        "gpu.count=4 parallel.tp=4 model.min_gpus=1 topology.gpu_link=phb gpu.sm_util_p50=48 client.concurrency=64",
        "gpu.count=2 parallel.tp=2 model.min_gpus=1 topology.gpu_link=sys allreduce.share=0.42",
    ),
    "parallelism-mismatch": (
        "gpu.count=8 parallel.pp=2 parallel.nodes=2 test:probe.speed_ratio{probe=nic_bandwidth_x2}=1.0",
        "gpu.count=4 parallel.pp=4 parallel.nodes=4 nccl.transport=net_socket test:probe.speed_ratio{probe=rdma_transport}=1.01",
    ),
    "dp-ep-imbalance": (
        "gpu.count=8 parallel.dp=8 decode.rank_imbalance_ratio=1.7",
        "gpu.count=16 parallel.ep=16 parallel.dp=4 decode.rank_imbalance_ratio=1.45 kernel.time_share{kernel=collective}=0.4",
    ),
    "nccl-p2p-disabled": (
        f"{TWO} topology.p2p=disabled_by_env nccl.transport=shm",
        f"{TWO} topology.p2p=not_supported nccl.transport=shm allreduce.custom=off_no_p2p client.output_tps=44",
    ),
    "custom-allreduce-disabled-pcie": (
        f"{FOUR} allreduce.custom=off_pcie_only topology.gpu_link=node",
        f"{FOUR} allreduce.custom=off_pcie_only startup.warnings=custom_allreduce_off allreduce.latency_us{{path=nccl}}=26 allreduce.share=0.18",
    ),
    "custom-allreduce-hang": (
        f"{TWO} scheduler.stalled=true gpu.sm_util_p50=100 gpu.power_share=0.28 allreduce.custom=on scheduler.stall_ops=one_shot_all_reduce",
        f"{FOUR} startup.outcome=hang gpu.sm_util_p50=99 allreduce.custom=on test:probe.recovers{{probe=custom_allreduce_off}}=true",
    ),
    "acs-iommu-p2p-hang": (
        f"{TWO} topology.peer_redirect=acs startup.outcome=hang",
        f"{TWO} topology.peer_redirect=iommu scheduler.stalled=true test:probe.recovers{{probe=nccl_p2p_off}}=true",
    ),
    "nccl-proto-channel-mistuned": (
        f"{FOUR} nccl.protocol=simple nccl.channels=2 topology.gpu_link=sys allreduce.latency_us{{path=nccl}}=70",
        f"{FOUR} nccl.protocol=simple allreduce.latency_us{{path=nccl}}=55 allreduce.custom=off_pcie_only topology.gpu_link=phb nccl.channels=1",
    ),
    "nccl-p2p-slower-than-shm": (
        f"{FOUR} nccl.transport=p2p topology.gpu_link=sys client.concurrency=128 test:probe.speed_ratio{{probe=nccl_shm}}=1.3",
        f"{FOUR} nccl.transport=p2p allreduce.bus_bw_gb_s{{path=nccl_p2p}}=5.1 allreduce.bus_bw_gb_s{{path=nccl_shm}}=9.8",
    ),
    "nccl-socket-fallback": (
        "gpu.count=16 parallel.nodes=2 nccl.transport=net_socket network.rdma_devices=0",
        "gpu.count=8 parallel.nodes=2 parallel.tp=8 nccl.transport=net_socket network.latency_us{path=tcp}=34 nccl.error_lines=libibverbs.so.1_not_found",
    ),
    "nccl-version-regression": (
        f"{FOUR} nccl.version=2.27.3 validity.run_cv=0.24 test:reference.speed_ratio{{differs=nccl_version}}=0.63",
    ),
    "nccl-env-or-fabric-misconfig": (
        "gpu.count=16 parallel.nodes=2 startup.outcome=hang network.rdma_devices=4 nccl.env=conf:NCCL_IB_HCA=mlx5_9 test:probe.recovers{probe=tcp_only}=true",
        "gpu.count=16 parallel.nodes=2 startup.outcome=hang nccl.error_lines=ibv_modify_qp_failed_with_110 nccl.env=conf:NCCL_SOCKET_IFNAME=bond0",
    ),
    "collective-latency-spin": (
        "gpu.count=8 parallel.tp=8 gpu.sm_util_p50=100 gpu.power_share=0.33 allreduce.share=0.5",
        "gpu.count=8 parallel.tp=8 gpu.sm_util_p50=99 gpu.power_share=0.4 reference.speed_ratio{differs=host}=0.55",
    ),
    "kv-transfer-transport-fallback": (
        "gpu.count=8 parallel.disaggregation=pair kv.transfer_ms=900 network.rdma_devices=0",
        "gpu.count=8 parallel.disaggregation=decode kv.transfer_timeouts=6 test:probe.recovers{probe=transfer_backend_other}=true",
    ),
    "spec-draft-too-long": (
        f"{GPU} spec.method=mtp spec.draft_tokens=5 spec.accept_by_position=0.8|0.55|0.35|0.2|0.1 client.concurrency=12",
        f"{GPU} spec.method=eagle3 spec.draft_tokens=6 spec.accept_share=0.3 spec.accept_by_position=0.6|0.5|0.3|0.2|0.15|0.1 spec.speed_ratio=0.93 client.concurrency=8",
    ),
    "spec-draft-too-short": (
        f"{GPU} spec.method=mtp spec.draft_tokens=1 spec.accept_share=0.86 client.concurrency=1 roofline.bound{{phase=decode}}=hbm",
        f"{GPU} spec.method=eagle spec.draft_tokens=2 spec.accept_share=0.7 spec.speed_ratio=1.4 client.concurrency=2",
    ),
    "spec-high-concurrency-loss": (
        f"{GPU} spec.method=mtp spec.draft_tokens=3 client.concurrency=64 test:spec.speed_ratio=0.81",
        f"{GPU} spec.method=eagle client.request_rate=30 roofline.bound=compute test:spec.speed_ratio=0.88",
    ),
    "spec-step-overhead": (
        f"{TWO} spec.method=mtp spec.draft_tokens=1 spec.accept_share=0.9 spec.step_ratio=2.2 client.concurrency=1 test:spec.speed_ratio=0.85",
        f"{GPU} spec.method=draft_model spec.draft_tokens=4 client.concurrency=2 spec.accept_by_position=0.95|0.9|0.88|0.85 test:spec.speed_ratio=0.9",
    ),
    "spec-acceptance-decay-context": (
        f"{GPU} spec.method=mtp spec.accept_len=1.2 client.input_tokens=48000 test:probe.recovers{{probe=speculation_off,context_tokens=48000}}=true",
        f"{GPU} spec.method=eagle3 spec.draft_tokens=3 spec.accept_len=1.3 client.input_tokens=100000 client.concurrency=1",
    ),
    "spec-draft-mismatch": (
        f"{GPU} spec.method=mtp spec.accept_share=0.01 startup.warnings=spec_loader_key_missing",
        f"{GPU} spec.method=eagle3 spec.accept_share=0.02 spec.draft_tokens=3 test:spec.accept_share{{checkpoint=native}}=0.74",
    ),
    "spec-acceptance-engine-bug": (
        f"{GPU} spec.method=mtp spec.accept_trend=falling kv.prefix_cache=true test:probe.recovers{{probe=restart}}=true",
        f"{GPU} spec.method=eagle spec.accept_len=1.5 test:probe.speed_ratio{{probe=engine_previous,metric=spec.accept_len}}=1.35",
    ),
    "spec-graph-interaction": (
        f"{GPU} spec.method=eagle graphs.mode=full validity.output_ok=true test:probe.speed_ratio{{probe=graphs_off,metric=spec.accept_len}}=1.4",
    ),
    "spec-workload-unrepresentative": (
        f"{GPU} spec.method=mtp spec.simulated=true client.prompt_source=random spec.draft_tokens=3 client.concurrency=4",
        f"{GPU} spec.method=eagle3 client.prompt_source=random spec.accept_share=0.12 test:probe.speed_ratio{{probe=real_prompts}}=1.5",
    ),
    "arch-fallback-kernel": (
        f"{GPU} gpu.arch=sm_120 startup.warnings=weight_only_fallback kernel.attention_forced=false",
        f"{GPU} gpu.arch=sm_121 startup.warnings=attention_single_candidate|fp4_not_native roofline.decode_ratio=0.12 graphs.mode=full",
    ),
    "attention-backend-suboptimal": (
        f"{GPU} gpu.arch=sm_90 kernel.attention_backend=triton kernel.attention_forced=false",
        f"{GPU} gpu.arch=sm_100 kernel.attention_backend=flashinfer kernel.attention_forced=true test:probe.speed_ratio{{probe=attention_backend}}=1.17",
    ),
    "quant-kernel-slow-path": (
        f"{GPU} model.quantization=gptq kernel.quant_flag=gptq roofline.decode_ratio=0.15",
        f"{GPU} model.quantization=awq kernel.quant_flag=awq client.output_tps=19",
    ),
    "moe-config-missing": (
        f"{GPU} model.moe_experts=128 kernel.moe_config=default startup.warnings=moe_default_config kernel.time_share{{kernel=moe}}=0.45",
        f"{GPU} model.moe_experts=64 kernel.moe_config=other_version kernel.time_share{{kernel=moe}}=0.3 test:probe.speed_ratio{{probe=moe_tune}}=1.12",
    ),
    "sampler-slow-path": (
        f"{GPU} client.sampling=top_p kernel.sampler_backend=pytorch startup.warnings=sampler_native",
        f"{GPU} client.sampling=top_k test:probe.speed_ratio{{probe=no_top_p_top_k}}=1.25",
    ),
    "kv-dtype-kernel-overhead": (
        f"{GPU} kv.dtype=fp8 decode.batch_p50=2 client.concurrency=2 test:probe.speed_ratio{{probe=kv_bf16}}=1.14",
    ),
    "kernel-regression-version": (
        f"{GPU} engine.version=0.5.20 reference.speed_ratio{{differs=engine_version}}=0.82 spec.accept_trend=stable",
        f"{GPU} test:probe.speed_ratio{{probe=engine_previous}}=1.2",
    ),
    "jit-compile-in-serving": (
        f"{GPU} kernel.jit_in_serving=14 test:validity.repeat_ratio=1.6",
        f"{GPU} kernel.jit_in_serving=5 client.ttft_ms_p50=2400",
    ),
    "profiler-misattribution": (
        f"{GPU} host.stack_share{{process=engine,frame=item}}=0.82 gpu.sm_util_p50=88 host.proc_cpu_pct{{process=engine}}=100",
    ),
    "graph-memory-starves-kv": (
        f"{GPU} graphs.capture_memory_gib=2.6 kv.usage_p95=0.97 graphs.capture_max=256 client.ttft_ms_p50=2100 "
        "test:probe.speed_ratio{probe=graphs_off}=1.0 test:probe.speed_ratio{probe=graphs_off,metric=client.ttft_ms_p50}=1.6",
    ),
    "kv-preemption-thrash": (
        f"{GPU} kv.preemptions=140 kv.usage_p95=1.0 queue.depth_p95=12",
        f"{GPU} kv.preemptions=9 kv.usage_p95=0.98 client.concurrency=48 client.itl_ms_p99=900 client.itl_ms_p50=120",
    ),
    "kv-capacity-queueing": (
        f"{GPU} queue.reason=capacity queue.depth_p95=7 kv.max_full_length_requests=1.6 scheduler.max_running=64 decode.batch_p90=3",
        f"{GPU} queue.depth_p95=20 kv.usage_p95=0.97 decode.batch_p90=11 scheduler.max_running=256 kv.preemptions=0",
    ),
    "admission-cap-too-low": (
        f"{GPU} scheduler.max_running=8 decode.batch_p90=8 queue.depth_p95=56 kv.usage_p95=0.06 client.concurrency=64",
        f"{GPU} queue.reason=slots queue.depth_p95=30 scheduler.max_running=48 decode.batch_p90=48 client.knee_concurrency=48",
    ),
    "request-exceeds-kv-pool": (
        f"{GPU} scheduler.stalled=true decode.batch_p50=0 queue.depth_p95=3 gpu.sm_util_p50=0",
        f"{GPU} scheduler.stalled=true queue.depth_p95=1 kv.max_full_length_requests=0.4 gpu.sm_util_p50=1",
    ),
    "chunked-prefill-interference": (
        f"{GPU} prefill.chunk_ms=650 prefill.burst_chunks=9 decode.stall_s_max=4.8",
        f"{GPU} client.output_tps{{phase=decode_only}}=900 client.output_tps{{phase=with_prefill}}=120 prefill.chunk_ms=300",
    ),
    "prefix-cache-ineffective": (
        f"{GPU} kv.prefix_cache=true kv.prefix_hit_share=0.0 client.prompt_source=repeated model.hybrid_state=true",
        f"{GPU} kv.prefix_cache=false client.prompt_source=repeated client.ttft_ms_p50=3000",
    ),
    "mem-fraction-oom": (
        f"{GPU} startup.outcome=oom gpu.memory_free_gib=0.3",
        f"{GPU} gpu.error_count{{kind=oom}}=1 validity.foreign_gpu_processes=2 gpu.memory_free_gib=0.1",
    ),
    "scheduler-cpu-overhead": (
        f"{GPU} scheduler.overlap=false host.cpu_sat=1.0 decode.idle_gap_share=0.3 model.params_total_b=3",
        f"{GPU} host.stack_share{{process=engine,frame=scheduling}}=0.4 host.cpu_sat=0.97 decode.idle_gap_share=0.35 gpu.sm_util_p50=55",
    ),
    "detokenizer-cpu-bound": (
        f"{GPU} client.engine_itl_ratio=2.6 client.concurrency=512 host.proc_cpu_pct{{process=detokenizer}}=100",
        f"{GPU} client.engine_itl_ratio=1.8 queue.depth_p95=0 startup.warnings=slow_tokenizer test:probe.speed_ratio{{probe=skip_tokenizer_init}}=2.0",
    ),
    "multimodal-preprocess-cpu-bound": (
        f"{GPU} client.images_per_request=4 client.running_share=0.2 queue.depth_p95=0 client.ttft_ms_p50=14000",
        f"{GPU} client.images_per_request=1 client.running_share=0.4 host.proc_cpu_pct{{process=api_server}}=100 gpu.sm_util_p50=25",
    ),
    "grammar-cpu-bound": (
        f"{GPU} feature.structured_output=true host.cpu_sat=0.98 gpu.sm_util_p50=30 test:probe.speed_ratio{{probe=grammar_off}}=3.1",
        f"{GPU} feature.structured_output=true host.proc_cpu_pct{{process=engine}}=100 gpu.sm_util_p50=22 host.cpu_throttled_periods=0",
    ),
    "cpu-quota-throttling": (
        f"{GPU} host.cpu_throttled_periods=420 host.cpu_quota_cores=4 host.cpu_count=96 decode.stall_s_max=0.4",
        f"{GPU} host.cpu_throttled_periods=37 client.itl_ms_p50=15 client.itl_ms_p99=110",
    ),
    "numa-remote": (
        f"{TWO} host.numa_remote_share=0.7 feature.cpu_offload=true",
        f"{TWO} host.numa_remote_share=0.9 test:probe.speed_ratio{{probe=numa_bind_per_rank}}=1.12",
    ),
    "python-gc-pauses": (
        f"{GPU} host.gc_pause_ms_max=310 client.itl_ms_p99=330 client.itl_ms_p50=14 queue.depth_p95=0",
        f"{GPU} host.gc_pause_ms_max=180 reference.speed_ratio{{differs=before_overload}}=0.7",
    ),
    "client-bound-benchmark": (
        f"{GPU} client.output_tps=900 test:client.output_tps{{target=second_client}}=3100",
        f"{GPU} host.proc_cpu_pct{{process=client}}=100 client.running_share=0.4 queue.depth_p95=0",
        f"{GPU} client.concurrency=1 client.output_tps=80 test:probe.speed_ratio{{probe=concurrency_up}}=5.5",
    ),
    "client-concurrency-cap": (
        f"{GPU} client.via_proxy=true client.knee_concurrency=128 queue.depth_p95=0 test:probe.recovers{{probe=direct_to_engine}}=true",
        f"{GPU} decode.batch_p90=100 client.concurrency=400 queue.depth_p95=0 client.knee_concurrency=100",
    ),
    "client-metric-artefact": (
        f"{GPU} client.ttft_ms_p50{{delta=any}}=210 client.ttft_ms_p50{{delta=content}}=6400 client.engine_itl_ratio=1.0",
    ),
    "pcie-link-degraded": (
        f"{GPU} pcie.link_share=0.25 pcie.usage_share{{phase=prefill}}=0.93",
        f"{GPU} pcie.link_share=0.5 pcie.usage_share=0.85 reference.speed_ratio{{differs=host}}=0.7",
    ),
    "power-cap": (
        f"{GPU} gpu.power_limit_share=0.6 gpu.sm_clock_share=0.7 gpu.throttle_share{{reason=sw_power_cap}}=0.97",
        f"{GPU} gpu.power_limit_share=0.7 gpu.throttle_share{{reason=sw_power_cap}}=0.8 reference.speed_ratio{{differs=host,phase=prefill}}=0.75 "
        "reference.speed_ratio{differs=host,phase=decode}=0.77",
    ),
    "thermal-throttle": (
        f"{GPU} gpu.throttle_share{{reason=sw_thermal}}=0.5 gpu.sm_clock_share=0.5",
        f"{GPU} gpu.throttle_share{{reason=hw_thermal}}=0.2 gpu.sm_clock_share=0.6",
    ),
    "confidential-vm-transfer-overhead": (
        f"{GPU} gpu.confidential_compute=true reference.speed_ratio{{differs=engine_version}}=0.4 test:probe.speed_ratio{{probe=same_upgrade_other_host}}=1.0",
        f"{GPU} gpu.confidential_compute=true reference.speed_ratio{{differs=gpu_mode}}=0.5",
    ),
    "suspect-not-bottleneck": (
        f"{GPU} kernel.moe_config=default startup.warnings=moe_default_config kernel.time_share{{kernel=moe}}=0.08",
        f"{GPU} gpu.throttle_share{{reason=sw_power_cap}}=0.9 gpu.mem_clock_share=1.0 roofline.bound{{phase=decode}}=hbm",
        f"{GPU} pcie.link_share=0.25 pcie.link_gb_s=4 pcie.usage_share{{phase=decode}}=0.05",
    ),
    "per-process-bimodal": (
        f"{GPU} host.cpu_throttled_periods=0 validity.run_cv=0.2 test:validity.restart_ratio=1.55",
    ),
}


def incidents() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """(cause, engine, number of the story, case) for every story on every engine that it is told of."""
    for cause, stories in STORIES.items():
        for number, story in enumerate(stories):
            words = story.split()
            named = [word.partition("=")[2] for word in words if word.startswith("engine=")]
            for engine in named or ("sglang", "vllm"):
                yield cause, engine, number, _case(engine, [word for word in words if not word.startswith("engine=")])


def _case(engine: str, words: list[str]) -> dict[str, Any]:
    facts: list[dict[str, Any]] = [{"name": "engine.name", "value": engine, "basis": "reported"}]
    measured: list[dict[str, Any]] = []
    for word in words:
        tested = word.startswith("test:")
        (measured if tested else facts).append(_fact(word.removeprefix("test:")))
    return {
        "format": 1, "engine": engine, "engine_version": {"sglang": "0.5.12", "vllm": "0.24.0"}[engine],
        "gpu_count": next((fact["value"] for fact in facts if fact["name"] == "gpu.count"), 1), "argv": None,
        "known_flags": [], "env": {}, "log_lines": [], "facts": facts,
        "tests": [{"name": "settings_sweep", "facts": measured}] if measured else [],
    }  # fmt: skip


def _fact(word: str) -> dict[str, Any]:
    head, _, text = word.partition("}=") if "}=" in word else word.partition("=")
    name, _, inside = head.partition("{")
    labels = {key: _value(value) for key, _, value in (part.partition("=") for part in inside.split(",") if part)}
    lists = ("startup.warnings", "nccl.env", "nccl.error_lines", "scheduler.stall_ops", "spec.accept_by_position")
    value = [_value(part) for part in text.split("|")] if name in lists else _value(text)
    return {"name": name, "value": value, "labels": labels, "basis": "measured"}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.replace("_not_found", " not found") if "lib" in text else text
