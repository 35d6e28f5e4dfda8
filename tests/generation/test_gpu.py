"""Decoding on a GPU equals decoding on the CPU: every model, strategy and kind of ensemble.

The GPU is simulated, so that waits and transfers are counted too; where there is a real one, it decodes the same cases.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seqgen.lab.checks.subject import tiny_dictionary
from seqgen.structures import Hypothesis
from seqgen.system.devices import find_device
from tests.generators import make_generator
from tests.model_zoo import ARCHITECTURES, EOS, PAD, VOCAB, ZOO, sharp
from tests.scripted_model import batch_of
from tests.simulated_gpu import simulated_gpu
from tests.strategy_zoo import PHRASES, STRATEGIES, strategy

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OPTIONS: dict[str, dict[str, Any]] = {
    **{"beam": {}, "huggingface": {"semantics": "huggingface"}, "no cache": {"use_cache": False}},
    **{"table": {"beam_table": True}, "no table": {"beam_table": False}, "log-softmax": {"skip_log_softmax": False}},
    **{"compaction at once": {"lazy_compaction": False}, "minimum": {"min_len": 3}, "prefix": {"prefix": 1}},
    **{"ensemble": {"members": 2}, "log": {"members": 2, "average": "log"}, "guidance": {"guidance_scale": 1.5}},
    **{f"search={name}": {"search": name, "max_len": 7} for name in STRATEGIES},
}
CASES = [
    (model, option)
    for model in ZOO
    for option in (OPTIONS if model in ARCHITECTURES else ("beam", "table", "no table"))
    if (model, option) != ("average", "search=contrastive")  # it has no hidden features
]
FAST = {
    *((model, "beam") for model in ARCHITECTURES),
    *(("transformer_tiny", option) for option in OPTIONS if option not in ("table", "log")),
}
DEVICES = [
    *(pytest.param("gpu", *case, marks=() if case in FAST else pytest.mark.slow) for case in CASES),
    *(pytest.param("cuda", *case, marks=needs_gpu) for case in CASES),
]


def decode(name: str, device: str, options: dict[str, Any]) -> list[list[Hypothesis]]:
    """The n-best lists of five random sources of different lengths, in float64."""
    options = {"beam_size": 4, "max_len": 9, "min_len": 0, **options}
    random = torch.Generator().manual_seed(5)
    sources = [[*torch.randint(4, VOCAB, (n,), generator=random).tolist(), EOS] for n in (4, 1, 7, 2, 5)]
    batch = batch_of(sources, PAD, ZOO[name].ids.left).to(device)
    prefix = torch.full((5, 1), 5, device=device) if options.pop("prefix", 0) else None
    models = [sharp(name, seed).to(device) for seed in range(options.pop("members", 1))]
    phrases = None
    if search := options.pop("search", ""):
        options["search_strategy"] = strategy(search)
        phrases = [*PHRASES, []] if STRATEGIES[search].phrases else None
    return make_generator(models, tiny_dictionary(), **options).generate(batch, prefix, phrases)


def assert_equal(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]], tolerance: float = 1e-5) -> None:
    for some, others in zip(found, wanted, strict=True):
        assert [one.tokens.tolist() for one in some] == [one.tokens.tolist() for one in others]
        assert [one.score for one in some] == pytest.approx([one.score for one in others], abs=tolerance)


def test_no_attention_is_compiled_for_a_number_of_keys() -> None:
    if torch.cuda.is_available():
        find_device("cuda")
        assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(("device", "name", "option"), DEVICES)
def test_a_gpu_gives_the_hypotheses_of_the_cpu(device: str, name: str, option: str) -> None:
    wanted = decode(name, "cpu", OPTIONS[option])
    if device == "cuda":
        assert_equal(decode(name, device, OPTIONS[option]), wanted)
        return
    with simulated_gpu():
        found = decode(name, device, OPTIONS[option])
    assert_equal(found, wanted, 1e-9)
