"""The loader of JoeyNMT's models: it gives the models that the files describe, or one sentence about what is wrong."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import examples.joeynmt.checkpoint
import examples.joeynmt.search
from seqgen.extend import DataError, load_model, load_tokenizer, run_folder, save_tokenizer
from seqgen.text.translator import Translator
from tests.commands import command, done
from tests.joeynmt_models import LINES, WORDS, Plain, changed, write, write_sentencepiece

FILES = [examples.joeynmt.checkpoint.__file__, examples.joeynmt.search.__file__]
JOINT = {"src": WORDS["src"], "trg": WORDS["src"]}
POST = {f"model.{side}.layer_norm": "post" for side in ("encoder", "decoder")}
GELU = {f"model.{side}.activation": "gelu" for side in ("encoder", "decoder")}
UNSCALED = {f"model.{side}.embeddings.scale": False for side in ("encoder", "decoder")}

MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {"model.decoder.num_layers": 1},
    "post-norm": {**POST, **GELU, "model.tied_softmax": True, "model.encoder.num_layers": 1},
    "mixed": {"model.decoder.layer_norm": "post", "model.encoder.num_heads": 4, "model.decoder.ff_size": 5, **UNSCALED},
    "tied": {"model.tied_embeddings": True, "model.tied_softmax": True},
    "tied input": {"model.tied_embeddings": True, "model.decoder.embeddings.scale": False, **POST},
}


def saved(folder: Path, changes: dict[str, Any], seed: int = 3) -> Plain:
    """Write a model, and what it computes."""
    state = write(folder, changes, JOINT if "model.tied_embeddings" in changes else WORDS, seed)
    return Plain(state, changed(changes))


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities(name: str, tmp_path: Path) -> None:
    plain = saved(tmp_path / "model", MODELS[name])
    loaded = load_model(tmp_path / "model", dtype="float64")
    batch = [loaded.task.encode_source(line).tolist() for line in LINES]
    assert batch[2] == [0, 6, 6, 8, 9, 10, 11, 4, 5, 3]
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in batch], True, 1)
    prefix = [2, 5, 4, 0, 9]
    with torch.no_grad():
        logits = loaded.model(rows, rows.ne(1).sum(1), torch.tensor([prefix] * len(rows))).logits
    for source, own in zip(batch, logits.log_softmax(-1), strict=True):
        torch.testing.assert_close(own, plain.lprobs(source, prefix), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "alpha", "seed"), [("pre-norm", 1.0, 2), ("post-norm", -1.0, 3), ("mixed", 0.6, 1)])
def test_nbest_lists(name: str, alpha: float, seed: int, tmp_path: Path) -> None:
    """Of models with which some hypotheses end early, and some are cut at the maximum length."""
    plain = saved(tmp_path / "model", {**MODELS[name], "testing.beam_alpha": alpha}, seed)
    loaded = load_model(tmp_path / "model", dtype="float64")
    rng = random.Random(1)
    lines = [" ".join(rng.choices(WORDS["src"], k=rng.randint(1, 6))) for _ in range(5)]
    translations = Translator(loaded).translate(lines, search="joeynmt", nbest=5)
    for line, translation in zip(lines, translations, strict=True):
        wanted = plain.beam_search(loaded.task.encode_source(line).tolist(), 5, alpha, 20)
        assert [one.tokens.tolist() for one in translation.hypotheses] == [tokens for _, tokens in wanted]
        assert [one.score for one in translation.hypotheses] == pytest.approx([score for score, _ in wanted])


def test_words_are_separated_by_single_spaces(tmp_path: Path) -> None:
    """As ``text.split(" ")`` of JoeyNMT, whose vocabulary has the special tokens, too."""
    nbsp = "s1\u00a0s2"
    write(tmp_path / "model", words={"src": [*WORDS["src"], nbsp], "trg": WORDS["trg"]})
    tokenizer = load_model(tmp_path / "model").task.source_tokenizer
    symbols = tokenizer.dictionary.symbols
    for text in (f"s3 {nbsp} s1", "s1  s2 ", "s1\ts2 s3", "s1 </s> <pad> s2 <unk>", ""):
        assert tokenizer.encode(text) == [symbols.index(w) if w in symbols else 0 for w in text.split(" ")], text
    assert tokenizer.unknown("s1\ts2  s3 x </s>") == ["s1\ts2", "''", "x"]
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").encode(nbsp) == [symbols.index(nbsp)]


def test_by_command(tmp_path: Path) -> None:
    """From lines to lines, an empty one included; the settings are those of ``config.yaml``."""
    saved(tmp_path / "model", MODELS["post-norm"])
    assert run_folder(tmp_path / "model") is None, "its config.yaml is not that of a run"
    (tmp_path / "input").write_text("".join(f"{line}\n" for line in LINES))
    own = f"common.user_dir=[{','.join(FILES)}]"
    base = ("generate", own, f"input={tmp_path / 'input'}", "common.threads=1", "generation.search=joeynmt")
    outcome = done(*base, f"path={tmp_path / 'model'}")
    assert 'max_len_b=20, suppress=["<s>"]' in outcome.err
    best = outcome.out.splitlines()
    found = Translator(load_model(tmp_path / "model")).translate(LINES, search="joeynmt")
    assert best == [line.hypotheses[0].text if line.hypotheses else "" for line in found]
    assert [bool(text) for text in best] == [True, True, True, False, True]
    done("convert", own, f"path={tmp_path / 'model' / 'best.ckpt'}", f"output={tmp_path}/run")
    again = command(*base, f"path={tmp_path}/run")
    assert (again.code, again.out.splitlines()) == (0, best), again.err


def test_sentencepiece(tmp_path: Path) -> None:
    lines = ["the dog sees a man", "a man has the ball", "the tree"] * 9
    write_sentencepiece(tmp_path / "model", lines, **{"model.tied_embeddings": True, "data.src.lowercase": True})
    loaded = load_model(tmp_path / "model")
    assert loaded.notes == [f"{tmp_path / 'model' / 'config.yaml'}: not applied: data.src.lowercase=True"]
    ids = loaded.task.encode_source("the dog").tolist()
    assert ids[-1] == 3
    assert loaded.task.decode(torch.tensor(ids)) == "the dog"

    path = tmp_path / "model" / "trg_vocab.txt"
    pieces = path.read_text(encoding="utf-8").splitlines(keepends=True)
    pieces.remove(max(pieces[4:], key=len))
    path.write_text("".join(pieces), encoding="utf-8")
    with pytest.raises(DataError, match=r"1 pieces of joint.model, such as '▁.*, are not in .*trg_vocab.txt"):
        load_model(tmp_path / "model")
