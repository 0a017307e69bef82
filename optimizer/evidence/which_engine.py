"""Which engine wrote a log, by the words that only one of them prints."""

from optimizer.evidence.lines import Piece

ENGINE_NAMES = {"sglang": "SGLang", "vllm": "vLLM", "llamacpp": "llama.cpp"}
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
    ),
    "llamacpp": (b"llama_", b"srv  ", b"slot ", b"ggml_", b"build_info", b"n_slots", b"load_tensors"),
}
_LOOK_BYTES = 8 * 1024 * 1024


def words_of(log: tuple[Piece, ...], engine: str) -> int:
    """How many of an engine's words this log has (kinds, not occurrences)."""
    looked = [piece.data[:_LOOK_BYTES] for piece in log]
    return sum(1 for word in _WORDS.get(engine, ()) if any(word in data for data in looked))


def engine_of_log(log: tuple[Piece, ...]) -> str | None:
    """The engine with the most words, if it has two or more and no other has as many."""
    counted = sorted(((words_of(log, engine), engine) for engine in _WORDS), reverse=True)
    return counted[0][1] if counted[0][0] >= 2 and counted[0][0] > counted[1][0] else None
