"""The data of a run: splits, vocabulary and tokens, the models that fit them, and the batches."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from jitm.config.build import flatten
from jitm.data.pairs import noise
from jitm.data.pipeline import Pipeline, with_few_shapes
from jitm.data.splits import Split, check_images, check_lengths
from jitm.data.text.token_vectors import add_vectors, check_encoders
from jitm.data.text.vocabularies import Tokenizer, kind_of, tokenize_split
from jitm.data.text.word_level import Tokens
from jitm.errors import UserError
from jitm.models.make import check_matcher, heads_of, make_model
from jitm.models.matcher import Matcher
from jitm.training.plan import Plan

VOCABULARY_OF = {'words': "a JSON vocabulary, or '' to build one", 'word pieces': 'the vocab.txt of a BERT'}
NO_WORD = "; lower config key 'vocabulary.min_count', or give another 'vocabulary.path'"
MAX_UNKNOWN = 0.1  # the share of unknown words without a warning
MIN_DEVIATION = 0.2  # features have 0.5 to 1 as published
LONG = 10  # medians: no caption in Flickr30K or COCO is so long


@dataclasses.dataclass(frozen=True)
class Data:
    """The data of a run.

    Attributes:
      train: The training split.
      validation: The validation split.
      vocabulary: The vocabulary, built from the training captions or read from a file.
      train_tokens: The token ids of the training captions.
      validation_tokens: The token ids of the validation captions.
      warnings: The warnings of `check_words`.
    """

    train: Split
    validation: Split
    vocabulary: Tokenizer
    train_tokens: Tokens
    validation_tokens: Tokens
    warnings: tuple[str, ...]


def load_data(plan: Plan) -> Data:
    """Loads splits and vocabulary and tokenizes the captions.

    The vocabulary is built from all training captions, also for a run that trains on a part of them, so that it can be
    the anchor of a run with all. It gets a mask token if augmentation, masking or a model's `mlm` head uses one.

    Raises:
      UserError: If the splits cannot be read, are too small or have features of different sizes.
    """
    # The splits.
    training_split = plan.load_split('train')
    split = plan.evaluation['split']
    train = plan.change_train(training_split)
    validation = plan.change_train(training_split, noisy=False) if split == 'train' else plan.load_split(split)
    if train.num_texts < plan.batch_size:
        raise UserError(f'{train.name} has {train.num_texts} texts, fewer than batch_size {plan.batch_size}')
    if train.feature_size != validation.feature_size:
        raise UserError(
            f'{train.name} has {train.feature_size} features per region and {validation.name} '
            f'{validation.feature_size}; both must come from the same extractor'
        )
    # The vocabulary.
    sections = plan.models.values()
    limits = [(section.get('text') or {}).get('max_length') for section in sections]
    limit = min((length for length in limits if isinstance(length, int)), default=None)
    vocabulary = plan.make_vocabulary(training_split, limit)
    if plan.augmentation.change_words > 0 or plan.masks or any('mlm' in heads_of(section) for section in sections):
        vocabulary = vocabulary.with_mask()
    # The tokens of the captions.
    splits = train, validation
    tokens = [tokenize_split(split.captions, vocabulary, split.tags) for split in splits]
    if training_split.token_vectors is not None:
        check_encoders(train.encoded_by, validation.encoded_by, validation.name, train.name)
        pairs = zip(tokens, splits, strict=True)
        tokens = [add_vectors(of_split, split.token_vectors, split.name) for of_split, split in pairs]
    warnings = []
    for split, tokens_of_split in zip(splits, tokens, strict=True):
        warnings += check_words(split.name, tokens_of_split, vocabulary)
    warnings += [] if train.clean is None else [noise.describe(train)]
    return Data(
        train=train,
        validation=validation,
        vocabulary=vocabulary,
        train_tokens=tokens[0],
        validation_tokens=tokens[1],
        warnings=tuple(warnings),
    )


def check_words(name: str, tokens: Tokens, vocabulary: Tokenizer) -> list[str]:
    """Checks the words and the lengths of the captions of a split.

    Args:
      name: The name of the split.
      tokens: The tokens of its captions.
      vocabulary: The vocabulary of the tokens.

    Returns:
      Warnings of many unknown words, and of a caption that is much longer than the others.

    Raises:
      UserError: If the vocabulary has none of their words.
    """
    words = tokens.lengths.sum() - 2 * len(tokens.lengths)  # without the special tokens at the start and the end
    unknown = (tokens.ids == vocabulary.unknown).sum() / max(words, 1)
    longest = tokens.lengths.max()
    median = np.median(tokens.lengths)
    hint = '; its captions have one token each: put blanks between their words' if median <= 3 else ''
    if unknown == 1 or not words:
        raise UserError(f'{name} has no word of the vocabulary{hint or NO_WORD}')
    warnings = []
    if unknown > MAX_UNKNOWN:
        warnings.append(f'{name}: {100 * unknown:.1f} % of the words are not in the vocabulary{hint}')
    if longest > LONG * median:
        warnings.append(
            f'{name}: text {tokens.lengths.argmax()} has {longest} tokens, the median is {median:.0f}; each batch with '
            'it is padded to this length: shorten it'
        )
    return warnings


def make_models(plan: Plan, data: Data) -> dict[str, Matcher]:
    """Makes the matcher of each member.

    Raises:
      UserError: If one is unknown, or cannot read the vocabulary, captions or images of the data.
    """
    models = {}
    for name, section in plan.models.items():
        models[name] = make_model(section, len(data.vocabulary), own=True, imports=True)
        check_matcher(models[name])
        kind = kind_of(data.vocabulary)
        kind_read = models[name].text_format.kind
        if kind_read not in (kind, None):
            key = 'text.name' if 'text' in section else 'name'
            raise UserError(
                f"config key 'vocabulary.path' is '{plan.config['vocabulary']['path']}', which gives {kind}, but "
                f"'model.{key}' is '{flatten(section)[key]}', which reads {kind_read}: give "
                f'{VOCABULARY_OF[kind_read]}, or change the model'
            )
        for split, tokens in ((data.train, data.train_tokens), (data.validation, data.validation_tokens)):
            check_lengths(split, tokens, models[name].text_format)
            check_images(split, models[name].reads)
    return models


def describe_features(split: Split) -> str:
    """Returns a line with the shape and the standard deviation of the features of a split, which has some."""
    images, regions, size = split.regions.shape
    return (
        f'{split.name}: {images} images, {regions} regions of {size} features, standard deviation '
        f'{split.feature_deviation:.2g}'
    )


def check_scale(split: Split, models: Mapping[str, Matcher]) -> list[str]:
    """Returns a warning for each model whose MLP or graph outweighs the features of a split.

    Raises:
      UserError: If the features are constant.
    """
    if split.regions is None or split.feature_deviation >= MIN_DEVIATION:
        return []
    if not split.feature_deviation:
        raise UserError(f'{split.name} has the same number as every feature of every image: write its features again')
    factor = split.scale / split.feature_deviation
    return [
        f'{split.name} has features of a standard deviation of {split.feature_deviation:.2g}, published ones of about '
        f"1: the MLP or graph of '{name}' outweighs its linear layer; try data.scale={factor:.2g}"
        for name, model in models.items()
        if model.scale_matters
    ]


def make_pipeline(plan: Plan, data: Data, models: Mapping[str, Matcher]) -> Pipeline:
    """Makes the training batches.

    Args:
      plan: The plan of the run.
      data: The splits, vocabulary and tokens.
      models: All models that read the batches.

    Raises:
      UserError: If an input of the source cannot be read, or regions are augmented and no model reads them.
    """
    reads = set().union(*(model.reads for model in models.values()))
    if 'regions' not in reads and (plan.augmentation.drop_regions > 0 or plan.augmentation.num_views > 1):
        raise UserError(
            "config keys 'augmentation.drop_regions' and 'augmentation.num_views' are for models of regions: set them "
            'to 0 and 1'
        )
    limits = [model.text_format.max_length for model in models.values() if model.text_format.max_length]
    pipeline = Pipeline(
        split=data.train,
        tokens=data.train_tokens,
        vocabulary=data.vocabulary,
        batch_size=plan.batch_size,
        seed=plan.seed,
        length_multiple=plan.length_multiple,
        augmentation=plan.augmentation,
        max_length=min(limits, default=None),
        skips_padding=plan.encode_chunk is None and any(model.text_format.skips_padding for model in models.values()),
        reads=tuple(sorted(reads)),
        drop_last=plan.drop_last,
        num_devices=jax.device_count(),
        load_scene_graphs=plan.load_scene_graphs,
    )
    pipeline = with_few_shapes(pipeline, plan.epochs * pipeline.steps_per_epoch)
    samplers = plan.source.samplers(pipeline)
    if samplers and getattr(data.train.pixels, 'broken', '') == 'skip':
        raise UserError(
            f"config key 'data.broken' is 'skip', but {' and '.join(samplers)} of the pairs of a batch are made before "
            "its photos are read: set it to 'stop' or 'check'"
        )
    return dataclasses.replace(pipeline, samplers=samplers)
