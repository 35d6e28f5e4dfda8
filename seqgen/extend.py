"""The names for the author of a component: ``from seqgen.extend import Search, option, register_search``.

The groups are those of docs/reference.md, which has the arguments of each name. Keys and settings are in
``seqgen.config``. Users of models import from ``seqgen``. Some add-ons have names for others, too: ``confidence``
(a ``Feature`` of translations), ``cross_vocabulary`` (rules of ensembles), ``fairseq`` (its generator),
``huggingface`` (to write its folders), ``inspection`` (of models), ``mixtures`` (denoising), ``partial_texts`` (of
outputs), ``programs``, ``rewriting``, ``speculative`` (drafters) and ``traces`` (of decodes), all in
``seqgen.addons``; every other module is private and may move. A name is loaded when it is used.
"""

from typing import TYPE_CHECKING

from seqgen.core.lazy_names import lazy_names

# Several names on a line, in alphabetical order; the formatter would give each a line of its own.
# fmt: off
# isort: off
if TYPE_CHECKING:
    from seqgen.checkpoints.loaders import (DecodingConfig, DecodingTask, ForeignConfig, LoadedModel, Placement,
        PromptDecodingTask, register_checkpoint_loader)
    from seqgen.checkpoints.layouts import Layout, Piece, load_weights, stacked_pieces, weights_of
    from seqgen.checkpoints.loading import load_base, load_model
    from seqgen.checkpoints.model_weights import build_on_meta, build_with_weights, fuse_projections, merge_additions
    from seqgen.checkpoints.run_config import flatten, read_yaml, run_folder
    from seqgen.checkpoints.serialization import fingerprint, read_json, write_json, write_tensors
    from seqgen.checkpoints.sources import local_path, split_path
    from seqgen.checkpoints.torch_file import Inert, read_torch_file
    from seqgen.cli.command import Arguments, import_plugins, log, run, set_up_device
    from seqgen.cli.line_decoding import check_plain_text
    from seqgen.cli.model_formats import register_model_format
    from seqgen.cli.output import check_output, write_report
    from seqgen.cli.page import render_template
    from seqgen.cli.referenced_text import ReferencedText, ReferencedTextConfig, read_referenced_text
    from seqgen.config import BaseConfig, CommonConfig, GenerationConfig, ReadingConfig, TrainConfig, option
    from seqgen.config.added_options import register_options
    from seqgen.config.compose import component_config, compose_given
    from seqgen.config.values import split_argument, to_dict
    from seqgen.core import (BackPointers, Batch, BatchInfo, BeamSearch, Candidates, CheckpointError, Combination,
        Component, Composite, ConfigError, ContractError, DataError, Decoder, DecoderOut, DecodingError,
        DecodingRequest, DecodingSetup, EachRow, Encoder, EncoderDecoderModel, EncoderOut, Ensemble, FastPaths,
        FinishedHypotheses, FirstFinished, Forbidden, Greedy, Hypothesis, IncrementalDecoder, IncrementalState,
        LayerLogits, LogitsProcessor, Member, MemberOutput, MemberSpec, Observer, Outcome, ProbabilityMean, Ranking,
        Scores, Scoring, Search, SequenceGenerator, Session, Source, StatefulModule, StepContext, StepOutputs,
        StepRecord, StoppingRule, UserError, best_continuations, check_features, gather_beams, map_tensors, own_beams)
    from seqgen.core.candidates import normalized
    from seqgen.core.combinations import combine
    from seqgen.core.component import (ATTENTION, FORBIDDEN, HIDDEN_STATES, LAYER_LOGITS, MEMBER_LOGITS, MEMBER_LPROBS,
        Phrases, begin_component, flattened)
    from seqgen.core.contract import contract_error
    from seqgen.core.encoder import inputs_of
    from seqgen.core.errors import ResourceError, listing, nearest, shown
    from seqgen.core.incremental_state import StateDict, rows_of_parents, rows_of_sentences
    from seqgen.core.member import has_features, run_decoder
    from seqgen.core.processors import apply_all
    from seqgen.core.search import choose_candidates
    from seqgen.core.session import has_steps
    from seqgen.core.structures import Segments, tensors_in
    from seqgen.data.combined_datasets import JoinedDataset, MixtureDataset, mixing_rates
    from seqgen.data.columns import Column
    from seqgen.data.dictionary import Dictionary, Vocabularies, check_joined, embedding_sizes
    from seqgen.data.pair_dataset import Dataset, Example, PairDataset, Side, collate, pad_rows
    from seqgen.data.parquet import read_column
    from seqgen.data.records import (JsonFormat, PlainFormat, RecordFormat, Records, Template,
        TsvFormat, is_json, read_fields, read_header)
    from seqgen.data.text import (ParallelFiles, decode_line, digest, find_files, find_parallel, is_pipe, read_chunks,
        read_lines, stream_lines)
    from seqgen.data.text_dataset import TextDataset
    from seqgen.data.token_store import TokenStore, available_cores
    from seqgen.data.tokenizers.base import (SENTINEL, IdTokenizer, Tokenizer, WhitespaceTokenizer, load_tokenizer,
        read_ids, register_tokenizer, save_tokenizer, write_settings)
    from seqgen.data.tokenizers.byte_pairs import GemmaTokenizer, PromptTokenizer
    from seqgen.data.tokenizers.language_tokens import LanguageTokenizer
    from seqgen.data.tokenizers.languages import AddedTokens, Languages, TargetLanguage
    from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
    from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, read_model
    from seqgen.decoding.building import IDS, Resources, build_component
    from seqgen.decoding.combinations import Fusion, LogProbabilityMean, MeanConfig
    from seqgen.decoding.continuous_batching import generate_continuously
    from seqgen.decoding.options import build_setup
    from seqgen.decoding.members import PlannedMember
    from seqgen.decoding.own_member import OwnMember, widened_state
    from seqgen.decoding.rewinding import rewind
    from seqgen.decoding.processors.critic import Critic
    from seqgen.decoding.processors.length import ForceEndAtMaximum, MinimumLength
    from seqgen.decoding.processors.tokens import Forbid, ForcePrefix, PrefixConstraint
    from seqgen.decoding.scorer import ScoredTarget, SequenceScorer
    from seqgen.decoding.search.constrained import ConstrainedSearch
    from seqgen.decoding.search.diverse import DiverseBeamSearch
    from seqgen.decoding.search.sampling import TOKEN, RandomSearch, Sampling, draw, drawn_scores, uniform
    from seqgen.decoding.observers import Streamer
    from seqgen.metrics import TextScore, Texts, corpus_metric, corpus_scores, register_metric
    from seqgen.models.fconv import FConvConfig
    from seqgen.models.llama import LlamaConfig
    from seqgen.models.t5 import T5Config, T5Model
    from seqgen.models.transformer import TransformerConfig, TransformerDecoder, TransformerEncoder, TransformerModel
    from seqgen.models.transformer_lm import TransformerLMConfig
    from seqgen.modules.attention import soft_capped
    from seqgen.modules.cached_weight import CachedWeight, change_class
    from seqgen.modules.dropout import Dropout, LayerDropList
    from seqgen.modules.inspection import num_parameters, record_passes
    from seqgen.modules.kv_cache.growing import GrowingCache, StaticCache
    from seqgen.modules.kv_cache.protocol import Attended, KeyValueCache, KeysAndValues
    from seqgen.modules.language_model import LanguageModel
    from seqgen.modules.layered import LayerStack, LayeredDecoder, LayeredEncoder
    from seqgen.modules.linear import Linear
    from seqgen.modules.masks import QueryPositions, padding_mask_of, segment_mask
    from seqgen.modules.multihead_attention import MergedAttention, MultiheadAttention
    from seqgen.modules.positions import LearnedPositions, RotaryPositions, Rotation
    from seqgen.modules.projected_output import ProjectedOutput
    from seqgen.modules.rms_norm import RMSNorm
    from seqgen.modules.transformer_layer import ACTIVATIONS, AttentionLayer, GatedFeedForward
    from seqgen.registry import (DECODING_COMPONENTS, GROUPS, MODELS, register_combination, register_criterion,
        register_feature, register_logits_processor, register_lr_scheduler, register_member_source, register_model,
        register_observer, register_optimizer, register_reranker, register_rewriter, register_search,
        register_stopping_rule, register_task, register_training_observer, register_utility)
    from seqgen.system.devices import out_of_memory
    from seqgen.system.downloads import watch_download
    from seqgen.system.error_messages import library_errors, printable, reading_errors
    from seqgen.system.files import (disk_errors, new_file, new_folder, open_own, remove_leftovers, run_lock, sync,
        write_atomically)
    from seqgen.system.processes import STOPPING, NotedSignals, end_with
    from seqgen.system.progress import LineProgress, clock, duration
    from seqgen.system.reading import (is_stored, open_regular, parse_json, parse_yaml, read_bytes, read_lists,
        similar_path, unique_keys)
    from seqgen.task import ModelInMemory, PromptTask, Task
    from seqgen.tasks.multilingual_translation import MultilingualTranslationConfig, MultilingualTranslationTask
    from seqgen.tasks.number_names import number_names, split_numbers
    from seqgen.tasks.raw_text import (SPLITS, RawTextConfig, RawTextTask, cache_folder, check_split, missing_split,
        split_files)
    from seqgen.tasks.translation import ParallelTextConfig, ParallelTextTask, TranslationConfig, TranslationTask
    from seqgen.text.input_line import InputLine, MemberSource, split_alternatives, with_prefixes
    from seqgen.text.languages import LanguageReader, encode_source, encode_target
    from seqgen.text.line_stages import LineOrder, LineStage, Score, Split, register_line_stage
    from seqgen.text.members import TextModel
    from seqgen.text.output_formats import FORMATS, Writer, register_output_format
    from seqgen.text.reranking import (Bleu, Chrf, Matrix, NgramUtility, Reranker, Utility, UtilityLine,
        compare_texts, count_ngrams, expected_utilities, utility_from_config)
    from seqgen.text.results import Computed, DecodedLine, Details, TextHypothesis, Translation
    from seqgen.text.text_decoding import TextDecoding
    from seqgen.text.word_streaming import WordStreamer, continuation
    from seqgen.training.criteria import Criterion, CriterionOut, TargetPositions, TrainingContext, target_logits
    from seqgen.training.cross_entropy import cross_entropy
    from seqgen.training.lr_schedulers import InverseSqrtSchedule, LRScheduler
    from seqgen.training.observers import TrainingObserver
    from seqgen.training.optimizers import SGD
    from seqgen.training.trainer import UpdateResult
    from seqgen.training.training_run import TrainingRun
    from seqgen.training.validation import ValidationResult
    from seqgen.training.sequence_criterion import Rescored, SequenceConfig, SequenceCriterion, decode_option
# isort: on
# fmt: on

# Declaring a component
__all__ = ["DECODING_COMPONENTS", "GROUPS", "BaseConfig", "CheckpointError", "CommonConfig", "ConfigError"]
__all__ += ["ContractError", "DataError", "DecodingError", "GenerationConfig", "ReadingConfig", "ResourceError"]
__all__ += ["TrainConfig", "UserError", "build_component", "component_config", "contract_error", "listing", "nearest"]
__all__ += ["option", "register_options", "shown"]
# All decoding components
__all__ += ["ATTENTION", "FORBIDDEN", "HIDDEN_STATES", "IDS", "LAYER_LOGITS", "MEMBER_LOGITS", "MEMBER_LPROBS"]
__all__ += ["BatchInfo", "Candidates", "Component", "Composite", "Hypothesis", "LayerLogits", "Phrases", "Resources"]
__all__ += ["StepContext", "StepOutputs", "begin_component", "best_continuations", "flattened", "gather_beams"]
__all__ += ["map_tensors", "tensors_in"]
# Search strategies
__all__ += ["TOKEN", "BeamSearch", "ConstrainedSearch", "DiverseBeamSearch", "Greedy", "RandomSearch", "Sampling"]
__all__ += ["Search", "choose_candidates", "draw", "drawn_scores", "own_beams", "register_search", "uniform"]
# Logits processors
__all__ += ["Critic", "Forbid", "ForceEndAtMaximum", "ForcePrefix", "LogitsProcessor", "MinimumLength", "OwnMember"]
__all__ += ["PrefixConstraint", "apply_all", "register_logits_processor"]
# Combinations and members
__all__ += ["Combination", "Fusion", "LogProbabilityMean", "MeanConfig", "MemberSource", "MemberSpec"]
__all__ += ["PlannedMember", "ProbabilityMean", "combine", "register_combination", "register_member_source"]
# Stopping rules and observers
__all__ += ["Forbidden", "Observer", "Outcome", "StepRecord", "StoppingRule", "register_observer"]
__all__ += ["register_stopping_rule"]
# Decoding loops
__all__ += ["BackPointers", "DecodingRequest", "DecodingSetup", "EachRow", "Ensemble", "FastPaths"]
__all__ += ["FinishedHypotheses", "FirstFinished", "Member", "MemberOutput", "Ranking", "ScoredTarget", "Scores"]
__all__ += ["Scoring", "SequenceGenerator", "SequenceScorer", "Session", "Streamer", "build_setup", "check_features"]
__all__ += ["generate_continuously", "has_features", "has_steps", "normalized", "rewind", "rows_of_parents"]
__all__ += ["rows_of_sentences", "run_decoder", "widened_state"]
# From lines to lines
__all__ += ["FORMATS", "Bleu", "Chrf", "Computed", "DecodedLine", "Details", "InputLine", "LanguageReader"]
__all__ += ["LineOrder", "LineStage", "Matrix", "ModelInMemory", "NgramUtility", "Reranker", "Score", "Split"]
__all__ += ["TextDecoding", "TextHypothesis", "TextModel", "TextScore", "Texts", "Translation", "Utility"]
__all__ += ["UtilityLine", "WordStreamer", "Writer", "compare_texts", "continuation", "corpus_metric", "corpus_scores"]
__all__ += ["count_ngrams", "encode_source", "encode_target", "expected_utilities", "register_feature"]
__all__ += ["register_line_stage", "register_metric", "register_output_format", "register_reranker"]
__all__ += ["register_rewriter", "register_utility", "split_alternatives", "utility_from_config", "with_prefixes"]
# Models
__all__ += ["ACTIVATIONS", "MODELS", "Attended", "AttentionLayer", "CachedWeight", "Decoder", "DecoderOut", "Dropout"]
__all__ += ["Encoder", "EncoderDecoderModel", "EncoderOut", "FConvConfig", "GatedFeedForward", "GrowingCache"]
__all__ += ["IncrementalDecoder", "IncrementalState", "KeyValueCache", "KeysAndValues", "LanguageModel"]
__all__ += ["LayerDropList", "LayerStack", "LayeredDecoder", "LayeredEncoder", "LearnedPositions", "Linear"]
__all__ += ["LlamaConfig", "MergedAttention", "MultiheadAttention", "ProjectedOutput", "QueryPositions", "RMSNorm"]
__all__ += ["RotaryPositions", "Rotation", "Segments", "Source", "StateDict", "StatefulModule", "StaticCache"]
__all__ += ["T5Config", "T5Model", "TransformerConfig", "TransformerDecoder", "TransformerEncoder"]
__all__ += ["TransformerLMConfig", "TransformerModel", "Vocabularies", "change_class", "check_joined"]
__all__ += ["embedding_sizes", "num_parameters", "padding_mask_of", "record_passes", "register_model", "segment_mask"]
__all__ += ["soft_capped"]
# Tasks, data and tokenizers
__all__ += ["AddedTokens", "Batch", "Column", "Dataset", "Dictionary", "Example", "GemmaTokenizer", "IdTokenizer"]
__all__ += ["JoinedDataset", "JsonFormat", "LanguageTokenizer", "Languages", "MixtureDataset"]
__all__ += ["MultilingualTranslationConfig", "MultilingualTranslationTask", "PairDataset", "ParallelFiles"]
__all__ += ["SENTINEL", "ParallelTextConfig", "ParallelTextTask", "PlainFormat", "PromptTask", "PromptTokenizer"]
__all__ += ["SPLITS", "RawTextConfig", "RawTextTask", "RecordFormat", "Records", "SentencePieceTokenizer", "Side"]
__all__ += ["TargetLanguage", "Task", "Template", "TextDataset", "TokenStore", "Tokenizer", "TranslationConfig"]
__all__ += ["TranslationTask", "TsvFormat", "WhitespaceTokenizer", "cache_folder", "check_split", "collate"]
__all__ += ["decode_line", "find_files", "find_parallel", "inputs_of", "is_json", "is_pipe"]
__all__ += ["load_pretrained_tokenizer", "load_tokenizer", "missing_split", "mixing_rates", "number_names", "pad_rows"]
__all__ += ["read_chunks", "read_column", "read_fields", "read_header", "read_ids", "read_lines", "read_model"]
__all__ += ["register_task", "register_tokenizer", "save_pretrained_tokenizer", "save_tokenizer", "split_files"]
__all__ += ["split_numbers", "stream_lines", "write_settings"]
# Training
__all__ += ["SGD", "Criterion", "CriterionOut", "InverseSqrtSchedule", "LRScheduler", "Rescored", "SequenceConfig"]
__all__ += ["SequenceCriterion", "TargetPositions", "TrainingContext", "TrainingObserver", "TrainingRun"]
__all__ += ["UpdateResult", "ValidationResult", "cross_entropy", "decode_option", "register_criterion"]
__all__ += ["register_lr_scheduler", "register_optimizer", "register_training_observer", "target_logits"]
# Checkpoints of other toolkits
__all__ += ["DecodingConfig", "DecodingTask", "ForeignConfig", "Inert", "Layout", "LoadedModel", "Piece", "Placement"]
__all__ += ["PromptDecodingTask", "build_on_meta", "build_with_weights", "flatten", "fuse_projections", "load_base"]
__all__ += ["load_model", "load_weights", "local_path", "merge_additions", "read_json", "read_torch_file", "read_yaml"]
__all__ += ["register_checkpoint_loader", "run_folder", "split_path", "stacked_pieces", "weights_of", "write_json"]
__all__ += ["write_tensors"]
# Commands
__all__ += ["Arguments", "LineProgress", "ReferencedText", "ReferencedTextConfig", "check_output"]
__all__ += ["check_plain_text", "clock", "compose_given", "duration", "import_plugins", "log"]
__all__ += ["read_referenced_text", "register_model_format", "render_template", "run", "set_up_device"]
__all__ += ["split_argument", "to_dict", "write_report"]
# Files and processes
__all__ += ["STOPPING", "NotedSignals", "available_cores", "digest", "disk_errors", "end_with", "fingerprint"]
__all__ += ["is_stored", "lazy_names", "library_errors", "new_file", "new_folder", "open_own", "open_regular"]
__all__ += ["out_of_memory", "parse_json", "parse_yaml", "printable", "read_bytes", "read_lists", "reading_errors"]
__all__ += ["remove_leftovers", "run_lock", "similar_path", "sync", "unique_keys", "watch_download", "write_atomically"]

__getattr__, __dir__ = lazy_names(__name__)
