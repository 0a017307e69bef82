"""What a workload file points to: traces with times (Mooncake's JSONL, Azure's and BurstGPT's CSV) and conversations
(ShareGPT's JSON, OpenAI messages). Turns their text into the fields of a workload, so that a study holds what it offers
and does not depend on a file any more. It reads no file itself and draws nothing.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from optimizer.bench.workload import mean_length
from optimizer.errors import UsageError
from optimizer.model.workload import MAX_TEXT, MAX_TRACE, Lengths, TraceRequest, Turn

Read = Callable[[str], str]

# Names of the same thing in the formats that are in use; Mooncake's timestamps are milliseconds, all others seconds.
_AT = ("at_s", "timestamp", "arrived_at", "arrival_time")
_PROMPT = ("prompt_tokens", "input_length", "contexttokens", "request tokens", "num_prefill_tokens", "input_tokens")
_OUTPUT = ("output_tokens", "output_length", "generatedtokens", "response tokens", "num_decode_tokens")
_ONLY_HERE = ("trace_speed", "trace_requests", "trace_from_s", "max_conversations")
CHARACTERS_PER_TOKEN = 4.0


def resolve(data: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """The fields of a workload file with everything it points to put in its place. ``read`` gives the text of a file by the
    name in the workload; what it raises is passed on. Raises UsageError for a source that cannot be used."""
    found = {key: value for key, value in data.items() if key not in _ONLY_HERE}
    unused = [key for key in _ONLY_HERE if key in data and not isinstance(data.get("conversations" if key.startswith("max") else "trace"), str)]
    if unused:
        raise UsageError(f"The workload gives {', '.join(unused)} without the file that it belongs to.", hint="Name it: trace = \"FILE\" or conversations = \"FILE\".")
    if isinstance(data.get("trace"), str):
        speed, first, most = (_number(data, name, default) for name, default in (("trace_speed", 1.0), ("trace_from_s", 0.0), ("trace_requests", MAX_TRACE)))
        trace = parse_trace(read(data["trace"]), data["trace"], speed=speed, from_s=first, most=int(most))
        found["trace"] = [request.plain() for request in trace]
        found.setdefault("arrival", "trace")
        found.setdefault("prompt_tokens", max(1, round(sum(one.prompt_tokens for one in trace) / len(trace))))
        found.setdefault("output_tokens", max(1, round(sum(one.output_tokens for one in trace) / len(trace))))
    if isinstance(data.get("conversations"), str):
        talks = parse_conversations(read(data["conversations"]), data["conversations"], most=int(_number(data, "max_conversations", 500)))
        found["conversations"] = [[turn.plain() for turn in talk] for talk in talks]
        found.setdefault("api", "chat")
        turns = [turn for talk in talks for turn in talk]
        found.setdefault("prompt_tokens", max(1, round(sum(len(turn.asked) for turn in turns) / len(turns) / CHARACTERS_PER_TOKEN)))
        found.setdefault("output_tokens", max(1, round(sum(turn.output_tokens for turn in turns) / len(turns))))
    for lengths, mean in (("prompt_lengths", "prompt_tokens"), ("output_lengths", "output_tokens")):
        if isinstance(data.get(lengths), Mapping):
            found.setdefault(mean, mean_length(Lengths.model_validate(data[lengths])))
    return found


def _number(data: Mapping[str, Any], name: str, default: float) -> float:
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12 or (value == 0 and name != "trace_from_s"):
        raise UsageError(f"{name} = {value!r} is no positive number.", hint="Example: trace_speed = 2.0 plays the trace twice as fast.")
    return float(value)


def parse_trace(text: str, name: str, *, speed: float = 1.0, from_s: float = 0.0, most: int = MAX_TRACE) -> tuple[TraceRequest, ...]:
    """The requests of a trace in order of time, from ``from_s`` on, at most ``most`` of them; times divided by ``speed``.
    Raises UsageError with the line of the first entry that cannot be read."""
    rows: list[TraceRequest] = []
    start: float | None = None
    for line, entry in _entries(text, name):
        lower = {str(key).strip().lower(): value for key, value in entry.items() if key is not None}
        try:
            at = _time(lower)
            prompt, output = _count(lower, _PROMPT), _count(lower, _OUTPUT)
        except (KeyError, ValueError, TypeError) as error:
            raise UsageError(
                f"The trace {name} cannot be read at line {line}: {error}.",
                hint="Each entry needs a time, a prompt length and an output length: Mooncake's timestamp, input_length, output_length; "
                "Azure's TIMESTAMP, ContextTokens, GeneratedTokens; or at_s, prompt_tokens, output_tokens.",
            ) from error
        start = at if start is None else start
        since = at - start - from_s
        if since < 0 or prompt < 1 or output < 1:  # an answer that failed has no tokens: there is nothing to offer
            continue
        blocks = lower.get("hash_ids") or ()
        if not isinstance(blocks, list | tuple) or not all(isinstance(one, int) for one in blocks):
            raise UsageError(f"The trace {name} has hash_ids that are no numbers at line {line}.", hint="Leave them away if nothing is shared.")
        rows.append(TraceRequest(at_s=since / speed, prompt_tokens=prompt, output_tokens=output, blocks=tuple(blocks)))
        if len(rows) >= most:
            break
    if len(rows) < 2:
        raise UsageError(f"The trace {name} holds {len(rows)} usable requests.", why="At least two are needed to have a rate.", hint="Give a longer trace, or begin earlier (trace_from_s).")
    return tuple(sorted(rows, key=lambda row: row.at_s))


def _entries(text: str, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line number, fields) of a JSONL or CSV text; also of one JSON array."""
    head = text.lstrip("\ufeff \t\r\n")
    if head.startswith("["):
        values = _json(head, name, 1)
        yield from ((at, value) for at, value in enumerate(values, 1) if isinstance(value, Mapping))
    elif head.startswith("{"):
        for at, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
            if line.strip():
                value = _json(line, name, at)
                if not isinstance(value, Mapping):
                    raise UsageError(f"Line {at} of {name} is no object.", hint="Each line of a JSONL file is one JSON object.")
                yield at, value
    else:
        for at, row in enumerate(csv.DictReader(io.StringIO(head)), 2):
            yield at, row


def _json(text: str, name: str, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON at line {line}: {error}", hint="A trace is JSONL or CSV, conversations are JSON or JSONL.") from error


def _time(entry: Mapping[str, Any]) -> float:
    """Seconds; of a date, since the epoch."""
    key = next((name for name in _AT if name in entry), None)
    if key is None:
        raise ValueError("it has no time")
    value = entry[key]
    if isinstance(value, str) and "-" in value.strip()[1:] and ":" in value:
        whole, _, fraction = value.strip().replace(" ", "T").partition(".")
        digits = "".join(c for c in fraction.partition("+")[0].rstrip("Z") if c.isdigit())
        return datetime.fromisoformat(whole.partition("+")[0].rstrip("Z") + "+00:00").timestamp() + float("0." + (digits or "0"))
    at = float(value)
    if not abs(at) < 1e15:
        raise ValueError(f"its time {value!r} is no number that can be used")
    return at / 1000.0 if "input_length" in entry else at


def _count(entry: Mapping[str, Any], names: tuple[str, ...]) -> int:
    key = next((name for name in names if name in entry), None)
    if key is None:
        raise ValueError(f"it has none of {', '.join(names[:3])}")
    return int(float(entry[key]))


def parse_conversations(text: str, name: str, *, most: int = 500) -> tuple[tuple[Turn, ...], ...]:
    """Conversations as pairs of what a user said and what was answered, at most ``most`` and at most 8 MiB of text. Those that
    do not begin with a user, and what follows a gap, are left out. Raises UsageError when none is left."""
    talks: list[tuple[Turn, ...]] = []
    size = 0
    for _, entry in _entries(text, name):
        said = entry.get("conversations") or entry.get("conversation") or entry.get("messages") or []
        turns: list[Turn] = []
        words = [_spoken(one) for one in said] if isinstance(said, list) else []
        if words and words[0][0] == "system":
            words = words[1:]
        for (who, asked), (other, answered) in zip(words[::2], words[1::2], strict=False):
            if who != "user" or other != "assistant" or not asked.strip() or not answered.strip():
                break
            turns.append(Turn(asked=asked, answered=answered, output_tokens=max(1, round(len(answered) / CHARACTERS_PER_TOKEN))))
        if not turns:
            continue
        size += sum(len(turn.asked) + len(turn.answered) for turn in turns)
        if talks and size > MAX_TEXT:
            break
        talks.append(tuple(turns))
        if len(talks) >= most:
            break
    if not talks:
        raise UsageError(
            f"{name} holds no conversation in which a user asks and a model answers.",
            hint='Expected ShareGPT\'s form: [{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}].',
        )
    return tuple(talks)


def _spoken(one: Any) -> tuple[str, str]:
    if not isinstance(one, Mapping):
        return "", ""
    who = str(one.get("from") or one.get("role") or "")
    text = one.get("value") if "value" in one else one.get("content")
    return {"human": "user", "gpt": "assistant", "bard": "assistant"}.get(who, who), text if isinstance(text, str) else ""
