"""In which builds an engine spells a flag how, for evidence that comes without a ``--help`` text. Responsible for the flags
that were renamed only; where the help of a build is there, it alone decides."""

from optimizer.core.builds import in_builds

# Read in 28 releases of SGLang from 0.4.6.post5 to 0.5.23 and in five of vLLM from 0.10.2 to 0.32.0: first and last one
# with the spelling. What lies between two of the vLLM releases read counts for the later one.
SPELLED: dict[str, dict[str, str]] = {
    "sglang": {
        "--cuda-graph-max-bs-decode": ">=0.5.14",
        "--cuda-graph-max-bs": "<=0.5.19",
        "--cuda-graph-bs-decode": ">=0.5.14",
        "--cuda-graph-bs": "<=0.5.19",
        "--cuda-graph-max-bs-prefill": ">=0.5.14",
        "--piecewise-cuda-graph-max-tokens": ">=0.5.4,<=0.5.19",
        "--cuda-graph-backend-decode": ">=0.5.14",
        "--cuda-graph-backend-prefill": ">=0.5.14",
        "--disable-decode-cuda-graph": ">=0.5.14",
        "--disable-prefill-cuda-graph": ">=0.5.14",
        "--disable-piecewise-cuda-graph": ">=0.5.10.post1,<=0.5.19",
        "--mamba-radix-cache-strategy": ">=0.5.14",
        "--mamba-scheduler-strategy": ">=0.5.7,<=0.5.19",
        "--dsa-prefill-backend": ">=0.5.13",
        "--nsa-prefill-backend": ">=0.5.4,<=0.5.19",
    },
    "vllm": {
        "--device-memory-utilization": ">=0.32",
        "--max-cudagraph-capture-size": ">=0.12",
        "--attention-backend": ">=0.16",
        "--max-seq-len-to-capture": "<=0.10.2",
        "--linear-backend": ">=0.24",
        "--moe-backend": ">=0.24",
        "--numa-bind": ">=0.24",
    },
}


def absent_spellings(engine: str, version: str | None) -> tuple[str, ...]:
    """Spellings that this build is known not to have; empty where the version cannot be read."""
    table = SPELLED.get(engine, {})
    return tuple(sorted(spelling for spelling, builds in table.items() if in_builds(version, builds) is False))
