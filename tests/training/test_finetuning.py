"""``checkpoint.finetune_from``: the model of a checkpoint, its tokenizer, and vocabularies with further tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.checkpoints.loading import initialize, load_model
from seqgen.cli.train import FINETUNING_LR, FINETUNING_WARMUP, with_checkpoint
from seqgen.extend import CheckpointError, Dictionary, LoadedModel, T5Config, T5Model, TrainConfig
from seqgen.models.transformer import TransformerConfig, TransformerModel
from tests import huggingface_bart, huggingface_t5
from tests.commands import SMALL_TRANSFORMER, command, done, refused
from tests.fairseq_checkpoints import TRANSFORMER, dictionary


def training(data: Path, run: Path, folder: Path | str, *further: str) -> list[str]:
    """Arguments that make one update with a learning rate of 0: the run has the initial weights."""
    return [
        *(f"run_dir={run}", f"checkpoint.finetune_from={folder}", "optimization.max_update=1", "optimization.lr=[0]"),
        *("task.workers=1", "dataset.validate_interval=0", "common.threads=1", *further),
    ]


def translation(data: Path) -> list[str]:
    keys = ["task=translation", "task.source_lang=en", "task.target_lang=de"]
    return [*keys, f"task.train={data}/train", f"task.valid={data}/val"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "marian", "t5", "umt5"])
def test_a_folder_gives_the_model_and_the_tokenizer(name: str, data: Path, tmp_path: Path) -> None:
    """The logits before the first update are those of transformers."""
    family = huggingface_bart if name in huggingface_bart.VARIANTS else huggingface_t5
    original = family.tiny_model(name)
    folder = family.tiny_folder(tmp_path / "folder", name)
    trained = done("train", *training(data, tmp_path / "run", folder, *translation(data)))
    assert f"starting from the weights of {folder}" in trained.err
    run, loaded = load_model(tmp_path / "run"), load_model(folder)
    assert run.task.source_dictionary == loaded.task.source_dictionary
    sources, prefixes = torch.tensor([[8, 9, 20, 2], [7, 2, 2, 2]]), torch.tensor([[2, 8, 6], [2, 11, 5]])
    with torch.no_grad():
        mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        pad = run.task.source_dictionary.pad()
        sources = sources.masked_fill(mask == 0, pad)
        wanted = original(input_ids=sources, attention_mask=mask, decoder_input_ids=prefixes).logits
        got = run.model(sources, mask.sum(1), prefixes).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    further = [*translation(data), "optimization.max_update=2"]
    resumed = done("train", *training(data, tmp_path / "run", folder, *further))
    assert "resuming from" in resumed.err


SCHEDULE = [f"optimization.lr={FINETUNING_LR}", f"lr_scheduler.warmup_updates={FINETUNING_WARMUP}"]


def test_the_schedule_of_finetuning() -> None:
    lr, warmup = SCHEDULE
    for given, added in (("", SCHEDULE), ("optimization.lr=[1]", [warmup]), ("lr_scheduler.warmup_updates=0", [lr]),
                         ("lr_scheduler=fixed", [lr])):  # fmt: skip
        user = ["checkpoint.finetune_from=nowhere", "model=t5", *filter(None, [given])]
        assert sorted(with_checkpoint(user)) == sorted([*added, *user])


def test_arguments_that_follow_from_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = huggingface_bart.tiny_folder(tmp_path / "folder", "marian")
    user = [f"checkpoint.finetune_from={folder}", "task=translation"]
    tokenizer = ["task.tokenizer=pretrained", f"task.pretrained_tokenizer={folder}"]
    complete = with_checkpoint(user)
    assert complete[-2:] == user
    assert {"model=transformer", "model.sinusoids=paper", "model.output_bias=true", *tokenizer} <= set(complete)
    assert with_checkpoint([*user, "model=transformer"]) == [*SCHEDULE, *tokenizer, *user, "model=transformer"]
    assert not {*tokenizer} & {*with_checkpoint([*user, "task.tokenizer=bytes"])}
    assert with_checkpoint(["task=translation"]) == ["task=translation"]


@pytest.mark.slow
def test_transfer_to_other_languages_is_a_key(data: Path, tmp_path: Path) -> None:
    small = [*SMALL_TRANSFORMER, "task.joined_dictionary=true", "task.vocab_size=44", "optimization.max_update=1"]
    first = [f"run_dir={tmp_path}/run", *translation(data), "task.workers=1", "common.threads=1", *small]
    assert command("train", *first).code == 0
    reverse = training(data, tmp_path / "new", tmp_path / "run", "task.source_lang=de", "task.target_lang=en")
    refused(command("train", *reverse), "translates en-de, and the text of this run is de-en")
    done("train", *reverse, "checkpoint.other_languages=true")


# -- weights of a checkpoint in a new model -----------------------------------------------------------------------


class Words:
    language_pair = ("en", "de")

    def __init__(self, *further: str, words: Dictionary | None = None):
        self.source_dictionary = self.target_dictionary = words or dictionary()
        for token in further:
            self.source_dictionary.add_symbol(token)


def built(words: Words, kind: type[TransformerModel] = TransformerModel, **changes: Any) -> Any:
    return kind.build_model(TransformerConfig(**{**vars(TRANSFORMER), **changes}), words)


Start = Callable[..., list[str]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Give a new model the weights of a trained one; one that is refused stays as it was."""

    def initialize_from(trained: Any, model: Any, words: Words, *languages: str, old: Words | None = None) -> list[str]:
        loaded = LoadedModel(trained, old or Words(), TrainConfig(), Path("old"))  # type: ignore[arg-type]
        monkeypatch.setattr("seqgen.checkpoints.loading.load_model", lambda *_, **__: loaded)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        try:
            return initialize(model, "old", words, languages)
        except CheckpointError:
            assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
            raise

    return initialize_from


@pytest.mark.parametrize("tied", ["share_all_embeddings", "share_decoder_input_output_embed", ""])
def test_further_tokens_get_new_rows(tied: str, start: Start) -> None:
    sizes = {**({tied: True} if tied else {}), "output_bias": False}
    words = Words("__de__", "__fr__")
    old, model = built(Words(), **sizes), built(words, **sizes)
    fresh = {name: weight.clone() for name, weight in model.state_dict().items()}
    said = "new tokens of the {}, whose embeddings are initialized at random: __de__, __fr__"
    assert start(old, model, words)[1:] == [said.format("source"), said.format("target")]
    rows, grown, saved = len(dictionary()), 0, old.state_dict()
    for name, weight in model.state_dict().items():
        if weight.shape == saved[name].shape:
            assert torch.equal(weight, saved[name])
        else:
            grown += 1
            assert torch.equal(weight[:rows], saved[name])
            assert torch.equal(weight[rows:], fresh[name][rows:])
    assert grown == 3, "source, target and output"
    if tied:
        assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    source, prefix = torch.tensor([[5, 9, 2]]), torch.tensor([[2, 8]])
    with torch.no_grad():
        wanted, got = (one.eval()(source, torch.tensor([3]), prefix).logits for one in (old, model))
    torch.testing.assert_close(got[..., :rows], wanted, rtol=0, atol=1e-5)


def test_new_tokens_do_not_get_rows_without_a_token(start: Start) -> None:
    """The embeddings of the checkpoint have two more rows than its vocabulary has tokens."""
    shape = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    rows = len(dictionary())
    old, model = (T5Model(replace(shape, vocab_size=rows + more), 1) for more in (2, 5))
    fresh = model.encoder.embed_tokens.weight.detach().clone()
    start(old, model, Words("__de__", "__fr__", "__nl__"))
    assert torch.equal(model.encoder.embed_tokens.weight[:rows], old.encoder.embed_tokens.weight[:rows])
    assert torch.equal(model.encoder.embed_tokens.weight[rows:], fresh[rows:])


def test_what_does_not_fit_is_refused(start: Start) -> None:
    """Positions are no tokens: a model with more of them is refused, although it also has more tokens."""
    learned, further = {"encoder_learned_pos": True, "max_source_positions": 30}, Words("__de__")
    few = Words(words=Dictionary(dictionary().symbols[:14]))
    other = Words(words=dictionary(20, "v"))
    fit, languages = "the vocabulary does not fit: ", "old translates en-de, and the text of this run is de-en; correct"
    for old, model, words, text, message in (
        (built(Words(), **learned), built(further, **{**learned, "max_source_positions": 40}), further, (),
         r"of another shape: encoder.embed_positions.weight \(.* here "),
        (built(Words(), encoder_ffn_embed_dim=16), built(further, encoder_ffn_embed_dim=32), further, (),
         r"of another shape: .*encoder.layers.0.fc1.weight \(\(16, "),  # nor are other rows
        (built(Words()), built(other), other, (), f"{fit}in the source, the id 4 is 'w0' in the checkpoint and 'v0' h"),
        (built(Words()), built(few), few, (), f"{fit}the checkpoint was trained with 24 tokens, .* here has 14"),
        (built(Words()), built(Words()), Words(), ("de", "en"), languages),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=message):
            start(old, model, words, *text)
    for text in ((), ("en", "de"), ("en_GB", "de"), ("eng", "deu")):
        start(built(Words()), built(Words()), Words(), *text)


class Headed(TransformerModel):
    """A transformer with two heads that other models do not have."""

    def __init__(self, cfg: TransformerConfig, encoder: Any, decoder: Any):
        super().__init__(cfg, encoder, decoder)
        self.value, self.other = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)


def test_weights_that_the_model_declares_as_new(start: Start) -> None:
    """They keep the values that the model gave them if the checkpoint lacks them; others must be there."""
    old, model = built(Words()), built(Words(), Headed)
    model.new_weights = ("value.*",)
    with pytest.raises(CheckpointError, match=r"missing: other\.bias, other\.weight$"):
        start(old, model, Words())
    model.new_weights = ("value.*", "other.*")
    wanted = {**{name: weight.clone() for name, weight in model.state_dict().items()}, **old.state_dict()}
    said = "the model initializes: value.weight, value.bias, other.weight, other.bias"
    assert start(old, model, Words())[1:] == [f"weights that the checkpoint does not have and {said}"]
    assert all(torch.equal(weight, wanted[name]) for name, weight in model.state_dict().items())
    trained = built(Words(), Headed)
    assert start(trained, model, Words())[1:] == []
    assert torch.equal(model.value.weight, trained.value.weight)
