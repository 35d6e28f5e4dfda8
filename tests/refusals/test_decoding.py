"""Keys of decoding that contradict each other, and strategies, components, models and sentences that do not fit."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seqgen import GenerationConfig, Translator
from seqgen.addons.contrastive.search import ContrastiveSearch
from seqgen.addons.fairseq import fairseq_generator
from seqgen.addons.speculative.drafters import ModelDrafter, PromptLookup
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.config.generation import KEYS_OF_ADDONS
from seqgen.config.settings import Settings
from seqgen.config.values import check_compatible, sentence_of
from seqgen.core.component import HIDDEN_STATES, LAYER_LOGITS
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.processors import LogitsProcessor
from seqgen.decoding.options import build_setup, processors_from_config
from seqgen.decoding.resolution import resolve
from seqgen.decoding.rules import FAIRSEQ
from seqgen.decoding.search.constrained import ConstrainedSearch
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.decoding.search.huggingface import HuggingFaceDiverseBeam
from seqgen.decoding.stopping import stopping_from_config
from seqgen.extend import BeamSearch, Dictionary, Observer, Reranker, Resources, Sampling, Search, Session, Task, rewind
from tests.generation.test_fork import begin_to_return
from tests.generators import make_generator
from tests.model_zoo import VOCAB, registered, sharp
from tests.refusals import Row, refusals
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

# -- keys that do not go together --------------------------------------------------------------------------------------


def together(words: str, **values: Any) -> Row:
    return lambda: check_compatible(GenerationConfig(**values)), words


def resolved(words: str, **user: Any) -> Row:
    return lambda: resolve(Settings().with_layer("user", user)), words


TOGETHER = [
    together("generation.top_k=5 truncates the distribution for sampling", top_k=5),
    together("generation.sampling=true draws at random, and the strategy", sampling=True, search="diverse_beam"),
    together("truncate the distribution", constraints="ordered", search="sampling", top_k=3),
    together("with one beam would begin every output with the phrases", constraints="ordered", beam=1),
    together("has no effect without a draft", draft_tokens=3),
    together("both draft; choose one", draft="runs/x", prompt_lookup=2),
    together("exclude; choose one", prompt_lookup=2, constraints="ordered"),
    together("exclude; choose one", draft="runs/x", constraints="ordered"),
    together("and generation.mbr both rank the hypotheses", mbr="chrf", rerank="length_ratio"),
    together("compares hypotheses, but only one is generated", mbr="chrf", beam=1),
    together("has no effect without generation.exponential_decay_factor", exponential_decay_start=3),
    together("belongs to Hugging Face's rules", early_stopping="true"),
    together("belongs to Hugging Face's rules", forced_last="a"),
    together("has no effect with generation.normalize_scores=false", length_penalty=0.5, normalize_scores=False),
    together("has no effect with generation.match_source_len=true", max_len_b=50, match_source_len=True),
    together("generation.min_len=9 is more than generation.max_len allows", min_len=9, max_len=8),
    together("generation.min_len=9 is more than generation.max_len_b allows", min_len=9, max_len_b=8),
    together("has no effect with generation.match_source_len", min_total_len=2, match_source_len=True),
    together("generation.seed=7 has no effect, because the search strategy does not use it", seed=7),
    together("generation.seed=7 has no effect", seed=7, search="a_users_own", sampling=True),
    together("generation.beam=3 has no effect, because greedy and contrastive search", beam=3, search="greedy"),
    together("determines when enough competing", early_stopping="true", semantics="huggingface", beam=1),
    together("generation.nbest=6 is more than generation.beam", nbest=6),
    together("generation.nbest=2 is more than 1", nbest=2, search="greedy"),
    together("affects only sampling under Hugging Face's rules", temperature=2.0, semantics="huggingface"),
]

test_keys_that_do_not_go_together = refusals(
    *TOGETHER,
    resolved("generation.beam=4 has no effect, because greedy", search="greedy", beam=4),  # the default, which is given
    resolved("generation.beam=5 has no effect, because greedy", search="contrastive", beam=5),
    (lambda: fairseq_generator([scripted()], dictionary(5), beam_size=0), "beam=0 is below its minimum, 1"),
    error=ConfigError,
)


def test_every_need_of_a_key_has_a_row() -> None:
    refused = set()
    for check, _ in TOGETHER:
        with pytest.raises(ConfigError) as caught:
            check()
        refused.add(str(caught.value))
    fields = [each for each in dataclasses.fields(GenerationConfig) if each.name not in KEYS_OF_ADDONS]
    for need in (need for field in fields for need in field.metadata["needs"]):
        assert any(sentence_of(need) in message for message in refused), need


def rewound(words: str, step: int = 1, stays: bool = True, count: int = 4, **options: Any) -> Row:
    """A session that decodes some steps, and then returns to an earlier one."""

    def check() -> None:
        kind = getattr(options.get("search_strategy"), "session_class", None) or Session
        session = begin_to_return(options.pop("name", "transformer_tiny"), stays, kind, **options)
        while session.backpointers.length < count and session.step():
            pass
        rewind(session, step)

    return check, "the session cannot return to step", words, "fork the session at that step"


test_sessions_that_cannot_return = refusals(
    rewound("it has decoded 4 steps", 5),
    rewound("it has decoded 4 steps", -1),
    rewound("sentences have left or joined the batch", stays=False, count=9, beam_size=1),
    rewound("beams were reordered", beam_size=3),
    rewound("BestFinished has a state that cannot go back", semantics="huggingface"),
    rewound("LSTMDecoder has a state that cannot go back", name="lstm_tiny"),
    rewound("a Spec", search_strategy=SpeculativeSearch(PromptLookup(2), 3), top_tokens=0, observers=[]),
    rewound("a Contr", search_strategy=ContrastiveSearch(), beam_size=1, top_tokens=0, observers=[]),
    rewound("Coverage has a state", coverage_penalty=0.3),
    error=DecodingError,
)


# -- keys of components, and values of keys ----------------------------------------------------------------------------


class Identity(Reranker):
    def __call__(self, translation: Any, hypotheses: Any) -> list[float]:
        return [hypothesis.score for hypothesis in hypotheses]


def translate(words: str, *more: str, line: str = TEXTS[0], **keys: Any) -> Row:
    return lambda: Translator(text_model()).translate([line], **keys), words, *more


def read(words: str, how: Callable[[Translator, dict[str, Any]], Any], **keys: Any) -> Row:
    return lambda: how(Translator(text_model()), keys), words


LETTERS = Dictionary(["<pad>", "</s>", "<unk>", *"abcdefghijk"], pad=0, eos=1, unk=2, bos=None)


def processors(words: str, *more: str, **values: Any) -> Row:
    """The processors of some keys, for a vocabulary of letters."""

    def make() -> None:
        cfg = GenerationConfig(**values)
        resources = Resources.of(cfg, LETTERS, None)
        encode = lambda text: [LETTERS.index(letter) for letter in text]  # noqa: E731
        processors_from_config(cfg, FAIRSEQ, dataclasses.replace(resources, encode=encode))

    return make, words, *more


def stopping(words: str, **values: Any) -> Row:
    return lambda: stopping_from_config(GenerationConfig(**values), Resources(dictionary(4))), words


test_keys_of_components = refusals(
    translate("unknown key 'grups'", "did you mean 'groups'", search="diverse_beam", **{"search.grups": 2}),
    translate("groups=0 is below its minimum", search="diverse_beam", **{"search.groups": 0}),
    translate("has no effect", "set generation.processors=[variety]", **{"processor.variety.k": 3}),
    translate("unknown key 'serach.groups'", "did you mean 'search'", **{"serach.groups": 2}),
    translate("did you mean 'beam'", search="beem"),
    translate("'reranker.ratio' has no effect on a", rerank=Identity(), nbest=2, beam=2, **{"reranker.ratio": 2}),
    read("has no effect", lambda one, keys: one.settings(**keys), **{"search.groups": 2}),
    read("unknown key 'wait'", lambda one, keys: one.settings(**keys), **{"combination.wait": 1}),
    read("unknown key 'wait'", lambda one, keys: list(one.score(["w1"], ["w1"], **keys)), **{"combination.wait": 1}),
    processors("generation.suppress: '<unkk>' is not in", "did you mean '<unk>'", suppress=["<unkk>"]),
    processors("generation.bad_words: '' is empty", bad_words=[""]),
    processors("generation.bad_words: 'ids:3 999' must have ids from 0 to", bad_words=["ids:3 999"]),
    processors("generation.bad_words: 'az' has words or characters that are not in the target", bad_words=["az"]),
    processors("generation.sequence_bias: 'ab=much' is not TEXT=BIAS", sequence_bias=["ab=much"]),
    processors("add it to generation.bad_words", sequence_bias=["ab=-inf"]),
    processors("there is no logits processor 'no_such'", processors=["no_such"]),
    processors("generation.end_symbols: 'zz'", end_symbols=["zz"]),
    stopping("there is no stopping rule 'twise'", stopping_rules=["twise"]),
    stopping("an empty text would end every output", stop_strings=["a", ""]),
    stopping("needs the target tokenizer", stop_strings=["a"]),
    error=ConfigError,
)

# -- strategies --------------------------------------------------------------------------------------------------------


def scripted(vocab: int = 9) -> ScriptedModel:
    return ScriptedModel(random_rule(vocab, 0))


def decode(words: str, *more: str, model: Any = None, by: Any = None, phrases: Any = None, **options: Any) -> Row:
    """Decode four sentences, with a model of nine tokens if no other is given."""

    def run() -> None:
        one = model() if model else scripted()
        models = one if isinstance(one, list) else [one]
        generator = make_generator(models, dictionary(VOCAB - 4 if model else 5), search_strategy=by, **options)
        generator.generate(batch_of([(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 7, 8, 2), (2,)]), constraints=phrases)

    return run, words, *more


def with_phrases(*words: str, **keys: Any) -> Row:
    return translate(*words, line="w1 w5\tw3", constraints="ordered", **keys)


def inner(words: str, strategy: Callable[[], Search], **keys: Any) -> Row:
    return lambda: ConstrainedSearch(inner=strategy()), words


def tiny(**changes: Any) -> EncoderDecoderModel:
    return registered("transformer_tiny", **changes)().double().eval()


CONTRASTIVE, CONSTRAINED = ContrastiveSearch(), ConstrainedSearch()

test_strategies = refusals(
    decode("cannot be divided into", by=DiverseBeamSearch(groups=3), beam_size=4),
    decode("Sampling does not take constraints", by=Sampling(), phrases=[[[5]]] * 4),
    decode("constraints for 1 sentences, but the batch has 4", by=CONSTRAINED, phrases=[[[4]]]),
    decode("sentence 2 has 12, not an id", by=CONSTRAINED, phrases=[[[4]], [], [[5, 12]], []]),
    decode("sentence 0 has 'w'", by=CONSTRAINED, phrases=[["word"], [], [], []]),
    decode("4 groups one beam", by=ConstrainedSearch(inner=DiverseBeamSearch(4)), beam_size=4, phrases=[[[4]]] * 4),
    inner("HuggingFaceDiverseBeam applies the logits processors itself", lambda: HuggingFaceDiverseBeam(2, 0.5)),
    inner("SpeculativeSearch has a decoding loop of its own", lambda: SpeculativeSearch(PromptLookup())),
    with_phrases("Greedy keeps one hypothesis", "or choose a strategy that does, such as beam", search="greedy"),
    with_phrases("ContrastiveSearch keeps one hypothesis", search="contrastive"),
    with_phrases("has its own rule", "remove generation.constraints", search="marian"),
    with_phrases("truncate the distribution forbid improbable tokens; remove these", sampling=True, top_p=0.9),
    with_phrases("set generation.beam to 2 or more", sampling=True, beam=1),
    decode("a single model and does not support ensembles", model=lambda: [sharp("fconv_tiny")] * 2, by=CONTRASTIVE),
    decode("guidance", model=lambda: sharp("fconv_tiny"), by=CONTRASTIVE, guidance_scale=2.0),
    decode("ScriptedDecoder has no extract_features", by=CONTRASTIVE),
    decode("generation.top_tokens=2 is not supported by ContrastiveSearch", by=CONTRASTIVE, top_tokens=2),
    error=ConfigError,
)

# -- drafts ------------------------------------------------------------------------------------------------------------


def drafted(words: str, *more: str, model: Any = None, draft: Any = None, verifies: Any = None, **options: Any) -> Row:
    """Speculative decoding with a draft model, or by looking up what the source has."""

    def run() -> None:
        drafter = PromptLookup(2) if draft is None else ModelDrafter(draft())
        search = SpeculativeSearch(drafter, 3, verifies)
        decode(words, model=model or (lambda: sharp("t5_tiny")), by=search, **options)[0]()

    return run, words, *more


def needing(need: str) -> LogitsProcessor:
    body = {"needs": frozenset({need}), "__call__": lambda self, lprobs, context: lprobs}
    found: LogitsProcessor = type("Reading", (LogitsProcessor,), body)()
    return found


def of_task(words: str, target: int) -> Row:
    task: Any = SimpleNamespace(
        source_dictionary=dictionary(3), target_dictionary=dictionary(target), target_tokenizer=None
    )
    return lambda: Task.build_generator(task, [scripted()], GenerationConfig(beam=1, prompt_lookup=2)), words


damaged = lambda: ScriptedModel(lambda source, written: torch.full((VOCAB,), torch.nan if written else 0.0))  # noqa: E731

test_drafts = refusals(
    drafted("verified token by token", "compares hypotheses", beam_size=2),
    drafted("verified token by token", "own decoding loop", verifies=ContrastiveSearch()),
    drafted("has 22 tokens, and that of the models that it drafts for 23", draft=lambda: scripted(VOCAB - 1)),
    drafted("24 tokens, and that of the models that it drafts", draft=lambda: scripted(VOCAB + 1), verifies=Sampling()),
    drafted("at most 6 source tokens, but a sentence has 8", draft=lambda: tiny(max_source_positions=6)),
    (lambda: build_setup([sharp("t5_tiny")], LETTERS, GenerationConfig(beam=1, draft="runs/small")), "draft=runs"),
    of_task("different vocabularies", 4),
    drafted("Reading needs hidden states", draft=lambda: sharp("t5_tiny"), processors=[needing(HIDDEN_STATES)]),
    drafted("hidden features of all layers", "remove the draft", processors=[needing(LAYER_LOGITS)]),
    error=ConfigError,
)

# -- scores from which nothing can be decoded --------------------------------------------------------------------------


def nan_weights() -> Translator:
    loaded = text_model()
    with torch.no_grad():
        next(loaded.model.parameters()).fill_(torch.nan)
    return Translator(loaded)


VERIFIED = (None, Sampling())


class Louder(LogitsProcessor):
    def __call__(self, lprobs: torch.Tensor, context: Any) -> torch.Tensor:
        return lprobs * torch.nan


test_damaged_scores = refusals(
    (lambda: next(nan_weights().score(TEXTS, TEXTS)), "NaN in target 0 of the batch; its weights are damaged"),
    translate("NaN or infinite at step 0", "or Louder returns such scores", processors=[Louder()]),
    *(drafted("infinite at step 1 in sentence 0 of", model=damaged, verifies=search, min_len=5) for search in VERIFIED),
    *(drafted("draft model's scores are NaN at step 1", draft=damaged, verifies=one, min_len=5) for one in VERIFIED),
    error=DecodingError,
)

# -- components --------------------------------------------------------------------------------------------------------


class Recording(Observer):
    def token_fields(self, candidates: Any, context: Any) -> Any:
        return {"sum": candidates.scores}


class Missing(Observer):
    def __init__(self, first: bool):
        self.first = first

    def token_fields(self, candidates: Any, context: Any) -> Any:
        return {"a": candidates.scores, **({"b": candidates.scores} if self.first == (context.step == 0) else {})}


class OwnLoop(BeamSearch):
    session_class = object  # any class without the steps of a session


test_components = refusals(
    decode("Reading needs hidden features", processors=[needing(HIDDEN_STATES)]),
    decode("both return the field 'sum'; remove one of the two", observers=[Recording(), Recording()]),
    decode("Recording records values at each step, but OwnLoop does not", by=OwnLoop(), observers=[Recording()]),
    *(decode("field 'b' is missing at some steps", observers=[Missing(first)]) for first in (True, False)),
)
