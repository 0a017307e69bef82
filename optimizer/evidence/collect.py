"""What the live survey of a box reads for an engine, as data: files, commands and URLs with their limits. Whoever can
reach a box
loops over it, puts the answers under the names given here and calls ``bundle_from_files``. Every item is read-only."""

from optimizer.evidence.derived import version_key
from optimizer.model.base import Frozen

MIB = 1024 * 1024


class Url(Frozen):
    """GET on the server's own port. ``paths`` are tried in order until one answers 200; the body goes to ``file``."""

    file: str
    paths: tuple[str, ...]
    max_bytes: int = 16 * MIB
    deadline_s: float = 10.0
    repeat_s: float | None = None  # asked at this interval while the load runs, answers appended
    generates: bool = False  # costs a token: not while somebody else's load is measured


class Command(Frozen):
    """An argument vector (never a shell line). Its standard output goes to ``file``; a missing program is a missing
    fact, no error."""

    file: str
    argv: tuple[str, ...]
    max_bytes: int = 2 * MIB
    deadline_s: float = 10.0
    repeat_s: float | None = None  # sampled at this interval while the load runs


class FileRead(Frozen):
    """A file on the box. ``{log}`` is the server's log, ``{model}`` its model folder, ``{pid}`` one of its processes.

    A file longer than head + tail is read at both ends; the tail goes to ``NAME@OFFSET``."""

    file: str
    path: str
    head_bytes: int = 2 * MIB
    tail_bytes: int = 0
    deadline_s: float = 10.0


class CollectPlan(Frozen):
    """Everything to read once for one engine build. Items are independent of each other and may run side by side."""

    engine: str
    urls: tuple[Url, ...]
    commands: tuple[Command, ...]
    files: tuple[FileRead, ...]


READY = {"sglang": ("/health_generate",), "vllm": ("/health",), "llamacpp": ("/health",)}

_SMI_TABLE = "timestamp,index,utilization.gpu,utilization.memory,memory.used,power.draw,clocks.sm,temperature.gpu"
_COMMANDS = (
    Command(file="nvidia-smi-q.txt", argv=("nvidia-smi", "-q"), deadline_s=20.0),
    Command(file="topo.txt", argv=("nvidia-smi", "topo", "-m"), deadline_s=20.0),
    Command(file="gpu.csv", argv=("nvidia-smi", f"--query-gpu={_SMI_TABLE}", "--format=csv,noheader"), repeat_s=1.0),
    Command(
        file="gpu_processes.csv",
        argv=("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader"),
    ),
)
_FILES = (
    FileRead(file="server.log", path="{log}", head_bytes=16 * MIB, tail_bytes=32 * MIB, deadline_s=30.0),
    FileRead(file="config.json", path="{model}/config.json", head_bytes=4 * MIB),
)


def collect_plan(engine: str, version: str = "") -> CollectPlan:
    """What to read for this engine; endpoint names follow the version when it is known, else both spellings are
    tried."""
    urls: tuple[Url, ...]
    if engine == "sglang":
        known = version_key(version)
        # Renamed in 0.5.6; the old name still answers there and logs a warning into the log that we read.
        info = ("/get_server_info",) if known and known < (0, 5, 6) else ("/server_info", "/get_server_info")
        model = ("/get_model_info",) if known and known < (0, 5, 6) else ("/model_info", "/get_model_info")
        urls = (
            Url(file="server_info.json", paths=info),
            Url(file="metrics.txt", paths=("/metrics",)),
            Url(file="model_info.json", paths=model, max_bytes=MIB),
            Url(file="models.json", paths=("/v1/models",), max_bytes=MIB),
        )
    elif engine == "vllm":
        # /server_info exists only in developer mode; the start-up log carries the configuration instead.
        urls = (
            Url(file="metrics.txt", paths=("/metrics",)),
            Url(file="version.json", paths=("/version",), max_bytes=MIB),
            Url(file="models.json", paths=("/v1/models",), max_bytes=MIB),
            Url(file="server_info.json", paths=("/server_info?config_format=json",)),
        )
    else:
        urls = (
            Url(file="metrics.txt", paths=("/metrics",)),
            Url(file="models.json", paths=("/v1/models",), max_bytes=MIB),
        )
    urls = (*urls, Url(file="metrics_load.txt", paths=("/metrics",), max_bytes=32 * MIB, repeat_s=1.0))
    return CollectPlan(engine=engine, urls=urls, commands=_COMMANDS, files=_FILES)


def help_command(engine: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """How to ask this server's own build for its flags: the command that started it, with ``--help`` in place of its
    arguments."""
    launcher = next(
        (
            index
            for index, word in enumerate(argv)
            if word in ("sglang.launch_server", "vllm.entrypoints.openai.api_server")
        ),
        None,
    )
    if launcher is not None and launcher > 0:
        return (*argv[: launcher + 1], "--help")
    serve = next((index for index, word in enumerate(argv) if word == "serve"), None)
    if serve is not None:
        return (*argv[: serve + 1], "--help=all" if engine == "vllm" else "--help")
    return (*argv[:1], "--help") if argv else ()
