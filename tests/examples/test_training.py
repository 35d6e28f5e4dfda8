"""Models and a task of examples/papers against their equations; BRIO is in objectives/test_sequence_level.py."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.papers import ctc, prompt_tuning, temperature_epochs
from examples.papers.pointer_generator import PointerGenerator
from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.run_checkpoints import read_weights
from seqgen.models.transformer import TransformerDecoder
from tests.commands import SMALL_TRANSFORMER, command, corpus, done, refused, training_arguments
from tests.generators import make_generator, resources
from tests.model_zoo import small_config
from tests.scripted_model import batch_of, dictionary
from tests.text_models import task_of, text_model
from tests.training_runs import assert_identical, everything, records

SOURCES, LENGTHS = torch.tensor([[5, 9, 5, 2], [7, 8, 2, 1]]), torch.tensor([4, 3])
PREVIOUS = torch.tensor([[2, 8, 6], [2, 11, 5]])


@torch.no_grad()
@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny"])
def test_the_prompt_precedes_the_embeddings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is a base with the vectors of the prompt as further tokens."""
    base: Any = text_model(name)
    wanted, table = copy.deepcopy(base.model), base.model.encoder.embed_tokens.weight
    monkeypatch.setattr(prompt_tuning, "load_base", lambda cfg: SimpleNamespace(model=base.model, task=base.task))
    made = prompt_tuning.PromptTuning.build_model(prompt_tuning.PromptTuningConfig(length=3), base.task).eval()
    prompt = made.encoder.embed_tokens.prompt
    wanted.encoder.embed_tokens = nn.Embedding.from_pretrained(torch.cat([table, prompt.normal_()]))
    tokens = torch.cat([torch.arange(3).expand(2, -1) + len(table), SOURCES], 1)
    found, plain = made(SOURCES, LENGTHS, PREVIOUS, True), wanted(tokens, LENGTHS + 3, PREVIOUS, True)
    torch.testing.assert_close(found.logits, plain.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.attention, nn.functional.normalize(plain.attention[..., 3:], 1, -1))


@pytest.mark.slow
def test_only_the_prompt_is_trained(tmp_path: Path) -> None:
    """Also by a run that is interrupted; the trained model has all invariants of a model."""
    base, user = tmp_path / "base", f"common.user_dir={prompt_tuning.__file__}"
    tiny = ("model=t5_tiny", "model.num_layers=1", "model.d_model=16", "task.tokenizer=t5", "task.vocab_size=40")
    done("train", *training_arguments(corpus(tmp_path / "data"), base), *tiny, "optimization.max_update=1")
    keys = (user, f"checkpoint.finetune_from={base}", "model=prompt_tuning", "model.length=4", "common.threads=1")
    for run, updates in (("whole", 4), ("parts", 2), ("parts", 4)):
        done("train", *keys, f"run_dir={tmp_path / run}", f"optimization.max_update={updates}")
    runs = [tmp_path / run / "checkpoints" / "last" for run in ("whole", "parts")]
    assert_identical(*(read_weights(run) for run in runs))
    trained, untrained = load_model(runs[0]).model.state_dict(), load_model(base).model.state_dict()
    assert trained.keys() - untrained.keys() == read_weights(runs[0]).keys() == {"encoder.embed_tokens.prompt"}
    assert all(torch.equal(trained[name], weight) for name, weight in untrained.items())
    done("check", user, f"path={runs[0]}", "common.threads=1")
    refused(command("convert", user, "format=huggingface", f"path={runs[0]}", f"output={tmp_path / 'hf'}"), "prompt")


@torch.no_grad()
def test_the_pointer_generator_copies_by_attention() -> None:
    """Position by position, from a source with a token that occurs twice."""
    torch.manual_seed(0)
    model: Any = PointerGenerator.build_model(small_config("transformer_tiny"), task_of()).double().eval()
    found, decoder = model(SOURCES, LENGTHS, PREVIOUS, True), model.decoder
    for row, length in enumerate(LENGTHS.tolist()):
        out = model.encoder(SOURCES[row : row + 1, :length], LENGTHS[row : row + 1])
        states, weights = TransformerDecoder.extract_features(decoder, PREVIOUS[row : row + 1], out, None, True)
        assert weights is not None
        for t, token in enumerate(PREVIOUS[row].tolist()):
            context = sum(weights[0, t, i] * out.encoder_out[0, i] for i in range(length))
            read = torch.cat([context, states[0, t], decoder.embed_tokens.weight[token]])
            p_gen = 1 / (1 + (-(decoder.gate.weight[0] @ read + decoder.gate.bias[0])).exp())
            wanted = p_gen * (decoder.output_projection.weight @ states[0, t]).softmax(0)
            for i, copied in enumerate(SOURCES[row, :length].tolist()):
                wanted[copied] += (1 - p_gen) * weights[0, t, i]
            torch.testing.assert_close(found.logits[row, t].exp(), wanted)


WORDS, BLANK, PAD, EOS = dictionary(3), 0, 1, 2
TEXT = ["w0 w1 w0", "w2", "w0 w1 w1 w2", ""]


def ctc_model(frames: int) -> Any:
    torch.manual_seed(0)
    cfg = ctc.CTCConfig(frames=frames, **vars(small_config("transformer_tiny")))
    model: Any = ctc.CTCModel.build_model(cfg, task_of(words=WORDS))
    model.encoder.output.weight.data *= 3
    return model.double().eval()


def outputs(model: Any, source: tuple[int, ...], frames: int) -> dict[tuple[int, ...], Tensor]:
    """The probability of each output, by a loop over all alignments."""
    probs = model.encoder(torch.tensor([source]), torch.tensor([len(source)])).encoder_out[0].exp()
    found: dict[tuple[int, ...], Tensor] = {}
    for alignment in itertools.product(range(len(WORDS)), repeat=len(source) * frames):
        output = tuple(token for token, _ in itertools.groupby(alignment) if token != BLANK)
        found[output] = found.get(output, torch.zeros(())) + probs[range(len(probs)), alignment].prod()
    return found


def test_the_loss_of_ctc_is_that_of_all_alignments() -> None:
    """Of targets with equal neighbours, without tokens, and of one that is too long."""
    sources, targets = [(4, 6, 5, 2), (5, 4, 2), (2,)], [(4, 4, 5, EOS), (EOS,), (6, 4, EOS)]
    model, task = ctc_model(1), task_of(words=WORDS)
    pairs = [(i, torch.tensor(sources[i]), torch.tensor(targets[i])) for i in range(3)]
    found = ctc.CTC(None, task)(model, task.collate(pairs, model))
    wanted = -sum(outputs(model, sources[i], 1)[targets[i][:-1]].log() for i in range(2))
    assert found.logging["impossible"] == 1
    gradients = [torch.autograd.grad(loss, [*model.parameters()]) for loss in (found.loss, wanted)]
    torch.testing.assert_close((found.loss, gradients[0]), (wanted, gradients[1]))


@torch.no_grad()
@pytest.mark.parametrize(("frames", "penalty", "longest"), [(1, 0.0, 9), (2, 0.0, 3), (2, 1.0, 9)])
def test_a_wide_prefix_beam_finds_all_outputs(frames: int, penalty: float, longest: int, tmp_path: Path) -> None:
    """With trigrams counted in the text, whose probabilities sum to one."""
    (tmp_path / "text").write_text("\n".join(TEXT) + "\n")
    lines = [(BLANK, *resources(WORDS).ids(line), EOS) for line in TEXT]
    options: dict[str, Any] = {"len_penalty": penalty, "max_len": longest, "min_len": 0, "beam_size": 400}
    search = ctc.CTCSearch(ctc.CTCSearchConfig(str(tmp_path / "text"), weight=0.7, bonus=0.4), resources(WORDS))
    model, sources = ctc_model(frames), [(4, 6, 2), (5, 2), (2,)][frames - 1 :]

    def probability(*ngram: int) -> float:
        """Of the last token after the others."""
        n = len(ngram) - 1
        seen = [line[i + n] for line in lines for i in range(n == 0, len(line) - n) if line[i : i + n] == ngram[:-1]]
        lower = probability(*ngram[1:]) if n else 1 / len(WORDS)
        return (seen.count(ngram[-1]) + len({*seen}) * lower) / (len(seen) + len({*seen})) if seen else lower

    found = make_generator([model], WORDS, search_strategy=search, **options).generate(batch_of(sources))
    for source, hypotheses in zip(sources, found, strict=True):
        wanted = {}
        for output, probability_ in outputs(model, source, frames).items():
            if not {PAD, EOS} & {*output} and len(output) < longest:
                tokens = (BLANK, *output, EOS)
                lm = [probability(*tokens[max(0, i - 2) : i + 1]) for i in range(1, len(tokens))]
                score = probability_.log() + sum(0.7 * math.log(p) + 0.4 for p in lm)
                wanted[tokens[1:]] = float(score) / len(lm) ** penalty
        assert {tuple(one.tokens.tolist()): one.score for one in hypotheses} == pytest.approx(wanted, abs=1e-5)


@pytest.mark.slow
def test_groups_are_drawn_by_the_temperature_of_the_epoch(tmp_path: Path) -> None:
    """An interrupted run ends as an undisturbed one, and the task has the invariants of a task."""
    data, sizes = corpus(tmp_path / "data"), [300, 20]
    for language in ("de", "en"):
        (data / f"train2.{language}").write_text("der Hund\n" * 20)
    keys = [f"common.user_dir={temperature_epochs.__file__}", "task.epochs=2", "task.dropout=0.3"]
    given = (key.replace("=translation", "=temperature_epochs") for key in training_arguments(data, tmp_path)[1:])
    keys += [key.replace(f"{data}/train", f"{data}/train*") for key in given]
    for run, updates in (("whole", 30), ("parts", 15), ("parts", 30)):
        done("train", f"run_dir={tmp_path / run}", *keys, *SMALL_TRANSFORMER, f"optimization.max_update={updates}")
    validated = [row["update"] for row in records(tmp_path / "whole", "valid")]
    assert validated[0] < 15 < validated[1] < 30, "it is interrupted within the second epoch"
    assert_identical(*(everything(tmp_path / run) for run in ("whole", "parts")))
    done("check", *(key for key in keys if key.startswith(("common.user", "task"))), "common.threads=1")
    task: Any = load_model(tmp_path / "whole").task
    train, replaced = task.dataset("train"), Tensor()
    for epoch, temperature in ((1, 5.0), (2, 3.0), (3, 1.0), (4, 1.0)):
        examples = [train.example(i, epoch=epoch, seed=1) for i in range(sum(sizes))]
        drawn, total = Counter(one.id for one in examples), sum(size ** (1 / temperature) for size in sizes)
        for first, size in zip((0, 300), sizes, strict=True):
            counts = [drawn[number] for number in range(first, first + size)]
            assert sum(counts) == pytest.approx(sum(sizes) * size ** (1 / temperature) / total, abs=1)
            assert max(counts) - min(counts) <= 1, "a group is read again after all of it was read"
        replaced = torch.cat([replaced, *(one.source[:-1] == task.source_dictionary.unk() for one in examples)])
    assert float(replaced.mean()) == pytest.approx(0.3, abs=0.02)
