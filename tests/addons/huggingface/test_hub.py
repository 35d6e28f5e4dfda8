"""Models on the Hugging Face Hub: what is downloaded, the cache, and what is said where there is no such model."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqgen import Translator, load_model, load_models
from seqgen.extend import CheckpointError, ConfigError, local_path, split_path
from tests.commands import command, done, refused
from tests.covering import covering
from tests.hub_server import Hub, serve
from tests.pretrained_folders import write_model

huggingface_hub = pytest.importorskip("huggingface_hub")

REPOSITORY = "somebody/small"
PATH = f"hf:{REPOSITORY}"
UNUSED = ("README.md", "modeling_small.py", "pytorch_model.bin", "tf_model.h5", "onnx/config.json", "optimizer.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, with files that seqgen does not read."""
    folder = write_model(tmp_path_factory.mktemp("hub") / "small", "BartTokenizer")
    for name in UNUSED:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not read")
    return folder


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server with the model, and an empty cache."""
    server = serve(tmp_path / "cache", monkeypatch)
    server.add(REPOSITORY, folder)
    yield server
    server.stop()


def same_weights(first: Any, second: Any) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_only_what_is_read_is_downloaded(hub: Hub, folder: Path) -> None:
    loaded = load_model(PATH)
    assert same_weights(loaded.model, load_model(folder).model)
    wanted = {path.name for path in folder.iterdir() if path.is_file()} - set(UNUSED)
    assert sorted(hub.downloaded) == sorted(wanted)
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"} <= wanted
    load_model(PATH)
    assert len(hub.downloaded) == len(wanted), "the second time, all files are in the cache"
    hub.stop()
    assert same_weights(load_model(PATH).model, loaded.model), "without network, those of the cache are used"


def test_files_of_torch_where_there_are_no_others(hub: Hub, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(folder / "model.safetensors"), other / "pytorch_model.bin")
    hub.add("somebody/old", other)
    assert same_weights(load_model("hf:somebody/old").model, load_model(folder).model)
    assert "pytorch_model.bin" in hub.downloaded


def test_shards_and_revisions(hub: Hub, folder: Path, tmp_path: Path) -> None:
    from seqgen.addons.huggingface.checkpoint import save_pretrained

    loaded = load_model(folder)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(2)
    save_pretrained(loaded.model, tmp_path / "new", loaded.task.target_tokenizer)
    path = tmp_path / "new" / "model.safetensors"
    weights = load_file(path)
    shards = {name: f"model-{at:05}-of-{len(weights):05}.safetensors" for at, name in enumerate(weights, start=1)}
    for name, file in shards.items():
        save_file({name: weights[name]}, path.with_name(file))
    path.with_name("model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    path.unlink()
    hub.add(REPOSITORY, tmp_path / "new", "v2")
    assert same_weights(load_model(f"{PATH}@v2").model, loaded.model)
    assert same_weights(load_model(f"{PATH}@{hub.commit(REPOSITORY, 'v2')}").model, loaded.model)
    assert sum(name.startswith("model-0") for name in hub.downloaded) > 2
    assert not same_weights(load_model(PATH).model, loaded.model)
    hub.add(REPOSITORY, tmp_path / "new")  # the main branch has another content now
    assert same_weights(load_model(PATH).model, loaded.model)


def test_all_files_are_of_one_commit(hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a new version is uploaded while a model is downloaded."""
    new = tmp_path / "new"
    shutil.copytree(folder, new)
    for file in new.glob("*.safetensors"):
        file.write_bytes(b"of the new version")
    answer = hub.answer

    def upload_after_the_config(request: Any, with_body: bool) -> None:
        answer(request, with_body)
        if hub.downloaded:
            hub.add(REPOSITORY, new)

    monkeypatch.setattr(hub, "answer", upload_after_the_config)
    assert same_weights(load_model(PATH).model, load_model(folder).model)


def test_colons(hub: Hub, folder: Path) -> None:
    assert split_path(f"{PATH}:{folder}:hf:a/b@v1") == [PATH, str(folder), "hf:a/b@v1"]
    assert split_path("a.pt:b.pt") == ["a.pt", "b.pt"]
    assert len(load_models([f"{PATH}:{folder}", PATH])) == 3


@pytest.mark.slow
def test_paths_of_models(hub: Hub, folder: Path, tmp_path: Path) -> None:
    """The translator, drafts, and the commands."""
    wanted = Translator(str(folder), beam=1).translate(["two dogs"])[0].text
    assert Translator(PATH, beam=1, draft=PATH).translate(["two dogs"])[0].text == wanted
    outcome = command("generate", f"path={PATH}", "input=-", "generation.beam=1", stdin=b"two dogs\n")
    assert (outcome.code, outcome.out) == (0, f"{wanted}\n"), outcome.err
    outcome = done("convert", f"path={PATH}", f"output={tmp_path / 'run'}")
    assert f"from {PATH}\n" in outcome.out
    assert Translator(str(tmp_path / "run"), beam=1).translate(["two dogs"])[0].text == wanted
    (tmp_path / "test").write_text("two dogs\n")
    outcome = done("score", f"path={PATH}", f"source={tmp_path / 'test'}", f"reference={tmp_path / 'test'}")
    averaged = command("convert", "format=average", f"path=[{PATH},{PATH}]", "output=average")
    refused(averaged, "only checkpoints of runs are averaged; make it a run with seqgen-convert path=hf:")


def test_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(REPOSITORY)
    with pytest.raises(CheckpointError, match="access to the repository is restricted: accept its terms"):
        local_path(PATH)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    local_path(PATH)
    assert "Bearer hf_secret" in hub.tokens


@pytest.mark.parametrize(
    ("value", "name"),
    covering(
        ['"../../../../mine"', "/tmp/mine", "..", 'W/"a/b"', "0" * 39 + "/"], ["ETag", "X-Linked-Etag", "X-Repo-Commit"]
    ),
)
def test_headers_that_name_other_files(value: str, name: str, hub: Hub, tmp_path: Path) -> None:
    """The library would write to the path that the server gives."""
    hub.headers = {name: value}
    with pytest.raises(
        CheckpointError, match=f"{PATH}: cannot be downloaded from .*its header {name} is .*not the identifier"
    ):
        local_path(PATH)
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}
    assert hub.downloaded == []


@pytest.mark.parametrize("slow", [0.1, 30.0])
def test_a_server_that_is_slow_is_not_waited_for(slow: float, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte at a time, or no answer at all: each byte comes in time for the limits of the library."""
    monkeypatch.setattr("seqgen.system.downloads.WATCH_SECONDS", 0.4)
    hub.slow = slow
    start = time.monotonic()
    with pytest.raises(CheckpointError, match=rf"^{PATH}: .*only \d+ bytes have arrived in 0\.4 seconds; run"):
        local_path(PATH)
    assert time.monotonic() - start < 5
    hub.slow = 0.0


def test_what_is_refused(hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "README.md").write_text("no model")
    hub.add("somebody/data", tmp_path / "data")
    for path, words in (
        ("hf:somebody/nothing", f"{hub.url} has no such repository, or a private one"),
        (f"{PATH}@v9", "the repository has no revision v9"),
        ("hf:somebody/data", "the repository has no config.json"),
    ):
        with pytest.raises((CheckpointError, ConfigError)) as caught:
            local_path(path)
        assert str(caught.value).startswith(path)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    hub.stop()
    with pytest.raises(CheckpointError, match=r"is not in the cache, .*cache, and http://127.* cannot be reached"):
        local_path(PATH)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"is not in the cache, .*, and HF_HUB_OFFLINE is set"):
        local_path(PATH)
    refused(command("generate", f"path={PATH}", "input=-"), "HF_HUB_OFFLINE is set")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="needs the package huggingface_hub"):
        local_path(PATH)
