"""The SGLang adapter (0.4.6 to 0.5.23): its command line, its renamed flags, what ``/server_info`` means, when it is
ready. Pure: text and data in, data out."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from optimizer.engines.argv import same
from optimizer.engines.base import Engine, HttpRequest, Quirks, Ready
from optimizer.engines.dialect import Dialect
from optimizer.engines.environment import settings_pattern
from optimizer.engines.process import after_module, after_script, interpreter, is_parent
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable

# Newest spelling first. A decode graph limit is --cuda-graph-max-bs up to 0.5.13, both names until 0.5.19, and from
# 0.5.20 the old name is an "ambiguous option" error.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "model_path": ("--model-path", "--model"),
    "tp_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
    "pp_size": ("--pp-size", "--pipeline-parallel-size"),
    "dp_size": ("--dp-size", "--data-parallel-size", "--dp"),
    "ep_size": ("--ep-size", "--expert-parallel-size", "--ep"),
    "attn_cp_size": ("--attn-cp-size", "--attention-context-parallel-size"),
    "attn_dp_size": ("--attn-dp-size", "--attention-data-parallel-size"),
    "moe_dp_size": ("--moe-dp-size", "--moe-data-parallel-size"),
    "cuda_graph_max_bs": ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
    "cuda_graph_bs": ("--cuda-graph-bs-decode", "--cuda-graph-bs"),
    "disable_cuda_graph": ("--disable-decode-cuda-graph", "--disable-cuda-graph"),
    "cuda_graph_max_bs_prefill": ("--cuda-graph-max-bs-prefill", "--piecewise-cuda-graph-max-tokens"),
    "cuda_graph_bs_prefill": ("--cuda-graph-bs-prefill", "--piecewise-cuda-graph-tokens"),
    "disable_prefill_cuda_graph": ("--disable-prefill-cuda-graph", "--disable-piecewise-cuda-graph"),
    "cuda_graph_tc_compiler": ("--cuda-graph-tc-compiler", "--piecewise-cuda-graph-compiler"),
    "mamba_radix_cache_strategy": ("--mamba-radix-cache-strategy", "--mamba-scheduler-strategy"),
    "dsa_prefill_backend": ("--dsa-prefill-backend", "--nsa-prefill-backend"),
    "dsa_decode_backend": ("--dsa-decode-backend", "--nsa-decode-backend"),
    "speculative_draft_model_path": ("--speculative-draft-model-path", "--speculative-draft-model"),
    "speculative_draft_window_size": ("--speculative-draft-window-size", "--speculative-dflash-draft-window-size"),
    "fp8_gemm_backend": ("--fp8-gemm-backend", "--fp8-gemm-runner-backend"),
    "fp4_gemm_backend": ("--fp4-gemm-backend", "--fp4-gemm-runner-backend"),
}

# What /server_info calls a parameter, best source first. Nested names are dotted.
_READBACK: dict[str, tuple[str, ...]] = {
    "cuda_graph_max_bs": ("cuda_graph_config.decode.max_bs", "cuda_graph_max_bs_decode", "cuda_graph_max_bs"),
    "cuda_graph_bs": ("cuda_graph_config.decode.bs", "cuda_graph_bs_decode", "cuda_graph_bs"),
    "cuda_graph_max_bs_prefill": ("cuda_graph_config.prefill.max_bs", "piecewise_cuda_graph_max_tokens"),
    "cuda_graph_bs_prefill": ("cuda_graph_config.prefill.bs", "piecewise_cuda_graph_tokens"),
    "cuda_graph_backend_decode": ("cuda_graph_config.decode.backend",),
    "cuda_graph_backend_prefill": ("cuda_graph_config.prefill.backend",),
    "cuda_graph_tc_compiler": ("cuda_graph_config.prefill.tc_compiler", "piecewise_cuda_graph_compiler"),
    "disable_prefill_cuda_graph": ("disable_prefill_cuda_graph", "disable_piecewise_cuda_graph"),
    "mamba_radix_cache_strategy": ("mamba_radix_cache_strategy", "mamba_scheduler_strategy"),
    "dsa_prefill_backend": ("dsa_prefill_backend", "nsa_prefill_backend"),
    "dsa_decode_backend": ("dsa_decode_backend", "nsa_decode_backend"),
    "fp8_gemm_backend": ("fp8_gemm_backend", "fp8_gemm_runner_backend"),
    "fp4_gemm_backend": ("fp4_gemm_backend", "fp4_gemm_runner_backend"),
}

_NESTED = ("cuda_graph_config",)
_BIG = ("internal_states", "kv_events", "launch_command", "startup_time")


class SGLang(Engine):
    name: ClassVar = "sglang"
    default_port: ClassVar = 30000
    published_image: ClassVar = "lmsysorg/sglang:v{version}"
    parallel_params: ClassVar = ("tp_size", "pp_size")
    model_param: ClassVar = "model_path"
    server_info_paths: ClassVar = ("/server_info", "/get_server_info")  # the old name is all there is before 0.5.6
    settings_env: ClassVar = settings_pattern("SGLANG_", "SGL_", "SIMULATE_ACC_")
    dialect: ClassVar = Dialect(
        spellings=_SPELLINGS,
        identity=frozenset(
            ("host", "port", "served_model_name", "nccl_port", "grpc_port", "metrics_port", "dist_init_addr", "config",
             "ssl_keyfile", "ssl_certfile", "ssl_ca_certs")
        ),
        text=frozenset(
            ("model_path", "tokenizer_path", "served_model_name", "host", "revision", "chat_template", "download_dir",
             "speculative_draft_model_path", "speculative_draft_model_revision", "dist_init_addr")
        ),
        suffixes={"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
        suffixed=frozenset(
            ("max_total_tokens", "max_prefill_tokens", "context_length", "chunked_prefill_size", "max_running_requests",
             "cuda_graph_max_bs_prefill")
        ),
    )  # fmt: skip
    quirks: ClassVar = Quirks(
        health_is_ready=True,  # /health_generate generates a token; plain /health is no readiness test up to 0.4.10
        health_503_while_loading=True,
        log_ready="The server is fired up and ready to roll!",
        start_limit_s=1800.0,
        drain_s=45.0,
        name_pattern=r"[A-Za-z0-9][\w.@/-]{0,127}",
        side_ports=("nccl_port", "disaggregation_bootstrap_port", "grpc_port", "engine_info_bootstrap_port"),
        dynamic_ports="nccl_port is random unless given; with DP attention TCP ports follow from port + 233",
        no_metrics_without="enable_metrics",
        child_titles=(
            "sglang::scheduler",
            "sglang::detokenizer",
            "sglang::data_parallel_controller",
            "sglang::tokenizer_worker",
        ),
        notes=(
            "server_info shows the asked max_running_requests; the effective one is per DP rank in internal_states",
            "SIGTERM during loading has no handler: the main process dies and the children follow",
        ),
    )

    def options_start(self, argv: Sequence[str]) -> int | None:
        for start in (
            after_module(
                argv, ("sglang.launch_server", "sglang.srt.entrypoints.http_server", "optimizer.engines.simulator")
            ),
            after_script(argv, ("sglang",), "serve"),
            after_script(argv, ("sglang/launch_server.py",), None),
        ):
            if start is not None:
                return start
        return None

    def recognise(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        return super().recognise(argv, env) and not is_parent(argv) and not argv[0].startswith("sglang::")

    def example(self) -> str:
        return "python -m sglang.launch_server --model-path /models/MODEL --port 30000"

    def help_argv(self, original_argv: Sequence[str]) -> list[str]:
        start, _ = self.parsed(original_argv, _NO_FLAGS)
        return [*original_argv[:start], "--help"]

    def version_argv(self, original_argv: Sequence[str]) -> list[str]:
        python = interpreter(original_argv)
        if python is None:
            start, _ = self.parsed(original_argv, _NO_FLAGS)
            return [*original_argv[: start - 1], "version"]
        return [*python, "-c", "from importlib.metadata import version; print(version('sglang'))"]

    def gpus_of(self, values: Mapping[str, Value]) -> int:
        """Replicas have GPUs of their own, unless data parallelism is that of the attention alone, inside the tensor-parallel group."""
        size, replicas = super().gpus_of(values), values.get("dp_size")
        if isinstance(replicas, int) and not isinstance(replicas, bool) and replicas > 1 and values.get("enable_dp_attention") is not True:
            size *= replicas
        return size

    def ready(self, port: int, host: str = "127.0.0.1") -> Ready:
        return Ready(base_url=f"http://{host}:{port}", probe=HttpRequest(path="/health_generate"))

    def flush_cache(self) -> HttpRequest | None:
        return HttpRequest(method="POST", path="/flush_cache")  # 400 while requests run or wait

    def readback(
        self, server_info: Mapping[str, Value] | None, evidence: Evidence | None = None, log_text: str = ""
    ) -> dict[str, Value]:
        effective: dict[str, Value] = {}
        if isinstance(server_info, Mapping):
            for key, value in server_info.items():
                if not isinstance(key, str) or key in _BIG or self.dialect.is_identity(key):
                    continue
                if key in _NESTED and isinstance(value, dict):
                    effective.update(_flattened(key, value))
                else:
                    effective[key] = value
            for param, sources in _READBACK.items():
                found = [effective[source] for source in sources if effective.get(source) is not None]
                if found:
                    effective[param] = found[0]
            backend = effective.get("cuda_graph_config.decode.backend")
            if backend is not None:
                effective["disable_cuda_graph"] = backend == "disabled"
            if effective.get("cuda_graph_config.prefill.backend") is not None:
                effective["disable_prefill_cuda_graph"] = effective["cuda_graph_config.prefill.backend"] == "disabled"
            limit = _effective_running(server_info)
            if limit is not None:
                effective["effective_max_running_requests"] = limit
        if evidence is not None and "effective_max_running_requests" not in effective:
            running = evidence.number("scheduler.max_running")
            if running is not None:
                effective["effective_max_running_requests"] = int(running) * _ranks(effective)
        return dict(sorted(effective.items()))

    def _reported(self, param: str, effective: Mapping[str, Value]) -> tuple[str, Value]:
        if param == "max_running_requests" and "effective_max_running_requests" in effective:
            return "effective_max_running_requests", effective["effective_max_running_requests"]
        for source in _READBACK.get(param, ()):
            if effective.get(source) is not None:
                return source, effective[source]
        return super()._reported(param, effective)

    def agrees(self, param: str, wanted: Value, effective: Value) -> bool:
        if param == "speculative_algorithm" and wanted == "NEXTN":
            return effective in ("NEXTN", "EAGLE")  # an alias
        if param == "max_running_requests" and _is_number(wanted) and _is_number(effective):
            # integer division over DP ranks may round down a little; a cap below that is a cap
            return abs(float(wanted) - float(effective)) < max(1.0, 0.02 * float(wanted))  # type: ignore[arg-type]
        if wanted is False and effective is None:
            return True
        if isinstance(wanted, list) and isinstance(effective, list) and param.startswith("cuda_graph_bs"):
            return set(map(str, wanted)) <= set(map(str, effective))  # max_bs itself is always appended
        return same(wanted, effective)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _flattened(prefix: str, value: Mapping[str, Value]) -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            flat.update(_flattened(f"{prefix}.{key}", inner))
        else:
            flat[f"{prefix}.{key}"] = inner
    return flat


def _effective_running(server_info: Mapping[str, Value]) -> int | None:
    """Requests that all DP ranks together admit (0.5.10.post1 and later)."""
    states = server_info.get("internal_states")
    if not isinstance(states, list):
        return None
    limits = [
        state["effective_max_running_requests_per_dp"]
        for state in states
        if isinstance(state, dict) and isinstance(state.get("effective_max_running_requests_per_dp"), int)
    ]
    return sum(limits) if limits else None


def _ranks(effective: Mapping[str, Value]) -> int:
    sizes = [effective.get("attn_dp_size"), effective.get("dp_size")]
    return max([size for size in sizes if isinstance(size, int) and not isinstance(size, bool)] or [1])


_NO_FLAGS = FlagTable(known=False)

ENGINE = SGLang()
