"""Runs the parsers over the files of one launch and merges what they say: weakest statement first (what was asked),
strongest last
(what the log shows). Pure: bytes in, evidence out."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import Field

from optimizer.evidence.argv import argv_facts, env_facts
from optimizer.evidence.bench_json import bench_facts, levels_of, read_bench
from optimizer.evidence.exits import classify
from optimizer.evidence.found import Found
from optimizer.evidence.host import gpu_process_facts, host_facts, read_host
from optimizer.evidence.lines import Piece, iter_lines, pieces_of
from optimizer.evidence.literal import strict_json
from optimizer.evidence.llamacpp_log import LlamacppLog
from optimizer.evidence.llamacpp_props import llamacpp_props_facts
from optimizer.evidence.model_config import config_facts, read_config
from optimizer.evidence.nccl_log import NcclLog
from optimizer.evidence.nvidia_smi import (
    confidential_facts,
    csv_facts,
    driver_facts,
    p2p_facts,
    query_facts,
    topo_facts,
)
from optimizer.evidence.positions import Positions
from optimizer.evidence.prometheus import metrics_facts, parse_metrics, series_facts
from optimizer.evidence.rocm_smi import amd_metric_facts, amd_static_facts, rocm_facts
from optimizer.evidence.server_info import sglang_info_facts, vllm_info_facts
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog
from optimizer.evidence.which_engine import ENGINE_NAMES, engine_of_log, words_of
from optimizer.model.base import Frozen, Value
from optimizer.model.evidence import Evidence, Missing

OUTCOME_OF_CAUSE = {
    "oom_weights": "oom",
    "oom_kv": "oom",
    "oom_capture": "oom",
    "oom_load": "oom",
    "oom_kernel": "oom",
    "bad_flag": "bad_flag",
    "model_missing": "load_error",
    "hang_loading": "hang",
    "unresponsive": "hang",
    "not_ready_in_time": "timeout",
}
# What each file would have told; stated as missing when the file is absent and nothing else told it.
_TELLS = {
    "server.log": (
        "startup.outcome",
        "graphs.mode",
        "kv.pool_tokens",
        "decode.batch_p90",
        "decode.graph_off_share",
        "queue.depth_p95",
        "kv.usage_p95",
    ),
    "metrics.txt": ("kv.preemptions", "kv.prefix_hit_share", "server.requests_total"),
    "server_info.json": ("settings.resolved",),
    "gpu.csv": ("gpu.sm_util_p50", "gpu.mem_util_p50", "gpu.power_share", "gpu.sm_clock_share"),
    "topo.txt": ("topology.gpu_link",),
    "nvidia-smi-q.txt": ("gpu.power_limit_share", "gpu.throttle_share"),
    "bench.json": ("client.output_tps", "client.concurrency"),
    "config.json": (
        "model.moe_experts",
        "model.hybrid_state",
        "model.mtp_layers",
        "model.params_total_b",
        "model.weights_gib",
        "model.kv_bytes_per_token",
    ),
    "host.json": ("host.cpu_count", "host.cpu_steal_pct", "host.proc_cpu_pct", "validity.server_count"),
    "gpu_processes.csv": ("validity.foreign_gpu_processes",),
}
ENGINES_WITHOUT_INFO = ("vllm",)


class Launch(Frozen):
    """What launch.json says, checked."""

    engine: str
    engine_version: str = ""
    name: str = ""
    gpu: str = ""
    gpu_count: int | None = None
    interconnect: str = ""
    model: str = ""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    ready: bool | None = None
    start_s: float | None = None

    @classmethod
    def read(cls, raw: Mapping[str, Value]) -> "Launch":
        """Raises ValueError naming the key that has the wrong type. null is the same as absent."""

        def word(key: str) -> str:
            value = raw.get(key)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{key} must be text")
            return (value or "")[:4000]

        argv, env, count = raw.get("argv"), raw.get("env"), raw.get("gpu_count")
        if argv is not None and not (isinstance(argv, list) and all(isinstance(part, str) for part in argv)):
            raise ValueError("argv must be a list of texts")
        if env is not None and not (
            isinstance(env, dict) and all(isinstance(value, str | int | float) for value in env.values())
        ):
            raise ValueError("env must map names to texts")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 100_000):
            raise ValueError("gpu_count must be a whole number from 0")
        ready, seconds = raw.get("ready"), raw.get("start_s")
        if ready is not None and not isinstance(ready, bool):
            raise ValueError("ready must be true or false")
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
            raise ValueError("start_s must be a number of seconds")
        return cls(
            engine=word("engine").lower(),
            engine_version=word("engine_version"),
            name=word("name"),
            gpu=word("gpu"),
            gpu_count=count,
            interconnect=word("interconnect"),
            model=word("model"),
            argv=tuple(argv or ())[:4000],
            env={str(key): str(value) for key, value in (env or {}).items()},
            ready=ready,
            start_s=None if seconds is None else float(seconds),
        )

    def with_version(self, evidence: Evidence) -> "Launch":
        """The version that the server itself reports, where launch.json has none."""
        told = evidence.value("engine.version")
        return (
            self
            if self.engine_version or not isinstance(told, str)
            else self.model_copy(update={"engine_version": told})
        )


class Gathered(NamedTuple):
    evidence: Evidence
    bench: tuple[dict[str, Value], ...]
    config: dict[str, Value] | None
    info: dict[str, Value]


def gather(launch: Launch, files: Mapping[str, bytes], shared: frozenset[str], log: tuple[Piece, ...]) -> Gathered:
    """Facts of one launch. A file that cannot be read becomes *missing* with the reason; nothing here raises for bad
    content."""
    notes: list[Missing] = []
    parts: list[Evidence] = []
    remarks: list[str] = []

    def found(name: str, basis: str = "measured") -> Found:
        return Found(name, basis)

    config: dict[str, Value] | None = None
    if "config.json" in files:
        part = found("config.json")
        try:
            config = read_config(files["config.json"])
            config_facts(part, config, files["config.json"])
        except ValueError as error:
            notes.append(Missing(name="model.moe_experts", reason=f"config.json cannot be used: {str(error)[:200]}"))
        parts.append(part.evidence())
    told = "launch.json" in files  # else the log alone said it, and what it left out may have been given all the same
    parts.append(_placed(launch_facts(launch, complete=told).evidence(), files))
    host = _host(launch, files, parts, notes)
    parts.extend(_gpu_parts(launch, files, shared, host, notes))
    info = _info(launch, files, parts, notes)
    rows: tuple[dict[str, Value], ...] = ()
    if "bench.json" in files:
        part = found("bench.json")
        try:
            rows = read_bench(files["bench.json"])
            bench_facts(part, rows, files["bench.json"])
        except ValueError as error:
            notes.append(Missing(name="client.output_tps", reason=f"bench.json cannot be used: {str(error)[:200]}"))
        parts.append(part.evidence())
    if "metrics.txt" in files:
        part = found("metrics.txt")
        before = parse_metrics(files["metrics_before.txt"]) if "metrics_before.txt" in files else None
        metrics_facts(part, parse_metrics(files["metrics.txt"]), before)
        parts.append(part.evidence())
        if not part.evidence().facts:
            remarks.append("metrics.txt cannot be used: nothing in it is a metric of an engine that is known here")
    if log:
        parts.append(log_facts(launch.engine, log, levels_of(rows), launch.engine_version).evidence())
        remarks.extend(_foreign_log(launch, log, parts[-1]))
    if "nccl.log" in files:
        part = found("nccl.log")
        reader = NcclLog(part)
        for line in iter_lines(pieces_of(files["nccl.log"])):
            if b"NCCL" in line.raw:
                reader.line(line)
        reader.finish()
        parts.append(part.evidence())
    if "metrics_load.txt" in files:
        part = found("metrics_load.txt")
        # A handful of snapshots says less than the log's own lines; from eight on they are the finer record.
        if series_facts(part, files["metrics_load.txt"]) >= (8 if log else 1):
            parts.append(part.evidence())
    merged = Evidence(missing=tuple(notes), notes=(*(note.reason for note in notes), *remarks))
    for evidence in parts:
        merged = merged.merged(_spanned(evidence, files))
    merged = merged.merged(_spanned(startup_outcome(launch, log, merged, files.get("exit.json")), files))
    conflicts = _conflicts(launch, merged, info)
    if conflicts:
        part = found("launch.json", "derived")
        part.add("validity.version_conflict", conflicts)
        merged = merged.merged(part.evidence())
    absent = [
        Missing(name=name, reason=f"the bundle has no {file}")
        for file, names in _TELLS.items()
        if file not in files and not (file == "server_info.json" and launch.engine in ENGINES_WITHOUT_INFO)
        for name in names
    ]
    known = {item.name for item in merged.missing}
    merged = merged.merged(Evidence(missing=tuple(item for item in absent if item.name not in known)))
    return Gathered(merged, rows, config, info)


def launch_facts(launch: Launch, *, complete: bool = True) -> Found:
    """Identity, arguments and environment. ``complete`` false: only a part of them is known, so absence says
    nothing."""
    part = Found("launch.json", "argv")
    part.add(
        "engine.name",
        launch.engine if launch.engine in ("sglang", "vllm", "llamacpp", "tensorrt-llm") else "other",
        basis="reported",
    )
    part.add("engine.version", launch.engine_version or None, basis="reported")
    if launch.gpu:
        part.add("gpu.name", launch.gpu, basis="reported")
    if launch.gpu_count is not None:
        part.add("gpu.count", launch.gpu_count, basis="reported")
    link = launch.interconnect.lower()
    if launch.gpu_count is not None and launch.gpu_count > 1:
        part.add(
            "topology.gpu_link",
            "nvlink" if link.startswith(("nvlink", "nv")) else "pcie" if link.startswith("pcie") else None,
            basis="reported",
        )
    if launch.argv:
        flags = argv_facts(part, launch.argv, launch.engine)
        if not complete:
            _only_stated(part, flags)
    environment = Found("launch.json", "env")
    env_facts(environment, launch.env)
    for fact in environment.evidence().facts:
        if complete or fact.value not in (False, []):
            part.keep(fact)
    return part


_DEFAULTS: dict[str, tuple[Value, tuple[str, ...]]] = {
    "parallel.tp": (1, ("tp_size", "tensor_parallel_size")),
    "parallel.pp": (1, ("pp_size", "pipeline_parallel_size")),
    "parallel.dp": (1, ("dp_size", "data_parallel_size")),
    "parallel.ep": (1, ("ep_size",)),
    "parallel.nodes": (1, ("nnodes",)),
    "parallel.dp_attention": (False, ("enable_dp_attention",)),
    "graphs.disable_flag": (False, ("enforce_eager", "disable_cuda_graph")),
    "kv.prefix_cache": (True, ("enable_prefix_caching",)),
    "kernel.attention_forced": (False, ()),
    "kernel.quant_flag": ("none", ()),
    "spec.method": ("none", ("speculative_algorithm", "speculative_config")),
}


def _only_stated(part: Found, flags: Mapping[str, Value]) -> None:
    for name, (default, keys) in _DEFAULTS.items():
        if part.get(name) == default and not any(key in flags for key in keys):
            part.drop(name)


def log_facts(
    engine: str, log: tuple[Piece, ...], levels: tuple[int, ...] = (), version: str = "", source: str = "server.log"
) -> Found:
    """Facts of a server log by the engine's parser; an unknown engine's log is read for NCCL lines only."""
    if engine == "sglang":
        sglang = SglangLog(source, version)
        sglang.feed(log)
        return sglang.finish(levels)
    if engine == "llamacpp":
        llama = LlamacppLog(source)
        llama.feed(log)
        return llama.finish(levels)
    vllm = VllmLog(source, version)
    vllm.feed(log)
    return vllm.finish(levels)


def _foreign_log(launch: Launch, log: tuple[Piece, ...], part: Evidence) -> list[str]:
    """A remark when the log says nothing as a log of this engine: another's, or none."""
    if launch.engine not in ENGINE_NAMES or words_of(log, launch.engine):
        return []
    other, name = engine_of_log(log), ENGINE_NAMES[launch.engine]
    if other is not None:
        return [f"server.log is a log of {ENGINE_NAMES[other]}, and launch.json says {name}: nothing was read from it as that"]
    said = any(fact.span is not None for fact in part.facts)  # a line of it supports something
    return [] if said else [f"server.log: no line of it was recognised as one of {name}"]


def _placed(evidence: Evidence, files: Mapping[str, bytes]) -> Evidence:
    """The launch's facts point at the line of launch.json that says so: of the flags, or of the environment."""
    at = Positions(files.get("launch.json", b"")).at
    places = {"argv": at("argv"), "env": at("env"), "reported": at("engine")}
    if "launch.json" not in files:
        return evidence.model_copy(
            update={"facts": tuple(fact.model_copy(update={"source": "server.log"}) for fact in evidence.facts)}
        )
    facts = []
    for fact in evidence.facts:
        line = at("gpu_count") if fact.name == "gpu.count" else at("gpu") if fact.name == "gpu.name" else places.get(fact.basis)
        if fact.line is None and line is not None:
            fact = fact.model_copy(update={"line": line.number, "span": (line.start, line.start + len(line.raw))})
        facts.append(fact)
    return evidence.model_copy(update={"facts": tuple(facts)})


def _spanned(evidence: Evidence, files: Mapping[str, bytes]) -> Evidence:
    """A fact that no single line supports (a count, a duration between lines) is supported by the whole file."""
    if all(fact.line is not None or fact.span is not None for fact in evidence.facts):
        return evidence
    facts = tuple(
        fact.model_copy(update={"span": (0, len(files[fact.source]))})
        if fact.line is None and fact.span is None and fact.source in files
        else fact
        for fact in evidence.facts
    )
    return evidence.model_copy(update={"facts": facts})


def _host(launch: Launch, files: Mapping[str, bytes], parts: list[Evidence], notes: list[Missing]) -> dict[str, Any]:
    """host.json and the list of GPU processes, whose owners only host.json knows."""
    host: dict[str, Any] = {}
    if "host.json" in files:
        part = Found("host.json")
        try:
            host = read_host(files["host.json"])
            host_facts(part, files["host.json"], host, launch.engine, launch.env, files.get("lspci.txt", b""))
            parts.append(part.evidence())
        except ValueError as error:
            notes.append(Missing(name="host.cpu_count", reason=f"host.json cannot be used: {str(error)[:200]}"))
    if "gpu_processes.csv" in files:
        part = Found("gpu_processes.csv")
        gpu_process_facts(part, files["gpu_processes.csv"], host)
        parts.append(part.evidence())
    return host


# AMD's tools, the richest last: what it says stands.
_AMD = (("rocm-smi.json", rocm_facts), ("amd-smi-static.json", amd_static_facts), ("amd-smi-metric.json", amd_metric_facts))


def _gpu_parts(
    launch: Launch, files: Mapping[str, bytes], shared: frozenset[str], host: Mapping[str, Any], notes: list[Missing]
) -> list[Evidence]:
    parts = []
    gpus = launch.gpu_count
    limit = clock = None
    if "nvidia-smi-q.txt" in files:
        part = Found("nvidia-smi-q.txt")
        query = query_facts(part, files["nvidia-smi-q.txt"], under_load="nvidia-smi-q.txt" not in shared)
        limit, clock = query.power_limit_w, query.max_sm_mhz
        if "nvidia-smi-q.txt" in shared:
            for name in ("pcie.link_share", "pcie.link_gb_s", "pcie.usage_share", "gpu.mem_clock_share", "gpu.throttle_share"):
                part.missing(name, "nvidia-smi -q was asked once for the box, not under this launch's load")
        for name in ("gpu.count", "gpu.name") if gpus is not None else ():
            part.drop(name)  # the box may have more GPUs than this launch used
        if gpus == 0:
            return []
        parts.append(part.evidence())
    if gpus == 0:
        return []
    if "gpu_driver.csv" in files:  # asked beside the load: what was asked once for the box may have been replaced since
        part = Found("gpu_driver.csv")
        driver_facts(part, files["gpu_driver.csv"])
        parts.append(part.evidence())
    for name, read in _AMD:
        if name in files:
            part = Found(name)
            try:
                read(part, files[name])
            except ValueError as error:
                notes.append(Missing(name="gpu.count", reason=f"{name} cannot be used: {str(error)[:200]}"))
                continue
            for fact in ("gpu.count", "gpu.name") if gpus is not None else ():
                part.drop(fact)
            parts.append(part.evidence())
    if "topo.txt" in files:
        part = Found("topo.txt")
        topo_facts(part, files["topo.txt"], gpus)
        parts.append(part.evidence())
    if "topo_p2p.txt" in files and gpus != 1:
        part = Found("topo_p2p.txt")
        p2p_facts(part, files["topo_p2p.txt"], gpus)
        # What the environment switches off is off, whatever the hardware could do.
        if launch.env.get("NCCL_P2P_DISABLE", "0").strip() in ("", "0"):
            parts.append(part.evidence())
    if "conf_compute.txt" in files:
        part = Found("conf_compute.txt")
        confidential_facts(part, files["conf_compute.txt"])
        parts.append(part.evidence())
    if "gpu.csv" in files:
        part = Found("gpu.csv")
        csv_facts(part, files["gpu.csv"], gpus or None, limit, clock)
        parts.append(part.evidence())
    return parts


def _info(launch: Launch, files: Mapping[str, bytes], parts: list[Evidence], notes: list[Missing]) -> dict[str, Value]:
    for name in ("models.json", "version.json"):
        if name in files:
            part = Found(name)
            try:
                told = strict_json(files[name])
            except ValueError as error:
                notes.append(Missing(name=f"file.{name}", reason=f"{name} cannot be used: {str(error)[:200]}"))
                continue
            if isinstance(told, dict):
                vllm_info_facts(part, told)  # one shape for all engines: {"version"} and OpenAI's list of models
                parts.append(part.evidence())
    if "server_info.json" not in files:
        return {}
    part = Found("server_info.json")
    try:
        info = strict_json(files["server_info.json"])
    except ValueError as error:
        notes.append(Missing(name="settings.resolved", reason=f"server_info.json cannot be used: {str(error)[:200]}"))
        return {}
    if not isinstance(info, dict):
        notes.append(Missing(name="settings.resolved", reason="server_info.json is no JSON object"))
        return {}
    readers = {"sglang": sglang_info_facts, "llamacpp": llamacpp_props_facts}
    readers.get(launch.engine, vllm_info_facts)(part, info)
    parts.append(part.evidence())
    return info


def startup_outcome(
    launch: Launch, log: tuple[Piece, ...], evidence: Evidence, exit_json: bytes | None = None
) -> Evidence:
    """startup.outcome and, for a failed start, startup.cause and startup.message with the line that decided."""
    part = Found("server.log", "log")
    total = launch.start_s if launch.start_s is not None and launch.start_s > 0 else None
    if total is not None:
        part.add("startup.phase_s", total, labels={"stage": "total"}, source="launch.json", basis="measured")
    came_up = evidence.value("startup.last_stage") in ("ready", "listening") or evidence.number("decode.lines")
    if launch.ready is True or (launch.ready is None and came_up):
        part.add("startup.outcome", "ok", source="launch.json" if launch.ready is True else "server.log")
        return part.evidence()
    if launch.ready is None and not log:
        return Evidence()
    code = None
    if exit_json is not None:
        try:
            parsed = strict_json(exit_json, 10_000)
        except ValueError:
            parsed = None
        code = parsed.get("exit_code") if isinstance(parsed, dict) else None
    verdict = classify(log, code if isinstance(code, int) and not isinstance(code, bool) else None)
    if launch.ready is None and verdict.line is None:
        part.missing("startup.outcome", "the log shows neither a finished start nor an error")
        return part.evidence()
    if not log:
        part.missing("startup.outcome", "it did not become ready, and there is no log to say why")
        return part.evidence()
    outcome = OUTCOME_OF_CAUSE.get(verdict.cause, "other")
    if verdict.cause == "crashed" and "apture" in verdict.message and "raph" in verdict.message:
        outcome = "capture_failed"
    for name, value in (
        ("startup.outcome", outcome),
        ("startup.cause", verdict.cause),
        ("startup.message", verdict.message),
    ):
        part.add(name, value, verdict.line)
    return part.evidence()


def _conflicts(launch: Launch, evidence: Evidence, info: Mapping[str, Value]) -> list[str]:
    """Files of different launches in one folder: named, because merging them silently would give a wrong diagnosis."""
    found = []
    told = info.get("version")
    if isinstance(told, str) and launch.engine_version and told.split("+")[0] != launch.engine_version.split("+")[0]:
        found.append(f"launch.json says version {launch.engine_version[:40]}, server_info.json says {told[:40]}")
    asked, resolved = evidence.value("settings.asked"), evidence.value("settings.resolved")
    if isinstance(asked, dict) and isinstance(resolved, dict):
        for key in ("port", "tp_size"):
            if key in asked and key in resolved and asked[key] != resolved[key]:
                found.append(
                    f"launch.json says {key} {str(asked[key])[:40]}, the server says {str(resolved[key])[:40]}"
                )
    return found
