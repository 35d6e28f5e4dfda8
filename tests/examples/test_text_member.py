"""A model that reads partial outputs as text gives what it gives by tokens, whatever happens to the beams."""

from dataclasses import replace
from typing import Any

import pytest

from examples.papers.critics.text_member import TextMember
from seqgen.addons.partial_texts import PartialTexts
from seqgen.extend import Hypothesis, MemberSpec, ModelInMemory, OwnMember, Session, Tokenizer, WhitespaceTokenizer
from tests.covering import covering
from tests.generation.test_fork import Results, branching
from tests.generation.test_own_member import OPTIONS, READERS, Rater
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import LANGUAGE_MODELS, VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.text_models import Pieces, task_for
from tests.waiting_sentences import sources

pytestmark = pytest.mark.slow

WORDS = WhitespaceTokenizer(dictionary(VOCAB - 4))
LETTERS = Pieces(["w", *"0123456789", " ", "w1", "2 w", "9 w", "5 w", "2 w2 w", "9 w2 w", "5 w15 w"])
"""A longer text has other last tokens: ``w "2 w" 2``, but ``w "2 w2 w" 3``."""


def decode(member: Any, **options: Any) -> list[list[Hypothesis]]:
    model, rater = sharp("transformer_tiny"), Rater(MemberSpec(sharp("transformer_tiny")), True)
    rater.parts = [member]
    batch = replace(batch_of(sources(5, seed=3)), texts=[WORDS.decode(ids) for ids in sources(5, seed=3)])
    given = {"max_len_a": 1.0, "max_len_b": 4, "min_len": 0, **(options or {"beam_size": 3})}
    return make_generator([model], WORDS.dictionary, processors=[rater], **given).generate(batch)


def reader(name: str, tokenizer: Tokenizer, use_cache: bool = True) -> TextMember:
    loaded = ModelInMemory(task_for(name, tokenizer), sharp(name, 1))
    return TextMember(loaded, PartialTexts(WORDS.decode, WORDS.dictionary), name.startswith("llama"), use_cache)


@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith(LANGUAGE_MODELS)])
def test_words_read_as_text_have_the_same_values(name: str) -> None:
    """Prompts of language models differ: they have no end-of-sentence."""
    assert_same(decode(reader(name, WORDS)), decode(OwnMember(sharp(name, 1))))


@pytest.mark.parametrize(("name", "options"), covering(READERS, OPTIONS, times=2))
def test_a_cache_changes_nothing(name: str, options: dict[str, Any]) -> None:
    assert_same(decode(reader(name, LETTERS), **options), decode(reader(name, LETTERS, False), **options))


@pytest.mark.parametrize("name", ["transformer_tiny", "lstm_tiny", "llama_tiny"])
def test_forks_read_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, found = list[Results](), list[Results]()
    monkeypatch.setattr(Session, "run", branching(wanted, found, 2))
    assert_same(decode(reader(name, LETTERS)), decode(reader(name, LETTERS, False)))
    assert wanted
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two)
