"""CTranslate2 decodes what seqgen decodes, from a folder that seqgen has written; what it cannot compute is refused."""

from __future__ import annotations

import json
import re
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
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from tests.commands import command, refused
from tests.huggingface_bart import VARIANTS as BARTS, tiny_folder as bart_folder
from tests.huggingface_t5 import VARIANTS as T5S, tiny_folder as t5_folder
from tests.model_zoo import ZOO, TinyTask, build, registered
from tests.pretrained_folders import write_model

TRANSFORMERS = [name for name in ZOO if name.startswith(("transformer", "t5")) and not name.startswith("t5gemma")]
REFUSED = ("transformer_lm", "transformer_ssru")


def _of_zoo(name: str) -> LoadedModel:
    task, model = TinyTask(), build(name, torch.float32)
    if len(task.source_dictionary) != model.encoder.embed_tokens.num_embeddings:
        task = TinyTask(joint=True)
    tokenizers = [WhitespaceTokenizer(words) for words in (task.source_dictionary, task.target_dictionary)]
    return LoadedModel(model, DecodingTask(DecodingConfig(), *tokenizers), TrainConfig(model=model.cfg), Path("model"))


@pytest.mark.parametrize("name", [name for name in TRANSFORMERS if not name.startswith(REFUSED)])
def test_log_probabilities_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    computed, _ = write_ctranslate2(_of_zoo(name), tmp_path / "written")
    assert computed < 1e-4


def test_the_difference_of_the_scores_that_a_user_gets_is_said(tmp_path: Path) -> None:
    """CTranslate2 divides the probability of padding among the other tokens."""
    engine: Any = pytest.importorskip("ctranslate2")
    folder, output = bart_folder(tmp_path / "model", "bart"), tmp_path / "written"
    outcome = command("convert", "format=ctranslate2", f"path={folder}", f"output={output}")
    said = [float(number) for number in re.findall(r"by at most (\S+)", outcome.out)]
    loaded = load_model(folder, dtype=torch.float32)
    (scored,) = engine.Translator(str(output), compute_type="float32").score_batch([["w8", "w9"]], [["w20", "w21"]])
    words = loaded.task.target_dictionary
    ids = [words.index(word) for word in ("w20", "w21", "</s>")]
    start = loaded.model.start_token(words.eos())
    read = torch.tensor([loaded.task.source_tokenizer.encode("w8 w9")])
    with torch.no_grad():
        logits, _ = loaded.model(read, torch.tensor([read.size(1)]), torch.tensor([[start, *ids[:-1]]]))
    decoded = logits[0].log_softmax(-1)[range(3), ids]
    difference = float((torch.tensor(scored.log_probs) - decoded).abs().max())
    assert 0.01 < difference < 10 * said[0]
    assert said[1] < 1e-4
    assert "as CTranslate2 excludes padding before the softmax, seqgen after it" in outcome.out


@pytest.mark.parametrize("name", [*BARTS, *T5S])
def test_outputs_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    engine: Any = pytest.importorskip("ctranslate2")
    make = bart_folder if name in BARTS else t5_folder
    folder, output = make(tmp_path / "model", name), tmp_path / "written"
    outcome = command("convert", "format=ctranslate2", f"path={folder}", f"output={output}")
    assert outcome.code == 0, outcome.err
    translator = engine.Translator(str(output), compute_type="float32")
    loaded = load_model(folder, dtype=torch.float32)
    tokenizer, vocabulary = loaded.task.source_tokenizer, loaded.task.source_dictionary
    lines = [f"w{n % 9 + 8} w{n % 5 + 20} w{n % 7 + 8}" for n in range(12)]
    sources = [[vocabulary[index] for index in tokenizer.encode(line)] for line in lines]
    ours = Translator(folder, dtype="float32")
    limit = 11
    for beam in (1, 4):
        limits = {"min_decoding_length": 0, "max_decoding_length": limit, "length_penalty": 0}
        results = translator.translate_batch(sources, beam_size=beam, **limits)
        expected = ours.translate(
            lines, beam=beam, length_penalty=0, min_len=0, max_len=limit + 1, search="beam", semantics="fairseq"
        )
        words = loaded.task.target_dictionary
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "umt5"])  # it names unused ids of the others twice
def test_outputs_are_those_of_the_converter_of_ctranslate2(name: str, tmp_path: Path) -> None:
    engine: Any = pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # version 4 of transformers has another name for the dtype
        def load_model(self, model_class: Any, path: str, **options: Any) -> Any:
            return model_class.from_pretrained(path, torch_dtype=options["dtype"])

    folder = t5_folder(tmp_path / "model", name)
    Converter(str(folder)).convert(str(tmp_path / "theirs"))
    loaded = load_model(folder, dtype=torch.float32)
    write_ctranslate2(loaded, tmp_path / "ours")
    words = loaded.task.target_dictionary
    theirs = json.loads((tmp_path / "theirs" / "shared_vocabulary.json").read_text())
    never = [[token] for token in (words[words.pad()], *theirs[len(words) :])]  # embeddings may have more rows
    sources = [[words[n % 9 + 8], words[n % 5 + 20], words[n % 7 + 8]] for n in range(12)]
    found = []
    for written_folder, eos in (("ours", []), ("theirs", [words[words.eos()]])):
        translator = engine.Translator(str(tmp_path / written_folder), compute_type="float32")
        texts = [[*source, *eos] for source in sources]
        suppressed = never if eos else []
        results = translator.translate_batch(texts, beam_size=4, max_decoding_length=12, suppress_sequences=suppressed)
        ids = {token: index for index, token in enumerate(theirs if eos else words)}
        found.append([[ids[token] for token in result.hypotheses[0]] for result in results])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["transformer_lm", "transformer_ssru", "fconv", "t5gemma"])
def test_other_models_are_refused(name: str) -> None:
    task = TinyTask()
    if name == "transformer_ssru":
        model = registered(name, encoder_layers=1, decoder_layers=1)()
    else:
        model = build(next(known for known in ZOO if known.startswith(name)))
    tokenizers = [WhitespaceTokenizer(words) for words in (task.source_dictionary, task.target_dictionary)]
    decoding = DecodingTask(DecodingConfig(), *tokenizers)
    with pytest.raises(ConfigError, match="cannot be written for CTranslate2; only transformer and t5 can"):
        specification(LoadedModel(model, decoding, TrainConfig(), Path("model")))


def test_a_start_token_outside_the_vocabulary_is_refused() -> None:
    loaded = _of_zoo("t5_tiny")
    loaded.model.cfg.decoder_start_token_id = len(loaded.task.target_dictionary)
    with pytest.raises(ConfigError, match="is not one of the vocabulary's"):
        specification(loaded)


def test_a_folder_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    loaded = _of_zoo("transformer_tiny")
    monkeypatch.setattr(
        written,
        "_set_norm",
        lambda spec, norm: vars(spec).update(gamma=norm.weight.detach().numpy() * 2, beta=norm.bias.detach().numpy()),
    )
    with pytest.raises(ConfigError, match="whose log-probabilities differ by"):
        write_ctranslate2(loaded, tmp_path / "written")
    assert not (tmp_path / "written").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "find_spec", lambda name: None)
    outcome = command("convert", "format=ctranslate2", "path=model", f"output={tmp_path / 'new'}")
    refused(outcome, "format=ctranslate2 needs a package: pip install ctranslate2")
