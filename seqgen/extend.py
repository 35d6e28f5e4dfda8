"""The names for the author of a component: ``from seqgen.extend import Search, option, register_search``.

The names are grouped as docs/extending.md is. Users of models import from ``seqgen``, those who examine models and
decodes from ``seqgen.lab``; every other module is private and may move.
"""

# Declaring a component
from seqgen.checkpoints.loaders import register_checkpoint_loader as register_checkpoint_loader
from seqgen.checkpoints.loading import load_model as load_model
from seqgen.config import (
    CommonConfig as CommonConfig,
    GenerationConfig as GenerationConfig,
    ReadingConfig as ReadingConfig,
    TrainConfig as TrainConfig,
    option as option,
)
from seqgen.errors import (
    CheckpointError as CheckpointError,
    ConfigError as ConfigError,
    DataError as DataError,
    DecodingError as DecodingError,
    nearest as nearest,
    shown as shown,
)
from seqgen.metrics import (
    Texts as Texts,
    TextScore as TextScore,
    register_metric as register_metric,
)
from seqgen.registry import (
    MODELS as MODELS,
    register_combination as register_combination,
    register_criterion as register_criterion,
    register_feature as register_feature,
    register_logits_processor as register_logits_processor,
    register_lr_scheduler as register_lr_scheduler,
    register_member_source as register_member_source,
    register_model as register_model,
    register_observer as register_observer,
    register_optimizer as register_optimizer,
    register_reranker as register_reranker,
    register_search as register_search,
    register_stopping_rule as register_stopping_rule,
    register_task as register_task,
    register_utility as register_utility,
)

# isort: split
# Decoding components, and what they receive and return
from seqgen.generation.candidates import (
    Candidates as Candidates,
    best_continuations as best_continuations,
    gather_beams as gather_beams,
)
from seqgen.generation.component import (
    ATTENTION as ATTENTION,
    FEATURES as FEATURES,
    FORBIDDEN as FORBIDDEN,
    LAYER_LOGITS as LAYER_LOGITS,
    MEMBER_LOGITS as MEMBER_LOGITS,
    MEMBER_LPROBS as MEMBER_LPROBS,
    BatchInfo as BatchInfo,
    Component as Component,
    Resources as Resources,
)
from seqgen.generation.context import (
    LayerLogits as LayerLogits,
    StepContext as StepContext,
    StepOutputs as StepOutputs,
)
from seqgen.generation.ensemble.combinations import (
    Combination as Combination,
    Fusion as Fusion,
    LogProbabilityMean as LogProbabilityMean,
    MeanConfig as MeanConfig,
    ProbabilityMean as ProbabilityMean,
)
from seqgen.generation.fairseq_arguments import fairseq_generator as fairseq_generator
from seqgen.generation.observers import (
    Forbidden as Forbidden,
    Observer as Observer,
    Outcome as Outcome,
    StepRecord as StepRecord,
)
from seqgen.generation.options import build_setup as build_setup
from seqgen.generation.processors.base import LogitsProcessor as LogitsProcessor
from seqgen.generation.processors.length import ForceEndAtMaximum as ForceEndAtMaximum, MinimumLength as MinimumLength
from seqgen.generation.processors.prefix_trie import PrefixConstraint as PrefixConstraint
from seqgen.generation.processors.tokens import Forbid as Forbid, ForcePrefix as ForcePrefix
from seqgen.generation.search.base import Search as Search
from seqgen.generation.search.beam import BeamSearch as BeamSearch, Greedy as Greedy, own_beams as own_beams
from seqgen.generation.search.constrained import ConstrainedSearch as ConstrainedSearch
from seqgen.generation.search.diverse import DiverseBeamSearch as DiverseBeamSearch
from seqgen.generation.search.sampling import (
    TOKEN as TOKEN,
    RandomSearch as RandomSearch,
    Sampling as Sampling,
    draw as draw,
    drawn_scores as drawn_scores,
    uniform as uniform,
)
from seqgen.generation.sequence_generator import SequenceGenerator as SequenceGenerator
from seqgen.generation.setup import Streamer as Streamer
from seqgen.generation.stopping import StoppingRule as StoppingRule
from seqgen.structures import Hypothesis as Hypothesis, map_tensors as map_tensors

# isort: split
# Decoding loops and members
from seqgen.generation.ensemble.member import (
    Member as Member,
    MemberOutput as MemberOutput,
    MemberSpec as MemberSpec,
    check_features as check_features,
)
from seqgen.generation.finished import (
    EachRow as EachRow,
    FinishedHypotheses as FinishedHypotheses,
    Ranking as Ranking,
)
from seqgen.generation.scorer import SequenceScorer as SequenceScorer
from seqgen.generation.session import Session as Session, StepScores as StepScores
from seqgen.generation.setup import DecodingRequest as DecodingRequest, DecodingSetup as DecodingSetup
from seqgen.generation.speculative.verification import (
    Draft as Draft,
    Drafter as Drafter,
    Drafts as Drafts,
    LookAhead as LookAhead,
    SpeculativeSearch as SpeculativeSearch,
    SpeculativeSession as SpeculativeSession,
)

# isort: split
# From lines to lines
from seqgen.text.confidence.features import Feature as Feature
from seqgen.text.languages import TextModel as TextModel
from seqgen.text.reranking import (
    Bleu as Bleu,
    Chrf as Chrf,
    Matrix as Matrix,
    NgramUtility as NgramUtility,
    Reranker as Reranker,
    Utility as Utility,
    count_ngrams as count_ngrams,
    expected_utilities as expected_utilities,
    utility_from_config as utility_from_config,
)
from seqgen.text.results import TextHypothesis as TextHypothesis, Translation as Translation
from seqgen.text.sources import MemberSource as MemberSource
from seqgen.text.translator import ModelInMemory as ModelInMemory
from seqgen.text.word_streaming import WordStreamer as WordStreamer

# isort: split
# Models
from seqgen.decoder import Decoder as Decoder, IncrementalDecoder as IncrementalDecoder
from seqgen.encoder import Encoder as Encoder
from seqgen.incremental_state import StateDict as StateDict, StatefulModule as StatefulModule
from seqgen.model import EncoderDecoderModel as EncoderDecoderModel, Vocabularies as Vocabularies
from seqgen.models.huggingface.checkpoint import save_pretrained as save_pretrained
from seqgen.models.transformer import (
    TransformerConfig as TransformerConfig,
    TransformerDecoder as TransformerDecoder,
    TransformerEncoder as TransformerEncoder,
    TransformerModel as TransformerModel,
)
from seqgen.modules.cached_weight import CachedWeight as CachedWeight
from seqgen.modules.inspection import recorded as recorded
from seqgen.modules.kv_cache.growing import GrowingCache as GrowingCache
from seqgen.modules.kv_cache.protocol import (
    Attended as Attended,
    KeysAndValues as KeysAndValues,
    KeyValueCache as KeyValueCache,
)
from seqgen.modules.masks import QueryPositions as QueryPositions
from seqgen.modules.multihead_attention import MultiheadAttention as MultiheadAttention
from seqgen.modules.positions import LearnedPositions as LearnedPositions, RotaryPositions as RotaryPositions
from seqgen.modules.rms_norm import RMSNorm as RMSNorm
from seqgen.structures import Batch as Batch, DecoderOut as DecoderOut, EncoderOut as EncoderOut, Source as Source

# isort: split
# Loading checkpoints of other toolkits
from seqgen.checkpoints.loaders import (
    DecodingConfig as DecodingConfig,
    DecodingTask as DecodingTask,
    ForeignConfig as ForeignConfig,
    LoadedModel as LoadedModel,
    Placement as Placement,
)
from seqgen.checkpoints.model_weights import (
    build_with_weights as build_with_weights,
    fuse_projections as fuse_projections,
)
from seqgen.checkpoints.run_config import flatten as flatten, read_yaml as read_yaml
from seqgen.checkpoints.torch_file import read_torch_file as read_torch_file
from seqgen.system.reading import read_bytes as read_bytes

# isort: split
# Data and training
from seqgen.data.dictionary import Dictionary as Dictionary, VocabularyMap as VocabularyMap
from seqgen.data.noising import (
    NoiseTokens as NoiseTokens,
    Objective as Objective,
    replace_spans as replace_spans,
    span_counts as span_counts,
    span_mask as span_mask,
)
from seqgen.data.pair_dataset import Example as Example, PairDataset as PairDataset, Side as Side, pad_rows as pad_rows
from seqgen.data.text import ParallelFiles as ParallelFiles, find_parallel as find_parallel, read_lines as read_lines
from seqgen.data.tokenizers.base import (
    Tokenizer as Tokenizer,
    WhitespaceTokenizer as WhitespaceTokenizer,
    load_tokenizer as load_tokenizer,
    register_tokenizer as register_tokenizer,
    save_tokenizer as save_tokenizer,
    write_settings as write_settings,
)
from seqgen.data.tokenizers.pretrained import (
    load_pretrained_tokenizer as load_pretrained_tokenizer,
    save_pretrained_tokenizer as save_pretrained_tokenizer,
)
from seqgen.data.tokenizers.sentencepiece_tokenizer import (
    SentencePieceTokenizer as SentencePieceTokenizer,
    read_model as read_model,
)
from seqgen.system.files import new_file as new_file, new_folder as new_folder
from seqgen.task import Task as Task
from seqgen.tasks.denoising import DenoisingConfig as DenoisingConfig, DenoisingTask as DenoisingTask
from seqgen.tasks.number_names import number_names as number_names, split_numbers as split_numbers
from seqgen.tasks.raw_text import cache_folder as cache_folder, check_split as check_split
from seqgen.tasks.translation import (
    ParallelTextConfig as ParallelTextConfig,
    ParallelTextTask as ParallelTextTask,
    TranslationConfig as TranslationConfig,
    TranslationTask as TranslationTask,
)
from seqgen.training.criteria import (
    Criterion as Criterion,
    CriterionOut as CriterionOut,
    TargetPositions as TargetPositions,
    target_logits as target_logits,
)
from seqgen.training.cross_entropy import cross_entropy as cross_entropy
from seqgen.training.lr_schedulers import (
    InverseSqrtSchedule as InverseSqrtSchedule,
    LRScheduler as LRScheduler,
)
from seqgen.training.optimizers import SGD as SGD
from seqgen.training.sequence_criterion import (
    Rescored as Rescored,
    SequenceConfig as SequenceConfig,
    SequenceCriterion as SequenceCriterion,
    decoding as decoding,
)

# isort: split
# Commands
from seqgen.cli.command import log as log, run as run, set_up_device as set_up_device
from seqgen.cli.output import check_output as check_output
