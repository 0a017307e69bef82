"""Which environment variables are settings of a server. Responsible for names only; secrets are left out by
``base.py``."""

import re
from collections.abc import Mapping

_SHARED = (
    r"NCCL_\w+", r"RCCL_\w+", r"UCX_\w+", r"NVSHMEM_\w+", r"NIXL_\w+", r"MC_\w+",
    r"OMP_\w+", r"GOMP_\w+", r"KMP_\w+", r"MKL_\w+", r"OPENBLAS_NUM_THREADS",
    r"CUDA_\w+", r"CUBLAS\w*", r"HIP_\w+", r"ROCR_\w+",
    r"PYTORCH_\w+", r"TORCH\w*", r"TRITON_\w+", r"FLASHINFER_\w+", r"TRTLLM_\w+", r"DG_\w+",
    r"MALLOC_\w+", r"LD_PRELOAD", r"TOKENIZERS_PARALLELISM",
)  # fmt: skip

# What the CUDA images say of themselves; no library reads them, and nobody chose them.
_LABELS = r"(?:NCCL|CUDA|CUDNN|CUBLAS)_VERSION$"


def settings_pattern(*prefixes: str) -> re.Pattern[str]:
    """A pattern for the shared variables (NCCL, OpenMP, CUDA, torch, ...) and those with one of the engine's
    prefixes."""
    names = (*_SHARED, *(prefix + r"\w+" for prefix in prefixes))
    return re.compile(f"^(?!{_LABELS})(?:" + "|".join(names) + ")$")


# Not settings, but a program does not find its libraries, its modules or its model without them.
_SURROUNDINGS = re.compile(
    r"^(?:PATH|LD_LIBRARY_PATH|LIBRARY_PATH|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV|CONDA_PREFIX|XDG_CACHE_HOME"
    r"|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|HF_ENDPOINT|TRANSFORMERS_CACHE|TRANSFORMERS_OFFLINE|HUGGINGFACE_HUB_CACHE)$"
)


def surroundings(env: Mapping[str, str]) -> dict[str, str]:
    """What a second start of a running server's program needs of its environment beside the settings; no secrets."""
    return {name: env[name] for name in sorted(env) if _SURROUNDINGS.match(name)}
