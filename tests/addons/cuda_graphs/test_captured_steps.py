"""Recorded steps that are replayed give the hypotheses of steps that Python computes; see ``captured.py``.

The windows are so small here that a decode outgrows several.
"""

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from seqgen import Translator
from seqgen.addons.cuda_graphs import captured
from seqgen.addons.cuda_graphs.captured import CapturedMember, CapturedStep
from seqgen.addons.cuda_graphs.graphs import GRAPHS
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.extend import Batch, DecodingRequest, Hypothesis, MultiheadAttention, SequenceGenerator, Session
from tests.addons.cuda_graphs.recording_gpu import recording_gpu
from tests.covering import covering
from tests.generation.test_fork import Results, branching
from tests.generation.test_gpu import OPTIONS, assert_equal, decode
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import EOS, PAD, ZOO, in_zoo, sharp
from tests.scripted_model import batch_of, dictionary as tiny_dictionary
from tests.simulated_gpu import Counts
from tests.text_models import text_model
from tests.waiting_sentences import queue

CAPTURED = in_zoo("fconv_uneven", "fconv_tiny", "transformer_tiny", "transformer_marian", "t5_tiny", "t5gemma_tiny")
"""Models whose decoders can be recorded, as they can join a running batch."""

FAST = ["ensemble", "search=sampling", "prefix"]
SLOW = [option for option in OPTIONS if option not in (*FAST, "no cache", "table", "search=contrastive")]
PAIRS = covering(CAPTURED, [*FAST, *SLOW])
"""Each option with one of the models."""


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


@pytest.mark.parametrize(
    ("device", "name", "option"),
    [
        *(pytest.param("gpu", *pair, marks=() if pair[1] in FAST else pytest.mark.slow) for pair in PAIRS),
        *(("cuda", *pair) for pair in PAIRS if torch.cuda.is_available()),
    ],
)
def test_hypotheses_are_the_same(device: str, name: str, option: str, reasons: set[str]) -> None:
    with recording_gpu() if device == "gpu" else nullcontext():
        replay = GRAPHS[device].replay
        with mock.patch.object(GRAPHS[device], "replay", autospec=True, side_effect=replay) as replayed:
            found = decode(name, device, {**OPTIONS[option], "cuda_graphs": True})
    assert_equal(found, decode(name, "cpu", OPTIONS[option]), 1e-9 if device == "gpu" else 1e-5)
    assert replayed.call_count > 4
    assert not reasons


@pytest.mark.parametrize("name", ["lstm_tiny", "average", "transformer_lm_tiny"])
def test_other_models_decode_without(name: str, reasons: set[str]) -> None:
    found, counts = replayed(name, {})
    assert_equal(found, decode(name, "cpu", {}), 1e-9)
    assert not counts.launches["replay"]
    assert reasons


@pytest.mark.slow
def test_a_step_of_any_depth_has_the_same_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "_SMALLEST_WINDOW", 16)

    def launches(members: int) -> int:
        """Of four more steps."""
        with recording_gpu() as counts:
            models = [sharp("transformer_tiny", seed).to("gpu") for seed in range(members)]
            batch, found = sentences("transformer_tiny", [5, 6]), []
            for steps in (9, 5, 9):  # the first decode records
                counts.clear()
                options = {"beam_size": 4, "min_len": steps, "max_len": steps, "cuda_graphs": True}
                make_generator(models, tiny_dictionary(), **options).generate(batch)
                found.append(counts.launches.total())
            return found[2] - found[1]

    one, two = map(launches, (1, 2))
    assert one <= 4 * 70
    assert two - one <= 4 * 16


def on_gpu(name: str, **options: Any) -> tuple[Any, SequenceGenerator]:
    """A model, and a generator that records its steps."""
    model = sharp(name, 0).to("gpu")
    return model, make_generator([model], tiny_dictionary(), **options, cuda_graphs=True)


def sentences(name: str, *sources: list[int], device: str = "gpu") -> Batch:
    return batch_of([[*source, EOS] for source in sources], PAD, ZOO[name].padded_left).to(device)


def plainly(name: str, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
    """The hypotheses without recordings, on the CPU."""
    return make_generator([sharp(name, 0)], tiny_dictionary(), **options).generate(batch.to("cpu"))


def test_changed_weights_are_recorded_again() -> None:
    with recording_gpu():
        model, generator = on_gpu("t5_tiny", beam_size=3, max_len=9)
        batch = sentences("t5_tiny", [5, 6, 7], [8])
        before = generator.generate(batch)
        with torch.no_grad():
            for weight in model.decoder.parameters():
                weight.neg_()
        after = generator.generate(batch)
        plain = make_generator([model], tiny_dictionary(), beam_size=3, max_len=9)
        assert_equal(after, plain.generate(batch), 1e-9)
    assert [one.tokens.tolist() for one in before[0]] != [one.tokens.tolist() for one in after[0]]


@pytest.mark.slow
def test_two_decodes_at_the_same_time_have_separate_steps() -> None:
    sizes = {"beam_size": 3, "max_len": 9, "min_len": 5}
    with recording_gpu() as counts, torch.inference_mode():
        batches = [sentences("t5_tiny", *sources) for sources in ([[5, 6, 7], [8]], [[9, 5, 6], [4, 4]])]
        setup = on_gpu("t5_tiny", **sizes)[1].setup
        sessions = [Session(setup, DecodingRequest(batch)) for batch in batches]
        running = list(sessions)
        while running:
            running = [session for session in running if session.step()]
        for session, batch in zip(sessions, batches, strict=True):
            session.collect_all()
            assert_equal(session.results, plainly("t5_tiny", batch, **sizes), 1e-9)
        assert counts.launches["replay"] >= 8


def test_recordings_keep_layouts_of_weights_and_no_model() -> None:
    with recording_gpu():
        model, generator = on_gpu("fconv_tiny", max_len=9, min_len=5)
        gone = weakref.ref(model.decoder)
        generator.generate(sentences("fconv_tiny", [5, 6, 7]))
        assert captured._STEPS[model.decoder]
        modules = model.decoder.modules()
        kept = [made for module in modules for _, made in vars(module).get("_kept", {}).values()]
        layouts = [weakref.ref(made) for made in kept if isinstance(made, Tensor)]
        del kept, modules
        model.train()
        gc.collect()
        assert layouts
        assert all(layout() is not None for layout in layouts), "a graph reads them, though the modules drop them"
        del model, generator
        gc.collect()
    assert gone() is None


def test_sentences_that_join_a_batch_are_replayed() -> None:
    sources = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [6], [7, 8]]
    sizes = {"beam_size": 3, "max_len_a": 1.5, "max_len_b": 3}
    wanted = plainly("t5_tiny", sentences("t5_tiny", *sources, device="cpu"), **sizes)
    with recording_gpu() as counts:
        generator = on_gpu("t5_tiny", **sizes)[1]
        assert generator.can_merge
        take, _ = queue([(*source, EOS) for source in sources], 2)
        found = dict(generate_continuously(generator, lambda *room: (batch := take(*room)) and batch.to("gpu")))
        assert counts.launches["replay"] > 4
    assert_equal([found[number] for number in range(len(sources))], wanted, 1e-9)


class _Counting(MultiheadAttention):
    """Scales its output by the number of its calls, which Python counts in the cache."""

    def forward(self, query: Tensor, *arguments: Any, **options: Any) -> Any:
        out, weights = super().forward(query, *arguments, **options)
        cache: Any = (self.get_state(options["incremental_state"]) or {})["cache"]
        cache.calls = getattr(cache, "calls", 0) + 1
        return out * (1 + cache.calls / 4), weights


@pytest.mark.slow
def test_a_number_that_python_changes_is_found(reasons: set[str]) -> None:
    """It would stay as it was when the step was recorded."""

    def counted(device: str) -> list[list[Hypothesis]]:
        model = sharp("transformer_tiny", 0).to(device)
        model.decoder.layers[0].self_attn.__class__ = _Counting  # type: ignore[union-attr]
        options = {"beam_size": 3, "max_len": 9, "cuda_graphs": True, "beam_indirection": False}
        batch = sentences("transformer_tiny", [5, 6, 7], [8], device=device)
        return make_generator([model], tiny_dictionary(), **options).generate(batch)

    wanted = counted("cpu")
    with recording_gpu():
        assert_equal(counted("gpu"), wanted, 1e-9)
    assert any("calls" in reason for reason in reasons)


@pytest.mark.slow
def test_hooks_are_called_at_every_step_and_autocast_is_not_recorded(reasons: set[str]) -> None:
    calls: list[Any] = []
    with recording_gpu():
        model, generator = on_gpu("transformer_tiny", min_len=9, max_len=9)
        model.decoder.layers[0].register_forward_hook(lambda *arguments: calls.append(arguments))
        generator.generate(sentences("transformer_tiny", [5, 6, 7]))
        with torch.autocast("gpu", torch.bfloat16):
            decode("t5_tiny", "gpu", {"cuda_graphs": True})
    assert len(calls) == 9
    assert [any(word in reason for reason in reasons) for word in ("hooks", "autocast")] == [True, True]


@pytest.mark.slow
def test_finished_sentences_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty sentences that end one after the other, the state is written to a recording twice."""
    monkeypatch.setattr(captured, "_SMALLEST_WINDOW", 64)
    monkeypatch.setattr(captured, "_SHRINKS", 4)
    random = torch.Generator().manual_seed(3)
    sources = [torch.randint(4, 9, (n,), generator=random).tolist() for n in range(1, 21)]
    sizes = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 1, "lazy_compaction": False}
    wanted = plainly("t5_tiny", sentences("t5_tiny", *sources, device="cpu"), **sizes)
    load = mock.patch.object(CapturedStep, "load", autospec=True, side_effect=CapturedStep.load)
    with recording_gpu() as counts, load as loads:
        found = on_gpu("t5_tiny", **sizes)[1].generate(sentences("t5_tiny", *sources))
    assert_equal(found, wanted, 1e-9)
    assert [call.args[0].shape.sentences for call in loads.call_args_list] == [32, 4, 1]
    assert counts.launches["replay"] == max(len(one.tokens) for each in found for one in each) - 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "beam"), [("fconv_uneven", 1), ("t5_tiny", 1), ("transformer_tiny", 4)])
def test_bfloat16(name: str, beam: int) -> None:
    """On the same device, up to rounding: the sums of attention have more positions, hidden ones."""
    random = torch.Generator().manual_seed(5)
    sources = [torch.randint(4, 9, (n,), generator=random).tolist() for n in (4, 1, 7, 2, 5)]
    with recording_gpu() as counts:
        model, batch = sharp(name, 0).to("gpu", torch.bfloat16), sentences(name, *sources)
        eager, replays = (
            make_generator([model], tiny_dictionary(), beam_size=beam, max_len=9, cuda_graphs=captures)
            for captures in (False, True)
        )
        assert_equal(replays.generate(batch), eager.generate(batch), 2**-5)
        assert counts.launches["replay"] > 4


@pytest.mark.slow
def test_a_wrong_first_replay_is_found(reasons: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    replay = CapturedStep.replay

    def replay_wrongly(step: CapturedStep, *arguments: Any) -> Any:
        out = replay(step, *arguments)
        return replace(out, logits=out.logits * 1.01)

    monkeypatch.setattr(CapturedStep, "replay", replay_wrongly)
    for _ in range(2):  # the second decode finds the recording
        found, counts = replayed("t5_tiny", {})
        assert_equal(found, decode("t5_tiny", "cpu", {}), 1e-9)
        assert counts.launches["replay"] <= 1
    assert reasons == {"the first replayed step differs from the same step without a recording"}


@pytest.mark.slow
def test_forks_decode_as_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, found = list[Results](), list[Results]()
    plain = decode("transformer_tiny", "cpu", {})
    monkeypatch.setattr(Session, "run", branching(wanted, found, 3))
    with recording_gpu() as counts:
        assert_same(decode("transformer_tiny", "gpu", {"cuda_graphs": True}), plain, 1e-9)
    assert counts.launches["replay"] > 4
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two, 1e-9)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"fast.use_cache": False}, "fast.use_cache or fast.share_encoder_output is off"),
        ({"search": "contrastive"}, "steps of this search have changing shapes"),
    ],
)
def test_steps_that_are_not_captured_are_noted_once(settings: dict[str, Any], reason: str) -> None:
    model = text_model()
    on_cpu = Translator(model).prepare(**{"fast.cuda_graphs": True}).notes
    assert on_cpu == ["fast.cuda_graphs has no effect: steps are recorded on cuda, not on cpu"]
    with recording_gpu():
        model.model.to("gpu")
        decoding = Translator(model, max_len_b=3, **settings, **{"fast.cuda_graphs": True}).prepare()
        assert decoding.notes == []
        found = [note for _ in range(2) for one in decoding.translate(["w1 w2", "w3"]) for note in one.notes]
    assert not [note for note in found if "captured" in note]
    assert decoding.notes == ([f"some steps were not captured: {reason}"] if reason else [])
