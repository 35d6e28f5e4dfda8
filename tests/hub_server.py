"""A server on the loopback that answers as the Hugging Face Hub does, with folders as repositories."""

import contextlib
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

MAIN = "main"


class Hub:
    """The server.

    Attributes:
        repositories: for each repository and revision its folder; the main branch is called ``main``.
        gated: repositories whose files need a token.
        downloaded: the names of the files that were downloaded.
        tokens: the values of the header ``Authorization`` of all requests.
        headers: headers of all files, in place of the right ones.
        slow: seconds before each byte of a file; 0 to send it as a whole.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Path] = {}
        self.gated: set[str] = set()
        self.downloaded: list[str] = []
        self.tokens: set[str | None] = set()
        self.headers: dict[str, str] = {}
        self.slow = 0.0
        hub = self

        handler = type("Handler", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
        handler.do_GET = lambda request: hub.answer(request, with_body=True)  # type: ignore[attr-defined]
        handler.do_HEAD = lambda request: hub.answer(request, with_body=False)  # type: ignore[attr-defined]
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, name: str, folder: Path, revision: str = MAIN) -> None:
        """Make a folder a revision of a repository, which also has the name of its commit."""
        self.repositories[name, revision] = folder
        self.repositories[name, self.commit(name, revision)] = folder

    def commit(self, name: str, revision: str) -> str:
        """The hash of what a revision is now."""
        return hashlib.sha1(f"{name}@{self.repositories[name, revision]}".encode()).hexdigest()

    def stop(self) -> None:
        """Stop to answer."""
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, with_body: bool) -> None:
        """Answer one request: the list of the files of a repository, or a file."""
        self.tokens.add(request.headers.get("Authorization"))
        parts = unquote(request.path.split("?")[0]).strip("/").split("/")
        is_list = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if is_list else parts[:2])
        revision = parts[5] if len(parts) > 5 and is_list else MAIN if is_list else parts[3]
        folder = self.repositories.get((name, revision))
        if folder is None:
            known = any(name == repository for repository, _ in self.repositories)
            return self._send(request, 404, b"", {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
        commit = revision if len(revision) == 40 else self.commit(name, revision)
        if is_list:
            files = [{"rfilename": str(path.relative_to(folder))} for path in folder.rglob("*") if path.is_file()]
            content = json.dumps({"id": name, "sha": commit, "siblings": files}).encode()
            return self._send(request, 200, content, {"Content-Type": "application/json"})
        if name in self.gated and not request.headers.get("Authorization"):
            return self._send(request, 403, b"", {"X-Error-Code": "GatedRepo"})
        file = "/".join(parts[4:])
        if not (folder / file).is_file():
            return self._send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        body = (folder / file).read_bytes()
        if with_body:
            self.downloaded.append(file)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(body).hexdigest()}"', **self.headers}
        return self._send(request, 200, body, headers, with_body)

    def _send(
        self, request: BaseHTTPRequestHandler, code: int, body: bytes, headers: dict[str, str], with_body: bool = True
    ) -> None:
        request.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(key, value)
        request.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pieces = [body[number : number + 1] for number in range(len(body))] if self.slow else [body]
            for piece in pieces if with_body else []:
                time.sleep(self.slow)
                request.wfile.write(piece)


def serve(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Start a server, and let ``huggingface_hub`` use it; the library reads its variables once, when it is imported.

    Args:
        cache: the folder of the cache.
        monkeypatch: changes the library until the end of the test.
    """
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for module in ("constants", "file_download"):  # version 0.36 has a copy in the latter
        monkeypatch.setattr(f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    return hub
