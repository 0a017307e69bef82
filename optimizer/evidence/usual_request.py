"""What the requests of a running server have looked like so far, by its own counters: what a person is offered as an answer, never a
decision. SGLang counts requests and tokens, vLLM keeps histograms of both; llama.cpp counts no requests."""

from __future__ import annotations

from typing import NamedTuple

from optimizer.evidence.prometheus import Metrics, parse_metrics

ENOUGH = 50  # requests; fewer may be a health check or somebody who tried it out


class UsualRequest(NamedTuple):
    """Means over ``requests`` finished requests since the server started, in tokens."""

    prompt_tokens: int
    output_tokens: int
    requests: int


def usual_request(metrics: bytes) -> UsualRequest | None:
    """None where the server does not tell, or has answered fewer than ``ENOUGH`` requests."""
    found = parse_metrics(metrics)
    for prompt, output, count in (
        ("vllm:request_prompt_tokens_sum", "vllm:request_generation_tokens_sum", "vllm:request_prompt_tokens_count"),
        ("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:num_requests_total"),
    ):
        asked, answered, requests = _whole(found, prompt), _whole(found, output), _whole(found, count)
        if requests >= ENOUGH and asked >= requests and answered >= requests:
            return UsualRequest(round(asked / requests), round(answered / requests), requests)
    return None


def _whole(found: Metrics, name: str) -> int:
    return round(found.total(name) or 0)
