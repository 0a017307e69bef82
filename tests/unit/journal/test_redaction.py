"""Twenty canary secrets over every path into the study's folder: none of them may be found there afterwards. And what
is no secret stays readable, because a journal full of holes explains nothing."""

import io
import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from optimizer import log
from optimizer.journal import Journal
from optimizer.redact import Redactor, is_secret_name

# Where a secret has no format of its own, its name gives it away: (name, secret).
CANARIES = [
    ("HF_TOKEN", "hf_QwErTyUiOpAsDfGhJkLzXcVbNm123456"),
    ("HUGGING_FACE_HUB_TOKEN", "api_org_ZyXwVuTsRqPoNmLkJiHgFeDcBa"),
    ("OPENAI_API_KEY", "sk-proj-abcDEF123456_ghiJKL7890-mnopQRS"),
    ("ANTHROPIC_API_KEY", "sk-ant-api03-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2"),
    ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7CANARY1"),
    ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYcanarykey"),
    ("AWS_SESSION_TOKEN", "FwoGZXIvYXdzEBYaDCanarySessionToken99=="),
    ("GITHUB_TOKEN", "ghp_CanaryCanaryCanaryCanary12345678"),
    ("GITLAB_TOKEN", "glpat-Canary_1234567890abcdef"),
    ("SLACK_BOT_TOKEN", "xoxb-123456789012-canarycanary"),
    ("NGC_API_KEY", "nvapi-CanaryCanaryCanary_0123456789-abcdef"),
    ("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567"),
    ("GOOGLE_API_KEY", "AIzaSyCanaryCanaryCanaryCanary012345678"),
    ("DB_PASSWORD", "correct-horse,battery;staple"),
    ("api_key", "plainCanaryWithout1Format"),
    ("admin_api_key", "AnotherPlainCanary77"),
    ("ssl_keyfile_password", "p4ssphrase-of-the-keyfile"),
    ("client_secret", "9f8e7d6c-canary-5b4a-3c2d"),
    ("id_token", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlQ2FuYXJ5"),
    ("private_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktCANARY0\nAAAAE2VjZHNhCANARY1\n-----END OPENSSH PRIVATE KEY-----"),
]  # fmt: skip
IDS = [name for name, _ in CANARIES]


def pieces(secret: str) -> list[bytes]:
    """What must not be found: the secret, or any long line of it."""
    return [line.encode() for line in secret.splitlines() if len(line) > 12 and not line.startswith("-----")]


def argv(name: str, secret: str) -> dict[str, Any]:
    return {"argv": ["serve", f"--{name.lower().replace('_', '-')}", secret, "--port", "8000"], "line": f"serve --api-key {secret!r} --port 1"}


def env(name: str, secret: str) -> dict[str, Any]:
    return {"env": {name: secret, "PATH": "/usr/bin"}, "line": f"{name}={secret if ' ' not in secret else repr(secret)}"}


def server_log(name: str, secret: str) -> bytes:
    return f"INFO loading\n{name}={secret}\nserver_args=ServerArgs(model='m', {name.lower()}={secret!r}, port=1)\nready\n".encode()


def server_info(name: str, secret: str) -> dict[str, Any]:
    return {"server_info": {"internal_states": [{name.lower(): secret, "tp_size": 8}]}, "text": json.dumps({name.lower(): secret, "tp_size": 8})}


def traceback_of(name: str, secret: str) -> str:
    lines = f"""
        import traceback
        def connect({name.lower()}):
            raise ValueError("refused: {name}=" + {name.lower()})
        try:
            connect({secret!r})
        except ValueError:
            print(traceback.format_exc())
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(lines)], capture_output=True, text=True, check=True).stdout


def note(name: str, secret: str) -> str:
    return f"the operator wrote: {name}={secret} and then https://bob:{secret.split()[-1]}@proxy.example/x"


@pytest.mark.fault("H43")
@pytest.mark.parametrize(("name", "secret"), CANARIES, ids=IDS)
def test_no_canary_reaches_the_study(name: str, secret: str, tmp_path: Path) -> None:
    study, stderr = tmp_path / "study", io.StringIO()
    redactor = Redactor()
    log.configure(level="debug", log_file=study / "log.jsonl", redactor=redactor, stream=stderr)
    logger = log.get("test")
    with Journal.create(study / "journal.db", redactor=redactor) as journal:
        bodies = [argv(name, secret), env(name, secret), server_info(name, secret), {"traceback": traceback_of(name, secret)}, {"text": note(name, secret)}]
        for body in bodies:
            journal.append("note", body, expect=journal.last_seq)
            logger.warning("event", **body)
        entry = journal.append("note", {}, expect=journal.last_seq, blobs={"server.log": server_log(name, secret)})
        logger.info(server_log(name, secret).decode())
        kept = journal.blob(entry.body["blobs"]["server.log"])
        text = json.dumps([entry.body for entry in journal.read()])
    found = b"".join(item.read_bytes() for item in study.iterdir()) + kept + stderr.getvalue().encode() + text.encode()
    for piece in pieces(secret):
        assert piece not in found
    assert "«redacted:" in stderr.getvalue()
    assert "«redacted:" in kept.decode()
    for harmless in ("--port", "8000", "/usr/bin", "tp_size", "proxy.example"):
        assert harmless in text


def test_there_are_twenty_canaries_and_the_check_can_fail(tmp_path: Path) -> None:
    assert len(CANARIES) == 20
    for name, secret in CANARIES:
        assert all(piece in server_log(name, secret) for piece in pieces(secret))
        assert pieces(secret)


def test_a_secret_learned_by_its_name_goes_where_nothing_names_it() -> None:
    redactor = Redactor()
    redactor.value({"api_key": "Zebra-crossing"})
    assert "Zebra" not in redactor.text("Traceback: invalid credential Zebra-crossing, giving up")
    assert "Zebra" in Redactor().text("Traceback: Zebra-crossing")


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch, #running-req: 16, #token: 1867, token usage: 0.11, gen throughput (token/s): 188.55",
        "api_key=None, admin_api_key=None, ssl_keyfile_password=None, hf_token=None",
        "usage: server [--api-key API_KEY] [--ssl-keyfile-password SSL_KEYFILE_PASSWORD]",
        "tokenizer_path='/m', eos_token='</s>', max_tokens=4096, bytes_per_token: 147450",
        "risk-assessment-of-the-whole-thing task-aaaaaaaaaaaaaaaaaaaaaa disk-full-at-append-number-12345",
        "http://127.0.0.1:8000/v1/completions ssh://user@host:22/x",
        "SHA256:abcdef0123456789 key=launch-0003 cause=12",
        "HF_TOKEN=$HF_TOKEN --api-key $KEY --api-key '<your key>'",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_recorded_logs_stay_as_they_are() -> None:
    """Real logs of both engines hold no secret: whatever is removed from them is a false alarm."""
    recordings = Path(__file__).parents[2] / "recordings"
    logs = sorted(recordings.rglob("*.log"))
    assert len(logs) > 20
    for path in logs:
        text = path.read_bytes().decode("utf-8", "replace")
        assert Redactor().text(text) == text, path


@pytest.mark.parametrize("name", ["api_key", "apiKey", "--api-key", "HF_TOKEN", "Authorization", "db.password", "token", "AWS_SECRET_ACCESS_KEY"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["eos_token", "bytes_per_token", "tokens", "max_tokens", "tokenizer", "key", "cause", "monkey", "output_tokens_per_s", "keyfile"])
def test_names_that_are_none(name: str) -> None:
    assert not is_secret_name(name)


def test_redacting_twice_changes_nothing_and_equal_secrets_stay_equal() -> None:
    redactor = Redactor()
    body = {"a": "HF_TOKEN=hf_abcdefghijklmnopqrst", "b": ["--api-key", "hf_abcdefghijklmnopqrst"], "password": 123456789, "c": {"d": (1, 2.5, None, True)}}
    once = redactor.value(body)
    assert redactor.value(once) == once
    assert Redactor().value(once) == once
    assert once["a"].partition("=")[2] == once["b"][1]
    assert once["password"].startswith("«redacted:")
    assert once["c"] == {"d": [1, 2.5, None, True]}


def test_what_the_box_has_hidden_keeps_its_number() -> None:
    """The guard there finds the secret by it: replaced, a resumed study could not launch the server again."""
    argv = ["serve", "--api-key", "«secret:3»", "--hf-token=«secret:4»"]
    assert Redactor().value({"argv": argv}) == {"argv": argv}
    assert Redactor().text(" ".join(argv)) == " ".join(argv)


def test_bytes_that_are_no_text_come_through() -> None:
    data = bytes(range(256)) * 3
    assert Redactor().data(data) == data


@pytest.mark.parametrize(
    "hostile",
    ["a_" * 150_000, "--" + "a-" * 150_000, "-----BEGIN PRIVATE KEY-----" * 500, "://" + "a" * 100_000, "token: " + "a" * 200_000,
     "password=" * 20_000, "'" * 100_000, "sk-" * 50_000, "eyJ" * 100_000, 'api_key \\"' * 20_000, "Bearer " * 40_000],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_hostile_text_is_redacted_in_linear_time(hostile: str) -> None:
    began = time.process_time()
    Redactor().text(hostile)
    assert time.process_time() - began < 3


def test_other_packages_logging_takes_the_same_way(tmp_path: Path) -> None:
    import logging

    stderr = io.StringIO()
    log.configure(level="warning", log_file=tmp_path / "log.jsonl", stream=stderr)
    logging.getLogger("asyncssh").warning("login with password=%s failed", "hunter2-hunter2")
    log.get("x").info("quiet")
    try:
        raise ValueError("token=abcdefghijklmnop1")
    except ValueError:
        log.get("x").exception("went wrong")
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event["event"].split()[0] for event in events] == ["login", "quiet", "went"]
    assert "hunter2" not in stderr.getvalue()
    assert "abcdefghijklmnop1" not in stderr.getvalue() + json.dumps(events)
    assert "quiet" not in stderr.getvalue()
    assert "ValueError" in events[2]["exception"]


def test_a_full_disk_does_not_stop_the_study_for_its_log(tmp_path: Path) -> None:
    stderr = io.StringIO()
    log.configure(log_file=Path("/dev/full"), stream=stderr)
    log.get("x").info("first")
    log.get("x").info("second")
    assert "going on without it" in stderr.getvalue()
    assert "second" in stderr.getvalue()


def test_names_written_in_one_word_and_every_key_of_several() -> None:
    made = Redactor().value({
        "env": {"PGPASSWORD": "aa11", "MYSQL_PWD": "bb22", "SSHPASS": "cc33", "SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T/B/dd44", "PWD": "/srv"},
        "argv": ["env", "DBPASSWORD=ee55", "vllm", "serve", "m", "--api-key", "ff66", "gg77", "--port", "8000"], "second_pass": "kept",
    })  # fmt: skip
    told = repr(made)
    assert not [canary for canary in ("aa11", "bb22", "cc33", "dd44", "ee55", "ff66", "gg77") if canary in told], told
    assert made["env"]["PWD"] == "/srv" and made["argv"][-2:] == ["--port", "8000"] and made["second_pass"] == "kept"


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("token hvs.CAESIabcdefghijklmnop of the vault", "CAESIabcdefghijklmnop"),
        ("AGE-SECRET-KEY-1QQPQZ8QQPQZ8QQPQZ8", "QQPQZ8QQPQZ8QQPQZ8"),
        ("docker login with dckr_pat_abcdefghijklmnopq", "abcdefghijklmnopq"),
        ("GET https://b.s3.amazonaws.com/k?X-Amz-Signature=0a1b2c3d&X-Amz-Expires=9", "0a1b2c3d"),
        ("machine h login u password hunter2", "hunter2"),
    ],
)
def test_formats_of_vendors_go_from_any_text(line: str, secret: str) -> None:
    assert secret not in Redactor().text(line) and "«redacted:" in Redactor().text(line)
