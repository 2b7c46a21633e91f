"""Servers on this machine that speak the real protocols, well and badly: bytes cross a socket."""

import contextlib
import hashlib
import http.client
import json
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secretsecretsecret"
COMMIT = "c0ffee" + "0" * 34


@dataclass
class Fault:
    """What is wrong with one answer. after: bytes of the body that still come."""

    kind: str  # status, cut, reset, stall, wrong-range
    after: int = 0
    status: int = 500
    headers: dict = field(default_factory=dict)
    seconds: float = 0.0


class Server:
    """Files over HTTP. faults[path] are used up one for each request; requests are kept as (path, headers)."""

    def __init__(self, handler=None):
        self.files, self.faults, self.etags, self.types, self.requests = {}, {}, {}, {}, []
        self.ranges = True
        self.lengths = True
        handler = type("Handler", (handler or Handler,), {"owner": self})
        self._http = _Quiet(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()


class _Quiet(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # clients hang up; that is what is tested


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a connection that is used again waits 40 ms for each answer
    owner: Server

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.owner.requests.append((self.path, dict(self.headers)))
        faults = self.owner.faults.get(path)
        self.send_file(path, faults.pop(0) if faults else None)

    def send_file(self, path, fault):
        data = self.owner.files.get(path)
        if fault and fault.kind == "status":
            return self.answer(fault.status, b"", fault.headers)
        if data is None:
            return self.answer(404, b"")
        start, end, status = 0, len(data), 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {"ETag": f'"{self.owner.etags.get(path) or hashlib.md5(data).hexdigest()}"'}
        headers["Content-Type"] = self.owner.types.get(path, "text/plain")
        if asked and self.owner.ranges:
            start = int(asked[1])
            end = min(len(data), int(asked[2]) + 1) if asked[2] else len(data)
            if start >= len(data):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status = 206
            shift = 7 if fault and fault.kind == "wrong-range" else 0
            headers["Content-Range"] = f"bytes {start + shift}-{end - 1 + shift}/{len(data)}"
        self.answer(status, data[start:end], headers, fault)

    def answer(self, status, body, headers=None, fault=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.owner.lengths or status != 200:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.close_connection = True
        self.end_headers()
        if fault is None:
            self.wfile.write(body)
            return
        self.wfile.write(body[: fault.after])
        self.wfile.flush()
        if fault.kind == "stall":
            time.sleep(fault.seconds)
            self.wfile.write(body[fault.after :])
        elif fault.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif fault.kind == "cut":
            self.close_connection = True
        else:
            self.wfile.write(body[fault.after :])

    def log_message(self, *_):
        pass


class Proxy(Handler):
    """Between a client and another server: hands everything on, but for the faults, and keeps what was asked for.

    owner.target is the other server; owner.faults a list of (method, part of the path, Fault), each used up once;
    owner.requests are (method, path, length of the body); owner.delay the seconds that every PUT takes longer.
    """

    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.owner.requests.append((self.command, unquote(self.path), length))
        for number, (method, part, fault) in enumerate(self.owner.faults):
            if method == self.command and part in unquote(self.path):
                del self.owner.faults[number]
                if fault.kind == "status":
                    return self.answer(fault.status, b"", fault.headers)
                return self.answer(200, b"x" * 100, fault=fault)
        if self.command == "PUT":
            time.sleep(getattr(self.owner, "delay", 0.0))
        host = urlsplit(self.owner.target).netloc
        with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as other:
            other.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                other.putheader(name, value)
            other.endheaders(body)
            with other.getresponse() as answer:
                data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        if "Content-Length" not in answer.headers and answer.status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET


class Hub(Handler):
    """As much of the hub's API as a file system over it asks for. Files are under /REPO/PATH of owner.files."""

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.owner.requests.append((self.path, dict(self.headers)))
        if faults := self.owner.faults.get(path):
            fault = faults.pop(0)
            return self.answer(fault.status, b"", fault.headers)
        if found := re.match(r"/cdn/(.+)", path):  # where large files really are; it must not see the token
            assert "Authorization" not in self.headers, "the token went to another host"
            cuts = self.owner.faults.get("cdn")
            return self.send_file("/" + found[1], cuts.pop(0) if cuts else None)
        if found := re.match(r"/api/datasets/([^/]+/[^/]+)(?:/revision/([^/]+))?$", path):
            return self.allowed(found[1], found[2]) and self.json({"id": found[1], "sha": COMMIT, "siblings": []})
        if found := re.match(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)/?(.*)$", path):
            return self.allowed(found[1], found[2]) and self.tree(found[1], found[3])
        if found := re.match(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$", path):
            if not self.allowed(found[1], found[2]):
                return None
            cdn = self.owner.cdn.url if getattr(self.owner, "cdn", None) else ""
            return self.answer(302, b"", {"Location": f"{cdn}/cdn/{found[1]}/{found[3]}?Signature=secretsecret"})
        return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def allowed(self, repo, revision):
        if not any(name.startswith(f"/{repo}/") for name in self.owner.files):
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo.startswith("private/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo.startswith("gated/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif revision not in (None, "main", "v1", COMMIT):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return True
        return False

    def tree(self, repo, below):
        recursive = "recursive=True" in self.path or "recursive=true" in self.path
        prefix = f"/{repo}/{below}/" if below else f"/{repo}/"
        entries = {}
        for name, data in self.owner.files.items():
            if not name.startswith(prefix):
                continue
            parts = name[len(prefix) :].split("/")
            inside = (below + "/" if below else "") + "/".join(parts)
            for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                folder = (below + "/" if below else "") + "/".join(parts[:depth])
                entries[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
            if recursive or len(parts) == 1:
                sha = hashlib.sha256(data).hexdigest()
                lfs = {"oid": sha, "size": len(data), "pointerSize": 130}
                entries[inside] = {"type": "file", "oid": sha[:40], "size": len(data), "path": inside, "lfs": lfs}
        if not entries and below:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.json(list(entries.values()))

    def json(self, content):
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})
