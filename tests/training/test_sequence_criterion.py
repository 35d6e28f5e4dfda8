"""Criteria that decode: rescoring equals a plain pass, training resumes bit by bit, and two ranks are one."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from examples.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig
from seqgen.addons.checks.kinds import new_model, small_transformer
from seqgen.addons.checks.subject import Ids
from seqgen.checkpoints.run_config import write_run_checksums
from seqgen.config import GenerationConfig, TrainConfig
from seqgen.config.compose import compose
from seqgen.core.structures import Batch, Hypothesis, tensors_in
from seqgen.extend import ConfigError, Task, TrainingContext, WhitespaceTokenizer, register_criterion
from seqgen.training.distributed import ProcessGroup
from seqgen.training.sequence_criterion import SequenceConfig, SequenceCriterion, _parts, _Row, decode_option
from tests.examples.objectives import tiny
from tests.parallel_training import MODELS as SMALL, train_in, train_together
from tests.scripted_model import dictionary as tiny_dictionary
from tests.training.test_parallel import COMMON, TOLERANCE, compare
from tests.training_runs import Lab, assert_identical, everything, records

WORDS = tiny_dictionary()
SOURCES, TARGETS = [5, 2, 8, 1], [3, 6, 1, 4]
SAMPLES = ["criterion=with_baseline", "optimization.lr=[0.01]", "dataset.validate_interval=0"]

BEAM_SAMPLING = {"search": "beam_sampling"}


@dataclass
class BaselineConfig(SequenceConfig):
    """Samples of at most 12 tokens."""

    decode: GenerationConfig = decode_option(beam=3, sampling=True, max_len=12)


@register_criterion("with_baseline", config=BaselineConfig)
class WithBaseline(SequenceCriterion):
    """A policy gradient (Williams 1992) whose baseline is the running mean of the utility of all ranks."""

    baseline = 0.0

    def sequence_loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        samples = self.decode(model, batch)
        utilities = self.utilities(batch, samples)
        loss = -((utilities - self.baseline) * self.rescore(model, batch, samples).lprobs).mean(1).sum()
        return loss, {"utility": utilities.mean(1).sum()}

    def after_update(self, sums: Mapping[str, float]) -> None:
        self.baseline = 0.5 * self.baseline + 0.5 * sums["utility"] / sums["sample_size"]

    def state_dict(self) -> dict[str, Any]:
        return {"baseline": self.baseline}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baseline = state["baseline"]


def criterion(**decode: Any) -> MinimumRisk:
    tokenizer = WhitespaceTokenizer(WORDS)
    cfg = MinimumRiskConfig(decode=GenerationConfig(**{"mbr": "chrf", "beam": 4, "max_len": 9, **decode}))
    return MinimumRisk(cfg, Task(None, tokenizer, tokenizer))


def small(name: str) -> Any:
    return small_transformer() if name == "transformer" else compose(TrainConfig, SMALL[name]).model


def pairs(model: Any) -> Batch:
    return Ids.of(model, WORDS, len(WORDS)).batch(SOURCES, None, TARGETS, seed=3)


def hypothesis(tokens: Sequence[int]) -> Hypothesis:
    return Hypothesis(torch.tensor(tokens), 0.0, torch.zeros(len(tokens)))


def plain_lprobs(model: Any, batch: Batch, row: int, tokens: Tensor) -> Tensor:
    """The log-probabilities of one output, from a batch of one row without padding."""
    source, length = batch.source, int(batch.source.src_lengths[row])
    own = source.src_tokens[row, -length:] if model.left_pad_source else source.src_tokens[row, :length]
    assert batch.prev_output_tokens is not None
    previous = torch.cat([batch.prev_output_tokens[row, :1], tokens[:-1]])
    logits = model(own.unsqueeze(0), torch.tensor([length]), previous.unsqueeze(0)).logits[0]
    return logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("name", SMALL)
def test_rescoring_is_a_plain_pass_over_each_hypothesis(name: str) -> None:
    """Scores and gradients, for different numbers of hypotheses of unequal lengths, in several parts.

    The features are those from which the output layer gives the same scores, with the same gradients.
    """
    model = new_model(small(name), WORDS).eval()
    batch, eos, parameters = pairs(model), WORDS.eos(), list(model.parameters())
    outputs = [[[7, 8, 9, eos], [eos]], [], [[5] * 30 + [eos], [6, eos], [6, 6]], [[10, 11, eos]]]
    hypotheses = [[hypothesis(tokens) for tokens in row] for row in outputs]
    found = criterion().rescore(model, batch, hypotheses, features=True)
    assert found.lengths.tolist() == [[4, 1, 0], [0, 0, 0], [31, 2, 2], [3, 0, 0]]
    assert found.present.tolist() == [[length > 0 for length in row] for row in found.lengths.tolist()]
    assert not found.token_lprobs[~found.mask].any()
    without = criterion().rescore(model, batch, hypotheses)
    assert without.features is None
    assert found.features is not None
    assert found.features.shape[:3] == found.mask.shape
    assert not found.features[~found.mask].any()
    tokens = torch.tensor([token for row in outputs for one in row for token in one])
    rows = enumerate(hypotheses)
    wanted = torch.cat([plain_lprobs(model, batch, row, each.tokens) for row, one in rows for each in one])
    lprobs = model.get_normalized_probs(model.decoder.output_layer(found.features[found.mask]))
    by_features = lprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    weights = torch.rand(len(tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((wanted * weights).sum(), parameters, allow_unused=True)
    for got in (found.token_lprobs[found.mask], without.token_lprobs[found.mask], by_features):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
        of_these = torch.autograd.grad((got * weights).sum(), parameters, allow_unused=True, retain_graph=True)
        torch.testing.assert_close(of_these, gradients, rtol=0, atol=1e-9)
    assert not criterion().rescore(model, batch, [[]] * 4).mask.any()


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(9, 40))
def test_no_part_has_more_tokens_than_allowed(lengths: list[int], limit: int) -> None:
    """Padding included; no part could have taken the first row of the next one."""
    rows = [_Row(0, place, torch.zeros(length)) for place, length in enumerate(sorted(lengths))]
    parts = _parts(rows, limit)
    assert [row.place for part in parts for row in part] == [*range(len(rows))]
    assert all(len(part) * len(part[-1].tokens) <= limit for part in parts)
    assert all((len(one) + 1) * len(other[0].tokens) > limit for one, other in itertools.pairwise(parts))


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_an_end_is_forced_where_the_output_would_continue(semantics: str) -> None:
    """Samples with a larger maximum length show which outputs the model has ended.

    At the maximum length, fairseq's rules allow no other token than end-of-sentence, which is then not drawn. By
    Hugging Face's rules all tokens are drawn, also the end-of-sentence that comes just in time.
    """
    model, limits, seen = tiny.model(), (3, 6), set()
    batch, fairseq = tiny.pairs(model), semantics == "fairseq"
    keys: dict[str, Any] = {"search": "sampling", "beam": 1, "semantics": semantics}
    cfgs = [MinimumRiskConfig(decode=tiny.decoding(**keys, max_len=limit)) for limit in limits]
    for update in range(30):
        both = [MinimumRisk(cfg, tiny.task()) for cfg in cfgs]
        for own in both:
            own.begin_update(TrainingContext(update))
        short, longer = (own.decode(model, batch) for own in both)
        missing = (found := both[0].rescore(model, batch, short)).mask & ~found.drawn
        for row, ((one,), (other,)) in enumerate(zip(short, longer, strict=True)):
            size = len(one.tokens)
            assert torch.equal(one.tokens[: size - fairseq], other.tokens[: size - fairseq])
            ended = torch.equal(one.tokens, other.tokens) and not (fairseq and size == limits[0])
            assert one.forced_end == (not ended)
            seen.add((size == limits[0], one.forced_end))
            at = [size - 1] if one.forced_end and fairseq else []
            assert missing[row, 0].nonzero().flatten().tolist() == at
    assert seen == {(False, False), (True, True)} | (set() if fairseq else {(True, False)})


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_beams_that_are_cut_off(semantics: str) -> None:
    model = tiny.model()
    keys = {"beam": 12, "max_len": 3, "semantics": semantics}
    found = MinimumRisk(MinimumRiskConfig(decode=tiny.decoding(**keys)), tiny.task()).decode(model, tiny.pairs(model))
    for one in itertools.chain(*found):
        limit = len(one.tokens) == 3
        assert one.forced_end == (limit and (semantics == "fairseq" or int(one.tokens[-1]) != tiny.EOS))
    assert any(one.forced_end for one in itertools.chain(*found))


@pytest.mark.parametrize("keys", [{}, BEAM_SAMPLING])
def test_decoding_gives_the_log_probabilities_of_rescoring(keys: dict[str, Any]) -> None:
    model = new_model(small_transformer(), WORDS).train()
    own, batch = criterion(**keys), pairs(model)
    own.begin_update(TrainingContext(7))
    hypotheses = own.decode(model, batch)
    assert model.training
    scores = own.rescore(model.eval(), batch, hypotheses)
    for row, found in enumerate(hypotheses):
        for place, one in enumerate(found):
            got = scores.token_lprobs[row, place, : len(one.tokens)]
            torch.testing.assert_close(got.detach(), one.positional_scores, rtol=0, atol=1e-10)


@pytest.mark.parametrize("keys", [{"sampling": True}, {"sampling": True, "semantics": "huggingface"}, BEAM_SAMPLING])
def test_samples_depend_on_the_update_and_the_sentence_alone(keys: dict[str, Any]) -> None:
    model = new_model(small_transformer(), WORDS)
    own, batch = criterion(**keys), pairs(model)
    first, again = (own.decode(model, batch) for _ in range(2))
    own.begin_update(TrainingContext(1))
    later = own.decode(model, batch)
    tokens = [[[one.tokens.tolist() for one in row] for row in found] for found in (first, again, later)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_references_are_added_once() -> None:
    model = new_model(small_transformer(), WORDS)
    own, batch = criterion(), pairs(model)
    references = own.references(batch)
    assert [len(one) for one in references] == TARGETS
    hypotheses = [[hypothesis([5, WORDS.eos()])] for _ in TARGETS]
    hypotheses[1] = [hypothesis(references[1].tolist())]
    added = own.with_references(batch, hypotheses)
    assert [len(row) for row in added] == [2, 1, 2, 2]
    utilities = own.utilities(batch, added)
    assert utilities.shape == (4, 2)
    assert utilities[0, 1] == pytest.approx(100)
    assert utilities[1].tolist() == pytest.approx([100, 0])
    with pytest.raises(ConfigError, match=r"dataset\.pack=false"):
        own.decode(model, replace(batch, segments=object()))  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_loss_is_interpolated_with_cross_entropy(weight: float) -> None:
    model = new_model(small_transformer(), WORDS).eval()
    own, batch = criterion(), pairs(model)
    sequence, _ = own.sequence_loss(model, batch)
    nll = -sum(plain_lprobs(model, batch, row, tokens).sum() for row, tokens in enumerate(own.references(batch)))
    own.cfg = replace(own.cfg, token_loss=weight)
    found = own(model, batch)
    torch.testing.assert_close(found.loss, weight * nll + (1 - weight) * sequence)
    assert found.sample_size == len(TARGETS)


def test_training_resumes_bit_by_bit(lab: Lab) -> None:
    """In bfloat16: the random numbers of samples and the running baseline continue."""
    whole = lab.train("whole", *SAMPLES, "optimization.max_update=4 common.bf16=true")
    for last in (2, 4):
        parts = lab.train("parts", *SAMPLES, f"optimization.max_update={last} common.bf16=true")
    assert_identical(everything(parts), everything(whole))
    assert everything(whole)["state"]["criterion"]["baseline"] > 0
    assert records(parts) == records(whole)
    assert all(math.isfinite(row["loss"]) and row["utility"] > 0 for row in records(whole))


@pytest.mark.slow
def test_two_ranks_are_one(lab: Lab) -> None:
    """By DDP and FSDP, in float64, with dropout, accumulation and a last update of three batches."""
    keys = [*COMMON, *SAMPLES, "dataset.validate_decode=0", "dataset.validate_interval=1"]
    keys += ["dataset.max_tokens=400", "optimization.max_epoch=1"]
    train_in(lab, ("one", "float64", [*keys, "optimization.update_freq=[4]"]), ProcessGroup())
    keys += ["optimization.update_freq=[2]"]
    jobs = [(name, "float64", [*keys, f"distributed_training.sharding={name}"]) for name in TOLERANCE]
    train_together(lab.root, 2, jobs, "fork")
    for name, tolerance in TOLERANCE.items():
        compare(lab.root / "one", lab.root / name, tolerance)


def test_a_frozen_model_has_the_vocabularies_of_the_run(lab: Lab) -> None:
    run = lab.train("base", "optimization.max_update=1")
    task = lab.task(lab.config(), run)
    write_run_checksums(run, lab.config(), task)
    own = MinimumRisk(MinimumRiskConfig(), task)
    model = own.frozen(str(run))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ConfigError, match="give one model that has the vocabularies of this run"):
        criterion().frozen(str(run))


@pytest.mark.parametrize("trained", SMALL)
@pytest.mark.parametrize("name", SMALL)
def test_a_frozen_model_reads_its_own_batch(name: str, trained: str) -> None:
    """Padded on its side, after its start token: what the task makes of the same examples for this model."""
    model, frozen = (new_model(small(each), WORDS) for each in (trained, name))
    sides = ([torch.tensor([*range(4, 3 + size), WORDS.eos()]) for size in sizes] for sizes in (SOURCES, TARGETS))
    examples = list(zip(range(4), *sides, strict=True))
    own = criterion()
    found = own.read_by(frozen.float(), model, own.task.collate(examples, model))
    wanted = own.task.collate(examples, frozen)
    for got, each in zip(tensors_in(found), tensors_in(wanted), strict=True):
        assert torch.equal(got, each)
    assert next(frozen.parameters()).dtype == torch.float64


def test_decoding_keys_belong_to_the_criterion() -> None:
    """Also those of components, which need not be the ones of validation."""
    keys = ["criterion.decode.search=diverse_beam", "criterion.decode.search.groups=2", "generation.beam=3"]
    cfg = compose(TrainConfig, ["criterion=minimum_risk", *keys])
    assert (cfg.criterion.decode.components, cfg.generation.components) == ({"search.groups": 2}, {})
    assert (cfg.criterion.decode.beam, cfg.generation.beam) == (8, 3)
