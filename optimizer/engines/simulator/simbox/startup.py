"""The start-up of the simulated engine as a script: what is logged, after how many (virtual) seconds, and how much GPU
memory is in use by then. Pure generator; the process that plays it owns the clock and the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .physics import WORKSPACE_GIB, Physics
from .resolve import Launch, LaunchError
from .shape import Shape

PLAIN = "\0"  # a line that carries no time stamp starts with this
PACKAGES = "/opt/venv/lib/python3.12/site-packages"


@dataclass(frozen=True)
class Phase:
    """``lines`` appear ``delay_s`` after the previous phase; ``rank`` is None for the main process."""

    delay_s: float
    lines: list[tuple[int | None, str]] = field(default_factory=list)
    used_gib: float | None = None


def gib(value: float) -> str:
    return f"{value:.2f}"


def script(
    launch: Launch, shape: Shape, box: Mapping[str, Any], physics: Physics, environ: Mapping[str, str], pids: list[int]
) -> Iterator[Phase]:
    """Phases up to the moment before the HTTP port opens. Raises LaunchError in the middle where memory runs out."""
    args, memory, start = launch.args, launch.memory, box["startup"]
    ranks = list(range(launch.options.tp))
    speed = physics.launch_factor

    def every(text: str) -> list[tuple[int | None, str]]:
        return [(rank, text) for rank in ranks]

    def main(*texts: str) -> list[tuple[int | None, str]]:
        return [(None, text) for text in texts]

    early = list(box.get("log", {}).get("import_lines", []))
    dump = ", ".join(f"{name}={value!r}" for name, value in args.items())
    yield Phase(
        float(start["import_s"]) * speed,
        main(*launch.messages, *early, f"server_args=ServerArgs({dump})",
             "Using default HuggingFace chat template with detected content format: string"),
    )  # fmt: skip
    spawn = float(start["import_s"])
    yield Phase(spawn * speed, every("Init torch distributed begin."), 0.4)
    yield Phase(0.4, _collectives(launch, box, physics, environ, pids) if len(ranks) > 1 else [])
    context = memory.capacity - memory.before_weights
    yield Phase(
        0.2 if len(ranks) == 1 else 12.0 * speed,
        every(f"Init torch distributed ends. elapsed={0.2 if len(ranks) == 1 else 12.0 * speed:.2f} s, "
              f"mem usage={0.09 if len(ranks) == 1 else 1.01:.2f} GB"),
        context,
    )  # fmt: skip
    yield Phase(1.0, every(f"Load weight begin. avail mem={gib(memory.before_weights)} GB"))
    if launch.kernel_lines:
        yield Phase(0.5, [(0, line) for line in launch.kernel_lines])
    seconds = float(start["weights_s"]) * speed
    quant = box["model"].get("quant_text", "")
    after = memory.before_weights - memory.weights
    if after < 0.2:
        raise _out_of_memory("load_model", memory.capacity, 256.0)
    yield Phase(
        seconds,
        every(f"Load weight end. elapsed={seconds:.2f} s, type={shape.architecture}, {quant}avail mem={gib(after)} GB, "
              f"mem usage={gib(memory.weights)} GB."),
        context + memory.weights,
    )  # fmt: skip
    yield from _pools(launch, shape, every)
    if memory.pool_tokens <= 0:
        raise LaunchError(
            _scheduler_failure(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
                f"mem_fraction_static={args['mem_fraction_static']}"
            ),
            -9,
        )
    yield Phase(
        0.1, every(f"Memory pool end. avail mem={gib(memory.after_pool)} GB"), memory.capacity - memory.after_pool
    )
    if memory.after_pool < 0.1:
        raise _out_of_memory("init_cublas", memory.capacity, 32.0)
    available = memory.after_pool - 0.1
    if launch.graph_sizes:
        label = "cuda graph"
        yield from _capture(
            launch.graph_sizes,
            label,
            available,
            memory.graphs,
            float(start["graph_s_per_size"]) * speed,
            every,
            memory.capacity,
        )
        available -= memory.graphs
        if len(ranks) > 1 and physics.transport() == "custom":
            yield Phase(0.0, [(0, "Registering 0 cuda graph addresses")])
    if launch.prefill_sizes:
        yield from _capture_prefill(
            launch.prefill_sizes,
            available,
            memory.prefill_graphs,
            float(start["prefill_graph_s"]) * speed,
            every,
            memory.capacity,
        )
        available -= memory.prefill_graphs
    else:
        yield Phase(0.0, [(0, "Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set")])
    if launch.drafts:
        yield from _draft(launch, shape, available, every, float(start["graph_s_per_size"]) * speed, memory.capacity)
        available = memory.left - 0.1
    yield Phase(
        0.2,
        [(0, f"max_total_num_tokens={memory.pool_tokens}, chunked_prefill_size={args['chunked_prefill_size']}, "
             f"max_prefill_tokens={args['max_prefill_tokens']}, max_running_requests={launch.max_running}, "
             f"context_len={launch.context_length}, available_gpu_mem={gib(available)} GB")],
        memory.capacity - available,
    )  # fmt: skip


def _kv_dtype(launch: Launch) -> str:
    asked = str(launch.args["kv_cache_dtype"])
    return {"fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2"}.get(asked, "torch.bfloat16")


def _pools(launch: Launch, shape: Shape, every: Any) -> Iterator[Phase]:
    memory = launch.memory
    if memory.pool_tokens <= 0:
        return
    yield Phase(0.1, [(0, f"Using KV cache dtype: {_kv_dtype(launch)}")])
    if memory.state_slots:
        drafted = launch.options.draft_tokens
        base = memory.state / (1 + drafted / 3.0)
        extra = (
            f"intermediate_ssm_state_cache size: {memory.state - base:.2f}GB intermediate_conv_window_cache size: 0.02GB "
            if drafted
            else ""
        )
        yield Phase(
            0.1,
            every(f"Mamba Cache is allocated. max_mamba_cache_size: {memory.state_slots}, conv_state size: {base * 0.02:.2f}GB, "
                  f"ssm_state size: {base * 0.98:.2f}GB {extra}".rstrip()),
        )  # fmt: skip
    size = (
        f"KV size: {gib(memory.pool)} GB"
        if shape.latent
        else f"K size: {gib(memory.pool / 2)} GB, V size: {gib(memory.pool / 2)} GB"
    )
    yield Phase(
        0.1,
        every(f"KV Cache is allocated. #tokens: {memory.pool_tokens}, {size}"),
        memory.capacity - memory.after_pool - WORKSPACE_GIB,
    )


def _capture(
    sizes: list[int], label: str, available: float, used: float, seconds_each: float, every: Any, capacity: float
) -> Iterator[Phase]:
    yield Phase(
        0.1, every(f"Capture {label} begin. This can take up to several minutes. avail mem={gib(available)} GB")
    )
    if label == "cuda graph":
        yield Phase(0.0, [(0, f"Capture cuda graph bs {sizes}")])
    if used > available - 0.05:
        raise LaunchError(
            _scheduler_failure(
                f"Exception: Capture {label} failed: CUDA out of memory. Tried to allocate {used * 1024:.2f} MiB. GPU 0 has a total "
                f"capacity of {gib(capacity)} GiB of which {max(0.0, available) * 1024:.2f} MiB is free.",
                "Possible solutions:",
                "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
                "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)",
                "3. disable torch compile by not using --enable-torch-compile",
                "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)",
            ),
            -9,
        )
    total, count = seconds_each * (len(sizes) + 2), len(sizes)
    for done in _milestones(count):
        size = sizes[count - 1 - min(done, count - 1)]
        free = available - used * done / count
        bar = f"Capturing batches (bs={size} avail_mem={gib(free)} GB): {_bar(done, count, total)}"
        yield Phase(total / len(_milestones(count)), [(None, PLAIN + "\r" + bar + ("\n" if done == count else ""))])
    yield Phase(
        0.0,
        every(
            f"Capture {label} end. Time elapsed: {total:.2f} s. mem usage={gib(used)} GB. avail mem={gib(available - used)} GB."
        ),
    )


def _capture_prefill(
    sizes: list[int], available: float, used: float, total: float, every: Any, capacity: float
) -> Iterator[Phase]:
    yield Phase(0.0, every(f"Capture piecewise CUDA graph begin. avail mem={gib(available)} GB"))
    yield Phase(0.0, [(0, f"Capture cuda graph num tokens {sizes}")])
    if used > available - 0.05:
        raise LaunchError(
            _scheduler_failure(
                "Exception: Piecewise CUDA Graph failed with error: CUDA out of memory.",
                "Possible solutions:",
                "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
            ),
            -9,
        )
    count = len(sizes)
    for verb in ("Compiling", "Capturing"):
        for done in _milestones(count):
            size = sizes[count - 1 - min(done, count - 1)]
            free = "" if verb == "Compiling" else f" avail_mem={gib(available - used * done / count)} GB"
            bar = f"{verb} num tokens (num_tokens={size}{free}): {_bar(done, count, total / 2)}"
            yield Phase(
                total / 2 / len(_milestones(count)), [(None, PLAIN + "\r" + bar + ("\n" if done == count else ""))]
            )
    yield Phase(
        0.0,
        every(
            f"Capture piecewise CUDA graph end. Time elapsed: {total:.2f} s. mem usage={gib(used)} GB. avail mem={gib(available - used)} GB."
        ),
    )


def _draft(
    launch: Launch, shape: Shape, available: float, every: Any, seconds_each: float, capacity: float
) -> Iterator[Phase]:
    memory = launch.memory
    if memory.draft_weights + memory.draft_pool > available - 0.2:
        raise _out_of_memory("load_model", memory.capacity, 1024.0 * memory.draft_weights)
    yield Phase(0.1, every(f"Load weight begin. avail mem={gib(available)} GB"))
    after = available - memory.draft_weights
    name = shape.architecture.replace("ForCausalLM", "").replace("ForConditionalGeneration", "") + "MTP"
    yield Phase(
        0.5,
        every(
            f"Load weight end. elapsed=0.01 s, type={name}, avail mem={gib(after)} GB, mem usage={gib(memory.draft_weights)} GB."
        ),
    )
    half = gib(memory.draft_pool / 2)
    size = f"KV size: {gib(memory.draft_pool)} GB" if shape.latent else f"K size: {half} GB, V size: {half} GB"
    after -= memory.draft_pool
    yield Phase(
        0.1,
        [
            (0, f"Using KV cache dtype: {_kv_dtype(launch)}"),
            *every(f"KV Cache is allocated. #tokens: {memory.pool_tokens}, {size}"),
        ],
    )
    yield Phase(0.1, every(f"Memory pool end. avail mem={gib(after)} GB"))
    if launch.graph_sizes:
        yield from _capture(
            launch.graph_sizes, "draft cuda graph", after, memory.draft_graphs / 2, seconds_each / 2, every, capacity
        )
        after -= memory.draft_graphs / 2
        yield from _capture(
            launch.graph_sizes,
            "draft extend cuda graph",
            after,
            memory.draft_graphs / 2,
            seconds_each / 4,
            every,
            capacity,
        )


def _milestones(count: int) -> list[int]:
    return sorted({1, max(1, count // 2), count})


def _bar(done: int, count: int, total: float) -> str:
    share = done / count
    return f"{share:4.0%}|{'█' * int(10 * share):<10}| {done}/{count} [00:{int(total * share) % 60:02d}<00:{int(total * (1 - share)) % 60:02d}, {count / max(total, 0.01):5.2f}it/s]"


def _collectives(
    launch: Launch, box: Mapping[str, Any], physics: Physics, environ: Mapping[str, str], pids: list[int]
) -> list[tuple[int | None, str]]:
    version = box["hardware"].get("nccl", "2.28.9")
    lines: list[tuple[int | None, str]] = [(0, f"sglang is using nccl=={version}")]
    if environ.get("NCCL_DEBUG", "").upper() in {"INFO", "TRACE"}:
        lines += _nccl_info(launch, box, physics, environ, pids, version)
    refusal = physics.custom_refusal()
    if not launch.options.custom_all_reduce:
        pass  # switched off by the flag: the engine says nothing (recorded)
    elif refusal:
        for rank in range(launch.options.tp):
            lines.append(
                (
                    rank,
                    f"CustomAllreduce is disabled because {refusal}. To silence this warning, specify disable_custom_all_reduce=True explicitly.",
                )
            )
    else:
        lines.append(
            (
                0,
                "Custom allreduce v2 initialized successfully (rank-check failed: tensor model parallel group is not initialized)",
            )
        )
    return lines


def _nccl_info(
    launch: Launch, box: Mapping[str, Any], physics: Physics, environ: Mapping[str, str], pids: list[int], version: str
) -> list[tuple[int | None, str]]:
    gpus = launch.options.tp
    out: list[tuple[int | None, str]] = []
    settings = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
    settings.update(
        {name: value for name, value in environ.items() if name.startswith("NCCL_") and name != "NCCL_DEBUG"}
    )
    carried = Physics(physics.shape, physics.box, launch.options, 1.0).transport()
    # NCCL sets its channels up even where the engine's own kernel carries the small messages.
    shared = carried == "nccl_shm" or environ.get("NCCL_P2P_DISABLE") == "1" or not box["hardware"].get("p2p", True)
    via = "SHM/direct/direct" if shared else "P2P/IPC"
    channels = int(environ.get("NCCL_MIN_NCHANNELS") or box["hardware"].get("nccl_channels", 4))
    for rank in range(gpus):
        pid = pids[rank] if rank < len(pids) else 1000 + rank
        head = PLAIN + f"{box['hardware'].get('hostname', 'box')}:{pid}:{pid} [{rank}] NCCL INFO "
        texts = [
            "Bootstrap: Using eth0:192.0.2.2<0>",
            f"cudaDriverVersion {str(box['hardware']['cuda']).replace('.', '0')}00",
            f"NCCL version {version}+cuda{box['hardware']['cuda']}",
            "NET/Plugin: Could not find: libnccl-net.so",
            *(["NCCL_IB_DISABLE set by environment to 1."] if environ.get("NCCL_IB_DISABLE") == "1" else ["NET/IB : No device found."]),
            "NET/Socket : Using [0]eth0:192.0.2.2<0>",
            "Using network Socket",
            f"ncclCommInitRank comm 0x4c95e9f0 rank {rank} nranks {gpus} cudaDev {rank} nvmlDev {rank} busId {rank + 1}0 commId 0x8ee93431805e2f61 - Init START",
            *[f"{name} set by environment to {value}." for name, value in settings.items() if name != "NCCL_IB_DISABLE"],
            *([f"Channel {i:02d}/{channels:02d} : " + " ".join(map(str, range(gpus))) for i in range(channels)] if rank == 0 else []),
            *[f"Channel {i:02d} : {rank}[{rank}] -> {(rank + 1) % gpus}[{(rank + 1) % gpus}] via {via}" for i in range(channels)],
            "Connected all rings, use ring PXN 0 GDR 1",
            f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, {channels} p2p channels, {channels} p2p channels per peer",
            f"ncclCommInitRank comm 0x4c95e9f0 rank {rank} nranks {gpus} cudaDev {rank} nvmlDev {rank} busId {rank + 1}0 commId 0x8ee93431805e2f61 - Init COMPLETE",
        ]  # fmt: skip
        out += [(None, head + text) for text in texts]
    return out


def _out_of_memory(where: str, capacity: float, wanted_mib: float) -> LaunchError:
    return LaunchError(
        _scheduler_failure(
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted_mib:.2f} MiB. GPU 0 has a total capacity of "
            f"{gib(capacity)} GiB of which 10.31 MiB is free. Including non-PyTorch memory, this process has {gib(capacity - 0.02)} GiB memory in use. "
            f"Of the allocated memory {gib(capacity - 0.86)} GiB is allocated by PyTorch, and 120.02 MiB is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
            where=where,
        ),
        -9,
    )


def _scheduler_failure(*last: str, where: str = "initialize") -> list[str]:
    root = f"{PACKAGES}/sglang/srt"
    return [
        "Scheduler hit an exception: Traceback (most recent call last):",
        PLAIN + f'  File "{root}/managers/scheduler.py", line 4025, in run_scheduler_process',
        PLAIN + "    scheduler = Scheduler(",
        PLAIN + f'  File "{root}/managers/scheduler.py", line 437, in __init__',
        PLAIN + "    self.init_model_worker()",
        PLAIN + f'  File "{root}/model_executor/model_runner.py", line 535, in __init__',
        PLAIN + "    self.initialize(pre_model_load_memory)",
        PLAIN + f'  File "{root}/model_executor/model_runner.py", line 765, in {where}',
        *[PLAIN + line for line in last],
        PLAIN,
        "Received sigquit from a child process. It usually means the child failed.",
    ]
