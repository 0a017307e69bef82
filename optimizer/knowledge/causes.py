"""The closed list of causes that ``diagnose`` may name, by family. A playbook whose id is not here says ``local: true``.
Names only: what a cause means and how it shows is said by its playbook."""

from optimizer.model.playbook import Family

CAUSES_BY_FAMILY: dict[Family, tuple[str, ...]] = {
    "config": (
        "cuda-graph-disabled",
        "cuda-graph-batch-uncovered",
        "cuda-graph-dp-attention-sum",
        "cuda-graph-spec-tokens-uncovered",
        "cuda-graph-context-uncovered",
        "cuda-graph-piecewise-only",
        "cuda-graph-mixed-step-uncovered",
        "cuda-graph-feature-forced-eager",
        "tp-too-wide",
        "parallelism-mismatch",
        "dp-ep-imbalance",
    ),
    "interconnect": (
        "nccl-p2p-disabled",
        "custom-allreduce-disabled-pcie",
        "custom-allreduce-hang",
        "acs-iommu-p2p-hang",
        "nccl-proto-channel-mistuned",
        "nccl-p2p-slower-than-shm",
        "nccl-socket-fallback",
        "nccl-version-regression",
        "nccl-env-or-fabric-misconfig",
        "collective-latency-spin",
        "kv-transfer-transport-fallback",
    ),
    "acceptance_length": (
        "spec-draft-too-long",
        "spec-draft-too-short",
        "spec-high-concurrency-loss",
        "spec-step-overhead",
        "spec-acceptance-decay-context",
        "spec-draft-mismatch",
        "spec-acceptance-engine-bug",
        "spec-graph-interaction",
        "spec-workload-unrepresentative",
    ),
    "kernel": (
        "arch-fallback-kernel",
        "attention-backend-suboptimal",
        "quant-kernel-slow-path",
        "moe-config-missing",
        "sampler-slow-path",
        "kv-dtype-kernel-overhead",
        "kernel-regression-version",
        "jit-compile-in-serving",
        "profiler-misattribution",
    ),
    "capacity": (
        "graph-memory-starves-kv",
        "kv-preemption-thrash",
        "kv-capacity-queueing",
        "admission-cap-too-low",
        "request-exceeds-kv-pool",
        "chunked-prefill-interference",
        "prefix-cache-ineffective",
        "mem-fraction-oom",
    ),
    "host_cpu": (
        "scheduler-cpu-overhead",
        "detokenizer-cpu-bound",
        "multimodal-preprocess-cpu-bound",
        "grammar-cpu-bound",
        "cpu-quota-throttling",
        "numa-remote",
        "python-gc-pauses",
    ),
    "client": (
        "client-bound-benchmark",
        "client-concurrency-cap",
        "client-metric-artefact",
    ),
    "hardware": (
        "pcie-link-degraded",
        "power-cap",
        "thermal-throttle",
        "confidential-vm-transfer-overhead",
        "suspect-not-bottleneck",
    ),
    "bug": ("per-process-bimodal",),
}

FAMILY_OF: dict[str, Family] = {cause: family for family, causes in CAUSES_BY_FAMILY.items() for cause in causes}
