"""Asks a running launch the fixed greedy probes and reads the user's own. It judges nothing (``core.answers``), and what it
cannot get is missing: a probe without an answer never costs a measurement."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimizer.box.box import Box
from optimizer.endpoint.client import Endpoint, JsonAnswer
from optimizer.errors import BoxError, LinkLost, UsageError
from optimizer.model.answers import FEWEST_PROBES, MOST_PROBES, PROBE_TOKENS, PROBES, TIE_NATS, AnswerPass, ProbeAnswer
from optimizer.model.canonical import digest

LONGEST_PROBE = 20_000  # characters
DEADLINE_S = 120.0  # all passes together; a server that makes ten tokens a second needs half a minute for one
REPEATS_S = 20.0  # after that no pass is begun beyond the needed ones: on a fast server all of them take a few seconds
AT_A_TIME = 8
NO_RUNNER_UP = 20.0  # nats; the server named no second token


def read_probes(path: Path) -> tuple[str, ...]:
    """The user's probes: JSONL, one string or object with a ``prompt`` a line. Raises UsageError naming the line."""
    found: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The probes cannot be read: {path}: {error}", hint="One JSON string or {\"prompt\": ...} a line, in UTF-8.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str) or not prompt.strip():
            raise UsageError(f"{path}, line {number}: no prompt.", hint="Each line is a JSON string, or an object with a \"prompt\".")
        if len(prompt) > LONGEST_PROBE:
            raise UsageError(f"{path}, line {number}: the prompt has {len(prompt):,} characters.", hint=f"Probes stay below {LONGEST_PROBE:,}.")
        found.append(prompt)
    if not FEWEST_PROBES <= len(found) <= MOST_PROBES:
        raise UsageError(
            f"{path} holds {len(found)} probes.",
            hint=f"Give {FEWEST_PROBES} to {MOST_PROBES}: fewer cannot tell a change from chance, more keep the box from its work.",
        )
    return tuple(found)


async def ask(
    box: Box, port: int, model: str, prompts: Sequence[str] = (), passes: int = 1, needed: int = 1, deadline_s: float = DEADLINE_S
) -> list[AnswerPass]:
    """Every probe ``passes`` times, on a slow server at least ``needed`` times; no pass where nobody answered. Raises nothing for
    what the server or the link does."""
    asked = tuple(prompts) or PROBES
    try:
        host, here = await box.forward(port)
        async with Endpoint(f"http://{host}:{here}", api_key=box.api_key) as endpoint:
            return await ask_endpoint(endpoint, model, asked, passes, deadline_s, needed)
    except (LinkLost, BoxError):
        return []


async def ask_endpoint(
    endpoint: Endpoint, model: str, prompts: Sequence[str], passes: int, deadline_s: float = DEADLINE_S, needed: int | None = None
) -> list[AnswerPass]:
    """Complete passes, and a last one with gaps where the deadline cut it.

    Eight at a time: one after the other takes a slow server longer than its measurement. What that does to the last bits is
    in the reference's own repetition as well."""
    found: list[AnswerPass] = []
    began = asyncio.get_running_loop().time()
    name, end = digest(list(prompts)), began + deadline_s
    gate = asyncio.Semaphore(AT_A_TIME)
    state = {"margins": True, "gone": False}

    async def one(prompt: str) -> ProbeAnswer | None:
        async with gate:
            for _ in range(2):
                left, margins = end - asyncio.get_running_loop().time(), state["margins"]
                if left <= 0 or state["gone"]:
                    return None
                answer = await _complete(endpoint, model, prompt, left, margins)
                if answer.status is None:
                    state["gone"] = state["gone"] or answer.error in ("refused", "timeout")
                    return None
                if answer.ok or not margins:
                    return parse(answer.value)
                state["margins"] = False  # this server gives no log probabilities
            return None

    for index in range(passes):
        if needed is not None and index >= needed and asyncio.get_running_loop().time() - began > REPEATS_S:
            break
        answers = tuple(await asyncio.gather(*(one(prompt) for prompt in prompts)))
        if any(answer is not None for answer in answers):
            found.append(AnswerPass(probes=name, answers=answers, repeat=index + 1))
    return found


async def _complete(endpoint: Endpoint, model: str, prompt: str, timeout_s: float, with_margins: bool) -> JsonAnswer:
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": PROBE_TOKENS, "temperature": 0, "seed": 0, "stream": False}
    if with_margins:
        body["logprobs"] = 5  # all that the API allows
    return await endpoint.post_json("/v1/completions", body, timeout_s)


def parse(value: Any) -> ProbeAnswer | None:
    """An OpenAI completion as tokens and margins; by words where the server gives no tokens."""
    choices = value.get("choices") if isinstance(value, dict) else None
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    if first is None or not isinstance(first.get("text"), str):
        return None
    details = first.get("logprobs")
    if isinstance(details, dict):
        tokens, chosen, top = details.get("tokens"), details.get("token_logprobs"), details.get("top_logprobs")
        if isinstance(tokens, list) and isinstance(chosen, list) and isinstance(top, list) and 0 < len(tokens) == len(chosen) == len(top):
            rows = [_behind(token, own, others) for token, own, others in zip(tokens, chosen, top, strict=True)]
            close = {place: tuple(sorted(name for name, gap in row.items() if gap < TIE_NATS)) for place, row in enumerate(rows)}
            return ProbeAnswer(
                tokens=tuple(map(str, tokens)), margins=tuple(min(row.values(), default=NO_RUNNER_UP) for row in rows),
                close={place: names for place, names in close.items() if names},
            )  # fmt: skip
    return ProbeAnswer(tokens=tuple(re.findall(r"\s*\S+", first["text"])))


def _behind(token: Any, own: Any, others: Any) -> dict[str, float]:
    """Nats by which each other token was less likely than the chosen one; one that was likelier is a tie."""
    if not isinstance(own, int | float) or not isinstance(others, dict):
        return {}
    rest = {str(name): float(value) for name, value in others.items() if name != str(token) and isinstance(value, int | float)}
    return {name: max(0.0, min(NO_RUNNER_UP, float(own) - value)) for name, value in rest.items()}
