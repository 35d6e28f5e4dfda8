"""What a translation's notes say: whatever cut an output off, or had no effect."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.contrastive_decoding import ContrastiveDecoding
from seqgen.decoding.stopping import TimeLimit
from seqgen.extend import Combination, DecodingConfig, DecodingTask, LogitsProcessor, Sampling
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.text_models import TEXTS, WORDS, text_model

SEMANTICS = pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"search": "greedy"},
    "beam": {"beam": 3},
    "sampling": {"beam": 3, "sampling": True},
    "beam_sampling": {"beam": 3, "search": "beam_sampling"},
    "diverse_beam": {"beam": 4, "search": "diverse_beam", "search.groups": 2},
    "diverse_siblings": {"beam": 3, "search": "diverse_siblings", "search.rate": 0.5},
    "contrastive": {"search": "contrastive"},
    "marian": {"beam": 3, "search": "marian"},
    "prompt_lookup": {"beam": 1, "prompt_lookup": 2},
}


@SEMANTICS
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_strategy_says_what_cuts_off(name: str, semantics: str) -> None:
    """The time, and the longest length."""
    long: dict[str, Any] = {"min_len": 5} if semantics == "fairseq" else {"suppress": ["</s>"]}
    translator = Translator(text_model(), **STRATEGIES[name], semantics=semantics, max_len_b=5, **long)
    for line in translator.translate(TEXTS):
        size = len(line.hypotheses[0].tokens)
        assert line.notes == [f"the output has the maximum length of {size} tokens and may be cut off"]
        assert size == 6 - (name == "marian" and semantics == "fairseq")
    for line in translator.translate(TEXTS, max_time=1e-9, min_len=0, suppress=["</s>"]):
        best = line.hypotheses[0]
        assert (len(best.tokens), best.timed_out, best.forced_end) == (1, True, True)
        assert line.notes == ["the output was cut off after generation.max_time=1e-09"]


@SEMANTICS
@pytest.mark.parametrize("lazy", [True, False])
def test_outputs_that_the_time_does_not_cut_off_are_those_without_a_limit(semantics: str, lazy: bool) -> None:
    model, numbers = text_model(), itertools.count()
    texts = TEXTS * 5
    batch = model.task.collate([(i, model.task.encode_source(t), None) for i, t in enumerate(texts)], model.model)
    further: dict[str, Any] = {"search_strategy": Sampling(), "semantics": semantics, "max_len_b": 30}
    ways = [
        make_generator([model.model], model.task.target_dictionary, **further, stopping=stopping, lazy_compaction=at)
        for stopping, at in (([], True), ([TimeLimit(4.5, clock=lambda: float(next(numbers)))], lazy))
    ]
    free, limited = (generator.generate(batch) for generator in ways)
    seen = set()
    for (whole,), (cut,) in zip(free, limited, strict=True):
        assert not whole.timed_out
        seen.add(cut.timed_out)
        assert cut.timed_out == (len(whole.tokens) >= 5), "the limit ends the fifth step"
        assert torch.equal(cut.tokens, whole.tokens[:5])
        assert cut.forced_end == (not torch.equal(cut.tokens, whole.tokens) or whole.forced_end)
    assert seen == {False, True}, "the test has both"


@SEMANTICS
def test_a_search_that_the_time_ends_after_its_first_output(semantics: str) -> None:
    translator = Translator(text_model(), beam=WORDS, semantics=semantics, min_len=0, max_len_b=20)
    others = [f"w{i}" for i in range(WORDS - 1)]
    for bias, said in ((-9.0, "is the best one after generation.max_time=1e-09"), (9.0, "was cut off after")):
        further: dict[str, Any] = {"bad_words": others, "sequence_bias": [f"w18={bias}"], "max_time": 1e-9}
        for translation in translator.translate(TEXTS, suppress=["<s>", "<unk>", "<pad>"], **further):
            assert (int(translation.hypotheses[0].tokens[-1]) == 2) == (bias < 0)
            assert translation.notes[0].startswith(f"the output {said}")


@SEMANTICS
def test_outputs_of_the_longest_length(semantics: str, tmp_path: Path) -> None:
    translator = Translator(text_model(), beam=2, semantics=semantics, max_len_b=3, min_len=3, bad_words=["w1"])
    said = "the output has the maximum length of 4 tokens and may be cut off"
    assert [translation.notes for translation in translator.translate(TEXTS)] == [[said]] * len(TEXTS)
    if semantics == "huggingface":
        assert [line.notes for line in translator.translate(TEXTS, forced_last="</s>")] == [[said]] * len(TEXTS)
    (tmp_path / "trie").write_text("w1 w2\n")
    short = Translator(text_model(), beam=1, semantics=semantics).translate(["w1"], allowed_outputs=f"{tmp_path}/trie")
    assert (short[0].text, short[0].notes) == ("w1 w2", [])
    same = translator.translate(TEXTS, min_len=1, match_source_len=True, max_len_b=200)
    assert [translation.notes for translation in same] == [[]] * len(TEXTS), "that length was asked for"
    short = translator.translate(TEXTS[:1], min_len=1, match_source_len=True, max_len_b=200, max_len=2)
    assert "maximum length of 2 tokens" in short[0].notes[0]


@pytest.mark.parametrize("split", ["", "sentences"])
def test_an_empty_translation_is_noted(split: str) -> None:
    model, said = text_model(), "the output is empty, which generation.min_len or length_penalty can prevent"
    model.task.translates = True
    settings: dict[str, Any] = {"input_split": split, "input_split_lang": "en"} if split else {}
    settings |= {"beam": 2, "min_len": 0, "suppress": ["<s>", "<unk>", "<pad>"]}
    settings["sequence_bias"] = [f"w{i}=-50" for i in range(WORDS - 1)]
    found = Translator(model, **settings).translate(["w1", "", "w1 w3 w5"])
    assert [line.notes for line in found] == [[said], ["the line is empty, and so is its output"], [said]]
    if split != "sentences":
        (best,) = Translator(model, **settings).translate(["w1"], nbest=2, max_len_b=1)
        assert (best.text, best.notes[1:]) == ("", [said])
        assert best.notes[0].startswith("hypothesis 2 has the maximum length")


@SEMANTICS
@pytest.mark.parametrize("further", [{"max_len": 1}, {"max_len": 3}], ids=str)
def test_an_empty_translation_is_noted_at_every_length(semantics: str, further: dict[str, Any]) -> None:
    """Without the token ``<unk>``, only end-of-sentence and tokens without text are left."""
    model = text_model()
    model.task.translates = True
    words = [word for word in model.task.target_dictionary if word not in ("</s>", "<pad>", "<s>")]
    for never in ([], ["</s>"]):
        settings: dict[str, Any] = {"beam": 1, "min_len": 0, "max_len_b": 2, "semantics": semantics, **further}
        (found,) = Translator(model).translate(["w1"], suppress=[*words, *never], **settings)
        assert found.text == ""
        assert len(found.notes) == 1
        assert "empty" in found.notes[0]


def test_a_translation_that_is_much_shorter_than_its_source(tmp_path: Path) -> None:
    model, texts = text_model(), ["w1 " * 39, "w1 " * 38, "w1 w2"]  # end-of-sentence counts
    assert not model.task.translates, "a summary is short"
    tokenizers = model.task.source_tokenizer, text_model().task.source_tokenizer
    assert DecodingTask(DecodingConfig(), *tokenizers).translates, "Marian's"
    assert DecodingTask(DecodingConfig(translates=True), tokenizers[0], tokenizers[0]).translates
    for words, translates, noted in ((12, False, 0), (12, True, 1), (13, True, 0)):
        (tmp_path / "trie").write_text("w1 " * words + "\n")
        model.task.translates = translates
        found = Translator(model, beam=1, allowed_outputs=f"{tmp_path}/trie").translate(texts)
        assert ["13 tokens for 40 of the source" in "".join(line.notes) for line in found] == [noted == 1, False, False]
        assert sum(len(line.notes) for line in found) == noted


def test_an_output_that_ends_where_the_user_says_is_not_cut_off() -> None:
    translator = Translator(text_model(), beam=1, suppress=["</s>"], max_len_b=9, semantics="huggingface")
    (free,) = translator.translate(TEXTS[:1])
    word = free.text.split()[2]
    assert free.notes
    assert translator.translate(TEXTS[:1], stop_strings=[word])[0].notes == []
    assert translator.translate(TEXTS[:1], end_symbols=[word])[0].notes == []


@pytest.mark.parametrize("how", [{"max_len_b": 1}, {"max_time": 1e-9}, {"stop_strings": ["w1"]}], ids=str)
def test_the_beginning_of_an_allowed_output(tmp_path: Path, how: dict[str, Any]) -> None:
    trie = tmp_path / "trie"
    trie.write_text("w1 w1 w3 w4\n")
    settings: dict[str, Any] = {"max_len_b": 9, "semantics": "huggingface", "allowed_outputs": str(trie)}
    (whole,) = Translator(text_model(), **settings).translate(["w1"])
    assert (whole.text, whole.notes) == ("w1 w1 w3 w4", [])
    (cut,) = Translator(text_model(), **{**settings, **how}).translate(["w1"])
    assert "w1 w1 w3 w4".startswith(cut.text)
    assert "only the beginning of a line of generation.allowed_outputs" in cut.notes[0]


def test_what_constraints_could_not_do() -> None:
    """There are none, so that a tab is text; the line is empty; or the time was too short."""
    (found,) = Translator(text_model(), beam=1, max_len_b=60).translate(["w1\tw2"])
    assert "the text after a tab is part of the source" in found.notes[0]
    translator = Translator(text_model(), max_len_b=20, constraints="ordered")
    lines, prefixes = ["", "\tw1", "", " \tw2", "w1\tw2"], ["", "", "w1", "w2", ""]
    notes = [line.notes for line in translator.translate(lines, prefixes=prefixes)]
    empty = "the line is empty, and so is its output"
    assert notes[:4] == [
        [empty],
        [f"{empty}; its phrases had no effect"],
        [f"{empty}; its prefix had no effect"],
        [f"{empty}; its prefix and phrases had no effect"],
    ]
    assert not any("tab" in note for note in notes[4])
    (found,) = translator.translate(["w1\tw2 w3 w4"], max_time=1e-9, beam=3)
    assert found.text == ""
    assert "and generation.max_time has all phrases" in found.notes[0]


def test_the_buffer_of_a_translator_is_the_one_asked_for() -> None:
    read = []

    def lines() -> Iterator[str]:
        for text in TEXTS:
            read.append(text)
            yield text

    for size, expected in ((1, 1), (2, 2), (0, len(TEXTS))):
        read.clear()
        next(Translator(text_model(), buffer_size=size, max_len_b=3).prepare().translate(lines()))
        assert len(read) == expected


def test_a_longest_length_beyond_the_model_is_said() -> None:
    translator = Translator(text_model(), max_len=5000)
    longest = translator.models[0].max_positions()[1]
    assert translator.prepare().notes == [
        f"generation.max_len=5000 is more than the {longest} tokens that can be generated"
    ]
    assert "generation.max_len_b=6000 is more" in translator.prepare(max_len_b=6000).notes[1]
    assert translator.prepare(max_len=longest).notes == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"fast.continuous_batching": False}, ""),
        ({"bit_exact": True}, ""),
        ({"sampling": True}, ""),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNgram does not support it"),
        ({"replace_unknown": "source"}, "a component or the output needs attention"),
        ({"search": "contrastive", "beam": 1}, "ContrastiveSearch has a decoding loop of its own"),
        ({"prefixes": ["w3"] * 5}, "their prefix tokens cannot be merged"),
        ({"constraints": "ordered"}, "ConstrainedSearch does not support it"),
    ],
    ids=str,
)
def test_why_lines_do_not_join_a_running_batch_is_noted_once(settings: dict[str, Any], reason: str) -> None:
    lines = ["w1 w2", "w3", "w4 w5 w6", "w7 w8", "w9"]
    expected = [f"continuous batching is not used, so decoding is slower: {reason}"] if reason else []
    translator, of_lines = Translator(text_model(), beam=2, max_len_b=5), list[list[list[str]]]()
    options = dict(settings)
    prefixes = options.pop("prefixes", None)
    for size, wanted in ((2, expected), (5, [])):
        decoding = translator.prepare(**{"batch_size": size, **options})
        before = list(decoding.notes)
        of_lines.append([one.notes for _ in range(2) for one in decoding.translate(lines, prefixes)])
        assert decoding.notes == before + wanted
    assert of_lines[0] == of_lines[1]  # whatever the batch size


class Vote(Combination):
    """The first member's scores of the tokens among the best eight of each member, and of forced tokens."""

    def __init__(self, sees_forced: bool):
        self.sees_forced = sees_forced

    def __call__(self, lprobs: Sequence[Tensor], context: Any) -> Tensor:
        least = [scores.topk(8).values[..., -1:] for scores in lprobs]
        allowed = torch.stack([scores >= bound for scores, bound in zip(lprobs, least, strict=True)]).all(0)
        if self.sees_forced and context.forced is not None:
            allowed |= torch.arange(allowed.size(1)) == context.forced.unsqueeze(1)
        return lprobs[0].masked_fill(~allowed, -torch.inf)


class Nothing(LogitsProcessor):
    """Forbids all tokens from the second step on."""

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs if context.step == 0 else lprobs.fill_(-torch.inf)


@SEMANTICS
@pytest.mark.parametrize("name", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("hard", [Vote(True), ContrastiveDecoding(0.5)], ids=lambda one: type(one).__name__)
def test_a_combination_sees_forced_tokens_and_a_note_names_what_forbids_all_outputs(
    name: str, semantics: str, hard: Combination
) -> None:
    """Those of prefixes of different lengths, the first one, and the end at the maximum length."""
    models, prefixes = [text_model(seed=seed) for seed in (1, 2)], ["w9 w4 w4", "", "w7", "w0 w0", "w3 w2 w6"]
    keys = {**STRATEGIES[name], "semantics": semantics, "max_len_b": 3, "max_len_a": 0, "forced_first": "w5"}
    translator = Translator(models, **keys)
    if isinstance(hard, ContrastiveDecoding) and semantics == "fairseq":
        pytest.skip("it excludes the end that is forced")
    seeing = translator.translate(TEXTS, prefixes=prefixes, combination=hard)
    for line, prefix in zip(seeing, prefixes, strict=True):
        assert line.hypotheses[0].text.startswith(prefix or "w5")
        assert torch.isfinite(line.hypotheses[0].positional_scores).all()
    blind = translator.translate(TEXTS, prefixes=prefixes, combination=Vote(False))
    notes = [note for line in blind if not line.hypotheses for note in line.notes]
    assert set(notes) == {"every output was forbidden by Vote, so the output is empty"}
    for line in translator.translate(TEXTS, combination=hard, processors=[Nothing()]):
        assert line.notes == ["every output was forbidden by Nothing, so the output is empty"]
