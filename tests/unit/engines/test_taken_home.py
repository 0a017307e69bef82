"""What three engines' winners become as unit, compose file and manifest, read by the programs that will read them: systemd, docker compose
and the schemas of Kubernetes."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from optimizer.engines.base import Command
from optimizer.engines.deploy import Deployment, files
from optimizer.engines.registry import engine
from optimizer.report.study import _gpus
from tests.unit.engines.validators import checked_by_kubernetes, compose_program, read_by_compose

KEY, TOKEN = "sk-" + "0123456789abcdef0123456789abcdef", "hf_" + "a" * 34
ODD = '{"rope": "it\'s 100% $HOME ${X:?no} $(id) `id` \\\\ ü"}'
SNAPSHOT = "/root/.cache/huggingface/hub/models--org--k26/snapshots/0123abcd"

WINNERS = {
    "sglang": (
        Command(
            argv=("/opt/torch/.venv/bin/python3.12", "-m", "sglang.launch_server", "--model-path", SNAPSHOT, "--tp", "2", "--port", "30000", "--host", "127.0.0.1", "--api-key", KEY,
                  "--json-model-override-args", ODD, "--speculative-draft-model-path=/models/draft", "--cuda-graph-bs", "1", "2", "4", "--log-requests-target", "/var/log/sglang"),
            env={"CUDA_VISIBLE_DEVICES": "4,5,6", "NCCL_PROTO": "LL128", "ODD": 'a "b" $c %d \\', "NCCL_ALGO": None, "CUDA_HOME": "/usr/local/cuda", "HF_HUB_OFFLINE": "1"},
        ),
        {"tp_size": 2}, "0.5.12", SNAPSHOT,
    ),
    "vllm": (
        Command(
            argv=("/opt/venv/bin/vllm", "serve", "org/k26", "--tensor-parallel-size", "8", "--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1", "--port", "8000",
                  "--speculative-config", '{"model": "/models/draft", "method": "eagle3"}', "--compilation-config", '{"mode": 3}', "--root-path", "/v2"),
            env={"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1", "VLLM_ATTENTION_BACKEND": "FLASHINFER", "LD_PRELOAD": "/usr/lib/libjemalloc.so.2"},
        ),
        {"tensor_parallel_size": 8, "nnodes": 2}, "0.32.0", "org/k26",
    ),
    "llamacpp": (
        Command(
            argv=("/srv/llama/bin/llama-server", "-m", "models/k26-00001-of-00003.gguf", "-np", "16", "--chat-template-file", "/srv/chat template.jinja", "--port", "8080"),
            env={"GGML_CUDA_FORCE_MMQ": "1"},
        ),
        {"parallel": 16}, "b6500-1a2b3c4", "models/k26-00001-of-00003.gguf",
    ),
}  # fmt: skip
GIVEN = {"API_KEY": "key of mine", "HF_TOKEN": "token of mine"}


def winner(name: str, of_box: int = 8) -> tuple[Command, Deployment]:
    command, values, version, model = WINNERS[name]
    adapter = engine(name)
    gpus, nodes = _gpus(adapter, values, of_box, command.env)
    identity = adapter.identity(command.argv, adapter.flags(""))
    return command, Deployment(
        name=f"optimize-{name}.1", port=identity.port, health_path=adapter.ready(identity.port).probe.path, listens_on=identity.host, gpus=gpus, nodes=nodes, start_s=40.0,
        image=adapter.image_of(version, gpu=gpus > 0), program=adapter.image_program or None, model_path=model, cwd="/srv/100% mine",
        notes=("Measured: 1,070 tok/s [1,020, 1,120]\nexec evil",),
    )  # fmt: skip


def composed(name: str, tmp_path: Path, of_box: int = 8) -> tuple[dict[str, Any], str]:
    text = files(*winner(name, of_box))["compose.yaml"]
    (tmp_path / "compose.yaml").write_text(text)
    status, service, said = read_by_compose(tmp_path / "compose.yaml", GIVEN)
    assert status == 0, said
    return service, text


@pytest.mark.parametrize("name", WINNERS)
def test_compose_starts_what_was_measured(name: str, tmp_path: Path) -> None:
    """Every word after compose's own substitution, with the program and the address of the image."""
    command, deployment = winner(name)
    service, _ = composed(name, tmp_path)
    wanted = [GIVEN["API_KEY"] if word == KEY else word for word in command.argv[1:]]
    host = [word.replace("127.0.0.1", "0.0.0.0") if wanted[at - 1] == "--host" else word for at, word in enumerate(wanted)]
    program = {"sglang": "python3", "vllm": "vllm", "llamacpp": "/app/llama-server"}[name]
    # `config` writes what can be read again, so a dollar is still doubled
    words = [word.replace("$$", "$") for word in service["entrypoint"]]
    assert words[: len(host) + 1] == [program, *host] and words[len(host) + 1 :] in ([], ["--host", "0.0.0.0"])
    assert service["ports"][0]["host_ip"] == ("0.0.0.0" if deployment.listens_on == "0.0.0.0" else "127.0.0.1") and service["ports"][0]["target"] == deployment.port
    assert service["image"] == {"sglang": "lmsysorg/sglang:v0.5.12", "vllm": "vllm/vllm-openai:v0.32.0", "llamacpp": "ghcr.io/ggml-org/llama.cpp:server-cuda-b6500"}[name]
    assert service["healthcheck"]["test"][-1] == f"http://127.0.0.1:{deployment.port}{deployment.health_path}"


def test_compose_stops_until_each_secret_is_given(tmp_path: Path) -> None:
    for name, missing in (("sglang", "API_KEY"), ("vllm", "HF_TOKEN")):
        (tmp_path / "compose.yaml").write_text(files(*winner(name))["compose.yaml"])
        status, _, said = read_by_compose(tmp_path / "compose.yaml", {key: value for key, value in GIVEN.items() if key != missing})
        assert status != 0 and f"set {missing}" in said


def test_the_environment_is_the_settings_without_what_was_the_boxs_own(tmp_path: Path) -> None:
    service, _ = composed("sglang", tmp_path)
    assert {key: value.replace("$$", "$") for key, value in service["environment"].items()} == {"NCCL_PROTO": "LL128", "ODD": 'a "b" $c %d \\', "HF_HUB_OFFLINE": "1"}
    service, text = composed("vllm", tmp_path)
    assert service["environment"] == {"HF_TOKEN": "token of mine", "VLLM_ATTENTION_BACKEND": "FLASHINFER", "LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}  # it has to fetch its model
    assert "# The container fetches org/k26" in text and "# LD_PRELOAD names /usr/lib/libjemalloc.so.2, which is not mounted" in text and "/v2" not in text.split("services:")[0]


def test_the_gpus_that_were_used_are_reserved_and_counted_from_zero_inside(tmp_path: Path) -> None:
    """Two of three visible; four of eight, as the other node has the rest; all of the box, which the engine spreads over; none."""
    def reserved(name: str, of_box: int = 8) -> Any:
        service, _ = composed(name, tmp_path, of_box)
        return service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")

    assert reserved("sglang") == [{"driver": "nvidia", "device_ids": ["4", "5"], "capabilities": ["gpu"]}]
    assert reserved("vllm") == [{"driver": "nvidia", "count": 4, "capabilities": ["gpu"]}] and reserved("llamacpp")[0]["count"] == 8
    assert reserved("llamacpp", 0) is None and winner("llamacpp", 0)[1].image == "ghcr.io/ggml-org/llama.cpp:server-b6500" and winner("vllm", 0)[1].image is None
    limits = {name: _container(name)["resources"]["limits"]["nvidia.com/gpu"] for name in WINNERS}
    assert limits == {"sglang": 2, "vllm": 4, "llamacpp": 8} and "CUDA_VISIBLE_DEVICES" not in {item["name"] for item in _container("sglang")["env"]}
    assert "# One of 2 nodes" in files(*winner("vllm"))["kubernetes.yaml"]


def test_what_the_server_reads_is_mounted_and_what_it_may_write_is_said(tmp_path: Path) -> None:
    """A snapshot of Hugging Face's cache with the files that its links point to; a split model with its siblings; drafts and templates."""
    mounted = {}
    for name in WINNERS:
        service, text = composed(name, tmp_path)
        assert all(item["source"] == item["target"] and item["read_only"] and item["type"] == "bind" for item in service["volumes"])
        mounted[name] = [item["source"] for item in service["volumes"]]
        assert ("# --log-requests-target names /var/log/sglang, which is not mounted" in text) is (name == "sglang")
    assert mounted == {"sglang": ["/root/.cache/huggingface/hub/models--org--k26", "/models/draft"], "vllm": ["/models/draft"],
                       "llamacpp": ["/srv/100% mine/models", "/srv/chat template.jinja"]}  # fmt: skip
    assert composed("llamacpp", tmp_path)[0]["working_dir"] == "/srv/100% mine" and "working_dir" not in composed("sglang", tmp_path)[0]


def _container(name: str) -> dict[str, Any]:
    workload = next(iter(yaml.safe_load_all(files(*winner(name))["kubernetes.yaml"])))
    return dict(workload["spec"]["template"]["spec"]["containers"][0])


@pytest.mark.parametrize("name", WINNERS)
@pytest.mark.parametrize("of_box", [8, 0])
def test_kubernetes_takes_the_manifest(name: str, of_box: int) -> None:
    command, deployment = winner(name, of_box)
    text = files(command, deployment)["kubernetes.yaml"]
    documents = list(yaml.safe_load_all(text))
    checked_by_kubernetes(documents)
    workload, service = documents
    pod = workload["spec"]["template"]
    # What the schemas do not say: the names and numbers that have to agree.
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == workload["spec"]["selector"]["matchLabels"]
    assert {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]} == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert all(name.islower() and "." not in name for name in (workload["metadata"]["name"], service["metadata"]["name"]))
    assert all(isinstance(item.get("value", ""), str) for item in pod["spec"]["containers"][0]["env"])


def test_the_schemas_refuse_what_is_wrong() -> None:
    """The check can fail: a field that is misspelled, a number where a text belongs."""
    validate = pytest.importorskip("kubernetes_validate")
    workload, service = yaml.safe_load_all(files(*winner("sglang"))["kubernetes.yaml"])
    workload["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(validate.ValidationError):
        checked_by_kubernetes([workload])
    service["spec"]["ports"][0]["port"] = "http"
    with pytest.raises(validate.ValidationError):
        checked_by_kubernetes([service])


def test_compose_refuses_what_is_wrong(tmp_path: Path) -> None:
    document = yaml.safe_load(files(*winner("sglang"))["compose.yaml"])
    document["services"]["server"]["healthcheck"]["start_perod"] = "1s"
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(document))
    assert compose_program() and read_by_compose(tmp_path / "compose.yaml", GIVEN)[0] != 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("name", WINNERS)
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    command, deployment = winner(name)
    program = tmp_path / "a program"  # systemd wants one that is there
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "100% mine").mkdir()
    here = deployment.model_copy(update={"cwd": str(tmp_path / "100% mine")})
    unit = tmp_path / "optimized.service"
    unit.write_text(files(Command(argv=(str(program), *command.argv[1:]), env=command.env), here)["optimized.service"])
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "optimized.service" in line] == []


@pytest.mark.parametrize("name", WINNERS)
def test_no_secret_and_no_command_gets_into_a_file(name: str) -> None:
    for text in files(*winner(name)).values():
        assert KEY not in text and TOKEN not in text and not any(line.startswith("exec evil") for line in text.splitlines())
    assert json.loads(json.dumps(list(yaml.safe_load_all(files(*winner(name))["kubernetes.yaml"]))))  # plain types alone
