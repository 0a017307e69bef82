"""Credentials are told from ordinary values, and come back on the box alone."""

import time

import pytest

from optimizer.box.plain import redact


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "PASSWD",
     "github_token", "AUTH_HEADER", "SSH_AUTH_SOCK", "SENTRY_DSN", "OPTIMIZER_SECRET_0", "COOKIE", "X_CREDENTIALS",
     "PGPASSWORD", "MYSQL_PWD", "SSHPASS", "DBPASSWORD", "HFTOKEN", "hfToken", "apiToken", "OPENAIKEY", "LDAP_BIND_PW", "SLACK_WEBHOOK_URL",
     "AZURE_STORAGE_CONNECTION_STRING", "PROXY_AUTHORIZATION", "RUNPOD_TOKENS", "JWT", "PASSWORDS"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert redact.hide_environment({name: "whatever"}) == {name: redact.HIDDEN}


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "NCCL_PROTO", "CUDA_VISIBLE_DEVICES", "KEYBOARD", "AUTHOR", "PATH", "SGLANG_MAX_TOKENS",
     "VLLM_KEYED", "MONKEY", "PASSES", "PWD", "OLDPWD", "NCCL_BYPASS", "VLLM_MAX_NUM_BATCHED_TOKENS", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF"],
)  # fmt: skip
def test_ordinary_names(name: str) -> None:
    assert redact.hide_environment({name: "whatever"}) == {name: "whatever"}


@pytest.mark.parametrize(
    "value",
    ["hf_abcdefghijklmnopqrstuv", "sk-proj-abcdefghijklmnopqrst", "AKIAIOSFODNN7EXAMPLE", "ghp_abcdefghijklmnopqrstuvwx",
     "https://user:pa55@proxy:3128", "-----BEGIN RSA PRIVATE KEY-----\nx", "Bearer abcdefghijklmnop",
     "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "nvapi-abcdefghijklmnopqrst", "hvs.CAESIabcdefghijklmnop", "AGE-SECRET-KEY-1QQPQZ8QQPQZ8QQPQZ8",
     "dckr_pat_abcdefghijklmnopq", "npm_abcdefghijklmnopqrstuv", "sk_live_abcdefghijklmnopq"],
)  # fmt: skip
def test_secret_values_under_any_name(value: str) -> None:
    assert redact.hide_environment({"PLAIN": value}) == {"PLAIN": redact.HIDDEN}
    assert redact.mask(b"a " + value.encode() + b" b", []) != b"a " + value.encode() + b" b"
    assert len(redact.mask(value.encode(), [])) == len(value.encode())


@pytest.mark.parametrize(
    "value", ["", "1", "Ring", "/models/llama", "http://proxy:3128", "0,1,2,3", "max_split_size_mb:512"]
)
def test_ordinary_values(value: str) -> None:
    assert redact.hide_environment({"PLAIN": value}) == {"PLAIN": value}


@pytest.mark.parametrize(
    "value",
    ["DefaultEndpointsProtocol=https;AccountName=x;AccountKey=c2VjcmV0==", "https://hooks.slack.com/services/T0/B0/abc", "https://h/m?token=plain1",
     "https://b.s3.amazonaws.com/k?X-Amz-Signature=0a1b2c3d&X-Amz-Expires=9", "machine h login u password hunter2", "-s -u bob:hunter2",
     "api%5Fkey%3Dplain1", '{"type": "service_account", "private_key": "plain1"}', "host=db password=hunter2", '{"auth_token": "plain1"}', "Authorization: Basic dXNlcjpwdw=="],
)  # fmt: skip
def test_secrets_inside_of_a_value(value: str) -> None:
    assert redact.hide_environment({"PLAIN": value}) == {"PLAIN": redact.HIDDEN}
    (shown,), values = redact.hide_arguments([value])
    assert shown != value and redact.reveal(shown, values) == value


@pytest.mark.parametrize(
    "value", ['{"eos_token": "</s>", "max_tokens": 5}', "token_usage: 0.5", "{'password': None}", "--chat-template=a:b", "https://h/m?rev=main", "plain=value"]
)
def test_what_only_sounds_like_one_stays(value: str) -> None:
    assert redact.hide_arguments([value]) == ([value], {})


def test_every_key_of_several_and_variables_before_a_command() -> None:
    line = ["env", "HF_TOKEN=plain", "OMP_NUM_THREADS=4", "vllm", "serve", "m", "--api-key", "first", "second", "--port", "8000",
            "--kv-transfer-config", '{"password":"inner","role":"both"}']  # fmt: skip
    shown, values = redact.hide_arguments(line)
    assert shown == ["env", "HF_TOKEN=«secret:0»", "OMP_NUM_THREADS=4", "vllm", "serve", "m", "--api-key", "«secret:1»", "«secret:2»", "--port", "8000",
                     "--kv-transfer-config", '{"password":"«secret:3»","role":"both"}']  # fmt: skip
    assert [redact.reveal(word, values) for word in shown] == line


def test_arguments_come_back_exactly() -> None:
    line = ["python", "-m", "sglang.launch_server", "--api-key", "s3cret", "--admin-api-key=other", "--tokenizer-path", "t",
            "--max-total-tokens", "4096", "--model", "hf://user:pw@host/m", "--api_key", "-dash", "--hf-token", "--verbose"]  # fmt: skip
    shown, values = redact.hide_arguments(line)
    assert shown == ["python", "-m", "sglang.launch_server", "--api-key", "«secret:0»", "--admin-api-key=«secret:1»",
                     "--tokenizer-path", "t", "--max-total-tokens", "4096", "--model", "«secret:2»", "--api_key", "«secret:3»",
                     "--hf-token", "--verbose"]  # fmt: skip
    assert [redact.reveal(word, values) for word in shown] == line
    with pytest.raises(KeyError):
        redact.reveal("«secret:9»", values)


def test_masking_is_linear() -> None:
    began = time.monotonic()
    for text in (
        b"x" * 1_000_000,
        b"eyJ" * 300_000,
        b"a+." * 300_000,
        b"http://" * 100_000,
        b"sk-" * 300_000,
        b"hf_" * 300_000,
    ):
        redact.mask(text, [])
        redact.hide_arguments([text[:200_000].decode(), "a_" * 100_000])
        assert not redact.secret_value("a:" * 100_000)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("WANDB", "0123456789abcdef0123456789abcdef01234567", True),
        ("S3_ACCESS", "CaNaRy09a1b2c3d4e5f6071829", True),
        ("GIT_COMMIT", "0123456789abcdef0123456789abcdef01234567", False),
        ("INVOCATION_ID", "0123456789abcdef0123456789abcdef", False),
        ("PYTEST_XDIST_TESTRUNUID", "0123456789abcdef0123456789abcdef", False),
        ("_ModuleTable001_", "X01vZHVsZVRhYmxlXz17WyJNVHZlcnNpb24iXT0zLFsiY1JlYnVpbGRUaW1lIl09ZmFsc2U", False),
        ("CUDA_VISIBLE_DEVICES", "GPU-8f2c9e1a-2b3c-4d5e-6f70-8192a3b4c5d6", False),
        ("LONG_WORD", "expandablesegmentseverywhere", False),
        ("NUMBER", "123456789012345678901234567890", False),
        ("SERVED_MODEL", "Qwen2572BInstructAWQInt4Long", False),
    ],
)
def test_a_long_word_that_nothing_explains_is_taken_for_a_key(name: str, value: str, hidden: bool) -> None:
    assert redact.secret_variable(name, value) is hidden


def test_short_values_are_not_masked_in_logs() -> None:
    assert redact.secrets_of({"A_TOKEN": "true", "B_TOKEN": "long enough"}, ["x", "--api-key", "argument-secret"]) == [
        b"argument-secret",
        b"long enough",
    ]
