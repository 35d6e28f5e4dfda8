"""The step context: what is declared is computed, and nothing else; the text of source lines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.component import ATTENTION, HIDDEN_STATES, MEMBER_LOGITS, MEMBER_LPROBS, BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.observers import Observer, StepRecord
from seqgen.core.processors import LogitsProcessor
from seqgen.decoding.combinations import Fusion
from seqgen.decoding.processors.tokens import Forbid
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.strategy_zoo import ENDS, SOURCES
from tests.text_models import text_model

PARTS = {HIDDEN_STATES: "features", ATTENTION: "attention", MEMBER_LOGITS: "member_logits"}
TEXTS = [f"w{number % 19} w{number % 7}" + " w3" * (number % 5) for number in range(23)]


class Looking(LogitsProcessor):
    """Compares what the context has with the parallel pass over the tokens of each row."""

    def __init__(self, models: Any, needs: frozenset[str], temperature: float):
        self.models, self.temperature = models, temperature
        self.needs = needs  # type: ignore[misc]
        self.seen: list[int] = []

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        for need, name in PARTS.items():
            assert (getattr(context.outputs, name) is not None) == (need in self.needs)
        rows = range(0, len(lprobs), 3) if self.needs else ()
        for row in rows:
            source = SOURCES[int(context.sentence_ids[row])]
            batch = batch_of([source])
            tokens = torch.cat([torch.tensor([2]), context.tokens[row]]).unsqueeze(0)
            for number, model in enumerate(self.models):
                out = model.encoder(batch.source.src_tokens, batch.source.src_lengths)
                logits, attention = model.decoder(tokens, out, need_attention=True)
                if MEMBER_LOGITS in self.needs:
                    close(context.outputs.member_logits[number][row], logits[0, -1] / self.temperature)  # type: ignore[index]
                if ATTENTION in self.needs and len(self.models) == 1:
                    close(context.outputs.attention[row, : len(source)], attention[0, -1])  # type: ignore[index]
                if HIDDEN_STATES in self.needs and number == 0:
                    close(context.outputs.features[row], model.decoder.extract_features(tokens, out)[0][0, -1])  # type: ignore[index]
            self.seen.append(row)
        return lprobs - 0.1


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize("needs", [(), (HIDDEN_STATES,), (ATTENTION,), (MEMBER_LOGITS,), tuple(PARTS)], ids=str)
@pytest.mark.parametrize("members", [1, 2])
def test_what_is_declared_is_computed(needs: tuple[str, ...], members: int) -> None:
    models = [sharp("transformer_tiny"), sharp("fconv_tiny")][:members]
    processor = Looking(models, frozenset(needs), 0.8)
    generator = make_generator(
        *(models, dictionary(VOCAB - 4)),
        **{"beam_size": 3, "max_len_b": 5, "end_tokens": ENDS, "temperature": 0.8, "processors": [processor]},
    )
    generator.generate(batch_of(SOURCES))
    assert bool(processor.seen) == bool(needs)


class Members(Observer):
    """Collects what the members computed."""

    needs = frozenset({MEMBER_LOGITS, MEMBER_LPROBS})

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def observe(self, record: StepRecord) -> None:
        outputs = record.context.outputs
        assert outputs.member_logits is not None
        assert outputs.member_lprobs is not None
        self.seen += [*(logits.log_softmax(-1) for logits in outputs.member_logits), *outputs.member_lprobs]


def test_processors_do_not_change_what_the_members_computed() -> None:
    """With weight 0, fusion returns the first member's own log-probabilities, which ``Forbid`` changes in place."""
    rules, observer = [random_rule(9, 0), random_rule(9, 1)], Members()
    generator = make_generator(
        *([ScriptedModel(rule) for rule in rules], dictionary(5)),
        **{"beam_size": 1, "max_len_a": 0, "max_len_b": 0, "combination": Fusion(0.0)},
        **{"processors": [Forbid([4, 5])], "observers": [observer]},
    )
    generator.generate(batch_of([(4, 2)]))
    expected = [rule((4, 2), ()).log_softmax(-1) for rule in rules]
    for found, wanted in zip(observer.seen, [*expected, *expected], strict=True):
        close(found[0], wanted)


def test_features_that_cannot_be_had_are_refused() -> None:
    needing = Looking([], frozenset({HIDDEN_STATES}), 1.0)
    scripted = make_generator([ScriptedModel(random_rule(9, 0))], dictionary(5), processors=[needing])
    with pytest.raises(ConfigError, match="Looking needs hidden features"):
        scripted.generate(batch_of(SOURCES[:1]))


class ReadsText(LogitsProcessor):
    """Prefers a token that depends on the length of the source line, and checks that the line is the right one."""

    def __init__(self, can_merge: bool):
        self.can_merge = can_merge
        self.begun: list[str] = []
        self.joined = False

    def begin(self, batch: BatchInfo) -> ReadsText:
        assert batch.ids is not None
        assert batch.source_texts == [TEXTS[number] for number in batch.ids.tolist()]
        self.begun += batch.source_texts
        return self

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        texts = context.source_texts
        assert texts == [TEXTS[number] for number in context.sentences.ids.tolist()]
        self.joined |= context.has_joined
        wanted = torch.tensor([4 + len(text) % 7 for text in texts or ()])
        return lprobs + 2.0 * torch.nn.functional.one_hot(context.by_row(wanted), lprobs.size(1))


@pytest.mark.parametrize("can_merge", [True, False])
def test_source_texts_reach_components(can_merge: bool) -> None:
    """Also where sentences finish, and where others join the batch; alone equals batched."""
    processor = ReadsText(can_merge)
    translator = Translator([text_model(seed=3)])
    settings: dict[str, Any] = {"max_len_b": 6, "batch_size": 5, "processors": [processor]}
    found = translator.translate(TEXTS, **settings)
    assert sorted(processor.begun) == sorted(TEXTS)
    assert processor.joined == can_merge
    for number, text in enumerate(TEXTS):
        alone = translator.translate([""] * number + [text], **settings)[-1]
        assert (alone.text, alone.score) == (found[number].text, pytest.approx(found[number].score, abs=1e-10))


@pytest.mark.parametrize("options", [{"search": "contrastive"}, {"search": "greedy"}], ids=str)
def test_source_texts_with_other_loops(options: dict[str, Any]) -> None:
    processor = ReadsText(False)
    Translator([text_model(seed=2)]).translate(TEXTS, batch_size=5, processors=[processor], **options)
    assert set(processor.begun) == set(TEXTS)
