"""An exported model computes the logits of the model, step by step, and decodes to the same text."""

from __future__ import annotations

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

from seqgen.addons.export import graphs, onnx
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask, LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import TrainConfig
from seqgen.core.errors import ConfigError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from seqgen.registry import MODELS
from seqgen.system.switches import INPUT_CHOICES
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, command, corpus, done, training_arguments
from tests.docs.test_pages import ROOT
from tests.huggingface_bart import tiny_folder as bart_folder
from tests.huggingface_t5 import tiny_folder as t5_folder
from tests.model_zoo import PAD, ZOO, build
from tests.models.huggingface.test_llama import llama_folder
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


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("transformer_narrow_decoder", "llama_sliding")]
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
