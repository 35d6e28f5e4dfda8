"""An exported model computes the logits of the model, step by step, and decodes to the same text."""

import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from seqgen.addons.export import ctranslate2 as written, graphs, onnx
from seqgen.addons.export.ctranslate2 import specification, write_ctranslate2
from seqgen.addons.export.graphs import export_graphs
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask, LoadedModel
from seqgen.extend import MODELS, ConfigError, Dictionary, TrainConfig, WhitespaceTokenizer, load_model
from seqgen.system.switches import INPUT_CHOICES
from seqgen.text.translator import Translator
from tests.addons.huggingface.test_llama import llama_folder
from tests.commands import SMALL_TRANSFORMER, command, corpus, done, refused, training_arguments
from tests.docs.test_pages import ROOT
from tests.huggingface_bart import VARIANTS as BARTS, tiny_folder as bart_folder
from tests.huggingface_t5 import VARIANTS as T5S, tiny_folder as t5_folder
from tests.model_zoo import PAD, ZOO, TinyTask, build, in_zoo, registered
from tests.pretrained_folders import write_model
from tests.refusals import Row, refusals
from tests.subjects import inputs

EXPORTED = [name for name in ZOO if name.startswith(("transformer", "t5", "llama")) and "t5gemma2" not in name]
SOURCE_IDS = {"pad": 2, "eos": 3, "unk": 4, "bos": 5}
TARGET_IDS = {"pad": 0, "eos": 1, "unk": 2, "bos": 3}
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in onnx.PACKAGES), reason="ONNX is not installed"
)


@pytest.mark.parametrize("name", EXPORTED)
def test_steps_with_named_tensors_give_the_logits_of_the_parallel_pass(name: str) -> None:
    model, given = build(name), inputs(name, [6, 1, 4], 5)
    expected, _ = model(given.src_tokens, given.src_lengths, given.prev_output_tokens)
    with torch.no_grad(), INPUT_CHOICES.off():
        step = (graphs.ContinuationGraph if model.continues_source else graphs.StepGraph)(model)
        encoder = (graphs.PromptGraph if model.continues_source else graphs.EncoderGraph)(model, PAD)
        for rows in (torch.tensor([1]), torch.tensor([2, 0, 0])):  # rows may be dropped and repeated
            source = {key: value[rows] for key, value in encoder(given.src_tokens).items()}
            state = _initial(step, len(rows))
            for seen in range(5):
                logits, state = step(given.prev_output_tokens[rows, : seen + 1], source, state)
                torch.testing.assert_close(logits, expected[rows, seen], rtol=0, atol=1e-10)


def _initial(step: graphs.StepGraph, rows: int) -> dict[str, Tensor]:
    sizes = {"rows": rows, "seen": 0}
    return {
        tensor.name: torch.zeros([sizes.get(size, size) for size in tensor.shape], dtype=tensor.dtype)  # type: ignore[call-overload]
        for tensor in step.flat.tensors
    }


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("transformer_narrow_decoder", "transformer_ssru", "llama_sliding")
]
NIGHTLY = [
    pytest.param(name, marks=pytest.mark.nightly) for name in ("bart", "marian", "t5:t5_v1_1", "transformer_lm_learned")
]


@needs_onnx
@pytest.mark.parametrize("name", SLOW + NIGHTLY)
def test_onnx_files_give_the_logits_of_the_model_alone_and_batched(name: str, tmp_path: Path) -> None:
    if name in ZOO:
        model = build(name, torch.float32)
    else:
        make = t5_folder if name.startswith("t5:") else bart_folder
        model = load_model(make(tmp_path, name.removeprefix("t5:")), dtype=torch.float32).model
    vocab = model.decoder.embed_tokens.num_embeddings
    of_text = model.continues_source
    pad = PAD if of_text else model.padding_idx if "t5" in name else model.encoder.embed_tokens.padding_idx
    pair, runs = graphs.export_graphs(model, pad), []
    for graph, file in zip(pair, (tmp_path / "encoder.onnx", tmp_path / "step.onnx"), strict=True):
        onnx.write_onnx(graph, file, 20)
        runs.append(onnx.load_onnx(file, graph))
    computed = (model, *runs, pair[1])
    words = {"pad": pad, "source_size": vocab, "target_size": vocab, "left": of_text}
    for lengths, steps in (([9, 3, 1, 17], 12), ([8], 3), ([1], 1), ([21, 21], 24)):
        sentences = onnx.Sentences.random(lengths, steps, **words)
        assert onnx.largest_difference(*computed, sentences) < 1e-4
        for row, length in enumerate(lengths):
            source, lengths_ = sentences.src_tokens[[row]], sentences.src_lengths[[row]]
            source = source[:, -length:] if of_text else source[:, :length]
            alone = onnx.Sentences(source, lengths_, sentences.prev_output_tokens[[row]])
            assert onnx.largest_difference(*computed, alone) < 1e-4
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.mul_(1.1)
    sentences = onnx.Sentences.random([9, 3], 4, **words)
    assert onnx.largest_difference(*computed, sentences) > 1e-3  # the comparison can fail


def test_the_description_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where source and target differ in all that a program must know that decodes with the files."""
    symbols = ["a", "b", "c", "d", "e", "f", "g"]
    source, target = (WhitespaceTokenizer(Dictionary(symbols, **ids)) for ids in (SOURCE_IDS, TARGET_IDS))
    cfg = MODELS.config("transformer_tiny")
    cfg.max_source_positions, cfg.max_target_positions, cfg.decoder_start_token_id = 12, 9, 6
    task = DecodingTask(DecodingConfig(), source, target)
    loaded = LoadedModel(task.build_model(cfg).eval(), task, TrainConfig(model=cfg), tmp_path, generation={"beam": 3})
    names = [graphs.NamedTensor(name, (graphs.ROWS, len(symbols)), torch.float32) for name in ("logits", "next.a.keys")]
    pair: Any = [graphs.Graph(cast(Any, None), names, names)] * 2
    differences = iter([onnx.TOLERANCE / 2, 2 * onnx.TOLERANCE])
    monkeypatch.setattr(onnx, "export_graphs", lambda *_: pair)
    monkeypatch.setattr(onnx, "write_onnx", lambda *_: None)
    monkeypatch.setattr(onnx, "load_onnx", lambda *_: None)
    monkeypatch.setattr(onnx, "largest_difference", lambda *_: next(differences))
    assert onnx.write_export(loaded, tmp_path / "new", 20) == onnx.TOLERANCE / 2
    found = json.loads((tmp_path / "new" / "export.json").read_text())
    wanted = {"source_pad": 2, "pad": 0, "eos": 1, "start": 6, "max_source_length": 12, "max_target_length": 9}
    wanted |= {"padding_side": "right", "generation": {"beam": 3}, "opset": 20}
    assert {name: found[name] for name in wanted} == wanted
    assert found["step"]["inputs"][0] == {"name": "logits", "shape": ["rows", 7], "dtype": "float32"}
    assert found["state"] == {"a.keys": "next.a.keys"}
    with pytest.raises(ConfigError, match=r"cannot be exported: the logits of the files differ .* by 0.0002"):
        onnx.write_export(loaded, tmp_path / "wrong", 20)
    assert not (tmp_path / "wrong").exists()


@needs_onnx
@pytest.mark.slow
def test_the_example_decodes_as_seqgen_does(tmp_path: Path) -> None:
    data, run, output = corpus(tmp_path / "data"), tmp_path / "run", tmp_path / "out"
    source, rates = data / "test.en", ("optimization.lr=[1e-2]", "lr_scheduler.warmup_updates=40")
    sizes = (*SMALL_TRANSFORMER, *(f"model.{side}_normalize_before=true" for side in ("encoder", "decoder")))
    further = (*sizes, *rates, "optimization.max_update=400", "dataset.validate_interval=20")
    done("train", *training_arguments(data, run), *further)
    outcome = done("convert", "format=export", f"path={run}", f"output={output}")
    assert "logits differ by at most" in outcome.out
    decoded = command("generate", f"path={run}", f"input={source}", "generation.beam=1", "format=json")
    hypotheses = [json.loads(line)["hypotheses"][0] for line in decoded.out.splitlines()]
    assert len({len(hypothesis["tokens"]) for hypothesis in hypotheses}) > 2  # the outputs end at different steps
    code = (
        "import sys, json\nfrom pathlib import Path\nfrom examples.onnx_greedy import ExportedModel\n"
        f"model = ExportedModel(Path({str(output)!r}))\nids = model.greedy(sys.stdin.read().splitlines())\n"
        "assert 'torch' not in sys.modules\nprint(json.dumps(ids))"
    )
    run_ = partial(subprocess.run, cwd=ROOT, capture_output=True, check=False)
    shown = run_([sys.executable, "-c", code], input=source.read_bytes())
    assert shown.returncode == 0, shown.stderr.decode()
    eos = json.loads((output / "export.json").read_text())["eos"]
    wanted = [[token for token in hypothesis["tokens"] if token != eos] for hypothesis in hypotheses]
    assert json.loads(shown.stdout) == wanted
    texts = [hypothesis["text"] for hypothesis in hypotheses]
    lines = source.read_text().splitlines()[:2]
    for given, code, answer in (
        (f"{lines[0]}\n\n{lines[1]}", 0, f"{texts[0]}\n\n{texts[1]}\n"),
        ("dog " * 3000, 1, "but the model reads at most 1024; split the line\n"),
    ):
        shown = run_([sys.executable, "examples/onnx_greedy.py", str(output)], input=given.encode())
        assert (shown.returncode, (shown.stderr or shown.stdout).decode()[-len(answer) :]) == (code, answer)
        assert b"Traceback" not in shown.stderr


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama 2", "qwen 2"])
def test_the_example_continues_prompts_as_seqgen_does(kind: str, tmp_path: Path) -> None:
    """The padding of the first model is end-of-sentence."""
    folder, output = llama_folder(tmp_path / "theirs", kind), tmp_path / "out"
    done("convert", "format=export", f"path={folder}", f"output={output}")
    exported = importlib.import_module("examples.onnx_greedy").ExportedModel(output)
    prompts, loaded = ["the dog sees a boat", "no", "a big dog"], load_model(folder)
    plain: dict[str, Any] = {"beam": 1, "semantics": "fairseq", "end_symbols": [], "max_len": 0, "max_len_b": 9}
    found = Translator(loaded, min_len=0, **plain).translate(prompts)
    wanted = [translation.hypotheses[0].tokens.tolist() for translation in found]
    assert [[*ids, exported.info["eos"]] for ids in exported.greedy(prompts, 9)] == wanted


# --- CTranslate2


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


# --- what cannot be exported


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


EXPORT = "convert format=export path={there}/none output={there}/out "

test_keys = needs_onnx(
    refusals(
        ("convert format=export path=none", "output=FOLDER"),
        ("convert format=export output=out", "path=MODEL"),
        (EXPORT + "output={there}", "already exists"),
        (EXPORT + "output={there}/no/out", "does not exist"),
        (EXPORT + "path=org/name", "is written hf:org/name"),
        (EXPORT + "path=[a,b]", "path names 2 models", "give one, such as path=a"),
        (EXPORT + "opset=7", "opset=7"),
        (EXPORT, "there/none"),
        ("generate path=https://hf.co/org/name", "is an address; a model of the Hugging Face Hub"),
    )
)


def other_start_token() -> None:
    loaded = of_zoo("t5_tiny")
    loaded.model.cfg.decoder_start_token_id = len(loaded.task.target_dictionary)
    specification(loaded)


def of_onnx(name: str, *words: str, **inputs: Any) -> Row:
    def export() -> None:
        vars((model := build(name, torch.float32)).encoder).update(inputs)
        export_graphs(model, PAD)

    return export, *words


def other_model(name: str, **changes: Any) -> Row:
    return lambda: specification(of_model(registered(name, **changes)())), "only transformer and t5 can"


test_models = refusals(
    of_onnx("lstm_tiny", "cannot be exported"),
    of_onnx("transformer_tiny", "reads columns, which a graph does not have", inputs=("x",)),
    of_onnx("fconv_tiny", "contains that of a ParametrizedLinearizedConvolution"),
    *(of_onnx(name, "contains that of a MergedAttention") for name in in_zoo("t5gemma2_tiny")),
    other_model("transformer_ssru", encoder_layers=1, decoder_layers=1),
    *map(other_model, in_zoo("transformer_lm_tiny", "llama_tiny", "fconv_tiny", "t5gemma_tiny")),
    (other_start_token, "is not one of the vocabulary's"),
)


def test_a_missing_package_is_named(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, module, packages in (("export", "onnx", "onnx onnxscript onnxruntime"), ("ctranslate2",) * 3):
        monkeypatch.setattr(f"seqgen.addons.export.{module}.find_spec", lambda name: None)
        refused(command("convert", f"format={form}", "path=model", f"output={there}/out"), f"pip install {packages}")
