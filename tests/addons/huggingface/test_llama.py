"""What is particular to Llama and the models with its layers: tokenizers of prompts, and several ends."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from seqgen import Translator, load_model
from tests import huggingface_llama
from tests.commands import done
from tests.huggingface_bart import write_tokenizer
from tests.huggingface_families import assert_same_logits, write_folder
from tests.huggingface_original import make_original
from tests.huggingface_t5 import change_config, save
from tests.tokenizer_texts import HARD, TEXT

transformers = pytest.importorskip("transformers")

_SPLIT = Regex(r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_END, _BEGIN = "<|endoftext|>", "<|begin_of_text|>"


def _byte_level(normalizer: Any = None, digits: bool = False, bos: bool = False) -> Any:
    """A pipeline of Llama 3, or with a normalizer of Qwen, or with separate digits of SmolLM 2."""
    pipeline = Tokenizer(models.BPE(ignore_merges=bos))
    first = pre_tokenizers.Digits(individual_digits=True) if digits else pre_tokenizers.Split(_SPLIT, "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=digits)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
    pipeline.decoder = decoders.ByteLevel()
    if normalizer is not None:
        pipeline.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=[_END, _BEGIN], show_progress=False
    )
    pipeline.train_from_iterator(TEXT, trainer)
    pipeline.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    if bos:
        pipeline.post_processor = processors.TemplateProcessing(f"{_BEGIN}:0 $A:0", special_tokens=[(_BEGIN, 1)])
    return pipeline


def _pieces(gemma: bool = False) -> Any:
    """A pipeline of Llama 2 or Gemma: pieces of SentencePiece by merges, with bytes for other characters."""
    pipeline = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    pipeline.normalizer = steps[1] if gemma else normalizers.Sequence(steps)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>"] if gemma else ["<unk>", "<s>", "</s>"]
    first = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=first, show_progress=False)
    pipeline.train_from_iterator(TEXT, trainer)
    content = json.loads(pipeline.to_str())
    content["added_tokens"] = content["added_tokens"][: len(special)]
    pipeline = Tokenizer.from_str(json.dumps(content))
    last = [decoders.ByteFallback(), decoders.Fuse(), *[decoders.Strip(" ", 1, 0)] * (not gemma)]
    pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), *last])
    if gemma:
        pipeline.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return pipeline


TOKENIZERS: dict[str, Any] = {
    "llama 2": lambda: transformers.LlamaTokenizerFast(tokenizer_object=_pieces()),
    "llama 2 without bos": lambda: transformers.LlamaTokenizerFast(tokenizer_object=_pieces(), add_bos_token=False),
    "llama 3": lambda: transformers.PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(bos=True), bos_token=_BEGIN, eos_token=_END
    ),
    "mistral": lambda: transformers.PreTrainedTokenizerFast(
        tokenizer_object=_pieces(), eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=True
    ),
    "qwen 2": lambda: transformers.Qwen2TokenizerFast(
        tokenizer_object=_byte_level(normalizers.NFC()), eos_token="<|im_end|>", additional_special_tokens=[_BEGIN]
    ),
    "smollm 2": lambda: transformers.GPT2TokenizerFast(
        tokenizer_object=_byte_level(digits=True), bos_token=_BEGIN, eos_token="<|im_end|>", pad_token="<|im_end|>"
    ),
    "gemma": lambda: transformers.GemmaTokenizerFast(
        tokenizer_object=_pieces(gemma=True), extra_special_tokens={"eot_token": "<end_of_turn>"}
    ),
}
TEXTS = [
    *HARD,
    *(
        f"a{_END}b {_END} <|im_end|>",
        "<s>a</s>",
        "a <bos><end_of_turn> b<eos>",
        "12345 1,000.00 don't",
        "ελληνικά 👩‍👩‍👧",
        "<0x41>",
        "\r\n \n",
    ),
]


def llama_folder(folder: Path, kind: str = "llama 2", variant: str = "llama", **changes: Any) -> Path:
    """A small model and one of the tokenizers, with several ends."""
    tokenizer = TOKENIZERS[kind]()
    original = huggingface_llama.tiny_model(variant, vocab_size=len(tokenizer) + 3, **changes)
    save(original, folder, {"eos_token_id": [0, 2, 9], "bos_token_id": 1})
    tokenizer.save_pretrained(folder)
    return folder


def gemma3_folder(folder: Path, **of_text: Any) -> Path:
    """A small Gemma 3 with a vision tower."""
    text = {**huggingface_llama.SHAPE, **huggingface_llama.VARIANTS["gemma3_text"], **of_text}
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    values = {
        "text_config": text,
        "vision_config": {**small, "image_size": 8, "patch_size": 4},
        "mm_tokens_per_image": 4,
    }
    original = make_original("CausalLM", {"model_type": "gemma3", **values}, 0, attn_implementation="eager")
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    save(original, folder)
    write_tokenizer(folder, huggingface_llama.VOCAB, 0, 2)
    return folder


@pytest.mark.parametrize("names", ["of version 4", "of version 5", "of version 5, untied"])
def test_the_language_model_of_a_gemma_3(names: str, tmp_path: Path) -> None:
    """Without its vision tower, which a note says, by the names that two versions have for its weights."""
    folder = gemma3_folder(tmp_path / "theirs", tie_word_embeddings="untied" not in names)
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    if names != "of version 4":
        prefixes = {"language_model.model.": "model.language_model.", "language_model.lm_head": "lm_head"}
        for old, new in prefixes.items():
            weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    safetensors.torch.save_file(weights, path, {"format": "pt"})
    loaded = load_model(folder)
    original = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert [note.endswith("for images are not read, since seqgen reads text only") for note in loaded.notes] == [True]
    assert_same_logits(loaded.model, original)


def test_rotary_positions_of_version_5(tmp_path: Path) -> None:
    """They are under one key, for each type of layers in a Gemma 3."""
    original = huggingface_llama.tiny_model("gemma3_text", sliding_window_pattern=2)
    keys = ("rope_theta", "rope_scaling", "rope_local_base_freq")
    theta, scaling, local = (getattr(original.config, key) for key in keys)
    full = {"rope_type": "default", "rope_theta": theta, **scaling}
    by_type = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": local}}
    folder = write_folder(tmp_path / "theirs", original)
    change_config(folder, **dict.fromkeys(keys, "absent"), rope_parameters=by_type)
    assert_same_logits(load_model(folder).model, original)


# --- losses

PAIRS = [("the dog", " sees a boat"), ("no", "no"), ("a big dog runs", " 12 don't")]
FOLDERS = {"llama 2": "llama", "llama 3": "llama_3", "mistral": "mistral", "qwen 2": "qwen3_sliding"}


def lprobs(folder: Path, prompt: str, text: str) -> list[float]:
    """Those that the original gives to the tokens of a text and end-of-sentence after a prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    before = tokenizer(prompt).input_ids or [tokenizer.eos_token_id]
    after = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    with torch.no_grad():
        found = model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1].log_softmax(-1)
    return found[range(len(after)), after].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", FOLDERS)
def test_scores_are_the_originals(kind: str, tmp_path: Path) -> None:
    """Of continuations, and of text, whose first token follows begin-of-sentence, or else end-of-sentence."""
    folder = llama_folder(tmp_path / "theirs", kind, FOLDERS[kind])
    translator = Translator(load_model(folder))
    texts = [text for _, text in PAIRS]
    for prompts, scored in (
        ([prompt for prompt, _ in PAIRS], translator.score([prompt for prompt, _ in PAIRS], texts)),
        ([""] * len(PAIRS), translator.score_text(texts)),
    ):
        for prompt, text, found in zip(prompts, texts, scored, strict=True):
            assert found.positional_scores.tolist() == pytest.approx(lprobs(folder, prompt, text), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
def test_fine_tuning_begins_at_the_originals_loss(kind: str, tmp_path: Path) -> None:
    """On text, and on pairs, where it is that of the targets; the run then reads prompts as the original does."""
    folder = llama_folder(tmp_path / "theirs", kind, FOLDERS[kind])
    for language, number in (("en", 0), ("de", 1)):
        (tmp_path / f"text.{language}").write_text("".join(f"{pair[number].strip()}\n" for pair in PAIRS))
    tasks = {
        "language_modeling": (".de", "sample_break_mode=eos"),
        "translation": ("", "source_lang=en", "target_lang=de"),
    }
    few = ("optimization.max_update=1", "common.threads=1", "common.log_format=lines", "criterion=cross_entropy")
    for task, (suffix, *keys) in tasks.items():
        keys += [f"{split}={tmp_path}/text{suffix}" for split in ("train", "valid")]
        keys = [f"task={task}", *(f"task.{key}" for key in keys)]
        run = tmp_path / task
        trained = done("train", f"checkpoint.finetune_from={folder}", f"run_dir={run}", *keys, *few)
        wanted = [
            one
            for prompt, text in PAIRS
            for one in lprobs(folder, prompt if task == "translation" else "", text.strip())
        ]
        loss = f"{-sum(wanted) / len(wanted):.3f}"
        assert f"valid at update 0 | epoch 0 | loss {loss} |" in trained.err
        ids = [load_model(path).task.encode_source("the dog").tolist() for path in (folder, run)]
        if "llama" in kind or task == "translation":  # other lines of text begin with end-of-sentence
            assert ids[0] == ids[1]
