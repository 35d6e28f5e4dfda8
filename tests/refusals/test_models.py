"""Models: sizes that cannot be built, damaged and unknown folders and checkpoints, and what of them is unsupported."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.extend import ReadingConfig, load_model
from seqgen.text.translator import Translator
from tests import fairseq_checkpoints as fairseq, huggingface_bart, huggingface_gpt2, huggingface_t5
from tests.addons.huggingface.test_llama import gemma3_folder, llama_folder
from tests.fairseq_checkpoints import FCONV, LANGUAGE_MODEL, TRANSFORMER, as_fairseq, dictionary, options_of
from tests.hostile import copy_of
from tests.huggingface_families import write_folder
from tests.huggingface_t5 import change_config
from tests.language_models import language_model
from tests.model_zoo import _NARROW, build, registered
from tests.refusals import Row, refusals
from tests.text_models import text_model

Weights = dict[str, torch.Tensor]
IDS = ReadingConfig(tokenizer="ids")

# --- sizes of a configuration


def model(name: str, *words: str, joint: bool = False, **changes: Any) -> Row:
    """A model with some values changed, for vocabularies of 23 tokens, which are one if ``joint``."""
    return registered(name, joint=joint, **changes), *words


test_configurations = refusals(
    model("fconv", "model.decoder_layers: layer 0 is (512, 3, 2)", decoder_layers="[(512, 3, 2)]"),
    model("fconv", "decoder_attention: at least one decoder layer must attend", decoder_attention="False"),
    model("fconv", "must be equal, because attention adds them, but they are 256 and 512", encoder_embed_dim=256),
    model("fconv", "but they are 256 and 512", encoder_embed_dim=256, share_input_output_embed=True),
    model("transformer", "needs one vocabulary for source and target", share_all_embeddings=True),
    model("transformer", "to be the same", joint=True, share_all_embeddings=True, decoder_embed_dim=256),
    model("transformer", "decoder_start_token_id=23 is outside the vocabulary of 23", decoder_start_token_id=23),
    model("t5_tiny", "model=t5 has one embedding for source and target"),
    model("t5_tiny", "vocab_size=22 is too small for a vocabulary of 23 tokens", joint=True, vocab_size=22),
    model("t5_tiny", "decoder_start_token_id=23 is outside", joint=True, decoder_start_token_id=23),
    model("llama_tiny", "must be above 0 and below", rope_original_positions=9, rope_low_freq_factor=4.0),
    model("llama_tiny", "layer_types must have 2 entries", layer_types=["full_attention"]),
    model("t5", "num_buckets=9 must be even", joint=True, relative_attention_num_buckets=9),
    model("t5", "less than twice", "max_distance=16", joint=True, relative_attention_max_distance=16),
)


# --- folders in Hugging Face's layout

Folders = Callable[[str], Path]


def sharded(path: Path, **saving: Any) -> Path:
    """A T5 with weights in several files."""
    huggingface_t5.save(huggingface_t5.tiny_model("t5"), path, max_shard_size="30KB", **saving)
    huggingface_t5.tiny_tokenizer().save_pretrained(path)
    return path


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "t5": lambda path: huggingface_t5.tiny_folder(path, "t5"),
    "t5 shards": sharded,
    "t5 bin": lambda path: sharded(path, safe_serialization=False),
    "t5 of 30": lambda path: huggingface_t5.tiny_folder(path, "t5", vocab_size=30),
    "t5 of ids": lambda path: huggingface_t5.tiny_folder(path, "t5", tokenizer=False),
    "t5 of words": lambda path: write_folder(path, huggingface_t5.tiny_model("t5")),
    "marian": lambda path: huggingface_bart.tiny_folder(path, "marian"),
    "gpt2": huggingface_gpt2.tiny_folder,
    "llama": llama_folder,
    "qwen2": lambda path: llama_folder(path, "qwen 2", "qwen2", num_hidden_layers=2),
    "gemma2": lambda path: llama_folder(path, "gemma", "gemma2"),
    "gemma3": gemma3_folder,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Folders of small models by their names above, each made once."""
    return functools.cache(lambda name: FOLDERS[name](tmp_path_factory.mktemp("folders") / "model"))


def folder(name: str, damage: Callable[[Path], Any], *words: str) -> Row:
    """A folder that something was done to."""

    def load(folders: Folders, tmp_path: Path) -> None:
        path = copy_of(folders(name), tmp_path / "folder")
        damage(path)
        load_model(path)

    return load, *words


def config(name: str, *words: str, file: str = "config.json", **values: Any) -> Row:
    """A folder with other values in a file."""
    return folder(name, lambda path: change_config(path, file, **values), *words)


def weights(name: str, changes: Callable[[Weights], Weights], *words: str) -> Row:
    """A folder with other weights."""

    def damage(path: Path) -> None:
        file = path / "model.safetensors"
        changed = {key: tensor.clone() for key, tensor in changes(safetensors.torch.load_file(file)).items()}
        safetensors.torch.save_file(changed, file, {"format": "pt"})

    return folder(name, damage, *words)


def truncate(path: Path) -> None:
    shard = sorted(path.glob("*-00002-of-*"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])


def add_begin(path: Path) -> None:
    (path / "tokenizer.json").unlink()
    change_config(path, "tokenizer_config.json", add_bos_token=True, bos_token="!")


def write_merges(*lines: bytes) -> Callable[[Path], None]:
    """Of a tokenizer in the two files of old folders."""

    def write_file(path: Path) -> None:
        (path / "tokenizer.json").unlink()
        (path / "merges.txt").write_bytes(b"\n".join([b"#version: 0.2", *lines, b""]))

    return write_file


TOKENIZER, ANY = "tokenizer_config.json", "PreTrainedTokenizerFast"
LARGE = 10**400
LOCAL = {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}
NO_MATCH = "the weights do not match its config.json, which describes"
NORM, EMBEDDING = "decoder.final_layer_norm.weight", "encoder.embed_tokens.weight"

generation = functools.partial(config, "t5", file="generation_config.json")

test_folders = refusals(
    # files
    folder("t5", lambda path: (path / "model.safetensors").unlink(), "there is no model.safetensors and no pytorch_mo"),
    folder("t5", lambda path: (path / "model.safetensors").rename(path / "tf_model.h5"), "is of another framework"),
    folder("t5 shards", lambda path: sorted(path.glob("model-*"))[0].unlink(), "1 of ", " files with weights are miss"),
    folder("t5 shards", truncate, "-00002-of-", "truncated"),
    folder("t5 bin", truncate, "-00002-of-", "damaged"),
    # the architecture
    folder("t5", lambda path: (path / "config.json").write_text("{"), "config.json: cannot be read as JSON"),
    config("t5", "model_type='' is an architecture which seqgen", model_type="absent", architectures=[]),
    config("t5", "model_type is ['t5'], not a text", model_type=["t5"]),
    config("t5", "model_type='led' (LED) is an", "the model types t5, mt5", model_type="led", architectures=["LED"]),
    config("marian", "is_decoder=True is not supported for a marian", is_decoder=True),
    config("marian", "activation_function='quick_gelu' is not supp", "only gelu or ", activation_function="quick_gelu"),
    config("gpt2", "add_cross_attention=True is not supported for a GPT-2", add_cross_attention=True),
    config("llama", "'rope_type': 'yarn'} is not supported", rope_scaling={"factor": 4.0, "rope_type": "yarn"}),
    config("llama", "rope_factor", rope_scaling={"rope_type": "linear", "factor": 0.0}),
    config("llama", "original_max_position_embeddings is 0", rope_scaling={"rope_type": "llama3", "factor": 8.0}),
    config("llama", "partial_rotary_factor=0.5 is not supported", partial_rotary_factor=0.5),
    config("llama", "quantization_config={'bits': 4} is not supp", quantization_config={"bits": 4}),
    config("llama", "num_attention_heads=3 is not a multiple of 2", num_attention_heads=3),
    config("llama", "head_dim=5; rotary positions need an even number", head_dim=5),
    config("qwen2", "layer_types must have 2 entries, each slid", layer_types=["full_attention", "chunked_attention"]),
    config("qwen2", "types with use_sliding_window", layer_types=["full_attention", "sliding_attention"]),
    config("qwen2", "no_rope_layers=[1, 0] is not supported for a qwen2", no_rope_layers=[1, 0]),
    config("qwen2", "no_rope_layers must have 2 entries, each 0 or 1", model_type="smollm3", no_rope_layers=[1, 2]),
    config("qwen2", "no_rope_layers is [1, True], not a list of whole", model_type="smollm3", no_rope_layers=[1, True]),
    config("gemma2", "final_logit_softcapping is 0.0, not a number above 0", final_logit_softcapping=0),
    config("gemma2", "for which sliding_window must be set", sliding_window=None),
    config("gemma2", "sliding_window_pattern=3 is not supported, only 2", sliding_window_pattern=3),
    config("gemma2", "use_bidirectional_attention=True is not", use_bidirectional_attention=True),
    config("gemma2", "is {'factor': 2.0}, not keys and", model_type="gemma3_text", rope_parameters={"factor": 2.0}),
    config("gemma2", "only the keys of rope_type default are", model_type="gemma3_text", rope_parameters=LOCAL),
    config("gemma2", "query_pre_attn_scalar is 0, not a whole", "least 1", query_pre_attn_scalar=0),
    config("gemma3", "text_config is [1], not keys and values", text_config=[1]),
    # the tokenizer
    config("llama", "add_eos_token=true, or", "adds end-of-sentence after a text", file=TOKENIZER, add_eos_token=True),
    config("gemma2", "add_eos_token=true is not supported", file=TOKENIZER, add_eos_token=True),
    config("llama", "add_prefix_space=false is not supported", file=TOKENIZER, add_prefix_space=False),
    config("t5 of words", "PreTrainedTokenizer, is read for language models only", file=TOKENIZER, tokenizer_class=ANY),
    folder("t5 of 30", lambda path: None, "has 38 ids but the model's vocabulary only 30"),
    folder("t5", lambda path: (path / "spiece.model").unlink(), "spiece.model"),
    folder("gpt2", add_begin, "adds tokens other than end-of-sentence to each text"),
    folder("gpt2", write_merges(b"a"), "each line after the first must have two parts"),
    folder("gpt2", write_merges(b"\xff \xfe"), "is not UTF-8"),
    folder("gpt2", lambda path: [(path / name).unlink() for name in ("tokenizer.json", "merges.txt")], "no merges.txt"),
    # weights
    weights("t5", lambda w: w | {"encoder.extra": torch.zeros(1)}, "unknown to the model: encoder.extra"),
    weights("t5", lambda w: dict(list(w.items())[1:]), "missing: decoder.block.0.layer.0.SelfAttention.k.weight"),
    weights("t5", lambda w: w | {NORM: torch.ones(3)}, f"of another shape: {NORM} ((3,), expected (24,))"),
    weights("t5", lambda w: w | {"lm_head.weight": torch.zeros(1)}, "lm_head.weight ((1,), expected (40, 24))"),
    weights("t5", lambda w: w | {EMBEDDING: w["shared.weight"] + 1}, "to which they should be tied: " + EMBEDDING),
    weights("marian", lambda w: w | {f"model.{EMBEDDING}": w["model.shared.weight"] + 1}, f"tied: model.{EMBEDDING}"),
    # sizes that the weights do not have: refused before anything of that size is made
    config("t5", NO_MATCH, num_layers=10**9),
    config("t5 bin", NO_MATCH, num_layers=10**9),
    config("t5", NO_MATCH, d_model=10**9),
    config("t5", NO_MATCH, relative_attention_num_buckets=10**6, relative_attention_max_distance=10**6),
    config("t5", "is above its maximum, 1048576", relative_attention_max_distance=10**9),
    config("t5", "a whole number of at most 2147483647", vocab_size=10**18),
    config("t5", "layer_norm_epsilon is nan, not a number", layer_norm_epsilon=float("nan")),
    config("marian", "the hidden size 12 is not a multiple of the 5 attention heads", encoder_attention_heads=5),
    config("marian", "would need 191 GiB for buffers, more than 4 GiB", max_position_embeddings=2**31 - 1),
    config("marian", "pad_token_id=2147483647 is outside the vocabulary of 33 tokens", pad_token_id=2**31 - 1),
    # how to decode
    generation("num_beams is 10000", num_beams=10**18),
    generation("a number of 401 digits", sequence_bias=[[[5], LARGE]]),
    generation("penalty starts after 2147483647", exponential_decay_length_penalty=[10**30, 1.1]),
    # writing
    (lambda tmp_path: save_pretrained(build("t5_tiny"), tmp_path), "already exists"),
    (lambda tmp_path: save_pretrained(build("fconv_tiny"), tmp_path / "x"), "a FConvModel cannot be written in Hug"),
    (lambda tmp_path: save_pretrained(build("transformer_lm_tiny"), tmp_path / "x"), "a TransformerLanguageModel cann"),
    (lambda tmp_path: save_pretrained(registered("transformer", joint=True, **_NARROW)(), tmp_path / "x"), "is marian"),
)


# --- folders without a tokenizer, decoded by ids


def ids(use: Callable[[Translator], Any], *words: str) -> Row:
    """A use of a T5 whose tokens are ids."""

    def call(folders: Folders) -> None:
        use(Translator(load_model(folders("t5 of ids"), reading=IDS)))

    return call, *words


def without_padding(folders: Folders, tmp_path: Path) -> None:
    path = copy_of(folders("t5 of ids"), tmp_path / "folder")
    change_config(path, pad_token_id=None)
    load_model(path, reading=IDS)


NO_IDS = ("x", "40", "-1", "1.0", "9" * 5000)
test_ids = refusals(
    *(ids(lambda own, word=word: own.translate([f"4 {word} 5"]), "the id of a token, from 0 to 39") for word in NO_IDS),
    ids(lambda own: own.translate(["4 1"], bad_words=["ids:40"]), "must have ids from 0 to 39"),
    ids(lambda own: list(own.score(["4 1"], ["4 1 5"])), "id 1 of end-of-sentence"),
    (without_padding, "pad_token_id"),
)


# --- checkpoints of fairseq


def checkpoint(base: Any, *words: str, **changes: Any) -> Row:
    """A checkpoint of a small model whose options say something else."""

    def load(tmp_path: Path) -> None:
        described = fairseq.in_args({**options_of(base), **changes})
        load_model(fairseq.write(tmp_path, fairseq.random_model(base), described))

    return load, *words


def saved(content: Any, *words: str) -> Row:
    """A file with some content."""

    def load(tmp_path: Path) -> None:
        path = tmp_path / "model.pt"
        path.write_text(content) if isinstance(content, str) else torch.save(content, path)
        load_model(path)

    return load, *words


def extra_weight(tmp_path: Path) -> None:
    small, described = fairseq.random_model(TRANSFORMER), fairseq.in_args(options_of(TRANSFORMER))
    further = {**fairseq.fairseq_weights(small), "decoder.extra": torch.zeros(2)}
    load_model(fairseq.write(tmp_path, small, described, further))


def cut(part: float, zipped: bool) -> Row:
    """A checkpoint of which only the first part is there."""

    def load(tmp_path: Path) -> None:
        described = fairseq.in_omegaconf(options_of(FCONV))
        path = fairseq.write(tmp_path, fairseq.random_model(FCONV), described, zipped=zipped)
        content = path.read_bytes()
        path.write_bytes(content[: int(part) if part > 1 else int(len(content) * part)])
        load_model(path)

    return load, "model.pt", "damaged"


NO_SIZE = "a model of these sizes cannot be built"

test_fairseq = refusals(
    # files
    saved("not a model", "damaged"),
    saved({"a": torch.zeros(2)}, "not a fairseq checkpoint"),
    saved({"model": {}, "args": None}, "its architecture is unknown"),
    *(cut(part, zipped) for part in (0, 1.5, 20, 300, 2000, 0.5, 0.99, 0.9999) for zipped in (True, False)),
    # options
    checkpoint(FCONV, "'lstm'", "fconv_iwslt_de_en", arch="lstm"),
    checkpoint(TRANSFORMER, "'multilingual_translation'", "reading.ignore=[task]", task="multilingual_translation"),
    checkpoint(TRANSFORMER, "adaptive_softmax_cutoff=[100, 200]", adaptive_softmax_cutoff=[100, 200]),
    checkpoint(TRANSFORMER, "activation_fn=relu_squared", activation_fn="relu_squared"),
    checkpoint(TRANSFORMER, "relative_attention", "reading.ignore=[relative_attention]", relative_attention=True),
    checkpoint(TRANSFORMER, "encoder_layers='six'", encoder_layers="six"),
    checkpoint(LANGUAGE_MODEL, "adaptive_softmax_cutoff='10,20', which seqgen", adaptive_softmax_cutoff="10,20"),
    checkpoint(LANGUAGE_MODEL, "add_bos_token=True", add_bos_token=True),
    checkpoint(LANGUAGE_MODEL, "the task 'translation'; only 'language_modeling' is", task="translation"),
    # weights that do not fit the options
    (extra_weight, "decoder.extra"),
    checkpoint(TRANSFORMER, "encoder.layers.2", encoder_layers=3),
    checkpoint(TRANSFORMER, "two different tensors", share_decoder_input_output_embed=True),
    checkpoint(TRANSFORMER, NO_SIZE, max_source_positions=10**18),
    checkpoint(TRANSFORMER, "does not fit into 64 bits", dropout=LARGE),
    checkpoint(TRANSFORMER, "the model has more weights than the checkpoint", encoder_layers=10**9),
    checkpoint(TRANSFORMER, "the model would need 29 GiB for buffers, more than 4", max_source_positions=10**9),
    checkpoint(FCONV, "more than 1000 layers", encoder_layers="[(8, 3)] * 10000000000"),
    checkpoint(FCONV, NO_SIZE, encoder_layers="[(1000000000000000000000, 3)]"),
    checkpoint(FCONV, "embed_positions.weight ((40, 8), here (1000000000, 8))", max_source_positions=10**9),
)


# --- checkpoints of fairseq in the structure of BART and of M2M-100


def pretrained(kind: str, *words: str, reading: ReadingConfig | None = None, **changes: Any) -> Row:
    """A checkpoint as fairseq saves such a model, with other options."""
    return lambda tmp_path: load_model(as_fairseq(tmp_path, kind, **changes)[1], reading=reading), *words


def unlisted(tmp_path: Path, lang_dict: str | None = None, words: int = 25, **changes: Any) -> None:
    """A multilingual checkpoint whose file of words lacks the tokens of languages."""
    path = as_fairseq(tmp_path, "m2m_100", **changes)[1]
    dictionary(words).save(tmp_path / "model_dict.128k.txt")
    load_model(path, reading=ReadingConfig(lang_dict=lang_dict))


def other_languages(tmp_path: Path) -> None:
    (tmp_path / "langs.txt").write_text("fr de")
    unlisted(tmp_path, words=7)


test_fairseq_pretrained = refusals(
    pretrained("bart", "was trained for the task 'denoising'", task="denoising"),
    pretrained("mbart", "for the task 'translation_from_pretrained_bart'", task="translation_from_pretrained_bart"),
    pretrained("m2m_100", "lang_tok_replacing_bos_eos", lang_tok_replacing_bos_eos=True),
    pretrained("m2m_100", "encoder_langtok=src and decoder_langtok=False", langtoks=None, decoder_langtok=False),
    pretrained("m2m_100", "lang_tok_style=new; seqgen supports: multilingual, mbart", lang_tok_style="new"),
    (lambda tmp_path: unlisted(tmp_path, lang_pairs=[]), "does not list its languages; set reading.lang_dict=FILE"),
    (lambda tmp_path: unlisted(tmp_path, "nowhere", lang_pairs=[]), "cannot read the languages in nowhere"),
    pretrained("m2m_100", "not a multilingual check", reading=ReadingConfig(lang_dict="langs"), task="translation"),
    (other_languages, "and those of languages it has 13 tokens, but the encoder was trained with 29"),
)


# --- text of language models


def text(*words: str, **keys: Any) -> Row:
    """A text that is scored with some keys by a model of 24 positions."""
    return lambda: list(Translator(language_model()).score_text(["w1 w5 w8"], **keys)), *words


def score_long_lines() -> None:
    list(Translator(language_model(max_target_positions=10)).score(["", "w1 w2 w3"], ["w1", "w1 " * 7]))


test_language_models = refusals(
    text("more than the 24 positions", tokens_per_sample=25),
    text("no token of a block is scored", tokens_per_sample=8, context_window=8),
    text("no token of a block is scored", context_window=8),
    text("beam has no effect", tokens_per_sample=8, beam=2),
    (lambda: list(Translator([language_model(), text_model()]).score_text(["w1"])), "language models only"),
    (score_long_lines, "reference, line 2: 8 tokens are more than the 7"),
)
