"""Decoding on a GPU equals decoding on the CPU: every model, strategy and kind of ensemble.

The GPU is simulated, so that waits and transfers are counted too; where there is a real one, it decodes the same cases.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from seqgen.addons.speculative.drafters import ModelDrafter, PromptLookup
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.decoding.stopping import StopStrings
from seqgen.extend import Hypothesis, Sampling, Session, generate_continuously
from seqgen.system.devices import find_device
from tests.generators import make_generator, resources
from tests.model_zoo import ARCHITECTURES, EOS, PAD, VOCAB, ZOO, in_zoo, sharp
from tests.registered_components import PROCESSORS
from tests.scripted_model import batch_of, dictionary as tiny_dictionary
from tests.simulated_gpu import Counts, simulated_gpu
from tests.strategy_zoo import PHRASES, STRATEGIES, strategy
from tests.waiting_sentences import queue

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WORDS = tiny_dictionary()
OPTIONS: dict[str, dict[str, Any]] = {
    **{"beam": {}, "huggingface": {"semantics": "huggingface"}, "no cache": {"use_cache": False}},
    **{"table": {"beam_indirection": True}, "no table": {"beam_indirection": False}},
    "log-softmax": {"skip_log_softmax": False},
    **{"compaction at once": {"lazy_compaction": False}, "minimum": {"min_len": 3}, "prefix": {"prefix": 1}},
    **{"ensemble": {"members": 2}, "log": {"members": 2, "average": "log"}, "guidance": {"guidance_scale": 1.5}},
    **{f"search={name}": {"search": name, "max_len": 7} for name in STRATEGIES},
}
FURTHER: dict[str, dict[str, Any]] = {
    **{f"processor={name}": {"processor": name} for name in PROCESSORS},
    **{"draft": {"draft": "model", "beam_size": 1}, "look-up": {"draft": "text", "beam_size": 1}},
    **{"coverage": {"coverage_penalty": 0.2, "len_penalty": 0.5}},
    **{"ends": {"end_tokens": [EOS, 7, 9], "exponential_decay_start": 1, "exponential_decay_factor": 1.2}},
    **{"stop texts": {"stopping": [StopStrings(["w1", "w5 w", "9"], lambda ids: " ".join(map(WORDS.symbol, ids)))]}},
    **{"sampled draft": {"draft": "model", "inner": Sampling(seed=2)}, "continuous": {"continuous": True}},
}
"""Options that one model tries."""

CASES = [
    *(
        (model, option)
        for model in ZOO
        for option in (OPTIONS if model in ARCHITECTURES else ("beam", "table", "no table"))
        if (model, option) != ("average", "search=contrastive")  # it has no hidden features
    ),
    *(("transformer_tiny", option) for option in FURTHER),
]
FAST = {
    *((model, "beam") for model in ("fconv_uneven", "lstm_tiny", *in_zoo("t5gemma_tiny", "transformer_lm_tiny"))),
    *(("transformer_tiny", f"search={name}") for name in ("sampling", "constrained", "diverse_beam")),
    *(("transformer_tiny", name) for name in ("processor=allowed_outputs", "draft", "continuous", "stop texts")),
}
DEVICES = [
    *(pytest.param("gpu", *case, marks=() if case in FAST else pytest.mark.slow) for case in CASES),
    *(("cuda", *case) for case in CASES if torch.cuda.is_available()),
]


def decode(name: str, device: str, options: dict[str, Any]) -> list[list[Hypothesis]]:
    """The n-best lists of five random sources of different lengths, in float64."""
    options = {"beam_size": 4, "max_len": 9, "min_len": 0, **options}
    random = torch.Generator().manual_seed(5)
    sources = [[*torch.randint(4, VOCAB, (n,), generator=random).tolist(), EOS] for n in (4, 1, 7, 2, 5)]
    batch = batch_of(sources, PAD, ZOO[name].padded_left).to(device)
    prefix = torch.full((5, 1), 5, device=device) if options.pop("prefix", 0) else None
    models = [sharp(name, seed).to(device) for seed in range(options.pop("members", 1))]
    phrases = None
    if search := options.pop("search", ""):
        options["search_strategy"] = strategy(search)
        phrases = [*PHRASES, []] if STRATEGIES[search].phrases else None
    if draft := options.pop("draft", ""):
        drafter = ModelDrafter(sharp("fconv_tiny", 1).to(device)) if draft == "model" else PromptLookup(3)
        options["search_strategy"] = SpeculativeSearch(drafter, 3, options.pop("inner", None))
    if processor := options.pop("processor", ""):
        given = resources(WORDS, lambda line: [WORDS.index(word) for word in line.split()])
        options["processors"] = [PROCESSORS[processor](given)]
    continuous = options.pop("continuous", False)
    generator = make_generator(models, WORDS, **options)
    if not continuous:
        return generator.generate(batch, prefix, phrases)
    waiting, _ = queue(sources, 2)
    onto = lambda more: None if more is None else more.to(device)  # noqa: E731
    found = dict(generate_continuously(generator, lambda taken, width: onto(waiting(taken, width))))
    return [found[number] for number in range(len(sources))]


def assert_equal(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]], tolerance: float = 1e-5) -> None:
    for some, others in zip(found, wanted, strict=True):
        assert [one.tokens.tolist() for one in some] == [one.tokens.tolist() for one in others]
        assert [one.score for one in some] == pytest.approx([one.score for one in others], abs=tolerance)


@needs_gpu
def test_no_attention_is_compiled_for_a_number_of_keys() -> None:
    find_device("cuda")
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@contextmanager
def counted(counts: Counts) -> Iterator[dict[str, list[tuple[int, int]]]]:
    """The waits and transfers of each step, without those of compaction, and of each compaction and collection."""
    calls: dict[str, list[tuple[int, int]]] = {"first step": [], "step": [], "compact": [], "collect": []}

    def recording(name: str) -> Any:
        method = getattr(Session, name)

        def call(session: Session, *arguments: Any) -> Any:
            before, inside = (counts.waits.total(), counts.transfers.total()), len(calls["compact"])
            kind = "first step" if name == "step" and session.backpointers.length == 0 else name
            result = method(session, *arguments)
            compactions = calls["compact"][inside:] if name == "step" else []
            waits, transfers = (sum(each) for each in zip(*compactions, strict=True)) if compactions else (0, 0)
            now = counts.waits.total() - waits, counts.transfers.total() - transfers
            calls[kind].append((now[0] - before[0], now[1] - before[1]))
            return result

        return mock.patch.object(Session, name, call)

    with recording("step"), recording("compact"), recording("collect"):
        yield calls


MORE_WAITS = {"processor=allowed_outputs": 4, "draft": 6, "look-up": 4, "sampled draft": 6, "stop texts": 3}
"""The number of further waits of steps that wait more than once."""


@pytest.mark.parametrize(("device", "name", "option"), DEVICES)
def test_a_gpu_gives_the_hypotheses_of_the_cpu(device: str, name: str, option: str) -> None:
    options = {**OPTIONS, **FURTHER}[option]
    wanted = decode(name, "cpu", options)
    if device == "cuda":
        assert_equal(decode(name, device, options), wanted)
        return
    with simulated_gpu() as counts, counted(counts) as calls:
        found = decode(name, device, options)
    assert_equal(found, wanted, 1e-9)
    further = MORE_WAITS.get(option, 0)
    assert max((waits for waits, _ in calls["step"]), default=0) <= 1 + further, dict(counts.waits)
    if option != "stop texts":  # they are compared on the CPU
        assert sum(transfers for _, transfers in calls["step"]) == 0, counts.transfers
    assert max(waits for waits, _ in calls["first step"]) <= 4 + further, counts.waits  # also checks the search
    assert all(each == (2, 0) for each in calls["collect"])
    assert all(each == (4 if "constrained" in option else 3, 0) for each in calls["compact"])
