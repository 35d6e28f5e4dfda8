"""Rewriters: hypotheses that the search did not find, which are ranked with the others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from seqgen.addons.rewriting.stage import Rewriter
from seqgen.text.results import DecodedLine
from seqgen.text.translator import Translator
from seqgen.text.word_streaming import TextStreamer
from tests.refusals import Row, refusals
from tests.text_models import TEXTS, text_model

MODEL = text_model()
SETTINGS = {"beam": 6, "nbest": 6, "max_len_b": 8, "suppress": ["<s>", "<unk>"]}


class Function(Rewriter):
    """Returns what a function returns for each line."""

    def __init__(self, function: Any):
        self.function, self.groups = function, list[int]()

    def __call__(self, lines: Sequence[DecodedLine]) -> Any:
        self.groups.append(len(lines))
        return [self.function(line, hypotheses) for line, hypotheses in lines]


def outputs(found: Sequence[Any]) -> list[Any]:
    return [
        (t.notes, t.extras, [(h.text, h.tokens.tolist(), h.positional_scores.tolist(), h.score) for h in t.hypotheses])
        for t in found
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"mbr": "chrf", "quality_features": ["mean_lprob", "nbest_entropy"]},
        {"batch_size": 2, "fast.continuous_batching": False, "replace_unknown": "source"},
        {"search": "diverse_beam", "length_penalty": 0.3},
        {"sampling": True, "seed": 3, "top_k": 4},
        {"constraints": "unordered"},
        {"input_split": "sentences", "input_split_lang": "en", "nbest": 1},
    ],
    ids=str,
)
def test_nothing_new_changes_nothing(settings: dict[str, Any]) -> None:
    keys, translator = {**SETTINGS, **settings}, Translator([MODEL, text_model(seed=1)])
    further = [f"{text}\tw4" if "constraints" in settings else f"{text}. W2 w3." for text in TEXTS]
    lines = [*TEXTS, "", *further]
    plain = outputs(translator.translate(lines, **keys))
    same = [
        Function(lambda line, found: []),
        Function(lambda line, found: list(found)),
        Function(lambda line, found: [item.text for item in found]),
    ]
    for rewriters in ([same[0]], same[::-1]):
        assert outputs(translator.translate(lines, rewriters=rewriters, **keys)) == plain


def scored_alone(source: str, text: str, penalty: float) -> float:
    (one,) = Translator(MODEL).score([source], [text], normalize_scores=False)
    return one.score / len(one.tokens) ** penalty


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_new_texts_are_scored_and_ranked_as_the_others(batch_size: int) -> None:
    """Whatever the batches; the rewriters are called for as many lines at once as a batch has."""
    translator = Translator(MODEL, length_penalty=0.7, batch_size=batch_size, **SETTINGS)
    plain = translator.translate(TEXTS)
    longer = Function(lambda line, found: [line.source, f"{found[0].text} w4", found[1].text])
    other = Function(lambda line, found: [replace(found[0], tokens=torch.tensor([]), text="w9", origin="x:y")])
    found = translator.translate(TEXTS, rewriters=[longer, other], nbest=3)
    for line, before, source in zip(found, plain, TEXTS, strict=True):
        wanted, new = {h.text: (h.score, "") for h in before.hypotheses}, f"{before.hypotheses[0].text} w4"
        for text, origin in ((source, "Function"), (new, "Function"), ("w9", "Function:x:y")):
            if len(text.split()) <= 8:
                wanted.setdefault(text, (scored_alone(source, text, 0.7), origin))
        assert [h.text for h in line.hypotheses] == sorted(wanted, key=lambda text: -wanted[text][0])[:3]
        for h in line.hypotheses:
            assert (h.score, h.origin) == (pytest.approx(wanted[h.text][0], abs=1e-8), wanted[h.text][1])
            assert h.score == pytest.approx(float(h.positional_scores.sum()) / len(h.tokens) ** 0.7, abs=1e-6)
        assert (new in wanted) != any("1 of 3 outputs of the rewriter Function" in note for note in line.notes)
    assert sum(longer.groups) == len(TEXTS)
    assert max(longer.groups) == min(batch_size, len(TEXTS))


def test_outputs_keep_the_prefix_and_the_phrases() -> None:
    adding = Function(lambda line, found: ["w3 w1", "w1 w3 w2", "w3 w2 w5", "w3 w5 w2 w4", " ".join(["w3"] * 9)])
    all_of_line = Function(lambda line, found: line.notes.extend(h.text for h in found if h.origin) or [])
    settings = {"constraints": "unordered", "rewriters": [adding, all_of_line], **SETTINGS, "nbest": 1}
    one, two = Translator(MODEL).translate(["w1\tw5|w1\tw2", "w1"], prefixes=["w3", ""], **settings)
    assert one.notes[0].startswith("3 of 5 outputs of the rewriter Function are left out: without the prefix")
    assert sorted(one.notes[1:3]) == ["w3 w2 w5", "w3 w5 w2 w4"]
    assert two.notes[0].startswith("1 of 5 outputs of the rewriter Function are left out")


def test_what_is_decoded_when_memory_runs_out_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(MODEL, batch_size=4, rewriters=[Function(lambda line, found: ["w1 w2"])], **SETTINGS)
    decoding, wanted = translator.prepare(), outputs(translator.translate(TEXTS))
    decoded = decoding._decoded

    def failing(lines: Any) -> Any:
        yield from sorted(decoded(lines), key=lambda each: each[0].number)[:2]
        torch.empty(2**46)

    monkeypatch.setattr(decoding, "_decoded", failing)
    found, lines = [], decoding.translate(TEXTS)
    with pytest.raises(RuntimeError):
        found.extend(lines)
    assert outputs(found) == wanted[: len(found)]
    assert len(found) == 2


def translating(*words: str, rewriters: Any, **keys: Any) -> Row:
    return lambda: Translator(MODEL, beam=2).translate(["w1", "w2"], rewriters=rewriters, **keys), *words


class Wrong(Rewriter):
    def __init__(self, returned: Any):
        self.returned = returned

    def __call__(self, lines: Any) -> Any:
        return self.returned


ADDING = [Function(lambda line, found: ["w1"])]
KIND = "must return a list of texts or hypotheses for each of 2 lines but returns"
test_refusals = refusals(
    translating("generation.rewriters cannot be streamed", rewriters=ADDING, streamer=TextStreamer(), beam=1),
    translating("generation.coverage_penalty is about outputs of the search", rewriters=ADDING, coverage_penalty=1),
    translating("generation.top_tokens is about outputs of the search", rewriters=ADDING, top_tokens=3),
    translating("there is no rewriter 'nosuch'", rewriters=["nosuch"]),
    *(translating("Wrong (", KIND, rewriters=[Wrong(each)]) for each in (None, [["a"]], [["a"], "b"], [["a"], [7]])),
)
