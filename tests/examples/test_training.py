"""Models and a task of examples/papers against their equations; BRIO is in objectives/test_sequence_level.py."""

import copy
import itertools
import math
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.papers import ctc, prompt_tuning, temperature_epochs
from examples.papers.lora import LoRA, LoRAConfig, LoRALinear, adapt
from examples.papers.pointer_generator import PointerGenerator
from seqgen.addons.checks.kinds import Vocabularies
from seqgen.checkpoints.run_checkpoints import read_weights
from seqgen.extend import MODELS, Linear, TransformerDecoder, load_model, merge_additions
from tests.commands import SMALL_TRANSFORMER, command, corpus, done, refused, training_arguments
from tests.generators import make_generator, resources
from tests.model_zoo import small_config
from tests.scripted_model import batch_of, dictionary, dictionary as tiny_dictionary
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


# --- low-rank adapters, against the base, the formula, and an undisturbed run


PAPERS = Path(__file__).parent.parent.parent / "examples" / "papers"
LORA = (f"common.user_dir={PAPERS}/lora.py", "model=lora", "model.rank=2")
SOURCE = torch.tensor([[5, 9, 12, 2], [7, 8, 2, 1]]), torch.tensor([4, 3]), torch.tensor([[2, 8, 6], [2, 11, 5]])


def plain_model(name: str) -> Any:
    config = MODELS.config(name)
    torch.manual_seed(1)
    return MODELS.of(config).component.build_model(config, Vocabularies(tiny_dictionary())).double().eval()  # type: ignore[attr-defined]


def adapted(name: str, seed: int | None = None, **values: Any) -> Any:
    """The same model with adapters; random ones if there is a seed, else new ones."""
    torch.manual_seed(1)
    cfg = LoRAConfig(base=name, rank=3, **{"targets": "attn|attention|fc2|wo", **values})
    model = LoRA.build_model(cfg, Vocabularies(tiny_dictionary())).double().eval()
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for layer in layers(model):
            layer.lora_b.data = torch.randn(layer.lora_b.shape, generator=generator, dtype=torch.float64) * 0.1
    return model.eval()


def layers(model: Any) -> list[LoRALinear]:
    return [layer for layer in model.modules() if isinstance(layer, LoRALinear)]


def logits(model: Any, source: Any = SOURCE) -> Tensor:
    with torch.no_grad():
        return model(*source).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny", "fconv_tiny", "llama_tiny"])
def test_the_merged_model_is_a_base_that_computes_the_same(name: str) -> None:
    """New adapters change nothing; in training without dropout all is as in evaluation, and with all inputs of A
    dropped, training computes the base.
    """
    model, base = adapted(name, seed=1), plain_model(name)
    assert torch.equal(logits(adapted(name)), logits(base))
    assert not torch.equal(logits(model), logits(base))
    for rate, wanted in ((0.0, model), (1.0, base)):
        trained = adapted(name, seed=1, dropout=rate)
        for layer in layers(trained):
            layer.train()
        torch.testing.assert_close(logits(trained), logits(wanted), rtol=0, atol=1e-10)
        torch.testing.assert_close(logits(trained.eval()), logits(model), rtol=0, atol=1e-10)
    merged = merge_additions(model)
    assert [*merged.state_dict()] == [*base.state_dict()]
    assert [type(module).__name__ for module in merged.modules()] == [type(m).__name__ for m in base.modules()]
    assert merge_additions(merged) is merged
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-10)
    base.load_state_dict(merged.state_dict())
    torch.testing.assert_close(logits(base), logits(model), rtol=0, atol=1e-10)
    assert len(layers(model)) >= 6, "the model itself is unchanged"


def test_gradients_of_a_layer() -> None:
    """d loss / d B = s G' (x A'), d loss / d A = s B' G' x for a loss of sum(G * h)."""
    layer = Linear(5, 4).double().requires_grad_(False)
    plain = copy.deepcopy(layer)
    adapt(layer, LoRAConfig(rank=3, alpha=6.0))
    made: Any = layer.train()
    generator = torch.Generator().manual_seed(1)
    x, g, b = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((7, 5), (7, 4), (4, 3)))
    made.lora_b.data = b
    out = made(x)
    a = made.lora_a.detach()
    torch.testing.assert_close(out, plain(x) + 2 * (x @ a.T) @ b.T)
    (out * g).sum().backward()
    torch.testing.assert_close(made.lora_b.grad, 2 * g.T @ (x @ a.T))
    torch.testing.assert_close(made.lora_a.grad, 2 * b.T @ g.T @ x)
    assert made.weight.grad is None
    assert made.bias.grad is None


# --- runs


KEYS = ("dataset.max_tokens=200", "common.threads=1", "common.tensorboard=false")


def trained_base(data: Path, folder: Path, *model: str) -> Path:
    done("train", *training_arguments(data, folder), *model, *KEYS, "optimization.max_update=3")
    return folder


@pytest.fixture(scope="module")
def base(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_base(data, tmp_path_factory.mktemp("base") / "base", *SMALL_TRANSFORMER)


def tuning(base: Path, run: Path, updates: int, *further: str, lora: tuple[str, ...] = LORA) -> list[str]:
    keys = [f"checkpoint.finetune_from={base}", f"run_dir={run}", f"optimization.max_update={updates}", *KEYS]
    keys += ["lr_scheduler.warmup_updates=1", "optimization.lr=[0.05]", "model.dropout=0.2", *further]
    return ["train", *lora, *keys]


def decoded(path: Path, data: Path, *further: str) -> str:
    keys = (f"path={path}", f"input={data}/test.en", "generation.max_len=8", "common.threads=1")
    return done("generate", LORA[0], *keys, *further).out


@pytest.mark.slow
def test_a_resumed_run_equals_an_undisturbed_one(base: Path, data: Path, tmp_path: Path) -> None:
    """With averages of the weights."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    further = [f"checkpoint.{kind}_interval_updates=2" for kind in ("keep", "save")]
    further.append("optimization.ema_decay=0.9")
    for run, updates in ((whole, 4), (parts, 2), (parts, 4)):
        outcome = done(*tuning(base, run, updates, *further))
    assert "resuming from" in outcome.err
    first, second = (read_weights(run / "checkpoints" / "last") for run in (whole, parts))
    assert_identical(first, second)
    assert all(".lora_" in name for name in first)
    assert load_model(whole / "checkpoints/last").model.new_weights
    done("convert", LORA[0], "format=average", f"path={whole}", "last=2", f"output={whole}_average")
    two = [read_weights(whole / "checkpoints" / f"update_{update}") for update in (2, 4)]
    mean = read_weights(Path(f"{whole}_average/checkpoints/best"))
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (two[0][name] + two[1][name]) / 2)
    decoded(Path(f"{whole}_average"), data)


@pytest.mark.slow
def test_the_base_is_found_and_verified(base: Path, data: Path, tmp_path: Path) -> None:
    moved, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(base, moved)
    outcome = done(*tuning(moved, run, 2))
    assert "weights that the checkpoint does not have and the model initializes: " in outcome.err
    text = decoded(run, data)
    done("show", f"path={run}")
    moved.rename(tmp_path / "elsewhere")
    keys = (f"path={run}", f"input={data}/test.en")
    refused(command("generate", LORA[0], *keys), f"model.base={moved}: {moved}: there is no such", "if it was moved")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(moved), f"{tmp_path}/elsewhere"))
    assert decoded(run, data) == text
    done(*tuning(tmp_path / "elsewhere", run, 3))
    other = trained_base(data, tmp_path / "other", *SMALL_TRANSFORMER, "common.seed=2")
    shutil.copytree(other / "checkpoints", tmp_path / "elsewhere" / "checkpoints", dirs_exist_ok=True)
    refused(command("generate", LORA[0], *keys), "its files have changed since the run was started")
    done(*tuning(base, tmp_path / "first", 1))
    refused(command(*tuning(tmp_path / "first", tmp_path / "twice", 1)), "it has additions itself; remove model=NAME")
    continued = done(*tuning(tmp_path / "first", tmp_path / "second", 1, "common.seed=2", lora=LORA[:1]))
    assert "model initializes" not in continued.err


@pytest.mark.slow
def test_the_merged_model_is_written(data: Path, tmp_path: Path) -> None:
    tiny = ("model=t5_tiny", "model.num_layers=1", "model.d_model=16", "task.tokenizer=t5", "task.vocab_size=40")
    run, folder = tmp_path / "run", tmp_path / "folder"
    done(*tuning(trained_base(data, tmp_path / "base", *tiny), run, 2))
    done("convert", LORA[0], "format=huggingface", f"path={run}", f"output={folder}")
    keys = ("generation.semantics=fairseq", "generation.nbest=3")
    assert decoded(folder, data, *keys) == decoded(run, data, *keys)
    source = torch.tensor([[8, 9, 20, 1]]), torch.tensor([4]), torch.tensor([[0, 8, 6]])
    expected = logits(load_model(run).model, source)
    torch.testing.assert_close(logits(load_model(folder).model, source), expected, rtol=0, atol=1e-5)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with torch.no_grad():
        found = theirs(input_ids=source[0], decoder_input_ids=source[2]).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
