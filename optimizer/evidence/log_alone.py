"""A log without anything beside it: which engine wrote it, and what it says of its own launch. Responsible for recognition
only; the facts are the parsers' business."""

import json
import re

from optimizer.evidence.gather import Launch, log_facts
from optimizer.evidence.lines import Piece
from optimizer.evidence.literal import arguments
from optimizer.evidence.which_engine import ENGINE_NAMES, engine_of_log
from optimizer.model.base import Value
from optimizer.redact import may_hold_secret

HEAD_BYTES = 4 * 1024 * 1024  # an engine says who it is in its first lines
_ASKED = re.compile(rb"non-default args: (\{.{1,60000}\})\s*$", re.MULTILINE)
_LLAMA_MODEL = re.compile(rb"load_model: loading model '([^'\r\n]{1,4000})'")


def launch_of_log(log: tuple[Piece, ...], name: str = "server.log") -> tuple[Launch, tuple[str, ...]] | None:
    """The launch as far as the log tells it, with what could not be known; None when no known engine wrote this."""
    engine = engine_of_log(log)
    if engine is None:
        return None
    head = (Piece(log[0].data[:HEAD_BYTES]),)
    evidence = log_facts(engine, head).evidence()
    version = evidence.value("engine.version")
    resolved = evidence.value("settings.resolved")
    settings = resolved if isinstance(resolved, dict) else {}
    argv = _asked(head[0].data) if engine == "vllm" else ()
    told = settings.get("model_path") if engine == "sglang" else settings.get("model")
    if engine == "llamacpp" and (match := _LLAMA_MODEL.search(head[0].data)):
        told = match[1].decode("utf-8", "replace")
    launch = Launch(
        engine=engine,
        engine_version=version if isinstance(version, str) else "",
        model=told if isinstance(told, str) else "",
        argv=argv,
    )
    unknown = [
        *([] if launch.engine_version else ["the engine's version"]),
        *([] if launch.model else ["the model"]),
        *([] if argv or settings else ["the arguments"]),
        "the environment",
        "the GPUs",
        "the load that was measured",
    ]
    note = (
        f"{name} is all that says how the server was launched: it is a log of {ENGINE_NAMES[engine]} "
        f"{launch.engine_version or '(version not said)'}; not known from it: {', '.join(unknown)} "
        "(launch.json and bench.json beside it would tell)"
    )
    return launch, (note,)


def _asked(head: bytes) -> tuple[str, ...]:
    """vLLM's line of what was given on the command line, as that command line."""
    match = _ASKED.search(head)
    given = arguments(match[1].decode("utf-8", "replace")) if match else {}
    argv: list[str] = []
    for name, value in given.items():
        if value is None or not re.fullmatch(r"\w{1,80}", name) or may_hold_secret(name):
            continue
        argv.extend(_words(name.replace("_", "-"), value))
    return tuple(argv)


def _words(flag: str, value: Value) -> list[str]:
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *(str(item) for item in value)]
    return [f"--{flag}", json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)]
