"""Low-rank adapters (examples/papers/lora.py) against the base, the formula, and an undisturbed run."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.lora import LoRA, LoRAConfig, LoRALinear, adapt
from seqgen.addons.checks.kinds import Vocabularies
from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.model_weights import merge_additions
from seqgen.checkpoints.run_checkpoints import read_weights
from seqgen.modules.linear import Linear
from seqgen.registry import MODELS
from tests.commands import SMALL_TRANSFORMER, command, corpus, refused, training_arguments
from tests.scripted_model import dictionary as tiny_dictionary
from tests.training_runs import assert_identical

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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("data"))


KEYS = ("dataset.max_tokens=200", "common.threads=1", "common.tensorboard=false")


def trained_base(data: Path, folder: Path, *model: str) -> Path:
    outcome = command("train", *training_arguments(data, folder), *model, *KEYS, "optimization.max_update=3")
    assert outcome.code == 0, outcome.err
    return folder


@pytest.fixture(scope="module")
def base(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_base(data, tmp_path_factory.mktemp("base") / "base", *SMALL_TRANSFORMER)


def train(base: Path, run: Path, updates: int, *further: str, lora: tuple[str, ...] = LORA) -> Any:
    keys = [f"checkpoint.finetune_from={base}", f"run_dir={run}", f"optimization.max_update={updates}", *KEYS]
    keys += ["lr_scheduler.warmup_updates=1", "optimization.lr=[0.05]", "model.dropout=0.2", *further]
    return command("train", *lora, *keys)


def decoded(path: Path, data: Path, *further: str) -> str:
    keys = (f"path={path}", f"input={data}/test.en", "generation.max_len=8", "common.threads=1")
    outcome = command("generate", LORA[0], *keys, *further)
    assert outcome.code == 0, outcome.err
    return outcome.out


@pytest.mark.slow
@pytest.mark.parametrize("ema", ["0", "0.9"])
def test_a_resumed_run_equals_an_undisturbed_one(ema: str, base: Path, data: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    further = [f"checkpoint.{kind}_interval_updates=2" for kind in ("keep", "save")]
    further.append(f"optimization.ema_decay={ema}")
    for run, updates in ((whole, 4), (parts, 2), (parts, 4)):
        outcome = train(base, run, updates, *further)
        assert outcome.code == 0, outcome.err
    assert "resuming from" in outcome.err
    first, second = (read_weights(run / "checkpoints" / "last") for run in (whole, parts))
    assert_identical(first, second)
    assert all(".lora_" in name for name in first)
    assert load_model(whole / "checkpoints/last").model.new_weights
    assert decoded(whole / "checkpoints/last", data) == decoded(parts / "checkpoints/last", data)
    averaged = command("convert", LORA[0], "format=average", f"path={whole}", "last=2", f"output={whole}_average")
    assert averaged.code == 0, averaged.err
    two = [read_weights(whole / "checkpoints" / f"update_{update}") for update in (2, 4)]
    mean = read_weights(Path(f"{whole}_average/checkpoints/best"))
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (two[0][name] + two[1][name]) / 2)
    decoded(Path(f"{whole}_average"), data)


@pytest.mark.slow
def test_the_base_is_found_and_verified(base: Path, data: Path, tmp_path: Path) -> None:
    moved, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(base, moved)
    outcome = train(moved, run, 2)
    assert outcome.code == 0, outcome.err
    assert "weights that the checkpoint does not have and the model initializes: " in outcome.err
    text = decoded(run, data)
    assert command("show", f"path={run}").code == 0
    moved.rename(tmp_path / "elsewhere")
    keys = (f"path={run}", f"input={data}/test.en")
    refused(command("generate", LORA[0], *keys), f"model.base={moved}: {moved}: there is no such", "if it was moved")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(moved), f"{tmp_path}/elsewhere"))
    assert decoded(run, data) == text
    resumed = train(tmp_path / "elsewhere", run, 3)
    assert resumed.code == 0, resumed.err
    other = trained_base(data, tmp_path / "other", *SMALL_TRANSFORMER, "common.seed=2")
    shutil.copytree(other / "checkpoints", tmp_path / "elsewhere" / "checkpoints", dirs_exist_ok=True)
    refused(command("generate", LORA[0], *keys), "its files have changed since the run was started")
    continued = train(base, tmp_path / "first", 1)
    assert continued.code == 0, continued.err
    refused(train(tmp_path / "first", tmp_path / "twice", 1), "it has additions itself; remove model=NAME")
    continued = train(tmp_path / "first", tmp_path / "second", 1, "common.seed=2", lora=LORA[:1])
    assert continued.code == 0, continued.err
    assert "model initializes" not in continued.err


@pytest.mark.slow
def test_the_merged_model_is_written(data: Path, tmp_path: Path) -> None:
    tiny = ("model=t5_tiny", "model.num_layers=1", "model.d_model=16", "task.tokenizer=t5", "task.vocab_size=40")
    run, folder = tmp_path / "run", tmp_path / "folder"
    outcome = train(trained_base(data, tmp_path / "base", *tiny), run, 2)
    assert outcome.code == 0, outcome.err
    written = command("convert", LORA[0], "format=huggingface", f"path={run}", f"output={folder}")
    assert written.code == 0, written.err
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
