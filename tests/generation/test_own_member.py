"""A model that a component reads gives what it gives without a cache, whatever happens to the beams."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.speculative.drafters import ModelDrafter
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.core.context import StepContext
from seqgen.core.member import MemberSpec
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.session import Session
from seqgen.core.structures import Hypothesis
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.decoding.own_member import OwnMember
from seqgen.decoding.processors.critic import Critic
from seqgen.decoding.search.sampling import Sampling
from seqgen.modules.kv_cache.growing import _Memory
from seqgen.modules.kv_cache.indirection import IndirectionCache
from tests.covering import covering
from tests.generation.test_fork import Results, branching
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, ZOO, sharp
from tests.scripted_model import batch_of, dictionary
from tests.strategy_zoo import strategy
from tests.waiting_sentences import queue, sources

OPTIONS: list[dict[str, Any]] = [
    {"semantics": "huggingface", "beam_size": 3},
    {"search_strategy": Sampling(seed=3), "beam_size": 4},
    {"search_strategy": strategy("diverse_beam"), "beam_size": 4},
    {"search_strategy": SpeculativeSearch(ModelDrafter(sharp("fconv_tiny", 1)), 3)},
    {"beam_indirection": False, "beam_size": 3},
    {"beam_size": 3, "max_len_b": 30, "min_len": 20},
]


class Rater(Critic):
    """The values are a fixed projection of the features, which are not read for the second of three tokens."""

    can_merge = True

    def __init__(self, model: MemberSpec, use_cache: bool, first: int = 0):
        super().__init__([OwnMember(model, use_cache)], 4, 0.7)
        self.first = first

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        (member,), rated = self.parts, ((context.steps + self.first) % 3 != 1).unsqueeze(1)
        if not rated.any():
            return torch.zeros_like(tokens, dtype=torch.float64)
        likely = member.lprobs(member.features(context)).gather(1, tokens)
        return torch.where(rated, member.peek(context, tokens).cos().sum(2) + likely, 0.0)


READERS = [name for name in ARCHITECTURES if name != "average"]  # which has no features


def decode(name: str, own: MemberSpec, use_cache: bool, options: dict[str, Any]) -> list[list[Hypothesis]]:
    model = sharp(name)
    batch = batch_of(sources(5, seed=3), left=model.left_pad_source)
    given: dict[str, Any] = {"max_len_a": 1.0, "max_len_b": 4, "min_len": 0, **options}
    return make_generator([model], dictionary(VOCAB - 4), processors=[Rater(own, use_cache)], **given).generate(batch)


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


JOINING = [name for name in ZOO if not name.startswith(("lstm", "average", "transformer_ssru"))]


@pytest.mark.parametrize(("name", "first", "beam"), covering(JOINING, [0, 1], [4, 1, 4]), ids=str)
def test_joined_equals_alone(name: str, first: int, beam: int) -> None:
    """Without a cache, too; and if the first token is not rated: sentences join that the model has not read."""
    model, options, rows = sharp(name, seed=3), {"beam_size": beam, "max_len_a": 1.0, "max_len_b": 3}, sources(11, 5)
    raters = [Rater(MemberSpec(sharp(name, seed=1)), use_cache, first) for use_cache in (True, False)]
    joining, alone = (make_generator([model], dictionary(VOCAB - 4), processors=[one], **options) for one in raters)
    take, asked = queue(rows, 4, left=model.left_pad_source)
    found = dict(generate_continuously(joining, take))
    assert len([running for running in asked if 0 < running < 4]) > 2, "some join a batch that is running"
    assert_same([found[number] for number in range(11)], alone.generate(batch_of(rows, left=model.left_pad_source)))


def test_what_does_not_join_is_named() -> None:
    for name, use_cache, reason in (("lstm_tiny", True, "LSTMDecoder"), ("t5_tiny", False, "OwnMember")):
        rater = Rater(MemberSpec(sharp(name)), use_cache)
        generator = make_generator([sharp("transformer_tiny")], dictionary(VOCAB - 4), processors=[rater])
        assert generator.setup.merge_obstacle == f"{reason} does not support it"


@pytest.mark.parametrize(
    ("source", "passes", "shares"), [("input", 1, True), ("input", 1, False), ("empty", 2, True)], ids=str
)
def test_sources_are_encoded_once(source: str, passes: int, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Components read what the encoder returned for each sentence, also after others have left and joined."""
    model, encoded, values, rows = sharp("transformer_tiny"), list[int](), Rater.values, sources(11, seed=3)

    def compared(self: Rater, context: StepContext, tokens: Tensor) -> Tensor:
        (found,) = context.sentences.encoder_outs
        for number, features in zip(context.sentences.ids.tolist(), found.encoder_out, strict=True):
            alone = model.encoder.forward(torch.tensor([rows[number]]), torch.tensor([len(rows[number])]))
            torch.testing.assert_close(features[: len(rows[number])], alone.encoder_out[0])
        return values(self, context, tokens)

    monkeypatch.setattr(Rater, "values", compared)
    model.encoder.register_forward_hook(lambda _module, inputs, _output: encoded.append(len(inputs[0])))
    rater = Rater(MemberSpec(model, source), True)
    setup = make_generator([model], dictionary(VOCAB - 4), processors=[rater], beam_size=2, max_len_b=4).setup
    generator = SequenceGenerator(replace(setup, fast=replace(setup.fast, share_encoder_output=shares)))
    assert len(dict(generate_continuously(generator, queue(rows, 4)[0]))) == 11
    assert sum(encoded) == 11 * passes
