"""What is refused of training: settings, text, weights and checkpoints that do not fit, models that are not there."""

import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from examples.extending import training_observer  # noqa: F401  # registered
from examples.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig
from examples.papers import group_dro, lora, sharpness_aware  # noqa: F401  # registered
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask
from seqgen.checkpoints.model_weights import load_weights
from seqgen.checkpoints.run_checkpoints import Checkpoints, read_weights, resolve
from seqgen.checkpoints.serialization import write_checksums
from seqgen.cli.train import with_checkpoint
from seqgen.config import GenerationConfig, TrainConfig
from seqgen.config.compose import compose
from seqgen.extend import Dictionary, Task, TrainingObserver, WhitespaceTokenizer, local_path
from seqgen.registry import OPTIMIZERS, register_optimizer, register_training_observer
from seqgen.tasks.multilingual_translation import MultilingualTranslationConfig, MultilingualTranslationTask
from seqgen.tasks.translation import TranslationConfig, TranslationTask
from seqgen.training.averaging import average
from seqgen.training.distributed import ProcessGroup
from tests.commands import NOUNS
from tests.pretrained_folders import write_folder
from tests.refusals import LANGUAGE_MODEL, TRANSLATION, Row, refusals
from tests.training.test_schedules import schedule
from tests.training_runs import Lab


@pytest.fixture(autouse=True)
def nothing_half_made_is_left(tmp_path: Path) -> Iterator[None]:
    """A start that is refused leaves neither a tokenizer nor a checkpoint."""
    yield
    assert not [*tmp_path.glob("run/*tokenizer*"), *tmp_path.glob("run/checkpoints/*")]


# -- settings -----------------------------------------------------------------------------------------------------


@register_optimizer("flattening")
class Flattening(torch.optim.SGD):
    @classmethod
    def build(cls, cfg: Any, groups: Any) -> Any:
        return cls([param for group in groups for param in group["params"][:1]])


LBFGS = {"build": classmethod(lambda cls, _, groups: cls(groups))}
register_optimizer("closing")(type("Closing", (torch.optim.LBFGS,), LBFGS))
register_optimizer("nothing")(type("Nothing", (), {"build": classmethod(lambda *_: None)}))


@register_training_observer("unsaved")
class Unsaved(TrainingObserver):
    state = ("held",)
    held = {1}


def optimizer(name: str, key: str, value: Any) -> None:
    cfg = OPTIMIZERS.config(name)
    assert hasattr(cfg, key)
    setattr(cfg, key, value)
    OPTIMIZERS.of(cfg).component.build(cfg, [])


def trained_with(*keys: str) -> Callable[[Lab], None]:
    return lambda lab: lab.trainer(*keys) and None


def run_to_end(*keys: str) -> Callable[[Lab], None]:
    return lambda lab: lab.run("ended", *keys).run() and None


def begun_with(begin: Callable[[Any], None]) -> Callable[[Lab], None]:
    def begun(lab: Lab) -> None:
        with mock.patch.object(Unsaved, "begin", lambda _, run: begin(run)):
            run_to_end("training.observers=[unsaved]")(lab)

    return begun


def run_with(*keys: str) -> Callable[[Lab], None]:
    return lambda lab: lab.run("metric", *keys) and None


WORDS = WhitespaceTokenizer(Dictionary())


def deciding(**keys: Any) -> None:
    """A criterion that decodes, with keys of decoding."""
    MinimumRisk(MinimumRiskConfig(decode=GenerationConfig(**keys)), Task(None, WORDS, WORDS))


def composed(*keys: str) -> Callable[[], TrainConfig]:
    return lambda: compose(TrainConfig, keys)


RISK = "criterion=minimum_risk"
ENCODER, EMBEDDING = (f"optimization.groups={{{name}:{{lr_scale:0.1}}}}" for name in ("encoder.*", "*embed_tokens.*"))
METRIC = "checkpoint.best_checkpoint_metric"

test_settings = refusals(
    *((lambda name=name: schedule(name), "the length of training") for name in ("polynomial", "cosine")),
    (lambda: schedule("fixed", ()), "optimization.lr is empty"),
    (lambda: optimizer("adam", "adam_betas", [0.9]), "optimizer.adam_betas"),
    (lambda: optimizer("adam", "adam_betas", [0.9, 1.0]), "optimizer.adam_betas"),
    (lambda: optimizer("adafactor", "warmup_init", True), "optimizer.warmup_init needs optimizer.relative_step=true"),
    (lambda: optimizer("adafactor", "adafactor_eps", [1.0]), "optimizer.adafactor_eps", "two numbers"),
    (trained_with("common.bf16=true", "common.fp16=true"), "cannot both be true"),
    (lambda lab: lab.trainer("optimization.out_of_memory=skip", group=ProcessGroup(0, 2)), "skip is for one process"),
    (trained_with("optimization.freeze=[encodr.*]"), "there is no parameter 'encodr.*'", "did you mean 'encoder.*'?"),
    (trained_with("optimization.freeze=['*']"), "optimization.freeze=[*] leaves no parameter to train"),
    (trained_with("optimization.freeze=[encoder.*:soon]"), "'soon' after encoder.*: must be a number of updates"),
    (trained_with("optimization.freeze=[encoder.*:0]"), "'0' after encoder.*: must be a number of updates"),
    (trained_with("optimization.freeze=[encoder.*,*layers.0.*:5,*encoder.layers.0.*:5]"), "encoder.layers.0.*:5"),
    (trained_with("optimization.freeze=[encoder.*]", ENCODER), "optimization.freeze freezes all parameters 'encoder.*"),
    (trained_with("model=lora model.base=transformer_tiny", EMBEDDING), "the model itself freezes all parameters '*em"),
    *((begun_with(lambda run, lr=lr: setattr(run, "lr", lr)), f"run.lr = {lr}: must be a") for lr in (math.nan, -1)),
    (begun_with(lambda run: run.stop("")), "Unsaved.begin: run.stop(''): must be given the reason"),
    (begun_with(lambda run: run.freeze(["encoder.*"])), "Unsaved.begin: ['encoder.*'] must be a name of parameters"),
    (trained_with("optimization.groups={encodr.*:{lr_scale:0.1}}"), "optimization.groups: there is no parameter"),
    (trained_with("optimization.groups={encoder.*:{lr:0.1}}"), "must have values such as {lr_scale:0.1"),
    (trained_with("optimization.groups={encoder.*:{lr_scale:-1}}"), "must have values such as {lr_scale:0.1"),
    (trained_with("optimization.freeze=[encoder.*:1,encoder.*]"), "encoder.* is given twice"),
    (trained_with("optimization.groups={*:{lr_scale:1},encoder.*:{lr_scale:0}}"), "only parameters of patterns before"),
    (trained_with("optimizer=flattening"), "optimizer=flattening (Flattening, ", "py:", ") must keep the groups"),
    (trained_with("optimizer=closing"), "(Closing, ", "): step without a closure", "set needs_closure = True in it"),
    (trained_with("optimizer=closing", ENCODER), "(Closing, ", "): build(cfg, groups) fails: LBFGS doesn't support"),
    (trained_with("optimizer=nothing"), "Nothing.build (", "must return a Optimizer but returns None"),
    (run_to_end("training.observers=[unsaved]"), "training observer unsaved: its state: TypeError: held: a set cannot"),
    (run_to_end("training.observers=[group_dro]"), "training.observers=[group_dro] needs task=group_dro"),
    (run_to_end("optimization.freeze=[*:2]"), "all parameters are frozen in update 1"),
    (trained_with("optimizer=sam", "common.fp16=true"), "optimizer=sam (SAM, ", "needs several gradients"),
    (run_with("training.observers=[nobody]"), "there is no training observer 'nobody'"),
    (run_with("training.observers=[unfreezing,unfreezing]"), "training.observers: 'unfreezing' is given twice"),
    (composed("training_observer.unfreezing.patience=2"), "training.observers does not name its training observer"),
    (run_with(f"{METRIC}=bleu"), "set dataset.validate_decode"),
    (run_with(f"{METRIC}=speed"), "not among the validation scores: loss, nll_loss, ppl, accuracy;"),
    (run_with(f"{METRIC}=speed", "dataset.validate_decode=1"), "not among", "loss, nll_loss, ppl, accuracy, ", "bleu"),
    # decoding of a criterion
    (lambda: deciding(nbest=2), "criterion.decode.nbest has no effect"),
    (composed(RISK, "criterion.decode.bean=3"), "'criterion.decode.bean'", "criterion.decode.beam"),
    (composed(RISK, "criterion.decode.search=diverse_beam", "criterion.decode.search.group=2"), "key 'search.group'"),
)

# -- text ---------------------------------------------------------------------------------------------------------

LANGUAGES = {"source_lang": "en", "target_lang": "de"}


def translation(**changes: Any) -> Callable[[Path, Path], Any]:
    """Start translation on the corpus with some keys changed."""

    def start(data: Path, tmp_path: Path) -> TranslationTask:
        files = {"train": f"{data}/train", "valid": f"{data}/val", "test": f"{data}/test"}
        settings = {**LANGUAGES, "vocab_size": 44, "workers": 1, **files, **changes}
        return TranslationTask.setup_task(TranslationConfig(**settings), tmp_path / "run")

    return start


def table(name: str, content: bytes, *words: str, **columns: Any) -> Row:
    """Start translation on a table."""

    def start(tmp_path: Path) -> None:
        (tmp_path / name).write_bytes(content)
        files = {"train": f"{tmp_path}/{name}", "valid": f"{tmp_path}/{name}"}
        cfg = TranslationConfig(**{**LANGUAGES, **files, "vocab_size": 20, **columns})
        TranslationTask.setup_task(cfg, tmp_path / "run")

    return start, *words


def multilingual(**changes: Any) -> Callable[[Path, Path], MultilingualTranslationTask]:
    def start(data: Path, tmp_path: Path) -> MultilingualTranslationTask:
        files = {"train": f"{data}/train", "valid": f"{data}/val", "test": f"{data}/test"}
        settings = {"pairs": ["en-de", "de-en"], **files, "tokenizer": "whitespace", "workers": 1, **changes}
        return MultilingualTranslationTask.setup_task(MultilingualTranslationConfig(**settings), tmp_path / "set-up")

    return start


def pretrained(name: str, **changes: Any) -> Callable[[Path, Path], Any]:
    """A multilingual task with a pretrained tokenizer."""

    def start(data: Path, tmp_path: Path) -> Any:
        config = {"additional_special_tokens": None} if name == "NllbTokenizer" else {}
        folder = write_folder(tmp_path / "pretrained", name, config)
        keys = {"tokenizer": "pretrained", "pretrained_tokenizer": str(folder), **changes}
        return multilingual(**keys)(data, tmp_path)

    return start


CLAUSES = "".join(f"the {one} sees the {two}\taba\n" for one in NOUNS for two in NOUNS).encode()
"""Text that has fewer different characters on one side."""

test_text = refusals(
    (translation(source_lang=""), "task.source_lang is missing"),
    (translation(target_lang="en"), "must differ"),
    (translation(train=""), "task.train is missing; set task.train=PREFIX of the files PREFIX.en and PREFIX.de"),
    (translation(spm_model="no.model"), "there is no SentencePiece model no.model"),
    (translation(tgtdict="no.txt"), "task.tgtdict needs separate vocabularies"),
    (translation(vocab_size=5000), "set task.vocab_size to at most "),
    table("a.tsv", CLAUSES, "too small for a vocabulary of 24", joined_dictionary=False, vocab_size=24),
    (translation(columns={"x": "id"}), "task.train=", "there is neither", "train.x nor", "for task.columns"),
    table(
        "pairs.txt", b"a\tb\n", "pairs.txt is a single file", "a table (.tsv, .jsonl, .parquet or .tmx, but not .csv)"
    ),
    (f"{TRANSLATION} run_dir={{data}}", "is the folder of the text train.en"),
    # tables
    table("a.tsv", b"", "a.tsv is empty"),
    table("a.tsv", b"en\tde\n", "a.tsv has no rows"),
    table("a.tsv", b"line\n", "a.tsv, line 1 has no column '2'; the columns are '1'; set task.target_column"),
    table("a.tsv", b"en\tger\na\tb\n", "a.tsv, line 1 has no column 'de'; the columns are 'en, ger'"),
    table("a.tsv", b"en\tde\n", "a.tsv, line 1 has no column 'English'", source_column="English"),
    table("a.tsv", b"a\tb\n", "task.source_column and task.target_column are both '2'", source_column="2"),
    table("a.tsv", b"en\tde\na\tb\nc\n", "a.tsv, line 3: the line has 1 columns instead of 2"),
    table("a.tsv", b"en\tde\na\tb\nc\t\xff\n", "a.tsv, line 3: byte 3 (0xff) is not valid UTF-8"),
    table("a.tsv", b"en\ten\tde\na\tb\tc\n", "a.tsv: two columns have the same name"),
    table("a.tsv.gz", b"not compressed", "a.tsv.gz is damaged after line 0"),
    table("a.jsonl", b"", "a.jsonl is empty"),
    table("a.jsonl", b"text\n", "a.jsonl, line 1: the line is not JSON"),
    table("a.jsonl", b'{"en": "a"}\n', "a.jsonl, line 1 has no column 'de'; the columns are 'en'"),
    table("a.jsonl", b'{"en": "a", "de": "b"}\n{"en": "a"}\n', "a.jsonl, line 2: there is no field 'de'"),
    table("a.jsonl", b'{"en": "a", "de": null}\n', "a.jsonl, line 1: the field 'de' is not text"),
    table("a.jsonl", b'{"en": "a", "de": "b"}\n', "no column 'x'", "set task.columns to one", columns={"x": "id"}),
    # several languages
    (multilingual(pairs=[]), "task.pairs is missing; set it to the pairs of languages"),
    (multilingual(pairs=["en-de", "en-de"]), "names a pair twice"),
    (multilingual(pairs=["en-en"]), "'en-en' is not of the form SOURCE-TARGET"),
    (multilingual(languages=["de"]), "'de' is not of the form ENDING=CODE"),
    (multilingual(languages=["dee=x"]), "no pair has the file name ending 'dee' (did you mean 'de'?)"),
    (multilingual(joined_dictionary=False), "one vocabulary for all text"),
    (composed("task=multilingual_translation", "task.language_token=both"), "both must be one of: source, target, or"),
    (lambda data, tmp_path: multilingual()(data, tmp_path).source_lines("test"), "gen_source=PAIR: en-de, de-en"),
    (lambda data, tmp_path: multilingual()(data, tmp_path).part("en-dee"), "no pair 'en-dee' (did you mean 'en-de'?)"),
    (pretrained("NllbTokenizer", language_token="source"), "task.language_token=source differs from what the model"),
    (pretrained("MarianTokenizer", pairs=["en-de"], languages=["de=deu"]), "other pieces for targets", "deu cannot be"),
    # language models
    (f"{LANGUAGE_MODEL} dataset.validate_decode=3", "no source lines to decode"),
    (f"{LANGUAGE_MODEL} task.joined_dictionary=false", "one vocabulary"),
    (f"{LANGUAGE_MODEL} task.valid=[]", "task.valid is missing"),
    (f"{LANGUAGE_MODEL} task.train=[none.de]", "none.de"),
)

# -- weights and checkpoints --------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run with the checkpoint ``last`` of a small module."""
    Checkpoints(tmp_path / "saved").save(["last"], Net().state_dict(), {"update": 1})
    return tmp_path / "saved"


class Net(nn.Module):
    def __init__(self, vocab: int = 10, width: int = 4, positions: int = 8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.embed_positions = nn.Embedding(positions, width)
        self.out = nn.Linear(width, 3)


def unchanged(other: nn.Module) -> Callable[[Path], None]:
    """Load weights into a module that must stay as it is."""

    def load(saved: Path) -> None:
        before = {name: value.clone() for name, value in other.state_dict().items()}
        try:
            load_weights(other, resolve(saved))
        finally:
            torch.testing.assert_close(dict(other.state_dict()), before, rtol=0, atol=0)

    return load


def bomb(name: str, read: Callable[[Path, Path], Any]) -> Callable[[Path, Path], None]:
    """Read a file that runs code if it is unpickled."""

    def call(saved: Path, tmp_path: Path) -> None:
        path, exploded = tmp_path / name, tmp_path / "exploded"
        code = type("Bomb", (), {"__reduce__": lambda _: (Path.touch, (exploded,))})()
        torch.save(code, path) if name.endswith(".pt") else path.write_bytes(pickle.dumps(code))
        try:
            read(saved, path)
        finally:
            assert not exploded.exists()

    return call


def inside(saved: Path, path: Path) -> None:
    """Under a harmless name, and with a correct checksum."""
    checkpoint = saved / "checkpoints" / "last"
    path.rename(checkpoint / "model.safetensors")
    write_checksums(checkpoint)
    read_weights(checkpoint)


def average_of_others(saved: Path) -> None:
    Checkpoints(saved.parent).save(["last"], {"w": torch.ones(2)}, None)
    average([resolve(saved), saved.parent / "checkpoints/last"])


CODE = "can contain code and is never loaded"

test_checkpoints = refusals(
    (lambda tmp_path: resolve(tmp_path / "nowhere"), "nowhere: there is no such file or folder"),
    (lambda tmp_path: resolve(str(tmp_path)), "neither a run folder nor a checkpoint"),
    (lambda saved: resolve(saved.parent), "contains runs; give one of them, such as ", "saved"),
    (lambda saved: resolve(saved / "checkpoints"), "has the checkpoints of a run; give the run, ", "or one of: "),
    (lambda saved: resolve(f"[{saved},b]"), "give one model without brackets, such as "),
    (lambda saved: resolve(saved / "checkpoints/last/training_state.json"), "not a checkpoint"),
    (lambda saved: (saved / "checkpoints/last").rename(saved / "checkpoints/update_5") and resolve(saved), "update_5"),
    (lambda saved: (saved / "checkpoints/last/SHA256SUMS").unlink() or read_weights(resolve(saved)), "copied whole"),
    *((bomb(name, lambda _, path: resolve(path)), CODE) for name in ("model.pt", "best.pkl", "weights")),
    (bomb("model.pt", lambda _, path: resolve(path.parent)), "contains runs"),
    *((bomb(name, inside), "not a readable safetensors file") for name in ("model.pt", "model.bin")),
    (unchanged(Net(vocab=12)), "the vocabulary does not fit: the checkpoint was trained with 10 tokens", " has 12"),
    (unchanged(Net(positions=9)), "of another shape: embed_positions.weight ((8, 4), here (9, 4))"),
    (unchanged(nn.Sequential(nn.Linear(4, 3))), "missing: 0.bias, 0.weight; unknown to the model: embed.weight"),
    (lambda: DecodingTask(DecodingConfig(), WORDS, WORDS).source_lines("test"), "no data splits", "set input=FILE"),
    # averages
    (average_of_others, "differ in names or shapes", ": embed.weight, "),
    (
        "convert format=average path=[{runs}/transformer,{runs}/fconv] output={tmp_path}/run",
        "is fconv, but transformer",
    ),
    ("convert format=average path=[{runs}/fconv,{runs}/none] output={tmp_path}/run", "/none", "no such"),
    ("convert format=average path=[{runs}/fconv,{runs}/fconv] output={runs}/transformer", "transformer already exists"),
    # fine-tuning
    (lambda: with_checkpoint(["checkpoint.finetune_from=nowhere"]), "finetune_from: nowhere: there is no such file or"),
    (f"{TRANSLATION} checkpoint.finetune_from={{runs}}/fconv model=transformer_tiny", "weights of a model=fconv"),
    # the hub
    (lambda: local_path("hf:"), "hf: is not the name of a repository; write hf:ORGANIZATION/NAME"),
    (lambda: local_path("hf:a b"), "hf:a b is not the name of a repository"),
    (lambda: local_path("hf:a/b@"), "hf:a/b@ names no revision after the @"),
    (lambda: local_path("firefox:../en-pt"), "is not a pair of languages; write firefox:FROM-TO, such as"),
)
