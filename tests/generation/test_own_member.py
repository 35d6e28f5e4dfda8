"""A model that a component reads gives what it gives without a cache, whatever happens to the beams."""

from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.speculative.drafters import ModelDrafter
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.core.context import StepContext
from seqgen.core.member import MemberSpec
from seqgen.core.session import Session
from seqgen.core.structures import Hypothesis
from seqgen.decoding.own_member import OwnMember
from seqgen.decoding.processors.critic import Critic
from seqgen.decoding.search.sampling import Sampling
from seqgen.modules.kv_cache.growing import _Memory
from seqgen.modules.kv_cache.indirection import IndirectionCache
from tests.covering import covering
from tests.generation.test_fork import Results, branching
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.strategy_zoo import strategy
from tests.waiting_sentences import sources

OPTIONS: list[dict[str, Any]] = [
    {"semantics": "huggingface", "beam_size": 3},
    {"search_strategy": Sampling(seed=3), "beam_size": 4},
    {"search_strategy": strategy("diverse_beam"), "beam_size": 4},
    {"search_strategy": SpeculativeSearch(ModelDrafter(sharp("fconv_tiny", 1)), 3)},
    {"beam_indirection": False, "beam_size": 3},
    {"beam_size": 3, "max_len_b": 30, "min_len": 20},
]


class Judge(Critic):
    """The values are a fixed projection of the features; every second step, the candidates are not read."""

    def __init__(self, model: MemberSpec, use_cache: bool, k: int = 4):
        super().__init__([OwnMember(model, use_cache)], k, 0.7)
        self.seen: list[Tensor] = []

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        (member,) = self.parts
        found = member.peek(context, tokens)
        likely = member.lprobs(member.features(context)).gather(1, tokens)
        return found.cos().sum(2) + likely if context.step % 3 != 1 else torch.zeros_like(likely)


READERS = [name for name in ARCHITECTURES if name != "average"]  # which has no features


def decode(name: str, own: MemberSpec, use_cache: bool, options: dict[str, Any]) -> list[list[Hypothesis]]:
    model = sharp(name)
    batch = batch_of(sources(5, seed=3), left=model.left_pad_source)
    given: dict[str, Any] = {"max_len_a": 1.0, "max_len_b": 4, "min_len": 0, **options}
    return make_generator([model], dictionary(VOCAB - 4), processors=[Judge(own, use_cache)], **given).generate(batch)


@pytest.mark.parametrize(
    ("name", "own", "source", "options"),
    [
        *((name, name, *rest) for name, *rest in covering(READERS, ["input", "empty"], [{"beam_size": 3}, {}])),
        ("transformer_tiny", "llama_tiny", "input", {"beam_size": 3}),
        ("transformer_lm_tiny", "t5_tiny", "input", {"beam_size": 2}),
        *(("transformer_tiny", "transformer_tiny", "input", options) for options in OPTIONS),
    ],
)
def test_a_cache_changes_nothing(name: str, own: str, source: str, options: dict[str, Any]) -> None:
    member = MemberSpec(sharp(own, seed=1), source)
    assert_same(decode(name, member, True, options), decode(name, member, False, options))


@pytest.mark.parametrize("name", ["transformer_tiny", "lstm_tiny", "llama_tiny"])
def test_forks_read_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    member, options = MemberSpec(sharp(name, seed=1)), {"beam_size": 3}
    plain, wanted, found = decode(name, member, True, options), list[Results](), list[Results]()
    monkeypatch.setattr(Session, "run", branching(wanted, found, 2))
    assert_same(decode(name, member, True, options), plain)
    assert wanted
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny", "llama_tiny"])
def test_candidates_share_the_keys_of_their_row(name: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No method that copies the keys of rows is called, and the memory of a decode has room for one row each."""
    copied = list[str]()
    for kind, method in ((_Memory, "reorder"), (IndirectionCache, "histories"), (IndirectionCache, "view")):
        monkeypatch.setattr(kind, method, lambda *arguments, method=method: copied.append(method))
    member = MemberSpec(sharp(name, seed=1))
    peek = OwnMember.peek

    def watched(own: OwnMember, context: StepContext, tokens: Tensor) -> Tensor:
        own.features(context)
        copied.clear()
        found = peek(own, context, tokens)
        assert not copied
        return found

    monkeypatch.setattr(OwnMember, "peek", watched)
    decode(name, member, True, {"beam_size": beam, "beam_indirection": "on" if beam > 1 else "auto"})
