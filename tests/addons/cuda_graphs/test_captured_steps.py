"""Recorded steps that are replayed give the hypotheses of steps that Python computes; see ``captured.py``.

The windows are so small here that a decode outgrows several.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen import Translator
from seqgen.addons.cuda_graphs import captured
from seqgen.addons.cuda_graphs.captured import CapturedMember, CapturedStep
from seqgen.addons.cuda_graphs.graphs import GRAPHS
from seqgen.core.session import Session
from seqgen.core.setup import DecodingRequest
from seqgen.core.structures import Hypothesis
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.modules.multihead_attention import MultiheadAttention
from tests.addons.cuda_graphs.recording_gpu import recording_gpu
from tests.generation.test_fork import Results, branching
from tests.generation.test_gpu import OPTIONS, assert_equal, decode, needs_gpu
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import EOS, PAD, ZOO, in_zoo, sharp
from tests.scripted_model import batch_of, dictionary as tiny_dictionary
from tests.simulated_gpu import Counts
from tests.text_models import text_model

CAPTURED = in_zoo("fconv_uneven", "fconv_tiny", "transformer_tiny", "transformer_marian", "t5_tiny", "t5gemma_tiny")
"""Models whose decoders can be recorded, as they can join a running batch."""

FASTEST = "transformer_tiny"
FAST = (
    "beam",
    "huggingface",
    "ensemble",
    "search=greedy",
    "search=sampling",
    "prefix",
    "compaction at once",
    "guidance",
)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "_SMALLEST_WINDOW", 4)
    monkeypatch.setattr(captured, "_SMALLEST_SOURCE", 4)
    monkeypatch.setattr(captured, "_SHRINKS", 8)  # four of sixteen places stay in use, one does not


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Why steps were not recorded."""
    found: set[str] = set()
    compute = CapturedMember.compute

    def noting(member: CapturedMember, *arguments: Any) -> Any:
        out = compute(member, *arguments)
        found.update({member.refused} - {None})  # type: ignore[arg-type]
        return out

    monkeypatch.setattr(CapturedMember, "compute", noting)
    return found


def replayed(name: str, options: dict[str, Any]) -> tuple[list[list[Hypothesis]], Counts]:
    with recording_gpu() as counts:
        return decode(name, "gpu", {**options, "cuda_graphs": True}), counts


def count_replays(graphs: Any, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list that gets one entry at each replay."""
    found: list[None] = []

    class Counted(graphs):  # type: ignore[misc]
        def replay(self) -> None:
            found.append(None)
            super().replay()

    monkeypatch.setitem(GRAPHS, "cuda", Counted)
    return found


CASES = [
    pytest.param(
        name, option, marks=() if option in FAST and (option == "beam" or name == FASTEST) else pytest.mark.slow
    )
    for name in CAPTURED
    for option in OPTIONS
    if option not in ("no cache", "table", "search=contrastive")
]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_hypotheses_are_the_same(name: str, option: str, reasons: set[str]) -> None:
    found, counts = replayed(name, OPTIONS[option])
    assert_equal(found, decode(name, "cpu", OPTIONS[option]), 1e-9)
    assert counts.launches["replay"] > 4
    assert not reasons


@needs_gpu
@pytest.mark.parametrize(("name", "option"), [case.values for case in CASES])
def test_hypotheses_are_the_same_on_a_gpu(
    name: str, option: str, reasons: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = count_replays(GRAPHS["cuda"], monkeypatch)
    found = decode(name, "cuda", {**OPTIONS[option], "cuda_graphs": True})
    assert_equal(found, decode(name, "cpu", OPTIONS[option]))
    assert len(replays) > 4
    assert not reasons


@pytest.mark.parametrize("name", ["lstm_tiny", "average", "transformer_lm_tiny"])
def test_other_models_decode_without(name: str, reasons: set[str]) -> None:
    found, counts = replayed(name, {})
    assert_equal(found, decode(name, "cpu", {}), 1e-9)
    assert not counts.launches["replay"]
    assert reasons


def test_a_step_of_any_depth_has_the_same_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches of a second decode, in which nothing is recorded."""
    monkeypatch.setattr(captured, "_SMALLEST_WINDOW", 16)

    def launches(members: int, steps: int) -> int:
        with recording_gpu() as counts:
            models = [sharp("transformer_tiny", seed).to("gpu") for seed in range(members)]
            options = {"beam_size": 4, "min_len": steps, "max_len": steps, "cuda_graphs": True}
            generator = make_generator(models, tiny_dictionary(), **options)
            batch = batch_of([[5, 6, EOS]], PAD, ZOO["transformer_tiny"].padded_left).to("gpu")
            generator.generate(batch)
            counts.clear()
            generator.generate(batch)
            return counts.launches.total()

    one, two = (launches(members, 9) - launches(members, 5) for members in (1, 2))
    assert one <= 4 * 70
    assert two - one <= 4 * 16


def test_changed_weights_are_recorded_again() -> None:
    with recording_gpu():
        model = sharp("t5_tiny", 0).to("gpu")
        generator = make_generator([model], tiny_dictionary(), beam_size=3, max_len=9, cuda_graphs=True)
        batch = batch_of([[5, 6, 7, EOS], [8, EOS]], PAD, False).to("gpu")
        before = generator.generate(batch)
        with torch.no_grad():
            for weight in model.decoder.parameters():
                weight.neg_()
        after = generator.generate(batch)
        plain = make_generator([model], tiny_dictionary(), beam_size=3, max_len=9)
        assert_equal(after, plain.generate(batch), 1e-9)
    assert [one.tokens.tolist() for one in before[0]] != [one.tokens.tolist() for one in after[0]]


def test_two_decodes_at_the_same_time_have_separate_steps() -> None:
    batches = [batch_of(sources, PAD, False) for sources in ([[5, 6, 7, EOS], [8, EOS]], [[9, 5, 6, EOS], [4, 4, EOS]])]
    sizes = {"beam_size": 3, "max_len": 9, "min_len": 5}
    plain = make_generator([sharp("t5_tiny", 0)], tiny_dictionary(), **sizes)
    with recording_gpu() as counts, torch.inference_mode():
        model = sharp("t5_tiny", 0).to("gpu")
        setup = make_generator([model], tiny_dictionary(), **sizes, cuda_graphs=True).setup
        sessions = [Session(setup, DecodingRequest(batch.to("gpu"))) for batch in batches]
        running = list(sessions)
        while running:
            running = [session for session in running if session.step()]
        for session, batch in zip(sessions, batches, strict=True):
            session.collect_all()
            assert_equal(session.results, plain.generate(batch), 1e-9)
        assert counts.launches["replay"] >= 8


def test_recordings_do_not_keep_a_model() -> None:
    with recording_gpu():
        model = sharp("t5_tiny", 0).to("gpu")
        gone = weakref.ref(model.decoder)
        generator = make_generator([model], tiny_dictionary(), max_len=5, min_len=5, cuda_graphs=True)
        generator.generate(batch_of([[5, EOS]], PAD, False).to("gpu"))
        assert captured._STEPS[model.decoder]
        del model, generator
        gc.collect()
    assert gone() is None


def test_sentences_that_join_a_batch_are_replayed() -> None:
    sources = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, EOS], [6, EOS], [7, 8, EOS]]
    sizes = {"beam_size": 3, "max_len_a": 1.5, "max_len_b": 3}
    wanted = make_generator([sharp("t5_tiny", 0)], tiny_dictionary(), **sizes).generate(batch_of(sources, PAD, False))
    with recording_gpu() as counts:
        generator = make_generator([sharp("t5_tiny", 0).to("gpu")], tiny_dictionary(), **sizes, cuda_graphs=True)
        assert generator.can_merge
        batches = [batch_of(sources[:2], PAD, False), *(batch_of([source], PAD, False) for source in sources[2:])]
        ids = iter([[0, 1], [2], [3], [4]])

        def waiting(taken: int, width: int) -> Any:
            if not batches:
                return None
            batch = batches.pop(0)
            batch.ids.copy_(torch.tensor(next(ids)))
            return batch.to("gpu")

        found = dict(generate_continuously(generator, waiting))
        assert counts.launches["replay"] > 4
    assert_equal([found[number] for number in range(len(sources))], wanted, 1e-9)


class _Counting(MultiheadAttention):
    """Scales its output by the number of its calls, which Python counts in the cache."""

    def forward(self, query: Tensor, *arguments: Any, **options: Any) -> Any:
        out, weights = super().forward(query, *arguments, **options)
        cache: Any = (self.get_state(options["incremental_state"]) or {})["cache"]
        cache.calls = getattr(cache, "calls", 0) + 1
        return out * (1 + cache.calls / 4), weights


def test_a_number_that_python_changes_is_found(reasons: set[str]) -> None:
    """It would stay as it was when the step was recorded."""

    def counted(device: str) -> list[list[Hypothesis]]:
        model = sharp("transformer_tiny", 0)
        model.decoder.layers[0].self_attn.__class__ = _Counting  # type: ignore[union-attr]
        model.to(device)
        options = {"beam_size": 3, "max_len": 9, "cuda_graphs": True, "beam_indirection": False}
        batch = batch_of([[5, 6, 7, EOS], [8, EOS]], PAD, ZOO["transformer_tiny"].padded_left).to(device)
        return make_generator([model], tiny_dictionary(), **options).generate(batch)

    wanted = counted("cpu")
    with recording_gpu():
        assert_equal(counted("gpu"), wanted, 1e-9)
    assert any("calls" in reason for reason in reasons)


def test_hooks_are_called_at_every_step(reasons: set[str]) -> None:
    calls: list[Any] = []
    with recording_gpu():
        model = sharp("transformer_tiny", 0).to("gpu")
        model.decoder.layers[0].register_forward_hook(lambda *arguments: calls.append(arguments))
        options = {"min_len": 9, "max_len": 9, "cuda_graphs": True}
        batch = batch_of([[5, 6, 7, EOS]], PAD, ZOO["transformer_tiny"].padded_left).to("gpu")
        make_generator([model], tiny_dictionary(), **options).generate(batch)
    assert len(calls) == 9
    assert any("hooks" in reason for reason in reasons)


def test_finished_sentences_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty sentences that end one after the other, the state is written to a recording twice."""
    monkeypatch.setattr(captured, "_SMALLEST_WINDOW", 64)
    monkeypatch.setattr(captured, "_SHRINKS", 4)
    random = torch.Generator().manual_seed(3)
    sources = [[*torch.randint(4, 9, (n,), generator=random).tolist(), EOS] for n in range(1, 21)]
    sizes = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 1, "lazy_compaction": False}
    wanted = make_generator([sharp("t5_tiny", 0)], tiny_dictionary(), **sizes).generate(batch_of(sources, PAD, False))
    loads: list[int] = []
    load = CapturedStep.load
    monkeypatch.setattr(
        CapturedStep, "load", lambda step, begin: (loads.append(step.shape.sentences), load(step, begin))
    )
    with recording_gpu() as counts:
        generator = make_generator([sharp("t5_tiny", 0).to("gpu")], tiny_dictionary(), **sizes, cuda_graphs=True)
        found = generator.generate(batch_of(sources, PAD, False).to("gpu"))
    assert_equal(found, wanted, 1e-9)
    assert loads == [32, 4, 1]
    assert len({len(one[0].tokens) for one in found}) > 6
    assert counts.launches["replay"] == max(len(one.tokens) for each in found for one in each) - 1


@pytest.mark.parametrize("name", ["t5_tiny", "transformer_tiny", "fconv_uneven"])
@pytest.mark.parametrize("beam", [1, 4])
def test_bfloat16(name: str, beam: int) -> None:
    """On the same device, up to rounding: the sums of attention have more positions, hidden ones."""
    random = torch.Generator().manual_seed(5)
    sources = [[*torch.randint(4, 9, (n,), generator=random).tolist(), EOS] for n in (4, 1, 7, 2, 5)]
    with recording_gpu() as counts:
        model = sharp(name, 0).to("gpu", torch.bfloat16)
        batch = batch_of(sources, PAD, ZOO[name].padded_left).to("gpu")
        eager, replays = (
            make_generator([model], tiny_dictionary(), beam_size=beam, max_len=9, cuda_graphs=captures)
            for captures in (False, True)
        )
        assert_equal(replays.generate(batch), eager.generate(batch), 2**-5)
        assert counts.launches["replay"] > 4


@pytest.mark.parametrize("wrong", [0.0, 1e-2])
def test_a_wrong_first_replay_is_found(wrong: float, reasons: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    replay = CapturedStep.replay

    def replay_wrongly(step: CapturedStep, *arguments: Any) -> Any:
        out = replay(step, *arguments)
        return replace(out, logits=out.logits * (1 + wrong))

    monkeypatch.setattr(CapturedStep, "replay", replay_wrongly)
    for _ in range(2):  # the second decode finds the recording
        found, counts = replayed("t5_tiny", {})
        assert_equal(found, decode("t5_tiny", "cpu", {}), 1e-9)
        assert (counts.launches["replay"] > 1) == (not wrong)
    assert reasons == ({"the first replayed step differs from the same step without a recording"} if wrong else set())


def test_layouts_of_weights_outlive_training() -> None:
    """A graph reads their memory, and ``train`` drops them from the modules."""
    with recording_gpu():
        model = sharp("fconv_tiny", 0).to("gpu")
        generator = make_generator([model], tiny_dictionary(), max_len=9, cuda_graphs=True)
        batch = batch_of([[5, 6, 7, EOS]], PAD, ZOO["fconv_tiny"].padded_left).to("gpu")
        generator.generate(batch)
        layouts = [
            weakref.ref(made)
            for module in model.decoder.modules()
            for _, made in vars(module).get("_kept", {}).values()
            if isinstance(made, Tensor)
        ]
        model.train()
        gc.collect()
        assert layouts
        assert all(layout() is not None for layout in layouts)


def test_autocast_is_not_recorded(reasons: set[str]) -> None:
    with recording_gpu(), torch.autocast("gpu", torch.bfloat16):
        decode("t5_tiny", "gpu", {"cuda_graphs": True})
    assert any("autocast" in reason for reason in reasons)


@pytest.mark.parametrize("name", ["t5_tiny", "transformer_tiny"])
def test_the_memory_of_a_recording(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula of docs/fast-decoding.md."""
    monkeypatch.setattr(captured, "_SMALLEST_WINDOW", 64)
    with recording_gpu():
        model = sharp(name, 0).to("gpu")
        generator = make_generator([model], tiny_dictionary(), beam_size=5, min_len=5, max_len=5, cuda_graphs=True)
        generator.generate(batch_of([[5, 6, EOS]] * 4, PAD, ZOO[name].padded_left).to("gpu"))
        (step,) = captured._STEPS[model.decoder]
        layers: Any = model.decoder.layers
        dim = layers[0].self_attn.num_heads * layers[0].self_attn.head_dim
        bytes_ = sum(leaf.nbytes for _, leaf in captured.leaves(step.state) if isinstance(leaf, Tensor))
        formula = step.shape.sentences * 2 * len(layers) * dim * (5 * step.shape.window + step.shape.source) * 8
    assert bytes_ == pytest.approx(formula, rel=0.03)


@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny"])
def test_forks_decode_as_the_session(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[Results] = []
    found: list[Results] = []
    plain = decode(name, "cpu", {})
    monkeypatch.setattr(Session, "run", branching(wanted, found, 3))
    with recording_gpu() as counts:
        assert_same(decode(name, "gpu", {"cuda_graphs": True}), plain, 1e-9)
    assert counts.launches["replay"] > 4
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two, 1e-9)


def test_steps_are_not_captured_on_a_cpu() -> None:
    notes = Translator(text_model()).prepare(**{"fast.cuda_graphs": True}).notes
    assert notes == ["fast.cuda_graphs has no effect: steps are recorded on cuda, not on cpu"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"fast.use_cache": False}, "fast.use_cache or fast.share_encoder_output is off"),
        ({"search": "contrastive"}, "steps of this search have changing shapes"),
    ],
)
def test_steps_that_are_not_captured_are_noted_once(settings: dict[str, Any], reason: str) -> None:
    with recording_gpu():
        model = text_model()
        model.model.to("gpu")
        decoding = Translator(model, max_len_b=3, **settings, **{"fast.cuda_graphs": True}).prepare()
        assert decoding.notes == []
        found = [note for _ in range(2) for one in decoding.translate(["w1 w2", "w3"]) for note in one.notes]
    assert not [note for note in found if "captured" in note]
    assert decoding.notes == ([f"some steps were not captured: {reason}"] if reason else [])
