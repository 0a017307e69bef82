"""What a job asks and when: the same for the same seed, whatever the arm; shared exactly as declared; real runs for what only a
clock shows."""

import json
import statistics
from typing import Any

import pytest

from optimizer.bench.plain.generator import Generator
from optimizer.bench.run import build_job, summarise
from optimizer.bench.workload import declared_cached_share, drawn, offered
from optimizer.model.measurement import ValidityCode
from optimizer.model.workload import Lengths, Workload

TRACE = [{"at_s": 0.0, "prompt_tokens": 1000, "output_tokens": 5, "blocks": (1, 2)},
         {"at_s": 0.5, "prompt_tokens": 1100, "output_tokens": 7, "blocks": (1, 2, 3)},
         {"at_s": 2.0, "prompt_tokens": 700, "output_tokens": 9, "blocks": (1, 4)}]  # fmt: skip


def generator(workload: Workload, salt: str = "a", seed: int = 1) -> Any:
    job = build_job(workload, concurrency=workload.concurrency, window_s=1, base_url="http://h:1", model="m", seed=seed, salt=salt)
    return Generator(json.loads(json.dumps(job)), print)  # type: ignore[no-untyped-call]


def bodies(workload: Workload, count: int, **more: Any) -> list[dict[str, Any]]:
    made = generator(workload, **more)
    found = []
    for _ in range(count):
        message = made.message(made.asking.new_request(0.0, session=made.asking.new_session()))
        found.append(json.loads(message.partition(b"\r\n\r\n")[2]))
    return found


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [({"kind": "uniform", "low": 100, "high": 300}, 200), ({"kind": "normal", "mean": 400, "sd": 50}, 400),
     ({"kind": "lognormal", "mean": 600, "sd": 400}, 600), ({"kind": "choices", "values": (10, 1000), "weights": (9, 1)}, 109)],
)  # fmt: skip
def test_drawn_lengths_have_their_mean_and_repeat(lengths: dict[str, Any], mean: float) -> None:
    made = drawn(Lengths.model_validate(lengths), 5, "prompt")
    assert statistics.fmean(made) == pytest.approx(mean, rel=0.05)
    assert made == drawn(Lengths.model_validate(lengths), 5, "prompt") != drawn(Lengths.model_validate(lengths), 6, "prompt")
    assert min(made) >= 1


def test_every_request_has_the_drawn_lengths_in_every_arm() -> None:
    workload = Workload(prompt_lengths=Lengths(kind="uniform", low=20, high=80), output_lengths=Lengths(kind="normal", mean=50, sd=10, low=5))
    one, other = bodies(workload, 40, salt="a"), bodies(workload, 40, salt="b")
    wanted = offered(workload, 1)["requests"]
    for at, (body, same) in enumerate(zip(one, other, strict=True)):
        assert (len(body["prompt"].split()), body["max_tokens"]) == tuple(wanted[at][:2])
        assert body["max_tokens"] == same["max_tokens"] and len(same["prompt"].split()) == len(body["prompt"].split())
        assert body["prompt"] != same["prompt"]  # the salt keeps an earlier run's cache out


def test_a_traces_blocks_are_shared_exactly() -> None:
    workload = Workload(trace=TRACE, arrival="trace", block_tokens=400)
    first, second, third, again = (body["prompt"].split() for body in bodies(workload, 4))
    assert [len(first), len(second), len(third)] == [1000, 1100, 700]
    assert first[:800] == second[:800] and first[:400] == third[:400]
    assert first[800:] != second[800:1000] and third[400:700] != first[400:700]
    assert again[:24] != first[:24]  # the second lap is not served from the first one's cache
    shared = (0 + 800 + 400) / (1000 + 1100 + 700)
    assert declared_cached_share(workload) == pytest.approx(shared)


def test_prefix_groups_take_turns() -> None:
    made = [body["prompt"].split()[:30] for body in bodies(Workload(prompt_tokens=60, shared_prefix_tokens=30, prefix_groups=3), 9)]
    assert made[0] == made[3] == made[6] and made[1] == made[4] and len({tuple(one) for one in made}) == 3


def test_arrivals_of_each_kind() -> None:
    def gaps(count: int, **load: Any) -> list[float]:
        made = generator(Workload(**load))
        return [made.arrivals.gap() for _ in range(count)]

    constant = gaps(50, arrival="constant", rate_per_s=4)
    assert set(constant) == {0.25}
    poisson = gaps(4000, arrival="poisson", rate_per_s=4)
    assert statistics.fmean(poisson) == pytest.approx(0.25, rel=0.06)
    assert statistics.stdev(poisson) == pytest.approx(0.25, rel=0.1)
    assert poisson == gaps(4000, arrival="poisson", rate_per_s=4)
    bursts = gaps(4000, arrival="burst", rate_per_s=4, burst_size=8)
    assert statistics.fmean(bursts) == pytest.approx(0.25, rel=0.15)
    assert sum(gap == 0 for gap in bursts) == 3500
    trace = gaps(7, arrival="trace", trace=TRACE)
    assert trace == pytest.approx([0.5, 1.5, 1.0, 0.5, 1.5, 1.0, 0.5])


def test_turns_quote_what_was_answered() -> None:
    made = generator(Workload(api="chat", turns=3, prompt_tokens=20, output_tokens=4, think_s=2.0))
    session = made.asking.new_session()
    asked = []
    for turn in range(3):
        request = made.asking.new_request(0.0, session=session)
        asked.append(json.loads(made.message(request).partition(b"\r\n\r\n")[2])["messages"])
        twice = json.loads(made.message(request).partition(b"\r\n\r\n")[2])["messages"]
        assert twice == asked[-1]  # sent again on a fresh connection, it is the same request

        class Answer:
            failure = None
            kept = [b'data: {"choices":[{"delta":{"content":"answer%d"}}]}\n\ndata: [DONE]\n\n' % turn]

        made.asking.answered(request, Answer)
        assert made.asking.pause(session) > 0
    assert [len(one) for one in asked] == [1, 3, 5] and session.over
    assert [one["role"] for one in asked[2]] == ["user", "assistant", "user", "assistant", "user"]
    assert asked[2][1]["content"] == "answer0" and asked[2][:3] == asked[1][:3]


def test_recorded_conversations_are_asked_as_recorded() -> None:
    talk = [{"asked": "Why?", "answered": "Because.", "output_tokens": 3}, {"asked": "Really?", "answered": "Yes.", "output_tokens": 1}]
    workload = Workload(api="chat", conversations=[talk, [{"asked": "Hi", "answered": "Ho", "output_tokens": 2}]])
    made = generator(workload)
    sessions = [made.asking.new_session() for _ in range(2)]
    order = [len(one) for one in made.asking.conversations]
    session = sessions[order.index(2)]
    first = made.asking.new_request(0.0, session=session)
    said = made.asking.said(first)
    assert said[0].endswith("\nWhy?") and first.max_tokens == 3
    first.said = said

    class Answer:
        failure, kept = None, None

    made.asking.answered(first, Answer)
    second = made.asking.new_request(0.0, session=session)
    assert made.asking.said(second)[1:] == ["Because.", "Really?"] and second.max_tokens == 1
    assert 0 < declared_cached_share(workload) < 1


@pytest.mark.parametrize(
    "wrong",
    [{"arrival": "poisson"}, {"rate_per_s": 2.0}, {"arrival": "trace"}, {"turns": 2, "api": "generate"}, {"turns": 2, "trace": TRACE},
     {"percentiles": (100.0,)}, {"slo": "1000tps"}, {"slo": "ttft.p99<1s"}, {"slo": "fast"}, {"trace": TRACE[::-1]}, {"conversations": [[]]},
     {"arrival": "constant", "rate_per_s": 1, "side_levels": (1, 4)}, {"prompt_lengths": {"kind": "normal", "mean": 5}},
     {"prompt_lengths": {"kind": "uniform", "low": 9, "high": 3}}, {"output_lengths": {"kind": "choices", "values": (0,)}},
     {"output_lengths": {"kind": "choices", "values": (1, 2), "weights": (0, 0)}}, {"trace": TRACE[:1], "arrival": "trace"}],
)  # fmt: skip
def test_contradictions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Workload.model_validate(wrong)


WORKLOAD = Workload(concurrency=4, prompt_tokens=32, output_tokens=8, warmup_min_s=0.1, warmup_max_s=0.2, window_s=1.0)


def measured(load: Any, url: str, **changes: Any) -> tuple[Any, Any]:
    workload = Workload.model_validate({**WORKLOAD.model_dump(), "side_levels": (), **changes})
    job = build_job(workload, concurrency=workload.concurrency, window_s=workload.window_s, base_url=url, model="m", seed=1, salt="x", metrics_path="/metrics")
    ran = load(job.pop("base_url"), **job)
    return ran, summarise(ran.lines, workload, workload.concurrency)


def test_a_trace_is_played_in_its_own_time(null_server: Any, load: Any) -> None:
    trace = [{"at_s": at * 0.05, "prompt_tokens": 20 + at, "output_tokens": 3 + at % 4} for at in range(10)]
    ran, point = measured(load, null_server("--gap-ms", "2"), trace=trace, arrival="trace", window_s=1.5)
    assert ran.summary["rate_per_s"] == pytest.approx(20)
    assert ran.summary["sent_window"] == pytest.approx(30, abs=4)
    assert not point.errors and ValidityCode.OUTPUT_LENGTH not in {item.code for item in point.invalid}
    assert point.mean_output_tokens == pytest.approx(4.3, abs=0.5)


def test_users_who_think_ask_less_often(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "2")
    _, busy = measured(load, url)
    _, thoughtful = measured(load, url, think_s=0.2)
    assert thoughtful.metrics["requests_per_s"] < 0.4 * busy.metrics["requests_per_s"]
    assert not thoughtful.errors


def test_chat_turns_grow_by_what_was_said(null_server: Any, load: Any) -> None:
    ran, point = measured(load, null_server("--gap-ms", "1"), api="chat", turns=3)
    assert not point.errors and ran.summary["usage_missing"] == 0
    prompts = {json.loads(line)["v"][7] for line in ran.lines if line.startswith(b'{"t":"r"')}
    assert len([one for one in prompts if one]) >= 3  # later turns are longer


@pytest.mark.parametrize("kind", ["constant", "burst", "poisson"])
def test_an_open_loop_keeps_its_rate(null_server: Any, load: Any, kind: str) -> None:
    ran, point = measured(load, null_server("--gap-ms", "2"), arrival=kind, rate_per_s=80.0, burst_size=4, window_s=1.5)
    assert ran.summary["arrival"] == kind and not point.errors
    assert point.metrics["requests_per_s"] == pytest.approx(80, rel=0.3)


def test_one_connection_makes_later_requests_wait_and_their_wait_counts(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "10")
    ran = load(url, rate_per_s=40, arrival="constant", output_tokens=8, max_connections=1, window_s=1.0)
    rows = [json.loads(line)["v"] for line in ran.lines if line.startswith(b'{"t":"r"')]
    waits = [row[1] - row[0] for row in rows]  # sent - scheduled
    assert max(waits) > 0.3 and waits == sorted(waits)
    assert not ran.summary["errors"]


def test_without_keep_alive_every_request_opens_a_connection(null_server: Any, load: Any) -> None:
    ran = load(null_server("--gap-ms", "1"), keep_alive=False, window_s=0.4)
    assert ran.summary["finished_ok"] > 4


@pytest.mark.parametrize("arguments", [(), ("--count-at-end",)])
def test_the_engines_counters_agree_or_foreign_traffic_is_named(null_server: Any, load: Any, arguments: tuple[str, ...]) -> None:
    url = null_server("--gap-ms", "2", *arguments)
    ran, point = measured(load, url, output_tokens=32)
    assert point.metrics["engine_tokens_ratio"] == pytest.approx(1.0, abs=0.05)
    assert ValidityCode.FOREIGN_TRAFFIC not in {item.code for item in point.invalid}
    ran.summary["counters"]["generated"] *= 1.5
    point = summarise([*ran.lines[:-1], json.dumps(ran.summary).encode()], WORKLOAD.model_copy(update={"output_tokens": 32}), 4)
    assert ValidityCode.FOREIGN_TRAFFIC in {item.code for item in point.invalid}


def test_drained_runs_are_counted_to_the_token(null_server: Any, load: Any) -> None:
    ran = load(null_server("--gap-ms", "2"), output_tokens=50, metrics_path="/metrics", drain_s=5.0, window_s=0.8)
    counted = ran.summary["counters"]
    assert ran.summary["cut"] == 0 and counted["partial"] == 0
    assert counted["generated"] == counted["finished"] > 0 and counted["prompt"] == counted["prompt_finished"]


def test_goodput_counts_requests_that_kept_every_limit(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "5", "--ttft-ms", "20")
    _, kept = measured(load, url, slo="ttft<500ms,tpot<100ms,e2e<5s")
    _, missed = measured(load, url, slo="ttft<500ms,tpot<1ms")
    assert kept.metrics["goodput_per_s"] == pytest.approx(kept.metrics["requests_per_s"]) and kept.metrics["good_share"] == 1
    assert missed.metrics["goodput_per_s"] == 0
    # How far from it: at most 1 where it is kept, and by the limit that is missed most where it is not.
    assert 0 < kept.metrics["slo_ratio_p50"] <= 1 and missed.metrics["slo_ratio_p50"] == pytest.approx(missed.metrics["tpot_p50_ms"], rel=0.1)


def test_a_percentile_that_was_asked_for_is_stated_when_requests_carry_it(null_server: Any, load: Any) -> None:
    _, point = measured(load, null_server("--gap-ms", "1"), percentiles=(75.0, 99.9))
    assert point.metrics["ttft_p50_ms"] <= point.metrics["ttft_p75_ms"]
    assert "ttft_p99.9_ms" not in point.metrics  # 4,603 requests would be needed
