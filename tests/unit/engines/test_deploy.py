"""Unit, compose file and manifest: read back by the formats' own rules they start exactly what was measured, without secrets."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from optimizer.engines.base import Command
from optimizer.engines.deploy import Deployment, compose_file, files, kubernetes_manifest, systemd_unit
from tests.unit.engines.validators import checked_by_kubernetes, read_by_compose

WORDS = ["plain", "two words", "it's", '"quoted"', "$HOME `id` $(id) ${X}", "100%", "%h", "", "*", '{"a": [1, 2]}', "ü", "--x=a b", "\\", "a\\nb", "yes", "30000:30000"]
SECRET = "sk-" + "0123456789abcdef0123456789abcdef"
ENV = {"NCCL_PROTO": "LL", "ODD": 'a "b" $c %d \\', "NCCL_ALGO": None, "HF_TOKEN": "hf_" + "a" * 34, "PATH": "/opt/venv/bin:/usr/bin"}


def deployment(**changes: object) -> Deployment:
    base = Deployment(name="k26-study", port=30000, health_path="/health_generate", gpus=8, start_s=300.0, model_path="/models/k26", cwd="/srv/100% mine",
                      notes=("Measured: 1,070 tok/s\nexec evil",))  # fmt: skip
    return base.model_copy(update=changes)


def command(*argv: str) -> Command:
    return Command(argv=("/opt/venv/bin/python3.11", "-m", "sglang.launch_server", *argv), env=ENV)


def systemd_words(text: str) -> list[str]:
    """ExecStart's words after systemd's own unquoting, specifier and variable expansion (``$$`` stays a dollar)."""
    line = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert line is not None
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', line[1].replace("\\\n", " "))
    letters = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"'}
    return [re.sub(r"\\(.)", lambda match: letters[match[1]], word).replace("%%", "%").replace("$$", "$") for word in quoted]


@pytest.mark.parametrize("word", WORDS)
def test_every_word_arrives(word: str) -> None:
    given = command("--flag", word)
    assert systemd_words(systemd_unit(given, deployment())) == list(given.argv)
    service = yaml.safe_load(compose_file(given, deployment()))["services"]["server"]
    assert [text.replace("$$", "$") for text in service["entrypoint"]] == ["python3", *given.argv[1:]]
    workload, _ = yaml.safe_load_all(kubernetes_manifest(given, deployment()))
    assert [text.replace("$$(", "$(") for text in workload["spec"]["template"]["spec"]["containers"][0]["command"]] == ["python3", *given.argv[1:]]


def test_no_secret_is_written_and_each_format_asks_for_it() -> None:
    given = command("--api-key", SECRET)
    for name, text in files(given, deployment()).items():
        assert SECRET not in text and ENV["HF_TOKEN"] not in text, name
        assert "HF_TOKEN" in text and "API_KEY" in text, name
    unit = systemd_unit(given, deployment())
    assert '"${API_KEY}"' in unit and "EnvironmentFile=/etc/optimize/k26-study.env" in unit
    manifest = kubernetes_manifest(given, deployment())
    container = next(iter(yaml.safe_load_all(manifest)))["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][-1] == "$(API_KEY)"
    assert {item["name"] for item in container["env"] if "valueFrom" in item} == {"HF_TOKEN", "API_KEY"}


def test_the_environment_arrives_and_what_belongs_to_the_box_stays_there() -> None:
    unit = systemd_unit(command(), deployment())
    assert "UnsetEnvironment=NCCL_ALGO" in unit and 'Environment="PATH=/opt/venv/bin:/usr/bin"' in unit
    service = yaml.safe_load(compose_file(command(), deployment()))["services"]["server"]
    assert service["environment"]["ODD"].replace("$$", "$") == ENV["ODD"]
    assert "PATH" not in service["environment"] and service["environment"]["NCCL_PROTO"] == "LL"


def test_gpus_probes_and_images_follow_the_measured_launch() -> None:
    gpu, cpu = files(command(), deployment(image="lmsysorg/sglang:v0.5.12")), files(command(), deployment(gpus=0, start_s=10))
    service = yaml.safe_load(gpu["compose.yaml"])["services"]["server"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 8 and service["image"] == "lmsysorg/sglang:v0.5.12"
    assert service["healthcheck"]["start_period"] == "900s"
    assert "deploy" not in yaml.safe_load(cpu["compose.yaml"])["services"]["server"] and "IMAGE" in cpu["compose.yaml"]
    container = next(iter(yaml.safe_load_all(gpu["kubernetes.yaml"])))["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8} and container["startupProbe"]["failureThreshold"] == 90


def test_a_comment_runs_nothing() -> None:
    for text in files(command(), deployment()).values():
        assert "# exec evil" in text and not re.search(r"^exec evil", text, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("word", ["plain", "100% $HOME 'x' \"y\" \\"])
def test_systemd_accepts_the_unit(word: str, tmp_path: Path) -> None:
    path = tmp_path / "optimized.service"
    given = Command(argv=("/bin/echo", "--flag", word, "--api-key", SECRET), env={"NCCL_PROTO": "LL", "NCCL_ALGO": None})
    path.write_text(systemd_unit(given, deployment(cwd="/tmp")))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "optimized.service" in line]
    assert said == [], said


@pytest.mark.parametrize(("listens", "published"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "[::1]"), ("gpu-17", "127.0.0.1")])
def test_the_container_is_published_where_the_server_listened(listens: str, published: str) -> None:
    """Never on every interface by silence: docker publishes past most firewalls."""
    text = compose_file(command(), deployment(listens_on=listens))
    assert yaml.safe_load(text)["services"]["server"]["ports"] == [f"{published}:30000:30000"]
    assert f"# ports: published on {published.strip('[]')}" in text


@pytest.mark.parametrize("path", ["/models/k26", "/mnt/a:b $c"])
def test_the_model_is_mounted_where_it_was(path: str) -> None:
    service = yaml.safe_load(compose_file(command(), deployment(model_path=path)))["services"]["server"]
    (mount,) = service["volumes"]
    assert mount["source"].replace("$$", "$") == mount["target"].replace("$$", "$") == path and mount["read_only"] is True
    assert "command" not in service  # an image's entry point would get it as arguments


@pytest.mark.parametrize("word", WORDS)
def test_compose_itself_reads_every_word(word: str, tmp_path: Path) -> None:
    given = Command(argv=("/opt/venv/bin/python3", "-m", "sglang.launch_server", "--flag", word), env={"NCCL_PROTO": "LL", "ODD": ENV["ODD"]})
    (tmp_path / "compose.yaml").write_text(compose_file(given, deployment(image="lmsysorg/sglang:v0.5.12")))
    status, service, said = read_by_compose(tmp_path / "compose.yaml", {})
    assert status == 0, said
    assert service["entrypoint"][-1].replace("$$", "$") == word  # `config` doubles a dollar, so that it can be read again


@pytest.mark.parametrize("changes", [{}, {"gpus": 0, "model_path": None}, {"image": "lmsysorg/sglang:v0.5.12"}])
def test_kubernetes_schema_accepts_the_manifest(changes: dict[str, object]) -> None:
    checked_by_kubernetes(list(yaml.safe_load_all(kubernetes_manifest(command("--api-key", SECRET), deployment(**changes)))))


@pytest.mark.parametrize("given", [("--host", "127.0.0.1"), ("--host=localhost",), ()])
def test_a_container_listens_where_it_can_be_reached(given: tuple[str, ...]) -> None:
    inside = deployment(listens_on="127.0.0.1")
    words = yaml.safe_load(compose_file(command(*given), inside))["services"]["server"]["entrypoint"]
    assert words[-2:] == ["--host", "0.0.0.0"] or words[-1] == "--host=0.0.0.0"
    assert "127.0.0.1" not in words and "&id" not in kubernetes_manifest(command(*given), inside)
    assert systemd_words(systemd_unit(command(*given), inside)) == list(command(*given).argv)
