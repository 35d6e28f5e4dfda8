"""Small random language models decode as in transformers 4, and as version 5 recorded (``tests/transformers5.py``).

And their tokenizers with any options give hostile texts the ids of transformers, or are refused.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from torch import Tensor

from seqgen.decoding.search import sampling
from seqgen.extend import UserError, load_model, load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.text.translator import Translator
from tests.addons.huggingface.test_configs import FIELDS, LLAMAS, draw, original_of, outcomes, refused, sizes
from tests.addons.huggingface.test_llama import TEXTS, TOKENIZERS
from tests.huggingface_bart import write_tokenizer
from tests.huggingface_decoding import assert_same, pairs
from tests.huggingface_families import write_folder
from tests.tokenizer_texts import random_ids
from tests.transformers5 import decoded

transformers = pytest.importorskip("transformers")

RECORDED = Path(__file__).parents[2] / "recorded" / "transformers5_language_models"
PROMPTS = [[5, 9, 7, 11, 16], [3], [8, 8, 12, 4, 6, 10, 7]]
WARPERS: list[dict[str, Any]] = [
    *({"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7, "temperature": 1.4}, {"min_p": 0.15}, {"typical_p": 0.6}),
    *({"epsilon_cutoff": 0.04}, {"eta_cutoff": 0.1}, {"top_k": 9, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8}),
]


def write_random(kind: str, seed: int, folder: Path) -> Any:
    """Write a folder with random values of its own keys; returns the original, ``None`` if it cannot be made."""
    rng, own = random.Random(f"{kind} {seed}"), FIELDS[kind]
    drawn = {key: draw(own[key], rng) for key in rng.sample(sorted(own), rng.randint(1, 6))}
    fixed = {"max_position_embeddings": 64, "vocab_size": 18, "attention_dropout": 0.0}
    original = original_of({"model_type": kind, **sizes(kind, rng), **drawn, **fixed}, seed)
    if original is not None:
        with torch.no_grad():
            original.model.norm.weight.mul_(-0.5)
        write_folder(folder, original, {"max_new_tokens": 8})
    return original


def assert_decoded(folder: Path, wanted: list[dict[str, Any]], warpers: dict[str, Any]) -> None:
    """Compare logits, greedy search, a beam of 4 with its scores, and the distributions that tokens are drawn from."""
    loaded = load_model(folder, dtype=torch.float32)
    texts = [" ".join(f"w{token}" for token in one["prompt"]) for one in wanted]
    for beam in (1, 4):
        for one, found in zip(wanted, Translator(loaded, beam=beam, nbest=beam).translate(texts), strict=True):
            theirs = [(tuple(tokens), score) for tokens, score in one[f"beam {beam}"]]
            assert_same(pairs(found.hypotheses), theirs, 1e-4)
    seen: list[Tensor] = []

    def follow(lprobs: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(lprobs[0].log_softmax(-1))
        return torch.tensor([[one["drawn"][len(seen) - 1]]]), lprobs.logsumexp(1, keepdim=True)

    for one, text in zip(wanted, texts, strict=True):
        first, *rest = one["prompt"]
        with torch.no_grad():
            ours = loaded.model(torch.tensor([[first]]), torch.tensor([1]), torch.tensor([[0, *rest]])).logits[0]
        torch.testing.assert_close(ours, torch.tensor(one["logits"]), rtol=1e-4, atol=1e-4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "draw", follow)
            Translator(loaded, sampling=True, **warpers).translate([text])
        torch.testing.assert_close(torch.stack(seen), torch.tensor(one["distributions"]), rtol=1e-4, atol=1e-4)
        seen.clear()


def outcome(kind: str, seed: int, folder: Path) -> str:
    """Compare one random model: ``same``, ``refused``, or ``impossible`` if it has infinite logits."""
    original, warpers = write_random(kind, seed, folder), WARPERS[seed % len(WARPERS)]
    if original is None or not all(original(torch.tensor([one])).logits.isfinite().all() for one in PROMPTS):
        return "impossible"
    try:
        load_model(folder)
    except UserError as error:
        return refused(str(error), FIELDS[kind], f"{kind}, seed {seed}")
    assert_decoded(folder, decoded(original, PROMPTS, warpers), warpers)
    return "same"


@pytest.mark.parametrize("kind", LLAMAS)
@pytest.mark.parametrize(
    "count", [pytest.param(2, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.nightly)]
)
def test_random_models_decode_as_the_originals(kind: str, count: int, tmp_path: Path) -> None:
    assert outcomes(outcome, kind, count, tmp_path).count("same") >= count // 2


FOLDERS: dict[str, Any] = json.loads((RECORDED / "decodes.json").read_text())


@pytest.mark.parametrize("name", FOLDERS)
def test_recorded_models_decode_as_in_version_5(name: str, tmp_path: Path) -> None:
    shutil.copytree(RECORDED / name, tmp_path / name)
    write_tokenizer(tmp_path / name, 18, 2, 2)
    assert_decoded(tmp_path / name, FOLDERS[name]["decoded"], FOLDERS[name]["warpers"])


# --- tokenizers

OPTIONS = ("add_prefix_space", "clean_up_tokenization_spaces", "add_bos_token", "add_eos_token", "split_special_tokens")
HOSTILE = [*TEXTS, "a <x> b<x>c<x>", " <x>  two dog", "a dogs dog", "<new> <new>x<new>", "<new>,<x> two", "a <_>b"]


def random_tokenizer(kind: str, seed: int) -> tuple[Any, dict[str, bool]]:
    """One of the tokenizers, unless the seed is 0 with random options and added tokens; and the options."""

    def added(text: str) -> AddedToken:
        flags = {flag: rng.random() < 0.5 for flag in ("lstrip", "rstrip", "single_word", "normalized")}
        return AddedToken(text, **flags)

    made = TOKENIZERS[kind]()
    if not seed:
        return made, {}
    rng = random.Random(f"{kind} {seed}")
    options = {key: rng.random() < 0.5 for key in rng.sample(OPTIONS, rng.randint(0, 3))}
    special = {**made.special_tokens_map, "additional_special_tokens": [added("<x>"), "<_>"]}
    made = type(made)(tokenizer_object=made.backend_tokenizer, **special, **options)
    made.add_tokens([added(text) for text in ("dog", " two", "<new>")])
    return made, options


def outcome_of_tokenizer(kind: str, seed: int, folder: Path) -> str:
    """Compare one tokenizer: ``same``, ``refused``, or ``impossible`` if transformers cannot make it."""
    try:
        made, options = random_tokenizer(kind, seed)
        made.save_pretrained(folder)
        original = transformers.AutoTokenizer.from_pretrained(folder)
    except (TypeError, ValueError):  # it would convert a SentencePiece model
        return "impossible"
    try:
        ours = load_pretrained_tokenizer(folder)
    except UserError as error:
        return refused(str(error), options, f"{kind}, seed {seed}: {options}")
    encoded, around, words = original(HOSTILE).input_ids, ours.source_tokens(), ours.dictionary
    assert words.eos() == original.eos_token_id
    assert words.pad() == (words.eos() if original.pad_token_id is None else original.pad_token_id)
    for text, ids in zip(HOSTILE, encoded, strict=True):
        assert [*around.before, *ours.encode(text), *(around.after if kind == "gemma" else [])] == ids, repr(text)
    for ids in encoded + random_ids(len(original)):
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == original.decode(ids, skip_special_tokens=skip), ids
    save_pretrained_tokenizer(ours, folder / "again")
    assert transformers.AutoTokenizer.from_pretrained(folder / "again")(HOSTILE).input_ids == encoded
    return "same"


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_tokenizers_with_random_options(kind: str, count: int, tmp_path: Path) -> None:
    assert outcomes(outcome_of_tokenizer, kind, count, tmp_path).count("same") >= count // 3
