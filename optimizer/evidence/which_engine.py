"""Which engine wrote a log, by the words that only one of them prints. A server that fails early leaves little more than
its usage text, one line of error, or a traceback through its own files; that is enough as well."""

import re
from functools import cache

from optimizer.evidence.lines import Piece

ENGINE_NAMES = {"sglang": "SGLang", "vllm": "vLLM", "llamacpp": "llama.cpp"}
# Each of these may stand in a log of another program: two kinds are needed.
_WORDS: dict[str, tuple[bytes, ...]] = {
    "sglang": (b"server_args=", b"Decode batch", b"Prefill batch", b"sglang", b"TokenizerManager"),
    "vllm": (
        b"LLM engine (v",
        b"non-default args",
        b"Avg prompt throughput",
        b"APIServer pid=",
        b"EngineCore",
        b"vLLM API server",
        b"vllm",
        b"usage: api_server.py",
        b"api_server.py: error: ",
    ),
    "llamacpp": (b"llama_", b"srv  ", b"slot ", b"ggml_", b"build_info", b"n_slots", b"load_tensors"),
}
# These no other program writes: one is enough. Looked for at a place of the line where no prompt can stand.
_OWN: dict[str, bytes] = {
    "sglang": rb"^usage: (?:sglang serve|launch_server\.py) |^(?:sglang serve|launch_server\.py): error: "
    rb"|^(?:\[[^\]\n]{1,60}\] )?server_args=ServerArgs\("
    rb"|^\[20\d\d-[^\]\n]{1,60}\] (?:Load weight (?:begin|end)\.|Init torch distributed (?:begin|ends)|Capture cuda graph "
    rb"|max_total_num_tokens=\d|Scheduler hit an exception|(?:Decode|Prefill) batch[,.] #)"
    rb"|^\[20\d\d-[\d-]{5} [\d:]{8}(?: (?:DP|PP|TP|EP)\d{1,4}){1,5}\] ",
    "vllm": rb"^usage: vllm serve |^vllm serve: error: |No package metadata was found for vllm$",
    "llamacpp": rb"^(?:error: invalid argument: |error while handling argument \"|error: the argument has been removed)"
    rb"|^main: exiting due to (?:error: Failed to init server|model loading error)",
}
# Frames of a traceback.
_FRAMES: dict[str, bytes] = {
    "sglang": rb'^[^\n"]{0,80}\bFile "[^"\n]{0,300}/sglang/(?:srt/|cli/|jit_kernel/|launch_server\.py")',
    "vllm": rb'^[^\n"]{0,80}\bFile "[^"\n]{0,300}/vllm/(?:entrypoints|engine|v1|config|executor|worker|platforms|transformers_utils)\b',
}
_LOOK_BYTES = 8 * 1024 * 1024


def words_of(log: tuple[Piece, ...], engine: str) -> int:
    """How much of an engine's words this log has: one for each kind (not each occurrence), two for what only it prints."""
    looked = [piece.data[:_LOOK_BYTES] for piece in log]
    words = sum(1 for word in _WORDS.get(engine, ()) if any(word in data for data in looked))
    return words + 2 * sum(1 for own in _own(engine) if any(own.search(data) for data in looked))


def engine_of_log(log: tuple[Piece, ...]) -> str | None:
    """The engine with the most words, if it has two or more and no other has as many."""
    counted = sorted(((words_of(log, engine), engine) for engine in _WORDS), reverse=True)
    (most, best), (second, other) = counted[:2]
    if most < 2:
        return None
    if most == second:
        # SGLang imports parts of vLLM and never the other way round: a traceback through both began in SGLang.
        both = {best, other} == {"sglang", "vllm"} and counted[2][0] < most
        return "sglang" if both and _has_frames(log, "sglang") else None
    return best


def _has_frames(log: tuple[Piece, ...], engine: str) -> bool:
    return any(re.search(_FRAMES[engine], piece.data[:_LOOK_BYTES], re.MULTILINE) for piece in log)


@cache
def _own(engine: str) -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(table[engine], re.MULTILINE) for table in (_OWN, _FRAMES) if engine in table)
