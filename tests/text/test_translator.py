"""Decoding text from Python: what comes back, how models' own settings count, and what wrong input gets."""

import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.config.settings import Settings
from seqgen.decoding.resolution import resolve
from seqgen.extend import GenerationConfig, ModelInMemory, TextDecoding
from seqgen.text import text_decoding
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.scripted_model import batch_of, dictionary
from tests.text_models import TEXTS, text_model

SHORT = {"max_len_b": 12}


@pytest.mark.parametrize("name", ["transformer_tiny", "fconv_tiny", "t5_tiny"])
@torch.no_grad()
def test_translations_are_those_of_the_generator(name: str) -> None:
    """Attention is over the line alone, and hidden features give the scores."""
    one = text_model(name)
    translator = Translator(one, beam=4, nbest=3, **SHORT)
    found = translator.translate(TEXTS, return_attention=True, return_hidden=True)
    batch = batch_of([one.task.encode_source(text).tolist() for text in TEXTS])
    wanted = make_generator([one.model], dictionary(19), beam_size=4, max_len_b=12).generate(batch)
    for text, translation, hypotheses in zip(TEXTS, found, wanted, strict=True):
        best = translation.hypotheses[0]
        assert (translation.source, translation.score) == (text, best.score)
        assert translation.text == one.task.decode(hypotheses[0].tokens)
        assert best.attention.shape == (len(best.tokens), len(text.split()) + 1)
        torch.testing.assert_close(best.attention.sum(1), torch.ones(len(best.tokens), dtype=torch.float64))
        assert best.alignment.tolist() == best.attention[:, : len(text.split())].argmax(1).tolist()
        (alone,) = translator.translate([text], return_attention=True)
        torch.testing.assert_close(alone.hypotheses[0].attention, best.attention, atol=1e-10, rtol=0)
        for item in translation.hypotheses:
            (hidden,) = item.hidden or ()
            lprobs = one.model.decoder.output_layer(hidden).log_softmax(-1)
            own = lprobs.gather(1, item.tokens.unsqueeze(1)).squeeze(1)
            torch.testing.assert_close(own, item.positional_scores, atol=1e-10, rtol=0)
    plain = translator.translate(TEXTS)
    assert_same([translation.hypotheses for translation in plain], [hypotheses[:3] for hypotheses in wanted])
    assert plain[0].hypotheses[0].attention is None


@pytest.mark.parametrize("average", ["probability", "log"])
def test_members_say_what_they_would_have_given(average: str) -> None:
    members = [text_model("transformer_tiny", 1), text_model("fconv_tiny", 2)]
    cfg: dict[str, Any] = {"beam": 3, "nbest": 2, "combination": average, "combination.weights": [1, 3], **SHORT}
    found, compared = Translator(members).translate(TEXTS, return_scores=True, **cfg), 0
    for translation in found:
        for hypothesis in translation.hypotheses:
            first, second = hypothesis.member_scores
            assert hypothesis.model_score == pytest.approx(hypothesis.score, abs=1e-10)
            if average == "probability":
                mixed = (first.exp() / 4 + second.exp() * 3 / 4).log()
                torch.testing.assert_close(mixed, hypothesis.positional_scores, atol=1e-10, rtol=0)
            for member, scores in zip(members, (first, second), strict=True):
                (alone,) = Translator(member).score([translation.source], [hypothesis.text])
                if alone.tokens.tolist() == hypothesis.tokens.tolist():
                    torch.testing.assert_close(scores, alone.positional_scores, atol=1e-10, rtol=0)
                    compared += 1
    assert compared > len(TEXTS), "most hypotheses have the tokens of their texts"


@pytest.mark.parametrize("rescored_tokens", [40, 1024])
def test_the_models_own_score_stands_beside_a_search_that_changes_scores(
    rescored_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a long batch is rescored in parts."""
    monkeypatch.setattr(text_decoding, "RESCORED_TOKENS", rescored_tokens)
    translator = Translator(text_model(), beam=3, length_penalty=0.7, **SHORT)
    for translation in translator.translate(TEXTS, temperature=0.6, return_scores=True):
        best = translation.hypotheses[0]
        (known,) = translator.score([translation.source], [best.text])
        total = float(known.positional_scores.sum())
        assert best.model_score == pytest.approx(total / len(best.tokens) ** 0.7, abs=1e-10)
        assert abs(best.model_score - best.score) > 1e-3


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_prefixes_are_continued(semantics: str) -> None:
    translator = Translator(text_model(), beam=3, semantics=semantics, **SHORT)
    assert translator.translate([]) == []
    prefixes = ["w7 w7", "", "w1", "", "w2 w3 w4"]
    found = translator.translate(TEXTS, prefixes=prefixes, nbest=2)
    free = translator.translate(TEXTS, nbest=2)
    for translation, prefix, without in zip(found, prefixes, free, strict=True):
        assert all(h.text.startswith(prefix) for h in translation.hypotheses)
        assert translation.prefix == prefix
        if not prefix:
            assert [h.text for h in translation.hypotheses] == [h.text for h in without.hypotheses]
        (alone,) = translator.translate([translation.source], prefixes=[prefix], nbest=2)
        assert [h.text for h in alone.hypotheses] == [h.text for h in translation.hypotheses]


def test_prefixes_that_do_not_fit() -> None:
    translator = Translator(text_model(), beam=2, max_len_b=3)
    (found,) = translator.translate(["w1"], prefixes=["w1 w2 w3 w4 w5"])
    assert found.text == "w1 w2 w3"
    assert found.notes == [
        "of 5 prefix tokens only the first 3 fit into the longest output",
        "the output has the maximum length of 4 tokens and may be cut off",
    ]
    (found,) = translator.translate(["w1"], prefixes=["w1 nothere"])
    assert "nothere" in found.notes[0]


def with_settings(**generation: Any) -> ModelInMemory:
    return replace(text_model(), generation=generation)


def test_the_models_own_settings_are_under_the_users() -> None:
    translator = Translator(with_settings(beam=3, length_penalty=0.5, semantics="huggingface"), nbest=2)
    assert translator.settings() == GenerationConfig(beam=3, length_penalty=0.5, semantics="huggingface", nbest=2)
    assert translator.settings(beam=5).beam == 5, "the user's key wins where it is the default, too"
    assert translator.settings(nbest=1).nbest == 1
    assert Translator(text_model()).settings() == GenerationConfig(semantics="fairseq")
    notes = translator.prepare().notes
    own = "the model decodes with settings of its own, which your keys override"
    assert notes == [f"{own}: generation.beam=3, length_penalty=0.5, semantics=huggingface"]
    assert Translator(text_model(), beam=3).prepare().notes == []
    for own_key, key in (
        ({"semantics": "huggingface"}, {"early_stopping": "never"}),
        ({"semantics": "huggingface"}, {"forced_last": "w1"}),
        ({"sampling": True}, {"top_k": 5}),
        ({"beam": 12}, {"nbest": 8}),
    ):  # keys that need the model's
        both = {**own_key, **key}
        assert vars(Translator(with_settings(**own_key), **key).settings()).items() >= both.items()


def resolved(of_model: dict[str, Any], given: dict[str, Any]) -> tuple[GenerationConfig, list[str]]:
    found = resolve(Settings().with_layer("user", given), [of_model])
    return found.generation, list(found.notes)


def test_a_models_settings_yield_where_they_mean_nothing_beside_the_users() -> None:
    own = {"semantics": "huggingface", "sampling": True, "top_k": 50, "early_stopping": "true", "nbest": 3}
    cfg, notes = resolved(own, {"search": "beam", "beam": 2})
    assert (cfg.sampling, cfg.top_k, cfg.early_stopping, cfg.nbest) == (False, 0, "true", 1)
    assert "sampling" not in notes[0]
    cfg, _ = resolved(own, {"semantics": "fairseq"})
    assert (cfg.sampling, cfg.top_k, cfg.early_stopping) == (True, 50, "false")
    for strategy in ({"sampling": True, "top_k": 50}, {"search": "marian"}, {"search": "greedy"}):
        cfg, _ = resolved(strategy, {"constraints": "ordered", "beam": 4})
        assert (cfg.search, cfg.sampling, cfg.top_k) == ("", False, 0)
        cfg, _ = resolved(strategy, {"constraints": "ordered", "beam": 4, "search": "sampling"})
        assert cfg.search == "sampling", "the user asks for both"


def test_limits_that_are_only_lifted_are_not_worth_saying() -> None:
    lifted = {"semantics": "huggingface", "max_len": 9, "max_len_b": 1 << 20, "min_len": 0}
    said = "the model decodes with settings of its own, which your keys override: generation.semantics=huggingface"
    assert resolved(lifted, {})[1] == [f"{said}, max_len=9"]
    assert resolved({**lifted, "max_len_b": 5, "min_len": 2}, {})[1][0].endswith("max_len_b=5, min_len=2")
    (note,) = resolved({**lifted, "max_len": 20}, {})[1]
    assert note == f"{said}, max_len=20; max_len=20 is the default of transformers for models that set no limit"
    assert resolved({**lifted, "max_len": 20}, {"max_len": 20})[1] == [said]


def test_an_ensemble_is_decoded_as_its_first_member_says() -> None:
    translator = Translator([with_settings(beam=3), with_settings(beam=2, length_penalty=2.0)])
    assert (translator.settings().beam, translator.settings().length_penalty) == (3, 1.0)
    assert "model 2 differ from those of model 1 (beam, length_penalty)" in translator.prepare().notes[1]
    assert translator.prepare(beam=3, length_penalty=1.0).notes == []
    mixed = Translator([with_settings(), with_settings(semantics="huggingface")])
    assert mixed.settings().semantics == "fairseq"
    assert "(semantics); those of model 1 are used" in mixed.prepare().notes[0]


def test_files_that_have_changed_are_read_again(tmp_path: Path) -> None:
    translator = Translator(text_model(), beam=1, max_len_b=4)
    files = {
        "allowed_outputs": (tmp_path / "trie", "{} w3\n"),
        "shortlist": (tmp_path / "shortlist", "\t{}\n"),
        "replace_unknown": (tmp_path / "words", "w5\t{}\n"),
    }
    for key, (path, content) in files.items():
        suppress = [word for word in translator.task.target_dictionary if word not in ("</s>", "<unk>")]
        further = {"suppress": suppress} if key == "replace_unknown" else {}
        built = []
        for word in ("w1", "w2", "w2"):
            if not path.exists() or word not in path.read_text():
                path.write_text(content.format(word))
            (found,) = translator.translate(["w5"], **{key: str(path)}, **further)
            built.append(translator._generator)
            assert word in found.text.split(), key
        assert built[1] is built[2], "a file that has not changed is not read again"


def test_configurations_that_the_caller_changes_are_not_used_again() -> None:
    translator = Translator(text_model(), beam=3, nbest=3, suppress=["w2"], **SHORT)
    wanted = [one.text for one in translator.translate(TEXTS)]
    cfg = translator.settings()
    cfg.nbest = 1
    cfg.suppress.append(wanted[0].split()[0])
    assert (translator.settings().nbest, translator.settings().suppress) == (3, ["w2"])
    found = translator.translate(TEXTS)
    assert [one.text for one in found] == wanted
    assert len(found[0].hypotheses) == 3
    with pytest.raises(FrozenInstanceError, match="cannot assign to nbest"):
        translator.prepare().cfg.nbest = 1
    with pytest.raises(FrozenInstanceError, match="cannot delete nbest"):
        del translator.prepare().cfg.nbest
    resolved = translator.resolve({})
    resolved.generation.suppress.append(wanted[0].split()[0])
    resolved.fast.use_cache = False
    assert (translator.settings().suppress, translator.resolve({}).fast.use_cache) == (["w2"], True)
    assert [one.text for one in translator.translate(TEXTS)] == wanted


def test_settings_of_a_model_that_change_apply_to_the_next_call() -> None:
    generation = {"max_len": 6}
    translator = Translator(replace(text_model(), generation=generation))
    assert max(one.num_tokens for one in translator.translate(TEXTS)) > 3
    generation["max_len"] = 3
    assert max(one.num_tokens for one in translator.translate(TEXTS)) == 3
    assert translator.settings().max_len == 3


def test_calls_of_two_threads_keep_their_settings() -> None:
    class Interrupted(Translator):
        """After each preparation that is kept, another thread runs a call with other settings."""

        busy = True

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if not self.busy:
                super().__setattr__("busy", True)
                self.prepare(beam=2, max_len=2)
                super().__setattr__("busy", False)

    translator = Interrupted(text_model(), **SHORT)
    translator.busy = False
    assert translator.settings(beam=3).beam == 3
    (found,) = translator.translate(["w1 w5 w8"], beam=4, nbest=4)
    assert len(found.hypotheses) == 4
    assert found.text == Translator(text_model(), **SHORT).translate(["w1 w5 w8"], beam=4)[0].text


def test_sentences_that_join_keep_the_batch_within_max_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the joining sentences or those that are running have the longest source."""
    lines = [" ".join(["w1"] * size) for size in (11, 10, 10, 9, 9, 8, 7, 7, 6, 6, 6, 5, 4, 4, 3, 2, 2, 1)]
    decoding = Translator(text_model(), beam=2, max_tokens=48, max_len_a=1, max_len_b=0).prepare()
    whole, joined = text_decoding.generate_continuously, []

    def watched(generator: Any, take: Any) -> Any:
        def asked(running: int, width: int) -> Any:
            if (batch := take(running, width)) is not None:
                rows, columns = batch.source.src_tokens.shape
                assert running + rows <= max(1, 48 // max(width, columns))
                joined.append(running > 0)
            return batch

        return whole(generator, asked)

    monkeypatch.setattr(text_decoding, "generate_continuously", watched)
    assert len(list(decoding.translate(lines))) == len(lines)
    assert any(joined)


def test_a_translator_can_be_pickled() -> None:
    translator = Translator(text_model("fconv_tiny"), beam=2, **SHORT)
    wanted = [one.hypotheses[0].score for one in translator.translate(TEXTS)]
    again = pickle.loads(pickle.dumps(translator))
    assert [one.hypotheses[0].score for one in again.translate(TEXTS)] == wanted
    assert again.models[0].state_dict().keys() == translator.models[0].state_dict().keys()


@pytest.mark.slow
def test_many_calls_leave_nothing_in_memory() -> None:
    """Blocks of memory, so that kept strings count too; a call that left one object would leave 80."""
    translator, words = Translator(text_model("transformer_tiny")), " ".join(TEXTS).split()

    def blocks(calls: range) -> int:
        for number in calls:
            line = " ".join(words[number % 7 :][: 1 + number % 4])
            translator.translate([f"{line} unknown{number}"], beam=1 + number % 2, max_len_b=4)
        gc.collect()
        return sys.getallocatedblocks()

    counts = [blocks(range(start, start + 80)) for start in range(0, 400, 80)]  # the first 200 calls fill caches
    assert min(after - before for before, after in pairwise(counts)) < 80


def test_threads_share_a_translator() -> None:
    """Two threads with other settings get what each would get alone."""
    translator = Translator(text_model("transformer_tiny"))
    calls: list[dict[str, Any]] = [{"beam": 3, "fast.use_cache": False}, {"beam": 2, "nbest": 2}]
    calls = [{**call, **SHORT} for call in calls] * 6

    def texts(call: dict[str, Any]) -> list[list[str]]:
        return [[one.text for one in found.hypotheses] for found in translator.translate(TEXTS, **call)]

    wanted = [texts(call) for call in calls]
    inside: list[int] = []
    decode = TextDecoding.translate

    def watched(self: TextDecoding, *args: Any) -> Any:
        inside.append(1)
        assert len(inside) == 1, "two decodes at the same time"
        time.sleep(0.001)
        yield from decode(self, *args)
        inside.pop()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(TextDecoding, "translate", watched)
        assert list(pool.map(texts, calls)) == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_while_another_thread_decodes_can_decode() -> None:
    translator, begun, end = Translator(text_model("transformer_tiny"), **SHORT), threading.Event(), threading.Event()
    wanted = [found.text for found in translator.translate(TEXTS)]

    def slowly() -> Iterator[str]:
        begun.set()
        end.wait(60)
        yield TEXTS[0]

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    (torch.ones(600, 600) @ torch.ones(600, 600)).softmax(0)  # PyTorch has a pool of threads now
    with ThreadPoolExecutor(1) as pool:
        pool.submit(translator.translate, slowly())
        begun.wait()
        if not (child := os.fork()):
            signal.alarm(20)  # ends the child if it waits forever
            same = False
            try:
                same = [found.text for found in translator.translate(TEXTS)] == wanted
            finally:
                os._exit(not same)
        status = os.waitpid(child, 0)[1]
        end.set()
    torch.set_num_threads(threads)
    assert status == 0
