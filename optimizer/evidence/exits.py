"""Why a server did not come up, or went away, from the end of its log and its exit code. The last decisive lines
count, not the first one that contains the word error: servers print harmless import errors, and one rank's death makes
the others complain about NCCL."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from optimizer.evidence.lines import Line, Piece, iter_lines, pieces_of, text
from optimizer.model.outcome import Cause

TAIL_BYTES = 4 * 1024 * 1024  # every open request adds its own traceback when an engine dies: a megabyte is not rare

# Stage markers, so that "out of memory" can be told apart. Prefix-free: they stand anywhere in a line.
_STAGES: tuple[tuple[bytes, str], ...] = (
    (b"Load weight begin", "weights"),
    (b"Starting to load model", "weights"),
    (b"Loading safetensors", "weights"),
    (b"Loading model weights", "weights"),
    (b"Load weight end", "pool"),
    (b"Loading weights took", "pool"),
    (b"Model loading took", "pool"),
    (b"Memory pool end", "pool"),
    (b"KV cache size:", "pool"),
    (b"KV Cache is allocated", "pool"),
    (b"Capture ", "capture"),
    (b"Capturing ", "capture"),
    (b"Graph capturing finished", "serving"),
    (b"Application startup complete", "serving"),
    (b"The server is fired up", "serving"),
)

_ARGPARSE = re.compile(rb": error: (.{1,400})$")
_EXCEPTION = re.compile(
    rb"(?:^|[\s\]:])((?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Interrupt))(?:: ?(.{0,400}))?$"
)
_FRAME = re.compile(
    rb'File "[^"]{1,300}(server_args\.py|arg_utils\.py|arg_groups/[\w.]{1,60}|/config/[\w.]{1,60}'
    rb'|argparse\.py|config\.py)", line'
)
_SECONDARY = (
    b"See root cause above",
    b"Engine core initialization failed",
    b"EngineCore encountered an issue",
    b"Engine process failed to start",
    b"failed to start",
    b"died during initialization",
    b"EngineDeadError",
    b"SystemExit",
    b"KeyboardInterrupt",
)

# Requests that a server was told to log: what is in them was said by users.
_USERS_TEXT = (b"Received request", b"obj=GenerateReqInput(", b"INFO prompt: ")
_NOT_THE_END = (b"retrying", b"Retrying")  # what the server itself has got over

_Rule = tuple[bytes, Cause]
# llama.cpp's own words; the decisive line comes first, what follows repeats that the model or the server failed.
START_ERRORS_LLAMACPP: tuple[_Rule, ...] = (
    (b"couldn't bind HTTP server socket", "port_busy"),
    (b"failed to open GGUF file", "model_missing"),
    (b"failed to allocate buffer for kv cache", "oom_kv"),
    (b"failed to allocate compute", "oom_kv"),
    (b"cudaMalloc failed: out of memory", "oom_weights"),
    (b"unable to allocate CUDA", "oom_weights"),
    (b"error loading model: ", "model_missing"),
    (b"ggml_aligned_malloc: insufficient memory", "oom_weights"),
    (b"error: invalid argument: ", "bad_flag"),
    (b"error while handling argument ", "bad_flag"),
    (b"error: the argument has been removed", "bad_flag"),
    (b"quantized V cache requires flash_attn", "bad_flag"),
)
# A specific text decides by itself. Order matters only within one line.
_SPECIFIC: tuple[_Rule, ...] = (
    *START_ERRORS_LLAMACPP,
    (b"No space left on device", "disk_full"),
    (b"OSError: [Errno 122] Disk quota exceeded", "disk_full"),
    (b"Address already in use", "port_busy"),
    (b"address already in use", "port_busy"),
    (b"is already in use", "port_busy"),
    (b"No available memory for the cache blocks", "oom_kv"),
    (b"larger than the available KV cache memory", "oom_kv"),
    (b"Not enough memory. Please try to increase", "oom_kv"),
    (b"larger than the profiled value -", "oom_kv"),
    (b"Loaded weights leave no GPU memory", "oom_weights"),
    (b"alloc_req_slots runs out of memory", "oom_kv"),
    (b"less than desired GPU memory utilization", "gpu_memory_stuck"),
    (b"memory capacity is unbalanced", "gpu_memory_stuck"),
    (b"Out of memory: Killed process", "oom_kernel"),
    (b"oom-kill", "oom_kernel"),
    (b"oom_reaper", "oom_kernel"),
    (b"is not a valid model identifier", "model_missing"),
    (b"does not appear to have a file named", "model_missing"),
    (b"RepositoryNotFoundError", "model_missing"),
    (b"GatedRepoError", "model_missing"),
    (b"LocalEntryNotFoundError", "model_missing"),
    (b"Unrecognized model in ", "model_missing"),
    (b"Can't load the configuration of", "model_missing"),
    (b"HFValidationError", "model_missing"),
    (b"Model path does not exist", "model_missing"),
    (b"OfflineModeIsEnabled", "model_missing"),
    (b"Scheduler watchdog timeout", "unresponsive"),
    (b"Watchdog timeout (self.watchdog", "unresponsive"),
    (b"Initialization failed. warmup error", "unresponsive"),
    (b"CUDA Graph failed with error", "crashed"),
    (b"terminated with exception: CUDA error", "crashed"),
    (b"CUDA error: an illegal memory access", "crashed"),
    (b"CUDA error: unspecified launch failure", "crashed"),
    # The machine's own fault, whatever the settings.
    (b"OSError: [Errno 30] Read-only file system", "host_fault"),
    (b"OSError: [Errno 24] Too many open files", "host_fault"),
    (b"OSError: [Errno 12] Cannot allocate memory", "host_fault"),
    (b"BlockingIOError: [Errno 11] Resource temporarily unavailable", "host_fault"),
    (b"PermissionError: [Errno 13] Permission denied", "host_fault"),
    (b"Fatal Python error: Bus error", "host_fault"),
    (b"uncorrectable ECC error", "host_fault"),
    (b"Error: No CUDA GPUs are available", "host_fault"),
    (b"CUDA error: CUDA-capable device(s) is/are busy or unavailable", "host_fault"),
    (b"CUDA error: CUDA driver version is insufficient", "host_fault"),
    (b"ImportError: libcu", "host_fault"),
)
_NCCL = (
    b"NCCL error",
    b"ncclInternalError",
    b"ncclSystemError",
    b"ncclUnhandledCudaError",
    b"ncclRemoteError",
    b"DistBackendError",
    b"Watchdog caught collective operation timeout",
)
_OOM = (
    b"OutOfMemoryError",
    b"out of memory. Tried",
    b"CUDA out of memory",
    b"error: out of memory",
    b"cudaErrorMemoryAllocation",
    b"CUBLAS_STATUS_ALLOC_FAILED",
    b"HIP out of memory",
    b"MemoryError",
    b"DefaultCPUAllocator: can't allocate",
    b"Cuda failure 2 'out of memory'",
)
_WEAK = (
    b"Scheduler hit an exception",
    b"TokenizerManager hit an exception",
    b"Received sigquit",
    b"SIGQUIT received",
    b"crashed with exit code",
    b"Segmentation fault",
    b"core dumped",
    b"died unexpectedly",
)


class Exit(NamedTuple):
    cause: Cause
    message: str
    line: Line | None


def exit_class(log_tail: bytes, exit_code: int | None) -> tuple[Cause, str, int | None]:
    """Cause, one line of explanation and the line number within ``log_tail`` of what decided it.

    ``exit_code`` as of subprocess (negative: signal), None while the process still runs."""
    result = classify(log_tail, exit_code)
    return result.cause, result.message, result.line.number if result.line else None


def classify(data: bytes | Iterable[Piece], exit_code: int | None) -> Exit:
    """The same for a log in pieces, with full line positions."""
    stage = "arguments"
    config_frame = -100
    specific: list[tuple[int, Cause, Line]] = []
    generic: list[tuple[Line, str, str, bool]] = []
    weak: Line | None = None
    serving = False
    last = b""
    for index, line in enumerate(iter_lines(_tail(pieces_of(data)))):
        raw = line.raw if len(line.raw) < 4000 else line.raw[:4000]
        last = raw if raw.strip() else last
        if b" HTTP/1." in raw or b" throughput" in raw:
            continue  # what a serving log consists of
        if b'File "' in raw and _FRAME.search(raw):
            config_frame = index
            continue
        if may_be_stage(raw) and not any(word in raw for word in _USERS_TEXT):
            for marker, name in _STAGES:
                if marker in raw:
                    if b" failed" not in raw[:200]:
                        stage = name
                        if name == "serving":
                            serving = True
                            specific.clear()
                            generic.clear()
                            weak = None
                    break
        if not may_be_error(raw):
            continue
        if any(word in raw for word in (*_USERS_TEXT, *_NOT_THE_END)):
            continue
        found = _specific(raw, stage)
        if found:
            specific.append((_weight(found), found, line))
            continue
        if any(word in raw for word in _WEAK):
            weak = weak or line
            continue
        match = _EXCEPTION.search(raw)
        if match and b"Ignore import error" not in raw and not any(word in raw for word in _SECONDARY):
            generic.append(
                (line, match[1].decode("ascii", "replace"), text(match[2] or b"", 300), index - config_frame < 12)
            )
    return _decide(specific, generic, weak, serving, stage, exit_code, last)


def _decide(
    specific: list[tuple[int, Cause, Line]],
    generic: list[tuple[Line, str, str, bool]],
    weak: Line | None,
    serving: bool,
    stage: str,
    exit_code: int | None,
    last: bytes,
) -> Exit:
    # A fault of the machine that the server got over, as a later exception shows, did not end it.
    specific = [item for item in specific if item[1] != "host_fault" or not generic or item[2].start > generic[-1][0].start]
    if specific:
        best = max(weight for weight, _, _ in specific)
        _, cause, line = next(item for item in reversed(specific) if item[0] == best)
        return Exit(cause, _shorten(text(line.raw, 600)), line)
    if generic:
        line, kind, message, from_config = generic[-1]
        short = kind.rpartition(".")[2]
        cause = (
            "bad_flag"
            if from_config
            and short
            in ("ValueError", "AssertionError", "ValidationError", "NotImplementedError", "KeyError", "TypeError")
            else "crashed"
        )
        if short == "ValidationError" and not serving:
            cause = "bad_flag"
        return Exit(cause, _shorten(f"{short}: {message}".rstrip(": ")), line)
    if weak is not None:
        return Exit("crashed", _shorten(text(weak.raw, 300)), weak)
    if exit_code is None:
        if serving:
            return Exit(
                "unresponsive",
                "The server had come up and then stopped answering; its log ends without an error.",
                None,
            )
        return Exit(
            "not_ready_in_time",
            f"The server was still starting (last stage: {stage}) when its time was over; its log shows no error.",
            None,
        )
    if exit_code in (-9, 137):
        cause = "oom_load" if stage == "weights" else "crashed"
        return Exit(
            cause,
            "Killed by signal 9 without a word in the log: often the kernel's out-of-memory killer, or a kill -9.",
            None,
        )
    if exit_code < 0 or exit_code > 128:
        return Exit(
            "host_fault" if exit_code in (-7, 135) else "crashed",  # a bus error: mostly /dev/shm is full
            f"Killed by signal {-exit_code if exit_code < 0 else exit_code - 128}; its log ends without an error.",
            None,
        )
    said = f" Its last line: {_shorten(text(last.strip(), 300))}" if last else " It wrote nothing."
    return Exit("exited", f"Exited with code {exit_code}; its log shows no error that is known.{said}", None)


def may_be_stage(raw: bytes) -> bool:
    """Whether a stage marker can be in a line: a few looks instead of one for every marker."""
    return (
        b"apt" in raw
        or b"oad" in raw
        or b"KV " in raw
        or b"Memory pool" in raw
        or b"Starting to" in raw
        or b"Application" in raw
        or b"fired up" in raw
    )


def may_be_error(raw: bytes) -> bool:
    """Whether any text that decides can be in a line: most lines are told by a few looks."""
    return (
        b"rror" in raw
        or b"emory" in raw
        or b"xception" in raw
        or b"in use" in raw
        or b"space" in raw
        or b"nterrupt" in raw
        or b"igquit" in raw
        or b"SIGQUIT" in raw
        or b"crash" in raw
        or b"atchdog" in raw
        or b"oom" in raw
        or b"profiled value" in raw
        or b"fault" in raw
        or b"core dumped" in raw
        or b"died" in raw
        or b"valid model" in raw
        or b"desired GPU" in raw
        or b"unbalanced" in raw
        or b"Unrecognized" in raw
        or b"load the conf" in raw
        or b"Model path" in raw
        or b"Offline" in raw
        or b"file named" in raw
        or b"ALLOC_FAILED" in raw
        or b"allocat" in raw
        or b"raph failed" in raw
        or b"bind" in raw
        or b"GGUF" in raw
        or b"V cache" in raw
    )


def _specific(raw: bytes, stage: str) -> Cause | None:
    if b": error: " in raw and _ARGPARSE.search(raw.rstrip()) and b" out of memory" not in raw:
        return "bad_flag"
    for needle, cause in _SPECIFIC:
        if needle in raw:
            return cause
    if any(word in raw for word in _OOM):
        if b"graph" in raw[:160].lower() and b"apture" in raw[:160]:
            return "oom_capture"
        return {"capture": "oom_capture", "pool": "oom_kv", "serving": "oom_kv"}.get(stage, "oom_weights")  # type: ignore[return-value]
    if b"apture" in raw and b"graph failed" in raw:
        return "crashed"
    return "nccl" if any(word in raw for word in _NCCL) else None


def _weight(cause: Cause) -> int:
    """NCCL errors are often the echo of another rank's death, so any other specific cause beats them."""
    return {"nccl": 1, "crashed": 1, "unresponsive": 1, "host_fault": 1}.get(cause, 2)


def _tail(pieces: tuple[Piece, ...]) -> list[Piece]:
    """The last ``TAIL_BYTES``, with the right line numbers."""
    kept: list[Piece] = []
    room = TAIL_BYTES
    for piece in reversed(pieces):
        if room <= 0:
            break
        if len(piece.data) <= room:
            kept.append(piece)
        else:
            cut = len(piece.data) - room
            first = None if piece.first_line is None else piece.first_line + piece.data.count(b"\n", 0, cut)
            kept.append(Piece(piece.data[cut:], piece.offset + cut, first))
        room -= len(piece.data)
    return kept[::-1]


def _shorten(message: str) -> str:
    told = re.sub(r"\s+", " ", message).strip()
    return told if len(told) <= 400 else f"{told[:399].rpartition(' ')[0] or told[:399]}…"
