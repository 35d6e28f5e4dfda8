"""Vocabularies and hostile files of Marian: each fault is one sentence, and nothing in a file is run."""

import io
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor, train_sentencepiece
from seqgen.extend import UserError, load_model
from tests.hostile import YAML, limited, replace_by
from tests.marian_models import OPTIONS, WORDS

RECORDED = Path(__file__).parents[2] / "recorded" / "marian"
TEXTS = [
    *("der Hund sieht", "", "  zwei  ", "</s> <pad> x", "▁", "ẞ\u0301 é", "\u200b\x00a", "<unk>", "'\"\\", "日本 🙂"),
    ">>de<< ja",
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("transformer.npz", "vocab.yml"):
        shutil.copy(RECORDED / name, tmp_path / name)
    return tmp_path / "transformer.npz"


def change(model: Path, **arrays: Any) -> None:
    """Replace arrays; ``None`` removes one."""
    known = {**dict(np.load(model)), **arrays}
    np.savez(model, **{name: array for name, array in known.items() if array is not None})


def options(model: Path, **values: Any) -> None:
    known = yaml.safe_load(bytes(np.load(model)[OPTIONS]).rstrip(b"\0"))
    change(model, **{OPTIONS: np.frombuffer(yaml.safe_dump({**known, **values}).encode() + b"\0", dtype=np.int8)})


def assert_refused(model: Path, words: str) -> None:
    outcome = limited("generate", f"path={model}", "input=-", "output=-", stdin=b"no\n")
    assert (outcome.code, outcome.err.count("\n"), words in outcome.err) == (2, 1, True), outcome.err


def test_training_begins_without_dropout() -> None:
    """The file does not record it; a student of Firefox with a dropout of 0.1 has a loss of 9 instead of 1.7."""
    model = load_model(RECORDED / "transformer.npz").model
    batch = torch.tensor([[5, 9, 0]]), torch.tensor([3]), torch.tensor([[7, 8]])
    with torch.no_grad():
        evaluated, trained = (model.train(mode)(*batch).logits for mode in (False, True))
    torch.testing.assert_close(trained, evaluated)


def test_other_forms_of_vocabularies(model: Path) -> None:
    tokens = ["</s>", "<unk>", *WORDS[:-3], "é", "\u2028", 'q"\t', "<pad>"]
    plain = [yaml.dump(token, allow_unicode=True, width=9999).partition("\n")[0] for token in tokens]
    quoted = [yaml.dump(token, default_style='"', width=9999).strip() for token in tokens]
    lines = (f"{plain[i]}: {i}\n" if i % 2 else f"? {quoted[i]}\n: {i}\r\n" for i in range(len(tokens)))
    model.with_name("vocab.yml").write_text("".join(lines), encoding="utf-8")
    resize(model, len(tokens))
    loaded = load_model(model)
    assert loaded.task.target_dictionary.symbols == [*tokens, "<seqgen:pad>"]


def spm_files(folder: Path) -> dict[str, int]:
    """SentencePiece models, and a vocabulary of their pieces with other ids."""
    lines = ["der Hund sieht den Baum", "ein Ball und zwei Männer", "the dog has a ball", "é 日本"] * 9
    content = train_sentencepiece(lines, vocab_size=35, special_ids={"eos": 0, "unk": 1, "bos": -1, "pad": -1})
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(content)
    processor = load_processor(content, "")
    pieces = [processor.id_to_piece(i) for i in range(2, processor.vocab_size())]
    ids = {token: i for i, token in enumerate(["</s>", "<unk>", *reversed(pieces), ">>de<<"])}
    (folder / "vocab.yml").write_text(yaml.dump(ids, sort_keys=False, allow_unicode=True, width=9999), encoding="utf-8")
    return ids


def resize(model: Path, rows: int) -> None:
    change(model, Wemb=np.ones((rows, 8), np.float32), decoder_ff_logit_out_b=np.ones((1, rows), np.float32))


def test_pieces_have_the_ids_of_the_vocabulary(model: Path) -> None:
    ids = spm_files(model.parent)
    resize(model, len(ids))
    task, content = load_model(model).task, (model.parent / "source.spm").read_bytes()
    processor = load_processor(content, "")
    for text in TEXTS:
        plain, pieces = text.removeprefix(">>de<<"), []
        for part in filter(None, re.split(r"(</s>|<pad>|<unk>)", plain)):
            pieces += [part] if part[:1] == "<" else processor.encode(part, out_type=str)
        wanted = [{**ids, "<pad>": len(ids)}.get(piece, 1) for piece in [">>de<<"] * (plain != text) + pieces]
        assert task.source_tokenizer.encode(text) == wanted, text
    assert task.target_tokenizer.decode(task.target_tokenizer.encode("der Hund")) == "der Hund"


def test_a_sentencepiece_model_as_vocabulary(model: Path) -> None:
    spm_files(model.parent)
    (model.parent / "vocab.yml").unlink()
    (model.parent / "target.spm").unlink()
    (model.parent / "source.spm").rename(model.parent / "vocab.spm")
    processor = load_processor((model.parent / "vocab.spm").read_bytes(), "")
    resize(model, processor.vocab_size())
    loaded = load_model(model)
    assert loaded.task.source_tokenizer is loaded.task.target_tokenizer
    assert not loaded.notes
    for text in TEXTS:
        assert loaded.task.source_tokenizer.encode(text) == processor.encode(text)
    resize(model, 34)
    with pytest.raises(UserError, match="does not belong to"):
        load_model(model)


REFUSED: list[dict[str, Any]] = [
    *({"type": "s2s"}, {"dec-cell": "", "transformer-decoder-autoreg": "rnn"}, {"transformer-ffn-activation": "gelu"}),
    *({"transformer-train-position-embeddings": True}, {"transformer-decoder-autoreg": "average-attention"}),
    *({"right-left": True}, {"dim-emb": "8"}, {"enc-depth": 10**30}),
]
"""Options, the first of which is named."""


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def _entry(model: Path, content: bytes) -> None:
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("Wemb.npy", content)


def _array(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def _deflated(model: Path) -> None:
    """The same arrays, one of them compressed: the file is not smaller than its content."""
    arrays = dict(np.load(model))
    with zipfile.ZipFile(model, "w") as archive:
        for number, (name, array) in enumerate(arrays.items()):
            archive.writestr(f"{name}.npy", _saved(array), zipfile.ZIP_STORED if number else zipfile.ZIP_DEFLATED)


def _saved(array: Any) -> bytes:
    np.save(buffer := io.BytesIO(), array, allow_pickle=True)
    return buffer.getvalue()


ARCHIVE = "is damaged, or is not an archive of arrays"
HUGE = _array("{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 9), }")
CODE = _array("{'descr': __import__('os').mkdir('evil')}")
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "half a file": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), ARCHIVE),
    "nothing": (lambda path: path.write_bytes(b""), ARCHIVE),
    "a changed byte": (lambda path: path.write_bytes(path.read_bytes().replace(b"NUMPY", b"NUMPX", 1)), "Bad CRC-32"),
    "a pickle": (lambda path: _entry(path, _saved(np.array([Evil()], dtype=object))), "Object arrays cannot be"),
    "a huge array": (lambda path: _entry(path, HUGE), ARCHIVE),
    "code as header": (lambda path: _entry(path, CODE), ARCHIVE),
    "a long header": (lambda path: _entry(path, _array("(" * 60_000)), ARCHIVE),
    "a compressed array": (_deflated, "is compressed, which seqgen does not read"),
    "a missing weight": (lambda path: change(path, encoder_l1_ffn_W1=None), "missing: encoder_l1_ffn_W1"),
    "a scalar": (lambda path: change(path, Wemb=np.float32(1)), "the encoder's embedding has the shape ()"),
    "whole numbers": (lambda path: change(path, encoder_l1_ffn_W1=np.ones((8, 12), np.int8)), "is quantized"),
    "no options": (lambda path: change(path, **{OPTIONS: None}), "it has no special:model.yml"),
    "many layers": (lambda path: options(path, **{"enc-depth": 1_000_000}), "has weights of 1 layers, fewer than"),
    "a large dimension": (lambda path: options(path, **{"dim-emb": 1 << 30}), "a model of these sizes cannot be built"),
    "heads that do not fit": (lambda path: options(path, **{"transformer-heads": 3}), "of the 3 attention heads"),
    "an infinite vocabulary": (
        lambda path: path.with_name("vocab.yml").write_text("</s>: 0\n<unk>: 999999999\n"),
        "its 2 ids are not the numbers from 0 to 1",
    ),
    "a missing vocabulary": (lambda path: path.with_name("vocab.yml").unlink(), "there is no vocab.yml in its folder"),
    "a pipe as vocabulary": (lambda path: replace_by(path.with_name("vocab.yml"), "pipe"), "there is no vocab.yml in"),
    "decoder.yml": (lambda path: path.with_name("decoder.yml").write_text("vocabs: [3]\n"), "vocabs is [3], not a"),
    **{
        f"options: {name}": (
            lambda path, content=YAML[name]: change(path, **{OPTIONS: np.frombuffer(content.encode(), dtype=np.int8)}),
            "its special:model.yml is damaged",
        )
        for name in ("aliases of aliases", "deep brackets", "an object of Python", "a list that contains itself")
    },
    **{f"the option {next(iter(given))}": (partial(options, **given), next(iter(given))) for given in REFUSED},
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_files(model: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    damage, words = HOSTILE[fault]
    damage(model)
    assert_refused(model, words)
    assert not Path("evil").exists()


def test_the_first_vocabulary_of_decoder_yml_is_the_sources(model: Path) -> None:
    shutil.copy(RECORDED / "untied.npz", model)
    orders = {"a": list(WORDS), "b": list(WORDS[::-1])}
    for name, words in orders.items():
        ids = {word: index for index, word in enumerate(("</s>", "<unk>", *words))}
        model.with_name(f"{name}.yml").write_text(yaml.dump(ids, sort_keys=False))
    for first, second in (("a", "b"), ("b", "a")):
        content = f"models: [{model.name}]\nvocabs: [x/{first}.yml, {second}.yml]\n"
        model.with_name("decoder.yml").write_text(content)
        task = load_model(model.parent).task
        assert task.source_dictionary.symbols[2:-1] == orders[first]
        assert task.target_dictionary.symbols[2:-1] == orders[second]
