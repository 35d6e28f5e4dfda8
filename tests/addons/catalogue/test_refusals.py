"""What a user is told of allowed outputs, certificates and shortlists that cannot be used."""

import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqgen.addons.catalogue.constraint import trie_of_file
from seqgen.addons.catalogue.prefix_trie import PrefixTrie
from seqgen.addons.catalogue.vocabulary_map import VocabularyMap
from seqgen.config.settings import Settings
from seqgen.decoding.resolution import resolve
from seqgen.extend import BeamSearch, Candidates, GenerationConfig, ProbabilityMean, Scores, StepContext, build_setup
from seqgen.text.translator import Translator
from tests.addons.catalogue.test_vocabulary_map import LISTS, WORDS, C, X, Y
from tests.generators import resources
from tests.marian_binary import shortlist as binary_shortlist, with_checksum
from tests.refusals import Row, refusals
from tests.scripted_model import ScriptedModel, dictionary, random_rule
from tests.text_models import TEXTS, task_of, text_model


def read(name: str, content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if name.startswith("outputs"):
        trie_of_file(tmp_path / name, resources(dictionary(5)))
    else:
        VocabularyMap.read(tmp_path / name, WORDS, WORDS)


def file(name: str, content: str | bytes, *words: str) -> Row:
    return partial(read, name, content), *words


test_allowed_outputs = refusals(
    file("outputs.ids", "", "is empty"),
    file("outputs.ids", "4\n9\n", "line 2: each word must be the id of a token, from 0 to 8"),
    file("outputs.ids", "4\n5 x\n", "line 2: each word must be"),
    file("outputs.ids", "4\n5\t1\n", "line 2 has a tab"),
    file("outputs.ids", "4\n5 2\n", "line 2 has end-of-sentence (id 2), which is added to each output"),
    file("outputs", "w1\nnothere\n", "line 2 has words or characters that are not in the target vocabulary"),
    file("outputs.safetensors", b"x" * 100, "is damaged"),
)


def load(metadata: dict[str, str], change: dict[str, Any], size: int, tmp_path: Path) -> None:
    """Load a trie of 9 nodes after a change of its arrays."""
    path = tmp_path / "a.safetensors"
    PrefixTrie.of([(4, 5, 2), (4, 2), (4, 5, 6, 2), (3, 2), (3, 2)]).save(path)
    with safe_open(path, framework="pt") as saved:
        save_file({**load_file(path), **change}, path, {**saved.metadata(), **metadata})
    PrefixTrie.load(path, size)


def trie(words: str, size: int = 8, **change: list[int]) -> Row:
    arrays = {name: torch.tensor(value, dtype=torch.int32) for name, value in change.items()}
    return partial(load, {}, arrays, size), words


test_tries = refusals(
    trie("do not fit", first=[1, 3, 3, 5, 5, 5]),
    (partial(load, {}, {"tokens": torch.tensor([-1, 3, 4, 2, 2, 5, 7, 2, 2])}, 8), "do not fit"),
    trie("a node has a child twice", first=[1, 3, 2, 6, 6, 6, 8, 9, 9, 9]),
    trie("not in the target vocabulary of 8", tokens=[-1, 3, 4, 2, 2, 5, 2, 8, 2]),
    trie("not in the target vocabulary of 5", size=5),
    trie("is damaged", more=[0]),
    trie("not in ascending order", tokens=[-1, 4, 3, 2, 2, 5, 2, 6, 2]),
    trie("checksum", tokens=[-1, 3, 4, 2, 2, 5, 2, 7, 2]),
    (partial(load, {"format": "x"}, {}, 8), "is not a trie"),
)

test_convert = refusals(
    ("convert format=trie path={runs}/fconv output=allowed input={data}/test.de", "input=FILE", "NAME.safetensors"),
    ("convert format=trie path={runs}/fconv output=a.safetensors", "input=FILE with the allowed outputs"),
)

NOT_IN_TARGET = "is not in the target vocabulary of the model"
test_maps = refusals(
    file("map", "", "is empty; make the file with examples/shortlist.py"),
    file("map", "a\tx\nb x\n", "map, line 2: 'b x' is not SOURCE<tab>TARGET TARGET"),
    file("map", "a\tx\ty\n", "line 1: ", " is not SOURCE<tab>TARGET"),
    file("map", "a\tx\na\ty\n", "line 2: there is another line for 'a'; remove one of them"),
    file("map", "a\tx z\n", f"line 1: 'z' {NOT_IN_TARGET}; make a file for this model"),
    file("map", "z\tx\n", "line 1: 'z' is not in the source vocabulary"),
    file("map", "a\tx\r\n", f"line 1: 'x\\r' {NOT_IN_TARGET}"),
    file("map", "a\tx \n", f"line 1: '' {NOT_IN_TARGET}"),
    file("map", b"a\t\xff\n", "line 1: byte 3 (0xff) is not valid UTF-8"),
)

BINARY = binary_shortlist(LISTS, frequent=2)
HUGE = 2**64 - 1


def binary(content: bytes, *words: str) -> Row:
    return file("lex.bin", content, *words)


def field(index: int, value: int) -> bytes:
    content = bytearray(BINARY)
    struct.pack_into("<Q", content, 8 * index, value)
    return with_checksum(bytes(content[16:]))


test_binary_shortlists = refusals(
    *(binary(BINARY[:size], "is damaged: its size") for size in (8, 47, 48, 60, 100)),
    binary(BINARY + b"x", "is damaged: its size"),
    binary(field(4, HUGE), "is damaged: its size"),  # many offsets
    binary(field(5, HUGE), "is damaged: its size"),  # many ids
    binary(field(4, 2**61 + len(LISTS) + 1), "is damaged: its size"),  # a sum that overflows
    binary(BINARY[:-12] + struct.pack("<3I", Y, C, Y), "is damaged: its checksum differs"),
    binary(BINARY[:16] + b"\3" + BINARY[17:], "is damaged: its checksum differs"),
    binary(field(6 + len(LISTS), HUGE), "its offsets are not in ascending order up to 3"),
    binary(field(6, 3), "its offsets are not in ascending order up to 3"),
    binary(field(2, HUGE), "does not belong to the model"),  # many frequent tokens
    binary(binary_shortlist([[99]], 2), "does not belong to the model"),  # an unknown token
    binary(binary_shortlist([[X]] * 99, 2), "does not belong to the model"),  # more source tokens
)


class OwnMean(ProbabilityMean):
    """A subclass that overrides the method which the declaration is about."""

    def mean(self, weighted: Sequence[tuple[float, Tensor]]) -> Tensor:
        return super().mean(weighted) + 1.0


class OwnSearch(BeamSearch):
    def step(self, context: StepContext, scores: Scores) -> Candidates:
        return super().step(context, Scores(scores.lprobs()[..., :5], scores.beams))


def build(keys: dict[str, Any]) -> None:
    given = resolve(Settings().with_layer("user", {"beam": 4, "certificate": True, **keys}))
    arguments = {"search_strategy" if key == "search" else key: value for key, value in given.objects.items()}
    build_setup([ScriptedModel(random_rule(9, seed)) for seed in (1, 2)], dictionary(5), given.generation, **arguments)


def certificate(words: str, **keys: Any) -> Row:
    return lambda: build(keys), words


test_certificates = refusals(
    certificate("not DiverseBeamSearch", search="diverse_beam", components={"search.groups": 2}),
    certificate("not OwnSearch", search=OwnSearch()),
    certificate("which Guidance does not guarantee", guidance_scale=2.0),
    certificate("which Fusion does not guarantee", combination="fusion", components={"combination.weight": -0.5}),
    certificate("OwnMean", combination=OwnMean()),
    certificate("UnknownPenalty", unkpen=-1.0),
    certificate("SequenceBias", sequence_bias=["w4=-1", "w3=0.5"]),
    certificate("RepetitionPenalty", repetition_penalty=1.2),
    certificate("TimeLimit", max_time=3.0),
    certificate("coverage_penalty", coverage_penalty=0.2),
    certificate("certifies the order of scores", mbr="chrf"),
)


def shortlist(*words: str, **keys: Any) -> Row:
    cfg = GenerationConfig(**{"beam": 1, "shortlist": "FILE", **keys})
    return lambda: build_setup([ScriptedModel(random_rule(9, 1))], dictionary(5), cfg), *words


def translate_with_two_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\tw3 w4\n")
    both = Translator([text_model(), text_model(task=task_of(words=dictionary(25)))])
    both.translate(TEXTS, shortlist=str(tmp_path / "list"))


test_shortlists = refusals(
    shortlist("shortlist=FILE is not supported by ContrastiveSearch, which has its own", search="contrastive"),
    shortlist("not supported by SpeculativeSearch", prompt_lookup=2),
    shortlist("generation.shortlist=FILE and generation.allowed_outputs both limit the tokens", allowed_outputs="FILE"),
    shortlist("generation.shortlist=FILE needs the source vocabulary; pass it as"),
    (translate_with_two_vocabularies, "list is not possible with members that have different"),
)
