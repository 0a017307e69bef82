"""Which server a study is about: the described one, the one that runs, also one that an earlier study left running; never one
that another study is just measuring, and never a launch beside a stranger on the same port."""

import asyncio
from typing import Any

import pytest

from optimizer.box.plain.look import NO_NETWORK
from optimizer.box.results import FoundServers, Holder, ServerProcess
from optimizer.model.study import HostSpec, LaunchSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.runner.deployment import why_not_whole
from optimizer.runner.survey import Unfit, find_target

ARGV = ("/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--port", "30000")


def server(argv: tuple[str, ...] = ARGV, launch_id: str | None = None, port: int = 30000) -> ServerProcess:
    return ServerProcess(
        pid=77, start_time=1, boot_id="b", engine="sglang", argv=argv, hidden_arguments=0, cwd="/", exe=argv[0], uid=0, ports=(port,), env={},
        env_readable=True, logs=(), supervisor=None, launch_id=launch_id,
    )  # fmt: skip


class FakeBox:
    name = "box"

    def __init__(self, *servers: ServerProcess, holder: str | None = None) -> None:
        self.servers, self.study = servers, holder

    async def find_servers(self, *_: Any, **__: Any) -> FoundServers:
        return FoundServers(servers=self.servers, port_owner_hidden=False)

    async def holder(self) -> Holder | None:
        return Holder(study=self.study, coordinator_name="c", since_unix_s=0, gone=False) if self.study else None


def find(box: FakeBox, launch: LaunchSpec | None = None, usual: LaunchSpec | None = None, port: int | None = None) -> Any:
    spec = StudySpec(study="now", host=HostSpec(name="box", kind="local"), target=Target(), workload=Workload(), launch=launch, port=port)
    real: Any = box
    return asyncio.run(find_target(real, spec, usual))[2]


def test_a_server_that_an_earlier_study_left_running_is_a_server_like_any_other() -> None:
    left = server((*ARGV, "--cuda-graph-max-bs", "64"), launch_id="before:31")
    assert find(FakeBox(left)) == left


@pytest.mark.parametrize(("launch_id", "holder"), [("other:8", "other"), ("now:8", None)])
def test_a_launch_of_a_study_at_work_is_none(launch_id: str, holder: str | None) -> None:
    with pytest.raises(Unfit, match="No inference server runs"):
        find(FakeBox(server(launch_id=launch_id), holder=holder))


def test_a_server_that_still_loads_is_waited_for_and_none_is_started_beside_it() -> None:
    loading = server().model_copy(update={"ports": ()})
    with pytest.raises(Unfit, match=r"to listen on port 30000 \(process 77\) does not listen yet") as error:
        find(FakeBox(loading), port=30000)
    assert "second one beside it" in error.value.hint
    with pytest.raises(Unfit, match="No inference server runs"):
        find(FakeBox(loading), port=30001)


def test_the_described_server_is_found_where_it_runs() -> None:
    assert find(FakeBox(server()), LaunchSpec(argv=("python3", *ARGV[1:]))) == server()
    assert find(FakeBox(server(port=30001)), LaunchSpec(argv=ARGV)) is None


def test_nothing_is_launched_beside_another_server_on_the_same_port() -> None:
    other = server((*ARGV, "--tp-size", "8"), launch_id="before:31")
    with pytest.raises(Unfit, match=r"Port 30000 .*process 77, left running by study before") as error:
        find(FakeBox(other), LaunchSpec(argv=ARGV))
    assert "--launch" in error.value.hint


def test_of_several_the_one_that_the_box_is_described_with() -> None:
    """Where a command only looks; with whatever options it runs today."""
    other = server((*ARGV[:-1], "30001"), port=30001).model_copy(update={"pid": 78})
    both = FakeBox(other, server((*ARGV, "--tp", "2")))
    assert find(both, usual=LaunchSpec(argv=ARGV)) == both.servers[1]
    with pytest.raises(Unfit, match="Several servers run") as several:
        find(FakeBox(other, server((*ARGV[:-1], "30002"), port=30002).model_copy(update={"pid": 79})), usual=LaunchSpec(argv=ARGV))
    assert "--port" in several.value.hint


def test_a_router_one_of_whose_workers_has_ended_names_it() -> None:
    decode = server((*ARGV[:-1], "12976", "--disaggregation-mode", "decode"), port=12976)
    words = ("/usr/bin/python3", "-m", "sglang_router.launch_router", "--pd-disaggregation", "--prefill", "http://127.0.0.1:12975",
             "--decode", "http://127.0.0.1:12976", "--port", "8000")  # fmt: skip
    router = server(words, port=8000).model_copy(update={"pid": 78, "engine": "router"})
    said = why_not_whole([decode, router])
    assert "names port 12975, where no server of this box listens" in said and "router:8000" in said
    prefill = server((*ARGV[:-1], "12975", "--disaggregation-mode", "prefill"), port=12975).model_copy(update={"pid": 79})
    assert why_not_whole([prefill, decode, router]) == ""


@pytest.mark.parametrize("port", [None, 30000])
def test_a_server_in_another_network_is_entered_and_not_said_to_load(port: int | None) -> None:
    apart = server().model_copy(update={"ports": (), "supervisor": NO_NETWORK})
    with pytest.raises(Unfit, match=r"process 77\) runs in a network namespace of its own") as error:
        find(FakeBox(apart), port=port)
    assert "nsenter -t 77 -n" in error.value.hint
