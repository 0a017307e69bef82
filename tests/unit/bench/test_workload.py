"""Prompts: unique, reproducible, of the declared length and sharing; jobs carry no secret."""

import itertools
import os
import subprocess
import sys

import pytest

from optimizer.bench.run import build_job, longest_s
from optimizer.bench.workload import WORDS, declared_cached_share, prompts, salt_of
from optimizer.errors import UsageError
from optimizer.model.workload import Workload

WORKLOAD = Workload(prompt_tokens=100, vocabulary="words")


def test_prompts_have_the_declared_length_and_differ() -> None:
    made = prompts(WORKLOAD, 1, "a", 200)
    assert len(set(made)) == 200 and {len(text.split()) for text in made} == {100}
    heads = [tuple(text.split()[:8]) for text in made]
    assert len(set(heads)) == 200  # a prefix cache finds nothing from the first block on


def test_the_salt_changes_heads_and_the_seed_everything() -> None:
    first, second = prompts(WORKLOAD, 1, "a", 5), prompts(WORKLOAD, 1, "b", 5)
    for one, other in zip(first, second, strict=True):
        assert one.split()[:24] != other.split()[:24]
        assert one.split()[24:] == other.split()[24:]  # the same work in every arm
    assert prompts(WORKLOAD, 2, "a", 1)[0].split()[24:] != first[0].split()[24:]
    assert prompts(WORKLOAD, 1, "a", 5) == first


def test_shared_prefix_is_shared_within_a_run_only() -> None:
    workload = WORKLOAD.model_copy(update={"shared_prefix_tokens": 75})
    made = prompts(workload, 1, "a", 20)
    assert len({tuple(text.split()[:75]) for text in made}) == 1
    assert len({text.split()[75] + text.split()[76] + text.split()[77] for text in made}) > 15
    assert made[0].split()[:75] != prompts(workload, 1, "b", 1)[0].split()[:75]
    assert declared_cached_share(workload) == 0.75


def test_ascii_prompts_have_one_character_a_token() -> None:
    made = prompts(Workload(prompt_tokens=256, vocabulary="ascii"), 1, "a", 20)
    assert {len(text) for text in made} == {256} and len(set(made)) == 20
    assert all(text == text.upper() and text.isascii() for text in made)


def test_tiny_prompts_work() -> None:
    assert all(prompts(Workload(prompt_tokens=1), 1, "a", 3))


def test_the_same_prompts_under_any_hash_seed() -> None:
    code = "from optimizer.bench.workload import prompts; from optimizer.model.workload import Workload; print(prompts(Workload(prompt_tokens=40), 3, 's', 2))"
    seen = set()
    for seed in ("0", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        seen.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    assert len(seen) == 1


def test_words_are_plain_and_unique() -> None:
    assert len(set(WORDS)) == len(WORDS) > 250
    assert all(word.isalpha() and word.islower() for word in WORDS)


def test_a_job_names_the_key_and_holds_none() -> None:
    job = build_job(
        WORKLOAD, concurrency=2, window_s=5, base_url="http://x:1", model="m", seed=1, salt="s", api_key_env="KEY"
    )
    assert job["api_key_env"] == "KEY" and "api_key" not in job
    assert longest_s(job) > WORKLOAD.warmup_max_s + 5
    with pytest.raises(UsageError):
        build_job(WORKLOAD, concurrency=2, window_s=5, base_url="http://x:1", model="m", seed=1, salt="s", time_scale=0)


def test_salts_tell_runs_apart() -> None:
    salts = [salt_of("study", launch, run) for launch, run in itertools.product(range(3), range(3))]
    assert len(set(salts)) == 9
