"""Word-level and sequence-level distillation against their formulas, token by token."""

import pytest
import torch
from torch import Tensor

from examples.objectives.sequence_distillation import SequenceDistillation, SequenceDistillationConfig
from examples.objectives.word_distillation import WordDistillation, WordDistillationConfig
from seqgen.addons.checks.subject import randomize_
from seqgen.data.combined_datasets import pack
from seqgen.extend import Chrf, ConfigError, EncoderDecoderModel, GenerationConfig, UtilityLine, load_model
from tests.examples.objectives import small
from tests.examples.objectives.small import EOS, PAIRS, WORDS, batch_of, plain_logits, plain_lprobs, plain_nll, student
from tests.examples.objectives.teachers import teachers  # noqa: F401  # a fixture


def of_words(paths: list[str], alpha: float = 0.5, temperature: float = 1.0) -> WordDistillation:
    return WordDistillation(WordDistillationConfig(paths, alpha, temperature), small.TASK)


def plain_distillation(model: EncoderDecoderModel, paths: list[str], temperature: float) -> Tensor:
    members = [load_model(path, dtype="float64").model for path in paths]
    total = torch.zeros((), dtype=torch.float64)
    for source, (*read, _) in PAIRS:
        logits, *others = (plain_logits(one, source, [one.start_token(EOS), *read]) for one in (model, *members))
        mean = torch.stack([(other / temperature).softmax(-1).detach() for other in others]).mean(0)
        total = total - (mean * (logits / temperature).log_softmax(-1)).sum()
    return total * temperature**2


@pytest.mark.parametrize(
    ("names", "alpha", "temperature"),  # T5 has another start token
    [("transformer fconv", 0.5, 1.0), ("transformer fconv t5", 0.7, 2.5), ("fconv", 0.0, 1.0)],
)
def test_word_level(teachers: dict[str, str], names: str, alpha: float, temperature: float) -> None:  # noqa: F811
    paths = [teachers[name] for name in names.split()]
    model = student().train()
    out = of_words(paths, alpha, temperature)(model, batch_of(model))
    nll, distilled = plain_nll(model), plain_distillation(model, paths, temperature)
    small.same_gradients(model, out.loss, (1 - alpha) * nll + alpha * distilled)
    tokens = sum(len(target) for _, target in PAIRS)
    assert float(out.logging["nll_loss"]) == pytest.approx(nll.item())
    assert float(out.logging["distillation"]) == pytest.approx(distilled.item())
    assert (out.sample_size, out.logging["ntokens"], out.logging["nsentences"]) == (tokens, tokens, len(PAIRS))


def test_packed_rows(teachers: dict[str, str]) -> None:  # noqa: F811
    model = student()
    packed = pack([batch_of(model, [0, 3]), batch_of(model, [1, 2])], WORDS.pad(), WORDS.pad())
    criterion = of_words([teachers["transformer"]])
    small.same_gradients(model, criterion(model, packed).loss, criterion(model, batch_of(model)).loss)
    with pytest.raises(ConfigError, match=r"FConvModel cannot read packed batches; set dataset\.pack=false"):
        of_words([teachers["fconv"]])(model, packed)


def of_sequences(paths: list[str], beam: int, weight: float = 0.0, closest: bool = False) -> SequenceDistillation:
    decode = GenerationConfig(beam=beam, mbr="chrf", max_len_a=0.0, max_len_b=1, min_len=1, normalize_scores=False)
    criterion = SequenceDistillation(SequenceDistillationConfig(decode, weight, paths, closest), small.TASK)
    criterion.teachers = [sharp(one) for one in criterion.teachers]
    return criterion


def sharp(teacher: EncoderDecoderModel) -> EncoderDecoderModel:
    """In float64, and with peaked distributions: after two updates, the best output hardly depends on the source."""
    return randomize_(teacher.double(), factor=2.0)


OUTPUTS = [[word, EOS] for word in range(len(WORDS)) if word not in (EOS, WORDS.pad())]
"""All outputs: one token and end-of-sentence."""


def ensemble_score(members: list[EncoderDecoderModel], source: list[int], tokens: list[int]) -> float:
    """The sum over tokens of the logarithm of the mean probability; each member has its own start token."""
    probs = [plain_lprobs(one, source, tokens)[range(len(tokens)), tokens].exp() for one in members]
    return float(torch.stack(probs).mean(0).log().sum())


@torch.no_grad()
def targets(paths: list[str], closest: bool) -> list[list[int]]:
    members, found = [sharp(load_model(path).model) for path in paths], []
    for source, reference in PAIRS:
        ranked = sorted(OUTPUTS, key=lambda tokens: -ensemble_score(members, source, tokens))
        text = [" ".join(WORDS[token] for token in tokens[:-1]) for tokens in (*ranked, reference)]
        found.append(ranked[Chrf()(UtilityLine("", text[:-1], text[-1:]))[:, 0].argmax() if closest else 0])
    return found


@pytest.mark.parametrize(
    ("names", "weight", "closest"),
    [("transformer fconv", 0.0, False), ("transformer fconv t5", 0.3, False), ("t5 transformer", 0.3, True)],
)
def test_sequence_level(teachers: dict[str, str], names: str, weight: float, closest: bool) -> None:  # noqa: F811
    paths = [teachers[name] for name in names.split()]
    model = student().train()
    out = of_sequences(paths, len(OUTPUTS), weight, closest)(model, batch_of(model))
    distilled, nll = plain_nll(model, targets(paths, closest)), plain_nll(model)
    small.same_gradients(model, out.loss, (1 - weight) * distilled + weight * nll if weight else distilled)
    assert float(out.logging["distillation"]) == pytest.approx(distilled.item())
    assert float(out.logging["nll_loss"]) == pytest.approx(nll.item())
    assert out.sample_size == len(PAIRS)
