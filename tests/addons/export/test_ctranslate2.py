"""CTranslate2 decodes what seqgen decodes, from a folder that seqgen has written; what it cannot compute is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen import Translator
from seqgen.addons.export import ctranslate2 as written
from seqgen.addons.export.ctranslate2 import specification, write_ctranslate2
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask, LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import TrainConfig
from seqgen.core.errors import ConfigError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from tests.commands import done
from tests.huggingface_bart import VARIANTS as BARTS, tiny_folder as bart_folder
from tests.huggingface_t5 import VARIANTS as T5S, tiny_folder as t5_folder
from tests.model_zoo import ZOO, TinyTask, build
from tests.pretrained_folders import write_model

REFUSED = ("transformer_lm", "transformer_ssru", "t5gemma")
WRITTEN = [name for name in ZOO if name.startswith(("transformer", "t5")) and not name.startswith(REFUSED)]


def of_zoo(name: str) -> LoadedModel:
    model = build(name, torch.float32)
    return of_model(model, len(TinyTask().source_dictionary) != model.encoder.embed_tokens.num_embeddings)


def of_model(model: Any, joint: bool = False) -> LoadedModel:
    task = TinyTask(joint=joint)
    tokenizers = [WhitespaceTokenizer(words) for words in (task.source_dictionary, task.target_dictionary)]
    return LoadedModel(model, DecodingTask(DecodingConfig(), *tokenizers), TrainConfig(), Path("model"))


@pytest.mark.parametrize("name", WRITTEN)
def test_log_probabilities_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    computed, _ = write_ctranslate2(of_zoo(name), tmp_path / "written")
    assert computed < 1e-4


@pytest.mark.parametrize("own", [False, True])
def test_padding_is_not_generated(own: bool, tmp_path: Path) -> None:
    """Also where it is the most probable token; other tokens keep their bias."""
    engine: Any = pytest.importorskip("ctranslate2")
    loaded = of_zoo("transformer_tiny")
    words, projection = loaded.task.target_dictionary, loaded.model.decoder.output_projection
    bias = torch.linspace(-1, 1, len(words)).index_fill(0, torch.tensor(words.pad()), 50.0) * own
    projection.bias = torch.nn.Parameter(bias) if own else None
    wanted = bias.index_fill(0, torch.tensor(words.pad()), -1e4)
    assert specification(loaded).decoder.projection.bias.tolist() == wanted.tolist()
    write_ctranslate2(loaded, tmp_path / "written")
    translator = engine.Translator(str(tmp_path / "written"), compute_type="float32")
    (made,) = translator.translate_batch([[words[6], words[5]]], beam_size=3, max_decoding_length=5, num_hypotheses=3)
    assert all(words[words.pad()] not in hypothesis for hypothesis in made.hypotheses)


def test_the_end_is_generated_where_it_is_padding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dictionary, "pad", Dictionary.eos)
    assert not specification(of_zoo("transformer_tiny")).decoder.projection.bias.any()


@pytest.mark.parametrize("name", [*BARTS, *T5S])
def test_outputs_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    engine: Any = pytest.importorskip("ctranslate2")
    make = bart_folder if name in BARTS else t5_folder
    folder, output = make(tmp_path / "model", name), tmp_path / "written"
    done("convert", "format=ctranslate2", f"path={folder}", f"output={output}")
    translator = engine.Translator(str(output), compute_type="float32")
    loaded = load_model(folder, dtype=torch.float32)
    tokenizer, vocabulary = loaded.task.source_tokenizer, loaded.task.source_dictionary
    lines = [f"w{n % 9 + 8} w{n % 5 + 20} w{n % 7 + 8}" for n in range(12)]
    sources = [[vocabulary[index] for index in tokenizer.encode(line)] for line in lines]
    limit, words = 11, loaded.task.target_dictionary
    ours = Translator(folder, dtype="float32", length_penalty=0, min_len=0, max_len=limit + 1, semantics="fairseq")
    limits = {"min_decoding_length": 0, "max_decoding_length": limit, "length_penalty": 0}
    for beam in (1, 4):
        results = translator.translate_batch(sources, beam_size=beam, **limits)
        expected = ours.translate(lines, beam=beam, search="beam")
        for result, one in zip(results, expected, strict=True):
            tokens = [words[index] for index in one.hypotheses[0].tokens.tolist()][:-1]
            if beam == 1 or len(tokens) < limit > len(result.hypotheses[0]):  # at the limit, seqgen forces an end
                assert result.hypotheses[0] == tokens
    assert json.loads((output / "config.json").read_text())["add_source_eos"]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("NllbTokenizer", {"decoder_start_token": "</s>", "add_source_bos": False, "add_source_eos": True}),
        ("MBartTokenizer", {"decoder_start_token": None, "add_source_bos": False, "add_source_eos": False}),
        ("BartTokenizer", {"decoder_start_token": "</s>", "add_source_bos": True, "add_source_eos": True}),
    ],
)
def test_tokens_around_a_source(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    loaded = load_model(write_model(tmp_path / "model", name), dtype=torch.float32)
    assert write_ctranslate2(loaded, tmp_path / "written")[0] < 1e-4
    assert config.items() <= json.loads((tmp_path / "written" / "config.json").read_text()).items()


def test_a_folder_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    loaded = of_zoo("transformer_tiny")
    old = written._set_norm
    monkeypatch.setattr(written, "_set_norm", lambda spec, own: (old(spec, own), vars(spec).update(gamma=-spec.gamma)))
    with pytest.raises(ConfigError, match="whose log-probabilities differ by"):
        write_ctranslate2(loaded, tmp_path / "written")
    assert not (tmp_path / "written").exists()
