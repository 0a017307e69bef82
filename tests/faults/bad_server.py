"""A server for tests that misbehaves as ``MODE`` says. Standard library only; it does not import the product."""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def option(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


MODE, PORT, NAME = os.environ.get("MODE", ""), int(option("--port", "0")), option("--served-model-name")
ANSWER = [
    {"choices": [{"text": " a", "index": 0}]},
    {"choices": [{"text": " b", "index": 0}], "usage": {"prompt_tokens": 16, "completion_tokens": 2}},
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if MODE == "says-ok":
            self.answer(200, b"OK", "text/plain")
        elif self.path.startswith("/v1/models"):
            self.answer(200, {"data": [{"id": "another-model" if MODE == "wrong-name" else NAME}]})
        elif "server_info" in self.path:
            self.answer(200, {"max_running_requests": 7, "internal_states": [{}]})
        elif "health" in self.path:
            self.answer(200, {})
        else:
            self.answer(404, {})

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if MODE == "dies-under-load":
            print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(1)
        if MODE == "oom-under-load":
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
            os._exit(1)
        if MODE == "dead-worker":
            self.answer(500, {"error": "the scheduler is gone"})
            return
        body = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in ANSWER) + b"data: [DONE]\n\n"
        self.answer(200, body, "text/event-stream")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = "REUSE_PORT" in os.environ

    def server_bind(self):
        if self.allow_reuse_port:
            import socket

            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


def main():
    if MODE == "exits":
        sys.exit(0)
    if MODE in ("hangs", "binds-nothing"):
        print("Load weight begin.", flush=True)
        time.sleep(600)
    if MODE == "eats":
        print("Load weight begin.", flush=True)
        try:
            with open(os.environ["GROUP"] + "/cgroup.procs", "w") as procs:
                procs.write(str(os.getpid()))
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)  # no limit can be set here
        eaten = [bytearray(os.urandom(1 << 20)) for _ in range(160)]
        sys.exit(f"nobody stopped it at {len(eaten)} MiB")
    if MODE == "zombie" and os.fork() == 0:
        os._exit(0)
    if MODE == "binds-late":
        time.sleep(1.0)
    if MODE == "compiles":
        for number in range(8):
            print(f"Compiling kernel {number} of 8", flush=True)
            time.sleep(0.3)
    try:
        server = Server(("127.0.0.1", PORT), Handler)
    except OSError as error:
        print(f"[Errno {error.errno}] error while attempting to bind on address: address already in use", flush=True)
        sys.exit(1)
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
