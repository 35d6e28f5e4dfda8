"""Malicious and damaged files end in one sentence and exit code 2, soon, whatever they are."""

import itertools
import json
import os
import re
import shutil
import socket
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqgen.addons.mixtures.text_to_text import read_mixture
from seqgen.checkpoints.run_checkpoints import STATE, update_of
from seqgen.core.errors import CheckpointError, DataError, UserError, shown
from seqgen.data.records import read_object
from seqgen.data.token_store import DamagedStoreError, StoreMeta
from seqgen.extend import Dictionary, TransformerModel, load_model, read_torch_file
from seqgen.system import reading
from seqgen.system.reading import MAX_DEPTH, parse_json, parse_yaml, read_bytes
from tests import fairseq_checkpoints, hostile
from tests.commands import SMALL_TRANSFORMER, command, done, training_arguments
from tests.covering import covering
from tests.fuzzing.readers import make_pipeline
from tests.hostile import JSON, PICKLES, YAML, checksummed, copy_of, limited, replace_by, time_limit
from tests.huggingface_t5 import change_config
from tests.pretrained_folders import write_model

LINE = b"the dog sees a man\n"


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a transformer after one update."""
    folder = tmp_path_factory.mktemp("run") / "run"
    arguments = [*training_arguments(data, folder), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    done("train", *arguments, "common.tensorboard=false")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 in Hugging Face's layout whose tokenizer is a ``tokenizer.json``."""
    folder = write_model(tmp_path_factory.mktemp("folder") / "t5", "PegasusTokenizer")
    make_pipeline(folder)
    return folder


@pytest.fixture
def fairseq(tmp_path: Path) -> Path:
    """A checkpoint of fairseq and its dictionary."""
    return fairseq_checkpoints.write_random(tmp_path / "fairseq", fairseq_checkpoints.TRANSFORMER)


def refused(path: Path, *words: str, seconds: float = 15) -> None:
    """Check that a model is refused in time, with one short sentence that says where."""
    with time_limit(seconds), pytest.raises(UserError) as error:
        load_model(path)
    message = str(error.value)
    assert len(message) < 1000
    for word in words:
        assert word in message


@pytest.mark.parametrize("kind", list(YAML)[2::5])
def test_yaml_of_a_run(kind: str, run: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    (broken / "config.yaml").write_bytes(YAML[kind].encode(errors="surrogateescape"))
    refused(broken, "config.yaml")


NUMBERS = ["1" + "0" * 50, "0x" + "f" * 60, "1e400", ".nan", "[[[[[1]]]]]", "{a: {b: [c]}}"]
SIZES = [
    *("encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_ffn_embed_dim"),
    *("max_source_positions", "max_target_positions", "encoder_attention_heads"),
]


@pytest.mark.parametrize(
    ("value", "key"), [*covering(NUMBERS, ["seed", "threads"]), *covering([10**9, 2**31, 10**18], SIZES)]
)
def test_values_of_a_run(value: str | int, key: str, run: Path, tmp_path: Path) -> None:
    """Also sizes that nobody has memory for."""
    broken = copy_of(run, tmp_path / "run")
    content = (broken / "config.yaml").read_text()
    changed = re.sub(rf"(?m)^  {key}: .*$", f"  {key}: {value}", content)
    assert changed != content
    (broken / "config.yaml").write_text(changed)
    refused(broken, "config.yaml" if key not in SIZES else "")


@pytest.mark.parametrize("kind", [kind for kind in YAML if "Python" not in kind])
def test_yaml_of_a_mixture(kind: str) -> None:
    with time_limit(15), pytest.raises(UserError, match=r"mixture\.yaml") as error:
        read_mixture(YAML[kind].encode(errors="surrogateescape"), "mixture.yaml")
    assert len(str(error.value)) < 1000


def test_aliases_that_stand_for_little_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "a: &a {b: 1, c: [2, 3]}\nd: *a\ne: {<<: *a, b: 5}"
    once = {"b": 1, "c": [2, 3]}
    assert parse_yaml(content.encode()) == {"a": once, "d": once, "e": {**once, "b": 5}}
    monkeypatch.setattr(reading, "MAX_VALUES", 12)
    assert parse_yaml(b"a: &a [1, 2, 3]\nb: *a\n") == {"a": [1, 2, 3], "b": [1, 2, 3]}  # 11 values: a map, its keys ...
    with pytest.raises(ValueError, match="line 1 has more than 12 values, with its aliases expanded"):
        parse_yaml(b"a: &a [1, 2, 3]\nb: *a\nc: *a")


def test_json_up_to_the_limit_is_read() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    content = b'\xef\xbb\xbf{"a": "\\ud83d\\ude00", "b": 340282366920938463463374607431768211455}'
    assert parse_json(content) == {"a": "😀", "b": 2**128 - 1}


HUGGINGFACE_JSON = ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
    "special_tokens_map.json", "model.safetensors.index.json"]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"), covering([kind for kind in JSON if kind not in ("a list", "nothing")], HUGGINGFACE_JSON, times=2)
)
def test_json_of_a_folder(kind: str, name: str, folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path / "folder")
    (broken / name).write_text(JSON[kind])
    if name.endswith(".index.json"):
        (broken / "model.safetensors").unlink()
    refused(broken, name)


@pytest.mark.parametrize("kind", JSON)
def test_json_of_a_run(kind: str, run: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    (broken / "tokenizer" / "tokenizer.json").write_text(JSON[kind])
    refused(broken, "tokenizer.json")
    last = broken / "checkpoints" / "last"
    (last / STATE).write_text(JSON[kind])
    checksummed(last)
    with time_limit(15), pytest.raises(CheckpointError, match=re.escape(STATE)):
        update_of(last)
    vocabulary = tmp_path / "vocabulary.json"
    vocabulary.write_text(JSON[kind])
    with time_limit(15), pytest.raises(DataError, match=r"vocabulary\.json"):
        Dictionary.load(vocabulary)
    with time_limit(15), pytest.raises(DamagedStoreError, match=r"meta\.json"):
        StoreMeta.from_json(JSON[kind].encode())
    if "digits" not in kind:  # a number of a record stays the text that it is
        with time_limit(15), pytest.raises(ValueError, match="JSON"):
            read_object(JSON[kind])


LAST = "checkpoints/last"
STATES: list[Any] = [{}, {"a": {"$tensor": "nothing"}}, {"a": {"$tensor": []}}, {"update": [1]}, {"update": "x"}]


@pytest.mark.parametrize(
    ("name", "content"),
    [*((f"{LAST}/{STATE}", state) for state in STATES)]
    + [(name, "a pipe") for name in ("config.yaml", "log.jsonl", f"{LAST}/SHA256SUMS")],
)
def test_what_training_goes_on_from(name: str, content: Any, run: Path, data: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    for path in (broken / "checkpoints").iterdir():
        if path.name != "last":
            shutil.rmtree(path)  # training would use it in place of the damaged one
    if content == "a pipe":
        replace_by(broken / name, "pipe")
    else:
        (broken / name).write_text(json.dumps(content))
        checksummed(broken / LAST)
    arguments = [*training_arguments(data, broken), *SMALL_TRANSFORMER, "optimization.max_update=2"]
    outcome = limited("train", *arguments, "common.tensorboard=false")
    assert outcome.code == 2
    assert str(broken) in outcome.err


def test_pipes_folders_and_devices_in_place_of_files(run: Path, folder: Path, fairseq: Path, tmp_path: Path) -> None:
    known, kinds = [], itertools.cycle(["pipe", "folder", "device"])
    for given in (run, folder, fairseq.parent):
        for path in sorted(path.relative_to(given) for path in given.rglob("*") if path.is_file()):
            broken = copy_of(given, tmp_path / "broken")
            replace_by(broken / path, next(kinds))
            with time_limit(15):
                try:
                    load_model(broken / "model.pt" if given == fairseq.parent else broken)
                except (UserError, OSError):
                    known.append(path.name)
    assert {"config.yaml", "tokenizer.json", "sentencepiece.model", "model.safetensors", "config.json"} <= set(known)
    assert {"tokenizer_config.json", "model.pt", "dict.txt"} <= set(known)


def test_a_socket_and_a_pipe_are_no_regular_files(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(tmp_path / "socket")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_bytes(tmp_path / "file", limit=4)


@pytest.mark.slow
def test_the_input_may_be_a_pipe(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "input")
    writer = threading.Thread(target=(tmp_path / "input").write_bytes, args=(LINE,), daemon=True)
    writer.start()
    outcome = limited("generate", f"path={run}", f"input={tmp_path}/input")
    assert outcome.code == 0
    assert outcome.out == limited("generate", f"path={run}", "input=-", stdin=LINE).out


@pytest.mark.parametrize("kind", PICKLES)
def test_pickles(kind: str, fairseq: Path) -> None:
    hostile.old_file(fairseq, PICKLES[kind])
    refused(fairseq, str(fairseq), seconds=20)


def test_compressed_archives(tmp_path: Path) -> None:
    """Also one whose content is not larger than its file, which is therefore no proof."""
    path = hostile.compressed(tmp_path / "model.pt")
    assert path.stat().st_size < 20_000
    with time_limit(1), pytest.raises(CheckpointError, match="compressed"):
        read_torch_file(path)
    torch.save({"a": torch.ones(2)}, tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(path, "w") as archive:
        for name in stored.namelist():
            kind = zipfile.ZIP_DEFLATED if name.endswith("data/0") else zipfile.ZIP_STORED
            archive.writestr(name, stored.read(name), kind)
    with pytest.raises(CheckpointError, match="compressed"):
        read_torch_file(path)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x: x[:1, :1].expand(10**5, 10**5), "larger than the file"),
        (Tensor.to_sparse, "not an ordinary tensor"),
        (lambda x: x.to(torch.complex64), "not an ordinary tensor"),
        (lambda x: torch.nested.nested_tensor([x, x]), "not an ordinary tensor"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "not an ordinary tensor"),
    ],
    ids=["one number", "sparse", "complex", "nested", "quantized"],
)
def test_weights_that_are_no_ordinary_tensors(make: Callable[[Tensor], Tensor], said: str, tmp_path: Path) -> None:
    torch.save({"a": make(torch.ones(2, 2))}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=f"'a' is {said}"):
        read_torch_file(tmp_path / "model.pt")


def saved_again(run: Path, tmp_path: Path, metadata: dict[str, str], **changes: Tensor) -> Path:
    """A run whose weights have other metadata and values."""
    broken = copy_of(run, tmp_path / "run")
    for checkpoint in (broken / "checkpoints").iterdir():
        path = checkpoint / "model.safetensors"
        save_file({**load_file(path), **changes}, path, metadata)
        checksummed(checkpoint)
    return broken


def test_weights_without_dimensions(run: Path, data: Path, fairseq: Path, tmp_path: Path) -> None:
    """Of a run that is decoded, of one from which another starts, and of fairseq's new and old names."""
    name = "encoder.embed_tokens.weight"
    broken = saved_again(run, tmp_path, {"format": "pt"}, **{name: torch.tensor(1.0)})
    refused(broken, f"{name} ((), here (")
    outcome = command("train", *training_arguments(data, tmp_path / "new"), f"checkpoint.finetune_from={broken}")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), outcome.err
    content = torch.load(fairseq, weights_only=False)
    for changed in (name, "decoder.layers.0.self_attn.k_proj.bias", "decoder.layers.0.encoder_attn.in_proj_weight"):
        torch.save({**content, "model": {**content["model"], changed: torch.tensor(1.0)}}, fairseq)
        refused(fairseq, "the weights are not those of this model")
    torch.save({**content, "model": {**content["model"], name: torch.ones(2, 2, dtype=torch.int8)}}, fairseq)
    refused(fairseq, f"{name} has no floating-point numbers")


@pytest.mark.parametrize("aliases", ['{"a": "nothing"}', "[]", '{"a": ["b"]}', "{", "[" * 100_000])
def test_an_alias_of_nothing(run: Path, tmp_path: Path, aliases: str) -> None:
    broken = saved_again(run, tmp_path, {"aliases": aliases})
    refused(broken, "not a readable safetensors file")


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def nested(steps: list[Any], levels: int) -> Any:
    for _ in range(levels):
        steps = [{"type": "Sequence", "normalizers": steps}]
    return steps[0]


DOUBLE = replace({"String": "e"}, "ee")
GROWING = [
    ("normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 32}),
    ("normalizer", nested([DOUBLE, nested([replace({"Regex": ""}, "e")], 3)] * 20, 5)),
    ("normalizer", replace({"String": "e"}, "e" * 10**6)),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 40}),
    ("decoder", {"type": "Sequence", "decoders": [DOUBLE] * 32}),
]


@pytest.mark.parametrize(("place", "step"), GROWING, ids=lambda value: value if isinstance(value, str) else "")
def test_steps_of_a_tokenizer_that_blow_up_a_text(place: str, step: Any, folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path / "folder")
    change_config(broken, "tokenizer.json", **{place: step})
    refused(broken, "tokenizer.json has steps")


SLOW = {"Regex": "(e+)+b"}
SPLIT = {"type": "Split", "pattern": SLOW, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(("place", "step"), [("normalizer", replace(SLOW, "x")), ("pre_tokenizer", SPLIT)])
def test_a_regular_expression_that_takes_forever(place: str, step: Any, folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path / "folder")
    change_config(broken, "tokenizer.json", **{place: step})
    outcome = limited("generate", f"path={broken}", "input=-", stdin=b"e" * 50 + b"\n", seconds=10)
    assert outcome.code == 2
    assert "cannot encode the line" in outcome.err


def test_messages_show_little_of_large_values() -> None:
    value: Any = "x" * 1000
    for _ in range(30):
        value = [value] * 30
    with time_limit(1):
        assert len(shown(value)) < 20_000
    assert "too long" in shown(16**5000)
    assert shown({"a": [1, "b"]}) == "{'a': [1, 'b']}"


def test_a_model_that_needs_memory_to_be_built_is_loaded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = TransformerModel.build_model
    built: list[str] = []

    def careful(cfg: Any, task: Any) -> Any:
        model = build(cfg, task)
        built.append(next(model.parameters()).device.type)
        next(model.parameters()).sum().item()  # which a tensor on the meta device does not have
        return model

    monkeypatch.setattr(TransformerModel, "build_model", careful)
    load_model(run)
    assert built == ["meta", "cpu"]
