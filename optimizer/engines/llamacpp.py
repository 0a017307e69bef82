"""The llama.cpp adapter (``llama-server``, builds of 2025 and later): its own command line parser, slots as the admission cap, and
effective settings from ``/props`` and the log. Pure: text and data in, data out."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from optimizer.engines.argv import same
from optimizer.engines.base import Engine, HttpRequest, Quirks, Ready
from optimizer.engines.dialect import Dialect
from optimizer.engines.environment import settings_pattern
from optimizer.engines.llamacpp_help import parse_help
from optimizer.engines.process import after_script, is_parent
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable

_NO_FLAGS = FlagTable(known=False)

# Only where the flag is not --name-with-dashes, was renamed, or has a short form that stands without the help text.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "model": ("--model", "-m"),
    "hf_repo": ("--hf-repo", "-hf", "-hfr"),
    "served_model_name": ("--alias", "-a"),
    "parallel": ("--parallel", "-np"),
    "ctx_size": ("--ctx-size", "-c"),
    "batch_size": ("--batch-size", "-b"),
    "ubatch_size": ("--ubatch-size", "-ub"),
    "threads": ("--threads", "-t"),
    "threads_batch": ("--threads-batch", "-tb"),
    "flash_attn": ("--flash-attn", "-fa"),
    "cache_type_k": ("--cache-type-k", "-ctk"),
    "cache_type_v": ("--cache-type-v", "-ctv"),
    "gpu_layers": ("--gpu-layers", "--n-gpu-layers", "-ngl"),
    "split_mode": ("--split-mode", "-sm"),
    "kv_unified": ("--kv-unified", "-kvu"),
    "cont_batching": ("--cont-batching", "-cb"),
    "draft_max": ("--spec-draft-n-max", "--draft-max", "--draft", "--draft-n"),
    "draft_min": ("--spec-draft-n-min", "--draft-min", "--draft-n-min"),
    "draft_p_min": ("--spec-draft-p-min", "--draft-p-min"),
    "model_draft": ("--spec-draft-model", "--model-draft", "-md"),
}
_SLOTS = re.compile(r"n_slots = (?P<slots>\d+)(?:, n_ctx_slot = (?P<context>\d+))?(?:, kv_unified = '(?P<unified>true|false)')?")
_CONTEXT = re.compile(r"llama_context: +(?P<name>n_batch|n_ubatch) += +(?P<value>\d+)")
_THREADS = re.compile(r"threadpool init, n_threads = (?P<value>\d+)")
_DRAFTS = re.compile(r"adding speculative implementation '(?P<kind>[\w-]+)'")
_LONGEST_LOG = 2_000_000  # what is read back is said at the start


class LlamaCpp(Engine):
    name: ClassVar = "llamacpp"
    default_port: ClassVar = 8080
    published_image: ClassVar = "ghcr.io/ggml-org/llama.cpp:server-b{version}"
    image_program: ClassVar = "/app/llama-server"
    model_param: ClassVar = "model"
    server_info_paths: ClassVar = ("/props",)
    settings_env: ClassVar = settings_pattern("LLAMA_", "GGML_")
    dialect: ClassVar = Dialect(
        spellings=_SPELLINGS,
        identity=frozenset(
            ("host", "port", "served_model_name", "path", "api_prefix", "api_key_file", "ssl_key_file", "ssl_cert_file", "log_file",
             "slot_save_path", "metrics", "slots", "props")
        ),
        text=frozenset(
            ("model", "served_model_name", "host", "hf_repo", "hf_file", "model_url", "docker_repo", "model_draft", "chat_template",
             "chat_template_file", "mmproj", "lora", "override_tensor", "tensor_split", "device")
        ),
        underscores=True,
        exact=True,
        negatives=frozenset(("-nkvo", "-nr", "-nocb", "-no-kvu", "-no-ag")),
    )  # fmt: skip
    quirks: ClassVar = Quirks(
        health_is_ready=True,  # 503 while the model loads
        health_503_while_loading=True,
        log_ready="listening on http",
        start_limit_s=1800.0,
        drain_s=30.0,
        name_pattern=r"[A-Za-z0-9][\w.@/:-]{0,127}",  # a comma would separate two aliases
        no_metrics_without="metrics",
        steps_in_log=False,
        notes=(
            "slots share the context: more slots at the same --ctx-size are shorter ones, unless the KV buffer is unified",
            "the log has no step lines; steps are known from the timings of finished requests and from /metrics",
        ),
    )

    def options_start(self, argv: Sequence[str]) -> int | None:
        return after_script(argv, ("llama-server",), None)

    def recognise(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        return super().recognise(argv, env) and not is_parent(argv) and not {"--version", "--list-devices"} & set(argv)

    def example(self) -> str:
        return "llama-server --model /models/MODEL.gguf --port 8080 --metrics"

    def flags(self, help_text: str) -> FlagTable:
        return parse_help(help_text)

    def help_argv(self, original_argv: Sequence[str]) -> list[str]:
        start, _ = self.parsed(original_argv, _NO_FLAGS)
        return [*original_argv[:start], "--help"]

    def version_argv(self, original_argv: Sequence[str]) -> list[str]:
        """It prints to stderr, so the build is known from the log and ``/props`` instead."""
        start, _ = self.parsed(original_argv, _NO_FLAGS)
        return [*original_argv[:start], "--version"]

    def image_of(self, version: str | None, *, gpu: bool = False) -> str | None:
        """By the number of the build (``b6000-1a2b3c4``); the image for NVIDIA's GPUs is another."""
        build = re.match(r"b?(\d{4,})\b", version or "")
        image = self.published_image.format(version=build[1]) if build else None
        return image.replace(":server-", ":server-cuda-") if image and gpu else image

    def ready(self, port: int, host: str = "127.0.0.1") -> Ready:
        return Ready(base_url=f"http://{host}:{port}", probe=HttpRequest(path="/health"))

    def flush_cache(self) -> HttpRequest | None:
        return None  # a slot is erased one by one, and only where --slot-save-path is given

    def readback(
        self, server_info: Mapping[str, Value] | None, evidence: Evidence | None = None, log_text: str = ""
    ) -> dict[str, Value]:
        return dict(sorted({**_from_log(log_text[:_LONGEST_LOG]), **_from_props(server_info or {})}.items()))

    def agrees(self, param: str, wanted: Value, effective: Value) -> bool:
        if wanted == -1 or wanted == "auto":
            return True  # the server chooses
        return same(wanted, effective)


def _from_log(text: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    slots = _SLOTS.search(text)
    if slots is not None:
        found["parallel"] = int(slots["slots"])
        unified = slots["unified"]
        if unified is not None:
            found["kv_unified"] = unified == "true"
        if slots["context"] is not None and unified is not None:
            found["ctx_size"] = int(slots["context"]) * (1 if unified == "true" else int(slots["slots"]))
    for match in _CONTEXT.finditer(text):
        found.setdefault({"n_batch": "batch_size", "n_ubatch": "ubatch_size"}[match["name"]], int(match["value"]))
    drafts = _DRAFTS.search(text)
    if drafts is not None:
        found["spec_type"] = drafts["kind"]
    threads = _THREADS.search(text)
    if threads is not None:
        found["threads"] = int(threads["value"])
    return found


def _from_props(info: Mapping[str, Value]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    slots = info.get("total_slots")
    if isinstance(slots, int) and not isinstance(slots, bool):
        found["parallel"] = slots
    return found


ENGINE = LlamaCpp()
