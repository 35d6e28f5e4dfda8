"""Rules over texts: enumeration of tokenizations, the ordinary ensemble for equal vocabularies, and their features."""

import itertools
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import examples.papers.joint_texts  # noqa: F401  # registers rules
import seqgen.text.translator
from seqgen.addons.cross_vocabulary import CrossVocabulary
from seqgen.extend import Candidates, Critic, ModelInMemory, Observer, OwnMember
from seqgen.text.translator import Translator
from tests.addons.cross_vocabulary import reference
from tests.addons.cross_vocabulary.test_translator import members, tokenizers, toolkits  # noqa: F401  # fixtures
from tests.refusals import refusals
from tests.scripted_model import ScriptedModel, random_rule
from tests.text_models import Pieces, task_of, text_model

LINES_OF_LETTERS, END = ["a b", "ab a"], "\n"


def scripted(pieces: Sequence[str], seed: int) -> ModelInMemory:
    """A model that gives tokens without text the probability 0; ``|`` is a second end."""
    tokenizer = Pieces(pieces)
    rule = random_rule(len(tokenizer.dictionary), seed)
    silent = torch.tensor([0, 1, 3])
    model = ScriptedModel(lambda source, history: rule(source, history).index_fill(0, silent, -torch.inf))
    model.of_device = torch.nn.Parameter(torch.zeros(1))
    return ModelInMemory(task_of(tokenizer), model, generation={"end_symbols": ["|"] * ("|" in pieces)})


UNION: dict[str, Any] = {"combination": "union", "combination.k": 8}
EQUAL = [(["a", "bc", "bd", "e"], UNION, "probability"), ([" a", " bc", "bd", "e"], UNION, "probability")]
for each in (["a", "b", " ", "e"], ["a"]):
    EQUAL += [(each, {"combination": "bytes", "combination.mean": mean}, mean) for mean in ("probability", "log")]


@pytest.mark.parametrize(("pieces", "keys", "mean"), EQUAL)
def test_equal_vocabularies_give_the_ordinary_ensemble(
    pieces: list[str], keys: dict[str, Any], mean: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [scripted(pieces, seed) for seed in (1, 2)]
    further: dict[str, Any] = {"beam": 3, "nbest": 3, "max_len_b": 6, "min_len": 2, "combination.weights": [3.0, 1.0]}
    expected = Translator(models, combination=mean, **further).translate(["a b", "b"])
    monkeypatch.setattr(seqgen.text.translator, "cross_vocabulary", CrossVocabulary)
    got = Translator(models, **keys, **further).translate(["a b", "b"])
    pairs = [zip(one.hypotheses, other.hypotheses, strict=True) for one, other in zip(got, expected, strict=True)]
    for item, plain in itertools.chain(*pairs):
        assert (item.tokens.tolist(), item.score) == (plain.tokens.tolist(), pytest.approx(plain.score, abs=1e-6))
        torch.testing.assert_close(item.positional_scores, plain.positional_scores)


def readers_of(models: Sequence[ModelInMemory], line: str) -> list[tuple[reference.Scores, list[str]]]:
    """For each model its log-probabilities after given tokens, and the texts of its tokens."""
    sources = [tuple(model.task.encode_source(line).tolist()) for model in models]
    tables = [reference.texts_of(model.task.target_tokenizer) for model in models]
    texts = [[text.decode().replace("|", END) for text in table] for table in tables]
    rules = [model.model.decoder.rule for model in models]
    return list(zip(map(reference.log_probabilities, rules, sources), texts, strict=True))


@cache
def mass(scores: reference.Scores, texts: tuple[str, ...], text: str, tokens: tuple[int, ...] = ()) -> float:
    """The probability that an output continues with a text: the sum over all tokenizations."""
    each = [(token, own, math.exp(lprob)) for token, (own, lprob) in enumerate(zip(texts, scores(tokens), strict=True))]
    longer = sum(prob for _, own, prob in each if own.startswith(text))
    parts = [(token, own, prob) for token, own, prob in each if own and own != text and text.startswith(own)]
    return longer + sum(prob * mass(scores, texts, text[len(own) :], (*tokens, token)) for token, own, prob in parts)


VOCABULARIES = [
    [["a", "ab", "b"], ["b", "ba", "a", "aba", "|"]],
    [["a", "a", "aa"], ["a"]],  # tokens with equal text, and a vocabulary of one
    [["a", "b", "bab"], ["ab", "a", "b"], ["aab", "b", "a", "c"]],  # no other member has c
]


@pytest.mark.parametrize("vocabularies", VOCABULARIES)
def test_bytes_have_the_exact_marginals_of_all_tokenizations(vocabularies: list[list[str]]) -> None:
    models = [scripted(each, seed) for seed, each in enumerate(vocabularies)]
    weights = [0.5, 0.3, 0.2] if len(models) == 3 else [0.7, 0.3]
    keys: dict[str, Any] = {"beam": 16, "nbest": 8, "max_len_b": 3, "combination.weights": weights}
    translator = Translator(models, combination="bytes", **keys, **{"combination.covers": 32})
    letters = [letter for letter in "abc" if all(letter in each for each in vocabularies)]
    for line, one in zip(LINES_OF_LETTERS, translator.translate(LINES_OF_LETTERS), strict=True):
        readers, expected = readers_of(models, line), []
        for text in map("".join, itertools.chain(*(itertools.product(letters, repeat=n) for n in (1, 2, 3)))):
            score = 0.0
            for place, chosen in enumerate(text + END):
                means = dict.fromkeys((*letters, END), 0.0)
                for weight, (scores, texts) in zip(weights, readers, strict=True):
                    masses = {end: mass(scores, tuple(texts), text[:place] + end) for end in means}
                    for end, own in masses.items():
                        means[end] += weight * own / sum(masses.values())
                score += math.log(means[chosen])
            expected.append((text, pytest.approx(score / (len(text) + 1), abs=1e-6)))
        expected.sort(key=lambda pair: -pair[1].expected)
        assert [(item.text, item.score) for item in one.hypotheses] == expected[:8]


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("vocabularies", VOCABULARIES)
def test_the_union_is_that_of_the_paper(vocabularies: list[list[str]], k: int) -> None:
    """Greedy search, as the paper describes it, except that a member to which all texts are tokens appends them."""
    models = [scripted(each, 7 + seed) for seed, each in enumerate(vocabularies)]
    encoders = [model.task.target_tokenizer.encode for model in models]
    translator = Translator(models, combination="union", beam=1, max_len_b=6, min_len=0, **{"combination.k": k})
    for line, one in zip(LINES_OF_LETTERS, translator.translate(LINES_OF_LETTERS), strict=True):
        readers, text, score, steps = readers_of(models, line), "", 0.0, 0
        rows: list[tuple[tuple[int, ...], bool]] = [((), False)] * len(models)
        while not text.endswith(END):
            union, each = set[str](), list[dict[str, float]]()
            for (scores, texts), (tokens, _) in zip(readers, rows, strict=True):
                each.append(dict.fromkeys(filter(None, texts), 0.0))
                for own, lprob in zip(texts, scores(tokens), strict=True):
                    each[-1] |= {own: each[-1][own] + math.exp(lprob)} if own else {}
                union |= set(sorted(each[-1], key=lambda own: -each[-1][own])[:k])
            for encode, (_, texts), probs in zip(encoders, readers, each, strict=True):
                for new in union - probs.keys():  # its first token, if it can be divided
                    parts = [texts[token] for token in encode(new)]
                    probs[new] = probs[parts[0]] if "".join(parts) == new else 0.0
            union = {own for own in union if all(probs[own] for probs in each)}
            means = {own: sum(probs[own] / sum(map(probs.get, union)) for probs in each) / len(each) for own in union}
            best = END if steps == 6 else max(means, key=lambda own: means[own])
            text, score, steps = text + best, score + math.log(means[best]), steps + 1
            for number, ((_, texts), (tokens, anew)) in enumerate(zip(readers, rows, strict=True)):
                known = best in texts and not anew
                rows[number] = (*tokens, texts.index(best)) if known else tuple(encoders[number](text)), not known
        assert (one.hypotheses[0].text, one.hypotheses[0].score) == (text[:-1], pytest.approx(score / steps, abs=1e-6))


class Steps(Observer):
    def token_fields(self, candidates: Candidates, context: Any) -> dict[str, Tensor]:
        return {"step": torch.full_like(candidates.tokens, context.step)}


@pytest.mark.parametrize("rule", ["agreement", "union", "bytes"])
def test_prefixes_fields_and_processors(rule: str, members: list[Any]) -> None:  # noqa: F811
    prefixes, keys = (
        ["der Mann", "", "ein Fl"],
        {"observers": [Steps()], "no_repeat_ngram_size": 2, "stop_strings": ["HV"]},
    )
    further: dict[str, Any] = {} if rule == "agreement" else keys
    translator = Translator(members[:2], combination=rule, beam=3, max_len_b=24, **further)
    best = [one.hypotheses[0] for one in translator.translate(["ein Hund", "der", "März"], prefixes=prefixes)]
    assert [item.text.startswith(prefix) for item, prefix in zip(best, prefixes, strict=True)] == [True] * 3
    for steps, item in ((item.fields["step"].tolist(), item) for item in best if further):
        assert (len(steps), steps) == (len(item.tokens), sorted(steps))
    if further:
        plain = translator.translate(["ein Hund"], beam=1)[0].text
        (stopped,) = translator.translate(["ein Hund"], beam=1, stop_strings=[plain[3:5]])
        assert plain[3:5] in stopped.text
        assert plain.removeprefix(stopped.text) not in ("", plain)
        assert not any("cut off" in note for note in stopped.notes)
        (late,) = translator.translate(["ein Hund"], max_time=1e-9)
        assert "the output was cut off after generation.max_time=1e-09" in late.notes


def test_bytes_satisfy_constraints_and_note_a_limit_of_tokenizations(members: list[Any]) -> None:  # noqa: F811
    required = Translator(members[:2], combination="bytes", constraints="ordered", max_len_b=30, beam=3)
    assert re.search("und.*Vö", required.translate(["ein Hund\tund\tVö"])[0].text)
    few = Translator([scripted(["a", "aa"], 1), scripted(["a"], 2)], combination="bytes", **{"combination.covers": 1})
    list((decoding := few.prepare(max_len_b=5)).translate(["a"]))
    assert "more than combination.covers=1 tokenizations" in str(decoding.notes)


def decode(second: Sequence[str] = ("b",), **keys: Any) -> None:
    Translator([scripted(["a"], 1), scripted(second, 2)], **keys).translate(["a"])


test_what_texts_do_not_have = refusals(
    (lambda: decode(["a"], combination="bytes"), "combination=bytes is for members with different", "choose another"),
    (lambda: decode(combination="union", constraints="ordered"), "generation.constraints=ordered is not possible"),
    (lambda: decode(combination="union", search="contrastive"), "ContrastiveSearch, which has a decoding loop"),
    (lambda: decode(combination="union", processors=[Critic([OwnMember(text_model().model)], 2, 1.0)]), "OwnMember"),
    (lambda: decode(combination="agreement", observers=[Steps()]), "observers=Steps is not possible"),
)
