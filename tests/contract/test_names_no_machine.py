"""Nothing that is committed names the machine, the account or the package index it was made with: such names are of no use to
anybody else, and a path that works here alone is a bug."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What others wrote is kept as they wrote it: logs of real servers, public incident reports.
QUOTED = ("tests/recordings/", "tests/incidents/")
# A folder of somebody's checkout, in a place where such folders lie.
CHECKOUT = re.compile(r"(?<![\w.~/-])/(?:work|workspace|builds|checkout)/[\w.-]")
# Addresses that documents and sources may point at; tests may invent more.
SITES = {
    "127.0.0.1", "localhost", "github.com", "huggingface.co", "docs.nvidia.com", "resources.nvidia.com", "images.nvidia.com", "www.nvidia.com",
    "www.amd.com", "docs.vllm.ai", "blog.vllm.ai", "docs.sglang.ai", "www.apache.org", "semver.org", "keepachangelog.com",
    "www.databasemart.com", "www.w3.org", "www.textualize.io",  # the last two stand in drawings
    # Where the figures of playbooks/hardware.yaml were read once more.
    "glennklockwood.com", "servethehome.com", "llmperf.net", "hmc-tech.com", "grokipedia.com", "www.mullet.se", "gpu.spicedreamphone.com",
    "waredb.com", "www.spheron.network", "hardware-corner.net", "manuals.plus", "www.saulelectric.com", "docs.vultr.com",
    "raw.githubusercontent.com", "www.emergentmind.com", "www.thundercompute.com",
}  # fmt: skip


def committed() -> Iterator[tuple[str, str]]:
    """(path, text) of every text file under version control, or of the whole tree where it is no checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    if listed.returncode != 0:
        pytest.skip("not a git checkout: what is committed is not known")
    for name in names:
        path = ROOT / name
        if path.is_file() and not name.startswith(QUOTED):
            data = path.read_bytes()
            if b"\0" not in data[:8000]:
                yield name, data.decode("utf-8", "replace")


def of_this_machine() -> set[str]:
    """Where this checkout lies, who owns it, and where its packages come from."""
    found = {str(ROOT), str(ROOT.resolve()), str(Path(sys.prefix))}
    if len(socket.gethostname()) > 5 and not socket.gethostname().startswith("localhost"):
        found.add(socket.gethostname())
    configured = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    for option, value in re.findall(r"^\S*?([\w-]+)='(.*)'$", configured, re.MULTILINE):
        if option in ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy"):
            found |= {re.sub(r"^\w+://(?:[^/@]*@)?", "", part).rstrip("/") for part in value.replace("\\n", " ").split()}
    return {name for name in found if len(name) > 5}


def problems(files: Iterable[tuple[str, str]], own: set[str]) -> list[str]:
    wrong = []
    for name, text in files:
        wrong += [f"{name}: names {word}" for word in own if word in text]
        wrong += [f"{name}: a path of some checkout: {match[0]}" for match in CHECKOUT.finditer(text) if name != "tests/contract/test_names_no_machine.py"]
        if not name.startswith("tests/"):
            sites = set(re.findall(r"https?://(?:[^/\s@]*@)?([A-Za-z0-9.-]+\.[A-Za-z]+|localhost)", text))
            wrong += [f"{name}: an address that is not on the list: {site}" for site in sites - SITES]
    return wrong


def test_nothing_committed_names_this_machine() -> None:
    assert problems(committed(), of_this_machine()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.py", "x = '/work/clone/x'"), ("README.md", "see /builds/7/tree"), ("a.sh", "pip install -i https://user:pw@packages.corp.example/simple x"),
     ("docs/a.md", "on gpu-box-17 it took"), ("a.md", "/somebody/s/clone/of/it/README.md")],
)  # fmt: skip
def test_the_check_can_fail(name: str, text: str) -> None:
    assert problems([(name, text)], {"gpu-box-17", "/somebody/s/clone/of/it"})


def test_the_check_leaves_ordinary_text_alone() -> None:
    ordinary = "GET https://github.com/a/b/workspace/x and ./work/y and http://127.0.0.1:1/builds, ~/work/z, performance"
    assert problems([("a.py", ordinary)], {"gpu-box-17"}) == []
