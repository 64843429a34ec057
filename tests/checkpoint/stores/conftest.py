import re
import secrets
import threading
from pathlib import Path

import pytest

from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.stores.opening import open_store


class Bucket:
    """An S3 server of this process, with one bucket, and the faults that a test asks for."""

    def __init__(self):
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *args):
                pass

        self._inner = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.faults = []
        self.requests = []
        self.name = "checkpoints"
        self._send("PUT", f"/{self.name}")

    def url(self, prefix):
        return f"s3://{self.name}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def fail(self, method, pattern, status, *, times=1, done=False):
        """Answer requests that match with an error: instead of carrying them out, or after it (``done``)."""
        self.faults.append([method, re.compile(pattern), status, times, done])

    def uploads(self):
        """Multipart uploads that were begun and neither completed nor given up."""
        return re.findall("<UploadId>", self._send("GET", f"/{self.name}?uploads"))

    def stop(self):
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def _send(self, method, path):
        import http.client

        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"), timeout=20)
        connection.request(method, path, headers={"Authorization": "AWS4-HMAC-SHA256 Credential=a/b/us-east-1/s3/c"})
        body = connection.getresponse().read().decode()
        connection.close()
        return body

    def _answer(self, environ, start):
        line = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
        self.requests.append((environ["REQUEST_METHOD"], line))
        for fault in self.faults:
            method, pattern, status, times, done = fault
            if method == environ["REQUEST_METHOD"] and pattern.search(line) and times:
                fault[3] -= 1
                if done:
                    list(self._inner(environ, lambda *_: lambda _: None))
                else:
                    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start(f"{status} Planned", [("Content-Length", "0"), ("Connection", "close")])
                return [b""]
        return self._inner(environ, start)


@pytest.fixture(scope="session")
def _server():
    bucket = Bucket()
    yield bucket
    bucket.stop()


@pytest.fixture
def bucket(_server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    for name in ("AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    _server.faults.clear()
    _server.requests.clear()
    return _server


@pytest.fixture
def object_store(bucket):
    store = open_store(bucket.url(f"runs/{secrets.token_hex(4)}"))
    yield store
    store.close()


@pytest.fixture
def directory_store(tmp_path):
    return DirectoryStore(tmp_path / "store")


@pytest.fixture(params=["memory", "directory", pytest.param("objects", marks=pytest.mark.process)])
def store(request):
    """Each kind of home in turn: one protocol, one behaviour."""
    if request.param == "memory":
        return MemoryStore()
    return request.getfixturevalue("directory_store" if request.param == "directory" else "object_store")


@pytest.fixture
def no_sleep():
    """Stands in for ``time.sleep`` and remembers how long it would have slept."""

    class Slept(list):
        def __call__(self, seconds):
            self.append(seconds)

    return Slept()


def everything_below(root):
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file())


@pytest.fixture
def files_below():
    return everything_below
