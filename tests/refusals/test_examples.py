"""Wrong input of the examples: components of papers, objectives, loaders, and components of a user's own."""

from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import nn
from torch.nn import Linear

import examples.joeynmt.checkpoint
import examples.papers.conformal_beams
import examples.papers.smc_steering  # noqa: F401  # register a loader and strategies
import seqgen.extend
from examples.extending.combination import PowerMean
from examples.objectives.word_distillation import WordDistillation, WordDistillationConfig
from examples.papers.automata.json_texts import JsonConfig, JsonProcessor
from examples.papers.automata.processor import GrammarConfig, GrammarProcessor
from examples.papers.automata.regular import RegexConfig, RegexProcessor
from examples.papers.best_first_beam import BestFirstBeamSearch
from examples.papers.bilevel import BilevelSearch
from examples.papers.contrastive_decoding import ContrastiveDecoding
from examples.papers.critics.head import read_head
from examples.papers.critics.quality_aware import QualityOfText, QualityOfTextConfig
from examples.papers.critics.reward_augmented import RewardAugmented
from examples.papers.critics.target_language import LanguageConfig, TargetLanguage
from examples.papers.critics.text_member import TextMember
from examples.papers.exact_search.exact import ExactSearch
from examples.papers.exact_search.lattice import LatticeSearch
from examples.papers.lookahead import Lookahead
from examples.papers.lora import LoRA, LoRAConfig
from examples.papers.mc_dropout import McDropout
from examples.papers.planning_ahead import PlanningAhead, PlanningConfig, read_head as planning_head
from examples.papers.poisson_beams import PoissonBeams
from examples.papers.proxy_tuning import ProxyTuning
from examples.papers.subword_regularization import Sampler
from examples.papers.token_healing import TokenHealing, TokenHealingConfig
from examples.papers.tree_drafts import TreeDrafts, TreeDraftsConfig
from examples.papers.uncertainty import UncertaintyObserver
from seqgen.addons.partial_texts import PartialTexts
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from seqgen.decoding.combinations import LogProbabilityMean
from seqgen.extend import ConstrainedSearch, Dictionary, DiverseBeamSearch, Observer, Resources, Sampling, load_model
from seqgen.text.translator import Translator
from tests.examples.test_automata import resources_of
from tests.generators import scripted_generator
from tests.joeynmt_models import changed, write
from tests.refusals import Row, refusals
from tests.scripted_model import batch_of, random_rule
from tests.text_models import TEXTS, task_of, text_model

WORDS = ["a", "b", "c", "ae"]
RULE = random_rule(9, seed=1)
BEST = BestFirstBeamSearch()


def decoding(settings: dict[str, Any], *words: str, models: int = 1) -> Row:
    return lambda: Translator([text_model()] * models).translate(TEXTS, **settings), *words


def planning(model: str, *words: str) -> Row:
    guide = PlanningAhead(nn.Linear(7, 23), torch.tensor([[4, 2]]), torch.eye(1, 23).to_sparse())
    return lambda: Translator(text_model(model)).translate(TEXTS, processors=[guide]), *words


test_searches = refusals(
    decoding({"search": BEST, "length_penalty": 1.0}, "takes no generation.length_penalty"),
    decoding({"search": BEST, "length_penalty": 0.0, "observers": [Observer()]}, "observers"),
    decoding({"search": BEST, "length_penalty": 0.0, "unkpen": -30.0, "suppress": ["</s>"]}, "scores that only fall"),
    decoding({"search": ExactSearch(expansions=50)}, "sentence 0 of the batch has scored 50 prefixes"),
    decoding({"search": ExactSearch(), "unkpen": -30.0}, "cumulative scores that only fall"),
    decoding({"search": ExactSearch(), "observers": [Observer()]}, "no steps that an observer (Observer)"),
    (lambda: scripted_generator([RULE], ExactSearch()).generate(batch_of([(4,)]), observers=[Observer()]), "streamed"),
    decoding({"search": LatticeSearch(), "coverage_penalty": 0.2}, "no attention"),
    decoding({"search": Lookahead(), "observers": [Observer()]}, "takes no observers"),
    decoding({"search": PoissonBeams(), "length_penalty": 2.0}, "ranked by weight", "remove length_penalty"),
    decoding({"search": "short_words", "length_penalty": 0.5}, "ranked by weight", "remove length_penalty"),
    decoding({"search": "conformal", "search.file": __file__}, "is not a file of thresholds"),
    decoding({"search": BilevelSearch(), "combination": LogProbabilityMean()}, "combines the members by", models=2),
    decoding({"combination": ContrastiveDecoding()}, "needs path=[EXPERT,AMATEUR], and there are 3", models=3),
    decoding({"combination": ProxyTuning()}, "needs path=[BASE,TUNED,UNTUNED], and there are 2", models=2),
    decoding({"observers": [UncertaintyObserver("")]}, "compares the members of an ensemble"),
    (lambda: Translator(text_model(dropout=0.0)).translate(TEXTS, search=McDropout()), "without dropout of features"),
    (
        lambda: PlanningAhead.build(PlanningConfig(), resources()),
        "planning_ahead needs generation.allowed_outputs=FILE",
    ),
    planning("transformer_tiny", "planning_ahead.head is that of another model"),
    planning("llama_tiny", "a decoder-only model has none"),
    (lambda: TreeDrafts.build(TreeDraftsConfig("x", [2000]), resources()), "a product of at most 1,024"),
    (lambda: TreeDrafts.build(TreeDraftsConfig("x", []), resources()), "set search.draft=MODEL, and search.widths="),
    (lambda: TreeDrafts.build(TreeDraftsConfig("nothing", [2, 1]), resources()), "nothing: there is no such"),
)


def resources() -> Resources:
    return resources_of(*WORDS)


def grammar(text: str, *words: str) -> Row:
    def build(tmp_path: Path) -> None:
        (tmp_path / "grammar.gbnf").write_text(text)
        GrammarProcessor.build(GrammarConfig(str(tmp_path / "grammar.gbnf")), resources())

    return build, *words


def healing(prefixes: str, *words: str) -> Row:
    def decode(tmp_path: Path) -> None:
        (tmp_path / "prefixes").write_text(prefixes)
        keys = {"processors": ["token_healing"], "processor.token_healing.prefixes": str(tmp_path / "prefixes")}
        Translator(text_model()).translate(TEXTS, **keys)

    return decode, *words


def text_member(**limits: int) -> TextMember:
    loaded = text_model("transformer_tiny", **limits)
    return TextMember(loaded, PartialTexts(loaded.task.target_tokenizer.decode, loaded.task.target_dictionary))


def rewarded(member: TextMember, features: int = 64) -> dict[str, Any]:
    return {"processors": [RewardAugmented(member, Linear(features, 1))], "min_len": 9, "max_len_b": 9}


def wide(tmp_path: Path) -> str:
    save_file(Linear(3, 2).state_dict(), tmp_path / "wide")
    return str(tmp_path / "wide")


test_critics = refusals(
    (lambda: QualityOfText.build(QualityOfTextConfig("length_ration"), resources()), "(did you mean 'length_ratio'?)"),
    (
        lambda: TargetLanguage.build(LanguageConfig("xx"), resources()),
        "processor.language.code=xx is none of ",
        ", de, ",
    ),
    (lambda: read_head(__file__, "processor.reward.head"), "processor.reward.head=", "not a head that fit.py wrote"),
    (lambda tmp_path: read_head(wide(tmp_path), "head"), "not a head that fit.py wrote: size"),
    (lambda: planning_head(__file__, 4), "processor.planning_ahead.head=", "not a head for this vocabulary"),
    (lambda tmp_path: planning_head(wide(tmp_path), 4), "not a head for this vocabulary", "wrote: size"),
    decoding(rewarded(text_member(), 7), "the head of RewardAugmented has 7 inputs, and its model 64 features"),
    decoding(rewarded(text_member(max_source_positions=7)), "a source has 8 tokens", "whose model has 7 positions"),
    decoding(rewarded(text_member(max_target_positions=7)), "a partial output has 8 tokens", "has 7 positions"),
)


test_processors_of_text = refusals(
    (lambda: RegexProcessor.build(RegexConfig("x+"), resources()), "no sequence of tokens"),
    (lambda: JsonProcessor.build(JsonConfig(), resources()), "needs tokens for single characters"),
    (lambda: GrammarProcessor.build(GrammarConfig(), resources()), "needs processor.grammar.file=FILE"),
    (lambda: GrammarProcessor.build(GrammarConfig("none.gbnf"), resources()), "none.gbnf"),
    grammar("", "has no rule 'root'"),
    grammar('root ::= x\n  | nmae\nname ::= x\nx ::= "a"', "line 2 of ", "'nmae', ", "no rule (did you mean 'name'?)"),
    grammar('root ::= "a"\n | "b', "line 2 of ", " cannot be read from '\"b' on"),
    grammar('root ::= "\\q"', "line 1 of ", " cannot be read"),
    grammar('root ::= ("a"\n\nx ::= "b"', "line 1 of ", " has '(' without ')'"),
    grammar('root ::= "a"{3,2}', "line 1 of ", " repeats {3,2} times"),
    grammar('root root ::= "a"', "line 1 of ", " has 'root' where a rule"),
    grammar("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "line 1 of ", " more than 100 groups"),
    grammar('root ::= "a"\nx ::= "b" x | x "c"', "line 2 of ", " has the rule 'x', which never ends"),
    grammar('root ::= "a" | [^a-c]', "line 1 of ", " needs a character that is no token"),
    healing("w1\n", "fewer lines than the input"),
    (lambda: TokenHealing.build(TokenHealingConfig("nothere"), resources()), "prefixes=nothere: no such file"),
    (lambda: TokenHealing.build(TokenHealingConfig(), Resources(Dictionary())), "needs a tokenizer"),
)

test_keys_beside_an_object = refusals(
    decoding({"search": DiverseBeamSearch(2, 0.5), "search.groups": 3}, "'search.groups' has no effect on a"),
    decoding({"combination": PowerMean(1.0), "combination.weights": [2.0]}, "'combination.weights' has no effect on a"),
    decoding({"search": Sampling(3), "sampling": True, "seed": 5}, "seed=5 does not apply to the search object"),
    decoding({"search": ConstrainedSearch(ordered=False), "constraints": "ordered"}, "ordered does not apply"),
    ("score search.groups=3 reference=x", "unknown key 'search.groups'"),
    (lambda: PowerMean(0.0), "combination.power=0 has no power mean"),
    (lambda: seqgen.extend.register_output_format("json")(print), "format=json exists"),
    (lambda: seqgen.extend.register_model_format("export")(print), "format=export exists"),
)


def adapters(changes: dict[str, str], *words: str) -> Row:
    config = LoRAConfig(**{"base": "transformer_tiny", **changes})  # type: ignore[arg-type]
    return lambda: LoRA.build_model(config, task_of()), *words


def joeynmt(changes: dict[str, Any], *words: str) -> Row:
    """A model whose ``config.yaml`` describes another one."""

    def load(tmp_path: Path) -> None:
        write(tmp_path)
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(changed(changes)))
        load_model(tmp_path)

    return load, *words


test_training_and_models = refusals(
    (lambda: WordDistillation(WordDistillationConfig(), task_of()), "criterion.teachers is empty", "one or more runs"),
    (lambda: Sampler(WhitespaceTokenizer(Dictionary()), 0.1, -1), "needs task.tokenizer=sentencepiece"),
    adapters({"targets": "none_such"}, "model.targets=none_such matches none of the layers encoder.layers.0"),
    adapters({"targets": "("}, "model.targets=( is not a regular expression: "),
    adapters({"targets": "output_projection"}, "the weight of decoder.output_projection is also that of an embedding"),
    adapters({"base": ""}, "model.base and model.base_digest are missing", "checkpoint.finetune_from=BASE sets them"),
    adapters({"base": "", "base_digest": "0"}, "model.base and model.base_digest are missing"),
    joeynmt({"model.encoder.type": "recurrent"}, "model.encoder.type='recurrent' is not supported"),
    joeynmt({"model.decoder.alpha": 1.3}, "model.decoder.alpha=1.3 is not supported"),
    joeynmt({"model.decoder.activation": "gelu"}, "encoder and decoder differ in activation"),
    joeynmt({"model.decoder.num_heads": None}, "model.decoder.num_heads is 0, not a whole number of at least 1"),
    joeynmt({"model.decoder.num_heads": 3}, "not a multiple of"),
    joeynmt({"model.decoder.num_layers": 3}, "missing: decoder.layers.2."),
    joeynmt({"model.tied_embeddings": True}, "needs one vocabulary for source and target"),
    joeynmt({"data.trg": {"level": "bpe", "tokenizer_type": "fast"}}, "data.trg.tokenizer_type='fast' is not supp"),
    joeynmt({"data.special_symbols.pad_token": "[PAD]"}, "does not begin with the tokens <unk>, [PAD], <s>, </s>"),
)
