"""The server that a job names, and the bytes around what it is asked. Runs on the box."""

import asyncio
import json
import os
import ssl
import urllib.parse

from optimizer.bench.plain.beside import key_of_server
from optimizer.bench.plain.wires import STAMPNS

VERSION = 1
MAX_PAGE_BYTES = 8 << 20
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate", "llamacpp": "/completion"}


class Target:
    """``host``, ``port``, ``tls``: where it is. ``plain``: its connections are read by the kernel's stamps; inside TLS the kernel
    cannot tell which of its records holds which event. Raises ValueError for a job that names no server or no known API."""

    def __init__(self, job):
        url = urllib.parse.urlsplit(job["base_url"])
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("base_url must look like http://host:port, not %r" % job["base_url"])
        self.api = job.get("api", "completions")
        if self.api not in PATHS:
            raise ValueError("there is no API called %s; there are %s" % (self.api, ", ".join(sorted(PATHS))))
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = ssl.create_default_context(cafile=job.get("ca_file")) if url.scheme == "https" else None
        self.plain = STAMPNS is not None and self.tls is None
        self.model, self.ignore_eos, self.extra = job.get("model"), job.get("ignore_eos", True), job.get("extra_body") or {}
        self.key = _key(job, self.port)
        base = url.path.rstrip("/")
        if base.endswith("/v1"):
            base = base[:-3]
        named = "Host: %s:%d" % ("[%s]" % self.host if ":" in self.host else self.host, self.port)
        bearer = ["Authorization: Bearer %s" % self.key] if self.key else []
        head = ["POST %s%s HTTP/1.1" % (base, PATHS[self.api]), named, "Content-Type: application/json", "Accept: text/event-stream"]
        head += ["Accept-Encoding: identity", "User-Agent: optimize-loadgen/%d" % VERSION]
        head += (["Connection: close"] if job.get("keep_alive") is False else []) + bearer
        self.head = ("\r\n".join(head) + "\r\nContent-Length: ").encode("ascii")
        page = ["GET %s%s HTTP/1.1" % (base, job.get("metrics_path") or "/metrics"), named, "Accept-Encoding: identity"]
        page += ["Connection: close", *bearer]
        self.metrics_request = ("\r\n".join(page) + "\r\n\r\n").encode("ascii")

    def message(self, said, max_tokens):
        """One request, whole. ``said``: texts that alternate between user and model, the last one the user's."""
        prompt = said[0] if len(said) == 1 else "\n".join(said)
        if self.api == "generate":
            sampling = {"max_new_tokens": max_tokens, "temperature": 0, "ignore_eos": self.ignore_eos}
            body = {"text": prompt, "sampling_params": sampling, "stream": True}
        elif self.api == "llamacpp":
            body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "ignore_eos": self.ignore_eos, "stream": True}
        else:
            body = {"model": self.model} if self.model else {}
            if self.api == "chat":
                roles = ("user", "assistant")
                body["messages"] = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
            else:
                body["prompt"] = prompt
            body.update(max_tokens=max_tokens, temperature=0, stream=True)
            if self.ignore_eos:  # an extension of the engines; a strict server refuses a field that it does not know
                body["ignore_eos"] = True
            body["stream_options"] = {"include_usage": True}
        body.update(self.extra)
        data = json.dumps(body, separators=(",", ":")).encode("ascii")
        return self.head + str(len(data)).encode("ascii") + b"\r\n\r\n" + data

    def without_key(self, text):
        return text.replace(self.key, "<the API key>") if self.key else text

    async def metrics_page(self, host):
        """The page with the server's own counters, from this address of it. Raises OSError where it has none."""
        name = self.host if self.tls else None
        reader, writer = await asyncio.open_connection(host, self.port, ssl=self.tls, server_hostname=name)
        try:
            writer.write(self.metrics_request)
            page = b""
            while len(page) < MAX_PAGE_BYTES:
                data = await reader.read(1 << 16)
                if not data:
                    break
                page += data
            head, _, body = page.partition(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n")[0] + b" ":
                raise OSError("no metrics page")
            return _unchunked(body) if b"transfer-encoding: chunked" in head.lower() else body
        finally:
            writer.close()


def _key(job, port):
    """The API key: of the environment variable that the job names, else of the server itself."""
    variable = job.get("api_key_env")
    key = os.environ.get(variable, "") if variable else ""
    if not key and job.get("api_key_of_server"):
        key = key_of_server(port) or ""
        variable = variable if key else None
    if (variable and not key) or any(ord(c) < 33 or ord(c) > 126 for c in key):
        raise ValueError("the environment variable %s holds no usable API key here" % variable)
    return key


def _unchunked(body):
    """A body in chunks, put together."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        count = int(size.split(b";")[0] or b"0", 16)
        if not count:
            break
        parts.append(body[:count])
        body = body[count + 2 :]
    return b"".join(parts)
