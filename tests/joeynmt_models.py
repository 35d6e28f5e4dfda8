"""Models in the files of JoeyNMT with random weights, and what they compute, in plain tensors."""

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor, train_sentencepiece

State = dict[str, Tensor]

SPECIALS = ["<unk>", "<pad>", "<s>", "</s>"]
DIM, POSITIONS = 8, 5000

STACK: dict[str, Any] = {
    **{"type": "transformer", "num_layers": 2, "num_heads": 2, "hidden_size": DIM, "ff_size": 12, "layer_norm": "pre"},
    "embeddings": {"embedding_dim": DIM, "scale": True},
}
OPTIONS: dict[str, Any] = {
    "data": {side: {"lang": language, "level": "word"} for side, language in (("src", "en"), ("trg", "de"))},
    "testing": {"beam_size": 5, "beam_alpha": 1.0, "max_output_length": 20},
    "model": {"tied_embeddings": False, "tied_softmax": False, "encoder": STACK, "decoder": copy.deepcopy(STACK)},
}
WORDS = {"src": [f"s{i}" for i in range(9)], "trg": [f"t{i}" for i in range(6)]}
LINES = ["s1 s2 s3", "s8", "unseen s2 s2 s4 s5 s6 s7 s0 s1", "", "s3 unseen"]


def changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The options with changes, by keys such as ``model.encoder.num_layers``; ``None`` removes a key."""
    options = copy.deepcopy(OPTIONS)
    for key, value in changes.items():
        *path, last = key.split(".")
        inner = options
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
        if value is None:
            del inner[last]
    return options


def write(
    folder: Path, changes: Mapping[str, Any] | None = None, words: Mapping[str, list[str]] = WORDS, seed: int = 3
) -> State:
    """Write the files of a model; returns its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    options = changed(changes or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    vocabularies = {side: [*SPECIALS, *own] for side, own in words.items()}
    for side, tokens in vocabularies.items():
        (folder / f"{side}_vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    state = random_state(options["model"], len(vocabularies["src"]), len(vocabularies["trg"]), seed)
    torch.save({"model_state": state, "optimizer_state": {}, "stats_state": {"steps": 1}}, folder / "best.ckpt")
    return state


def write_sentencepiece(folder: Path, lines: list[str], **changes: Any) -> State:
    """Write the files of a model with one SentencePiece model for both sides."""
    ids = {name: index for index, name in enumerate(("unk", "pad", "bos", "eos"))}
    content = train_sentencepiece(lines, vocab_size=40, special_ids=ids, hard_vocab_limit=False)
    folder.mkdir(parents=True)
    (folder / "joint.model").write_bytes(content)
    processor = load_processor(content, "the test")
    pieces = [processor.id_to_piece(index) for index in range(4, processor.vocab_size())]
    text = {"level": "bpe", "tokenizer_type": "sentencepiece", "tokenizer_cfg": {"model_file": "elsewhere/joint.model"}}
    sides = {f"data.{side}": {"lang": "en", **text} for side in ("src", "trg")}
    return write(folder, {**sides, **changes}, {"src": pieces, "trg": pieces})


def random_state(model: Mapping[str, Any], source: int, target: int, seed: int) -> State:
    """Random weights by JoeyNMT's names, in float32."""
    shapes: dict[str, tuple[int, ...]] = {"src_embed.lut": (source, DIM), "trg_embed.lut": (target, DIM)}
    for side, attentions, norms in (
        ("encoder", ["src_src_att"], ["layer_norm"]),
        ("decoder", ["trg_trg_att", "src_trg_att"], ["x_layer_norm", "dec_layer_norm"]),
    ):
        ffn, matrices = model[side]["ff_size"], ("k_layer", "v_layer", "q_layer", "output_layer")
        for layer in (f"{side}.layers.{index}" for index in range(model[side]["num_layers"])):
            shapes |= {f"{layer}.{name}.{matrix}": (DIM, DIM) for name in attentions for matrix in matrices}
            shapes |= {f"{layer}.feed_forward.pwff_layer.{at}": size for at, size in ((0, (ffn, DIM)), (3, (DIM, ffn)))}
            shapes |= {f"{layer}.{norm}": (DIM,) for norm in (*norms, "feed_forward.layer_norm")}
        shapes |= {f"{side}.layer_norm": (DIM,)} if model[side]["layer_norm"] == "pre" else {}
    shapes["decoder.output_layer"] = (target, DIM)
    torch.manual_seed(seed)
    state = {f"{name}.weight": torch.randn(shape) * 0.3 + (len(shape) == 1) for name, shape in shapes.items()}
    state |= {f"{side}.pe.pe": positions().unsqueeze(0) for side in ("encoder", "decoder")}
    without_bias = ("src_embed.lut", "trg_embed.lut", "decoder.output_layer")
    state |= {f"{name}.bias": torch.randn(shape[0]) * 0.3 for name, shape in shapes.items() if name not in without_bias}
    if model["tied_embeddings"]:
        state["trg_embed.lut.weight"] = state["src_embed.lut.weight"]
    if model["tied_softmax"]:
        state["decoder.output_layer.weight"] = state["trg_embed.lut.weight"]
    return state


def positions() -> Tensor:
    """``(positions, DIM)``: sine and cosine of each frequency, side by side."""
    angles = torch.arange(POSITIONS).unsqueeze(1) / 10000 ** (torch.arange(0, DIM, 2) / DIM)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


class Plain:
    """What a model computes for one sentence, in float64."""

    def __init__(self, state: State, options: Mapping[str, Any]):
        self.state = {name: tensor.double() for name, tensor in state.items()}
        self.model = options["model"]

    def lprobs(self, source: list[int], prefix: list[int]) -> Tensor:
        """``(T, V)`` log-probabilities of the token after each position of ``prefix``."""
        memory = self.embed("encoder", "src_embed", source)
        for index in range(self.model["encoder"]["num_layers"]):
            memory = self.layer("encoder", f"encoder.layers.{index}", memory, None)
        memory = self.top("encoder", memory)
        x = self.embed("decoder", "trg_embed", prefix)
        for index in range(self.model["decoder"]["num_layers"]):
            x = self.layer("decoder", f"decoder.layers.{index}", x, memory)
        logits = self.top("decoder", x) @ self.state["decoder.output_layer.weight"].T
        return logits.log_softmax(-1)

    def embed(self, side: str, table: str, ids: list[int]) -> Tensor:
        # a shared table is that of the encoder
        scale = self.model["encoder" if self.model["tied_embeddings"] else side]["embeddings"]["scale"]
        x = self.state[f"{table}.lut.weight"][ids] * (math.sqrt(DIM) if scale else 1.0)
        return x + self.state[f"{side}.pe.pe"][0, : len(ids)]

    def top(self, side: str, x: Tensor) -> Tensor:
        return self.norm(f"{side}.layer_norm", x) if self.model[side]["layer_norm"] == "pre" else x

    def layer(self, side: str, name: str, x: Tensor, memory: Tensor | None) -> Tensor:
        pre = self.model[side]["layer_norm"] == "pre"

        def add(norm: str, sublayer: Callable[[Tensor], Tensor]) -> None:
            nonlocal x
            x = x + sublayer(self.norm(norm, x)) if pre else self.norm(norm, x + sublayer(x))

        heads = self.model[side]["num_heads"]
        if memory is None:
            add(f"{name}.layer_norm", lambda q: self.attend(f"{name}.src_src_att", heads, q, q))
        else:
            add(f"{name}.x_layer_norm", lambda q: self.attend(f"{name}.trg_trg_att", heads, q, q, causal=True))
            add(f"{name}.dec_layer_norm", lambda q: self.attend(f"{name}.src_trg_att", heads, q, memory))
        add(f"{name}.feed_forward.layer_norm", lambda y: self.feed_forward(side, f"{name}.feed_forward.pwff_layer", y))
        return x

    def feed_forward(self, side: str, name: str, x: Tensor) -> Tensor:
        activation = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}[self.model[side].get("activation", "relu")]
        return self.linear(f"{name}.3", activation(self.linear(f"{name}.0", x)))

    def attend(self, name: str, heads: int, queries: Tensor, keys: Tensor, causal: bool = False) -> Tensor:
        def split(matrix: str, x: Tensor) -> Tensor:
            return self.linear(f"{name}.{matrix}", x).unflatten(1, (heads, -1)).transpose(0, 1)

        q, k, v = split("q_layer", queries), split("k_layer", keys), split("v_layer", keys)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.linear(f"{name}.output_layer", attended.transpose(0, 1).flatten(1))

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (DIM,), self.state[f"{name}.weight"], self.state[f"{name}.bias"], eps=1e-6)

    def beam_search(self, source: list[int], beam: int, alpha: float, longest: int) -> list[tuple[float, list[int]]]:
        """JoeyNMT's n-best list: scores and tokens, best first."""
        beams: list[tuple[float, list[int]]] = [(0.0, [])]
        found, ended_at = [], set()
        for length in range(1, longest + 1):
            candidates = []
            for total, tokens in beams:
                lprobs = self.lprobs(source, [2, *tokens])[-1]
                lprobs[[1, 2]] = -torch.inf
                lprobs[3] = -torch.inf if length == 1 else lprobs[3]
                candidates += [(total + own, [*tokens, index]) for index, own in enumerate(lprobs.tolist())]
            beams = sorted(candidates, key=lambda each: -each[0])[:beam]
            for rank, (total, tokens) in enumerate(beams):
                if tokens[-1] == 3:
                    ended_at.add(rank)
                if 3 not in tokens[:-1] and (tokens[-1] == 3 or length == longest):
                    found.append((total / ((5 + length) / 6) ** max(alpha, 0.0), tokens))
            if len(ended_at) == beam:
                break
        return sorted(found, key=lambda each: -each[0])[:beam]
