"""Where the rate stops growing with the load: what loads at N/2, N and 2N requests say of N."""

import pytest

from optimizer.model.measurement import LoadPoint
from optimizer.model.step import ORIGINAL, Check
from optimizer.runner.checking import _growth


@pytest.mark.parametrize(
    ("rates", "knee"),
    [
        ((172.3, 312.8, 358.0), 4),  # four slots of a real vLLM on a busy CPU: a slot waits for its next request, a queue does not
        ((172.3, 312.8, 320.0), 4),
        ((172.3, 312.8, 250.0), 4),
        ((172.3, 312.8, 560.0), 8),  # grows on
        ((172.3, 312.8, 400.0), 8),
        ((172.3, 190.0, 195.0), 8),  # it had stopped before N: N is no limit
        ((100.0, 125.0, 136.0), 4),
        ((100.0, 125.0, 140.0), 8),
    ],
)
def test_growth(rates: tuple[float, float, float], knee: int) -> None:
    points = [
        LoadPoint(concurrency=load, requests_ok=9, requests_failed=0, prompt_tokens=9, output_tokens=9, window_s=6.0, metrics={"output_tokens_per_s": rate})
        for load, rate in zip((2, 4, 8), rates, strict=True)
    ]
    seen = _growth(Check(key="1", launch=ORIGINAL, test="concurrency_sweep", width="double", around=4), points)
    (fact,) = seen.facts
    assert (fact.name, fact.value) == ("client.knee_concurrency", knee), seen.text
