"""The step context: what the members computed, and the text of source lines."""

from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.component import MEMBER_LOGITS, MEMBER_LPROBS, BatchInfo
from seqgen.extend import Forbid, Fusion, LogitsProcessor, Observer, StepContext, StepRecord
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import text_model

TEXTS = [f"w{number % 19} w{number % 7}" + " w3" * (number % 5) for number in range(12)]


def test_processors_do_not_change_what_the_members_computed() -> None:
    """With weight 0, fusion returns the first member's own log-probabilities, which ``Forbid`` changes in place."""

    class Members(Observer):
        needs = frozenset({MEMBER_LOGITS, MEMBER_LPROBS})

        def observe(self, record: StepRecord) -> None:
            outputs = record.context.outputs
            seen.extend([*(logits.log_softmax(-1) for logits in outputs.member_logits), *outputs.member_lprobs])

    seen: list[Tensor] = []
    rules = [random_rule(9, 0), random_rule(9, 1)]
    options = {"max_len_a": 0, "max_len_b": 0, "combination": Fusion(0.0), "temperature": 0.8}
    models, components = (
        [ScriptedModel(rule) for rule in rules],
        {"processors": [Forbid([4, 5])], "observers": [Members()]},
    )
    make_generator(models, dictionary(5), **options, **components).generate(batch_of([(4, 2)]))
    wanted = [(rule((4, 2), ()) / 0.8).log_softmax(-1) for rule in rules]
    torch.testing.assert_close([each[0] for each in seen], wanted * 2, atol=1e-10, rtol=0)


class ReadsText(LogitsProcessor):
    """Prefers a token that depends on the length of the source line, and checks that the line is the right one."""

    def __init__(self, can_merge: bool):
        self.can_merge, self.begun, self.joined = can_merge, list[str](), False

    def begin(self, batch: BatchInfo) -> Any:
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
    settings: dict[str, Any] = {"max_len_b": 6, "batch_size": 3, "processors": [processor]}
    found = translator.translate(TEXTS, **settings)
    assert sorted(processor.begun) == sorted(TEXTS)
    assert processor.joined == can_merge
    for number, text in enumerate(TEXTS):
        alone = translator.translate([""] * number + [text], **settings)[-1]
        assert (alone.text, alone.score) == (found[number].text, pytest.approx(found[number].score, abs=1e-10))
