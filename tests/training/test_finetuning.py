"""``checkpoint.finetune_from``: the model of a checkpoint, its tokenizer, and vocabularies with further tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import initialize, load_model
from seqgen.cli.run_folder import write_config
from seqgen.cli.train import FINETUNING_LR, FINETUNING_WARMUP, with_checkpoint
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from seqgen.core.errors import CheckpointError
from seqgen.data.dictionary import Dictionary
from seqgen.models.t5 import T5Config, T5Model
from seqgen.models.transformer import TransformerConfig, TransformerModel
from tests import huggingface_bart, huggingface_t5
from tests.commands import SMALL_TRANSFORMER, command, corpus, refused
from tests.fairseq_checkpoints import TRANSFORMER, dictionary, in_args, options_of, random_model, write


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("data"))


def training(data: Path, run: Path, folder: Path | str, *further: str) -> list[str]:
    """Arguments that make one update with a learning rate of 0: the run has the initial weights."""
    return [
        *(f"run_dir={run}", f"checkpoint.finetune_from={folder}", "optimization.max_update=1", "optimization.lr=[0]"),
        *("task.workers=1", "dataset.validate_interval=0", "common.threads=1", *further),
    ]


def translation(data: Path) -> list[str]:
    keys = ["task=translation", "task.source_lang=en", "task.target_lang=de"]
    return [*keys, f"task.train={data}/train", f"task.valid={data}/val"]


SEQUENCE_TO_SEQUENCE = ["bart", "marian", "t5", "umt5"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQUENCE_TO_SEQUENCE)
def test_a_folder_gives_the_model_and_the_tokenizer(name: str, data: Path, tmp_path: Path) -> None:
    """The logits before the first update are those of transformers."""
    family = huggingface_bart if name in huggingface_bart.VARIANTS else huggingface_t5
    original = family.tiny_model(name)
    folder = family.tiny_folder(tmp_path / "folder", name)
    trained = command("train", *training(data, tmp_path / "run", folder, *translation(data)))
    assert trained.code == 0, trained.err
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
    resumed = command(
        "train", *training(data, tmp_path / "run", folder, *translation(data), "optimization.max_update=2")
    )
    assert resumed.code == 0, resumed.err
    assert "resuming from" in resumed.err


@pytest.mark.slow
def test_the_users_keys_take_precedence(data: Path, tmp_path: Path) -> None:
    folder = huggingface_bart.tiny_folder(tmp_path / "folder", "bart")
    keys = [*translation(data), "model.dropout=0.3"]
    trained = command("train", *training(data, tmp_path / "run", folder, *keys))
    assert trained.code == 0, trained.err
    assert load_model(tmp_path / "run").config.model.dropout == 0.3
    other = command("train", *training(data, tmp_path / "other", folder, *keys, "model=transformer_tiny"))
    assert (other.code, "the weights are not those of this model" in other.err) == (2, True)
    mismatch = command("train", *training(data, tmp_path / "third", folder, *keys, "task.tokenizer=bytes"))
    assert (mismatch.code, mismatch.err.count("\n")) == (2, 1)
    assert "the vocabulary does not fit: in the source, the id 0 is 'w0' in the checkpoint and '<pad>'" in mismatch.err
    again = command("train", *training(data, tmp_path / "third", folder, *keys))
    assert (again.code, "third is left from a start that failed" in again.err) == (0, True), again.err
    (folder / "model.safetensors").write_bytes(b"damaged")
    damaged = command("train", *training(data, tmp_path / "fourth", folder, *translation(data), "common.seed=2"))
    assert (damaged.code, damaged.err.count("\n")) == (2, 1)
    assert "checkpoint.finetune_from: " in damaged.err


def test_keys_that_the_user_gives_are_above_those_of_a_run(tmp_path: Path) -> None:
    languages = ["task=translation", "task.source_lang=en", "task.target_lang=de", "task.train=old"]
    config = compose(
        TrainConfig, ["model=transformer_tiny", "model.dropout=0.2", "model.activation_fn=gelu", *languages]
    )
    write_config(tmp_path, config)
    (tmp_path / "checkpoints" / "best").mkdir(parents=True)
    (tmp_path / "checkpoints" / "best" / "model.safetensors").touch()
    user = {"checkpoint.finetune_from": str(tmp_path), "model.dropout": "0.3", "task.train": "new"}
    found = dict(text.split("=", 1) for text in with_checkpoint([f"{key}={value}" for key, value in user.items()]))
    assert user.items() <= found.items()
    kept = {"model": "transformer", "model.activation_fn": "gelu", "task": "translation", "task.target_lang": "de"}
    assert kept.items() <= found.items()


SCHEDULE = [f"optimization.lr={FINETUNING_LR}", f"lr_scheduler.warmup_updates={FINETUNING_WARMUP}"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([], SCHEDULE),
        (["optimization.lr=[1]"], [SCHEDULE[1]]),
        (["lr_scheduler.warmup_updates=0"], SCHEDULE[:1]),
        (["lr_scheduler=fixed"], SCHEDULE[:1]),
    ],
)
def test_the_schedule_of_finetuning(given: list[str], wanted: list[str]) -> None:
    user = ["checkpoint.finetune_from=nowhere", "model=t5", *given]
    assert sorted(with_checkpoint(user)) == sorted([*wanted, *user])


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
    missing = ["checkpoint.finetune_from=nowhere", "model=t5"]
    assert with_checkpoint(missing) == [*SCHEDULE, *missing]
    with pytest.raises(CheckpointError, match=r"finetune_from: nowhere: there is no such file or folder"):
        with_checkpoint(["checkpoint.finetune_from=nowhere"])


@pytest.mark.slow
def test_a_fairseq_checkpoint(data: Path, tmp_path: Path) -> None:
    """Its dictionary is given by the user, and compared with that of the checkpoint."""
    path = write(tmp_path / "fairseq", random_model(TRANSFORMER), in_args(options_of(TRANSFORMER)))
    keys = [*translation(data), "task.tokenizer=whitespace"]
    dictionary(20, "v").save(tmp_path / "other.txt")
    other = command("train", *training(data, tmp_path / "other", path, *keys, f"task.srcdict={tmp_path}/other.txt"))
    assert (other.code, "the id 4 is 'w0' in the checkpoint and 'v0' here" in other.err) == (2, True)
    trained = command("train", *training(data, tmp_path / "run", path, *keys, f"task.srcdict={path.parent}/dict.txt"))
    assert trained.code == 0, trained.err
    wanted, got = (load_model(one).model.state_dict() for one in (path, tmp_path / "run"))
    assert all(torch.equal(got[name], weight) for name, weight in wanted.items())


class Words:
    language_pair = ()

    def __init__(self, source: Dictionary, target: Dictionary | None = None):
        self.source_dictionary, self.target_dictionary = source, target or source


def extended(*tokens: str) -> Dictionary:
    made = dictionary()
    for token in tokens:
        made.add_symbol(token)
    return made


@pytest.mark.parametrize("tied", ["share_all_embeddings", "share_decoder_input_output_embed", ""])
def test_further_tokens_get_new_rows(tied: str, tmp_path: Path) -> None:
    sizes = {**vars(TRANSFORMER), **({tied: True} if tied else {}), "output_bias": False}
    config = TransformerConfig(**sizes)
    old = random_model(config)
    path = write(tmp_path, old, in_args(options_of(config)))
    model = TransformerModel.build_model(config, Words(extended("__de__", "__fr__")))
    fresh = {name: weight.clone() for name, weight in model.state_dict().items()}
    messages = initialize(model, str(path), Words(extended("__de__", "__fr__")))
    assert [message for message in messages if message.startswith("new tokens")] == [
        f"new tokens of the {side}, whose embeddings are initialized at random: __de__, __fr__"
        for side in ("source", "target")
    ]
    rows, grown = len(dictionary()), 0
    saved = load_model(path).model.state_dict()
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


def test_new_tokens_do_not_get_rows_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embeddings of the checkpoint have two more rows than its vocabulary has tokens."""
    few, many = Words(extended()), Words(extended("__de__", "__fr__", "__nl__"))
    shape = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    old, model = (T5Model(replace(shape, vocab_size=len(few.source_dictionary) + more), 1) for more in (2, 5))
    loaded = LoadedModel(old, few, TrainConfig(), Path("old"))  # type: ignore[arg-type]
    monkeypatch.setattr("seqgen.checkpoints.loading.load_model", lambda *_, **__: loaded)
    rows, fresh = len(few.source_dictionary), model.encoder.embed_tokens.weight.detach().clone()
    initialize(model, "old", many)
    assert torch.equal(model.encoder.embed_tokens.weight[:rows], old.encoder.embed_tokens.weight[:rows])
    assert torch.equal(model.encoder.embed_tokens.weight[rows:], fresh[rows:])


def test_positions_are_no_tokens(tmp_path: Path) -> None:
    """A model with more positions than the checkpoint is refused, although it also has more tokens."""
    config = TransformerConfig(**{**vars(TRANSFORMER), "encoder_learned_pos": True, "max_source_positions": 30})
    path = write(tmp_path, random_model(config), in_args(options_of(config)))
    model = TransformerModel.build_model(replace(config, max_source_positions=40), Words(extended("__de__")))
    with pytest.raises(CheckpointError, match=r"of another shape: encoder.embed_positions.weight \(.* here "):
        initialize(model, str(path), Words(extended("__de__")))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (dictionary(20, "v"), "in the source, the id 4 is 'w0' in the checkpoint and 'v0' here; use the tokenizer of"),
        (
            Dictionary(dictionary().symbols[:14]),
            "the checkpoint was trained with 24 tokens, the vocabulary here has 14",
        ),
    ],
)
def test_other_vocabularies_are_refused(words: Dictionary, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, random_model(TRANSFORMER), in_args(options_of(TRANSFORMER)))
    model = TransformerModel.build_model(TRANSFORMER, Words(words))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=f"the vocabulary does not fit: {message}"):
        initialize(model, str(path), Words(words))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_text_of_other_languages_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, random_model(TRANSFORMER), in_args(options_of(TRANSFORMER)))
    model = TransformerModel.build_model(TRANSFORMER, Words(dictionary()))
    message = "model.pt translates en-de, and the text of this run is de-en; correct task.source_lang and task.t"
    with pytest.raises(CheckpointError, match=message):
        initialize(model, str(path), Words(dictionary()), ("de", "en"))
    for languages in ((), ("en", "de"), ("en_GB", "de"), ("eng", "deu")):
        initialize(model, str(path), Words(dictionary()), languages)


@pytest.mark.slow
def test_transfer_to_other_languages_is_a_key(data: Path, tmp_path: Path) -> None:
    small = [*SMALL_TRANSFORMER, "task.joined_dictionary=true", "task.vocab_size=44", "optimization.max_update=1"]
    first = [f"run_dir={tmp_path}/run", *translation(data), "task.workers=1", "common.threads=1", *small]
    assert command("train", *first).code == 0
    reverse = training(data, tmp_path / "new", tmp_path / "run", "task.source_lang=de", "task.target_lang=en")
    refused(command("train", *reverse), "translates en-de, and the text of this run is de-en")
    trained = command("train", *reverse, "checkpoint.other_languages=true")
    assert trained.code == 0, trained.err


class Headed(TransformerModel):
    """A transformer with a value head that the checkpoint does not have."""

    def __init__(self, cfg: TransformerConfig, encoder: Any, decoder: Any):
        super().__init__(cfg, encoder, decoder)
        self.value, self.other = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)


@pytest.mark.parametrize("declared", [("value.*", "other.*"), ("value.*",)])
def test_weights_that_the_model_declares_as_new(declared: tuple[str, ...], tmp_path: Path) -> None:
    """Declared ones keep the values that the model gave them; others are refused, and nothing is loaded."""
    path = write(tmp_path, random_model(TRANSFORMER), in_args(options_of(TRANSFORMER)))
    model = Headed.build_model(TRANSFORMER, Words(dictionary()))
    model.new_weights = declared
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    if len(declared) == 1:
        with pytest.raises(CheckpointError, match=r"missing: other\.bias, other\.weight$"):
            initialize(model, str(path), Words(dictionary()))
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
        return
    messages = initialize(model, str(path), Words(dictionary()))
    new = "value.weight, value.bias, other.weight, other.bias"
    assert messages[-1] == f"weights that the checkpoint does not have and the model initializes: {new}"
    wanted = {**before, **load_model(path).model.state_dict()}
    assert all(torch.equal(weight, wanted[name]) for name, weight in model.state_dict().items())
