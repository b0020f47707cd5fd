"""A model server for tests: health, completions, streams. Says who it is in every answer."""
import json
import os
import socketserver
import time
from http.server import BaseHTTPRequestHandler

WARM_UP = float(os.environ.get("WARM_UP", "0"))
BORN = time.monotonic()
FAIL = os.environ.get("FAIL") == "1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path != "/health":
            return self.answer(404, {"error": self.path})
        warm = time.monotonic() - BORN >= WARM_UP
        self.answer(200 if warm else 503, {"warm": warm})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        who = {"job": os.environ["TUTTI_JOB_ID"], "version": os.environ.get("VERSION", "1")}
        if FAIL:
            return self.answer(500, who)
        time.sleep(asked.get("think", 0))
        if not asked.get("stream"):
            return self.answer(200, {**who, "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for n in range(asked.get("chunks", 5)):
            data = f"data: {json.dumps({**who, 'n': n})}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
            time.sleep(asked.get("pause", 0.05))
        self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    allow_reuse_port = os.environ.get("REUSE") == "1"
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    address = (os.environ["TUTTI_NODE_ADDR"], int(os.environ["PORT"]))
    print("serving at", address, flush=True)
    with Server(address, Handler) as server:
        server.serve_forever()
