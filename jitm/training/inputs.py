"""What training reads: splits, vocabulary and tokens, augmentation, masked words, mined negatives, and the batches."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jitm.config import bind, choose
from jitm.data import candidates as candidates_lib
from jitm.data import noise
from jitm.data.augmentation import Augmentation
from jitm.data.load import change_train, load_relevance, load_scene_graphs, load_split, load_whole
from jitm.data.masking import MaskedWords, Masking, caption_words, find_phrases
from jitm.data.perturbations import PerturbedCaptions, is_file, perturber, reads_graphs
from jitm.data.pipeline import Pipeline
from jitm.data.splits import Split
from jitm.data.text import Tokens, Vocabulary, tokenize_split
from jitm.data.token_vectors import add_vectors, check_encoders
from jitm.data.vocabularies import Tokenizer, load_vocabulary
from jitm.errors import UserError
from jitm.files import hash_file
from jitm.models.make import heads_of, member_model
from jitm.models.matcher import Matcher
from jitm.training.step import Source

NO_WORD = "; lower config key 'vocabulary.min_count', or give another 'vocabulary.path'"
MAX_UNKNOWN = 0.1  # share of unknown words without a warning
LONG = 10  # medians: no caption of Flickr30K and COCO is so long


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


def load_data(config: Mapping[str, Any], augmentation: Augmentation) -> Data:
    """Loads splits and vocabulary and tokenizes the captions.

    The vocabulary is built from all training captions, also for a run that trains on a part of them, so that it can be
    the anchor of a run with all. It gets a mask token if augmentation, masking or a model's `mlm` head uses one.

    Raises:
      UserError: If the splits cannot be read, are too small or have features of different sizes.
    """
    # The splits.
    whole = load_whole(config['data'], 'train', imports=True)
    train = change_train(whole, config['data'])
    if train.num_texts < config['batch_size']:
        raise UserError(f'{train.name} has {train.num_texts} texts, fewer than batch_size {config["batch_size"]}')
    validation = load_split(config['data'], config['evaluation']['split'], imports=True)
    if train.feature_size != validation.feature_size:
        raise UserError(
            f'{train.name} has {train.feature_size} features per region and {validation.name} '
            f'{validation.feature_size}; both must come from the same extractor'
        )
    # The vocabulary.
    section = config['vocabulary']
    path = section['path']
    models = [member_model(config, name) for name in config['members']]
    if whole.token_vectors is not None:
        if path:
            raise UserError(
                f"config key 'vocabulary.path' is '{path}', but vectors of tokens come with the vocabulary of their "
                "encoder ('data.token_vectors'): set it to ''"
            )
        vocabulary = whole.token_vectors.vocabulary
    else:
        limits = [(model.get('text') or {}).get('max_length') for model in models]
        limit = min((length for length in limits if isinstance(length, int)), default=None)
        vocabulary = load_vocabulary(path, limit) if path else Vocabulary.build(whole.captions, section['min_count'])
    fills_masks = any('mlm' in heads_of(model) for model in models)
    if augmentation.change_words > 0 or config['masking']['num_views'] or fills_masks:
        vocabulary = vocabulary.with_mask()
    # The tokens of the captions.
    splits = train, validation
    tokens = [tokenize_split(split.captions, vocabulary, split.tags) for split in splits]
    if whole.token_vectors is not None:
        check_encoders(train.encoded_by, validation.encoded_by, validation.name, train.name)
        tokens = list(map(add_vectors, tokens, splits))
    pairs = zip(splits, tokens, strict=True)
    warnings = [one for split, its in pairs for one in check_words(split.name, its, vocabulary)]
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
    longest, median = tokens.lengths.max(), np.median(tokens.lengths)
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


def load_offline(section: Mapping[str, Any], split: Split, mined_later: bool) -> candidates_lib.OfflineNegatives | None:
    """Loads the mined negatives that a config's `offline` names; None if it names none.

    Args:
      section: The section `offline` of the config.
      split: The training split.
      mined_later: Whether they are mined in an earlier training stage; zeros of the same shape then stand for them.

    Raises:
      UserError: If they are not of this split.
    """
    folder, keywords = choose(section, 'path', where='offline')
    make = bind(candidates_lib.OfflineNegatives, keywords, where='offline', later=('candidates',))
    if not folder:
        return None
    if not mined_later:
        return make(candidates=candidates_lib.load(folder, split))
    shapes = (split.num_images, keywords['top_h_texts']), (split.num_texts, keywords['top_h_images'])
    lists = [np.zeros(np.maximum(shape, 0), np.int32) for shape in shapes]
    return make(candidates=candidates_lib.Candidates(*lists))


def load_masked_words(config: Mapping[str, Any], data: Data) -> MaskedWords | None:
    """Finds the phrases of the training captions that a config's `masking` masks; None if it masks nothing."""
    masking = bind(Masking, config['masking'], where='masking')
    if not config['masking']['num_views']:
        return None
    graphs = load_scene_graphs(config['scene_graphs'], data.train)
    phrases = find_phrases(data.train.captions, data.vocabulary, graphs)
    return MaskedWords(masking(), phrases, caption_words(data.train_tokens, data.train.image_of_text))


def load_perturbed(config: Mapping[str, Any], split: Split, kinds: Sequence[str]) -> PerturbedCaptions | None:
    """Prepares the perturbed captions of a training split, of some kinds; None without kinds."""
    if not kinds:
        return None
    graphs = load_scene_graphs(config['scene_graphs'], split) if reads_graphs(kinds) else None
    perturb = tuple(perturber(split, graphs, kind) for kind in kinds)
    return PerturbedCaptions(perturb, [graphs, *(hash_file(kind) for kind in kinds if is_file(kind))])


def make_pipeline(
    config: Mapping[str, Any],
    data: Data,
    models: Mapping[str, Matcher],
    sources: Sequence[Source],
    augmentation: Augmentation,
    mined_later: bool,
) -> Pipeline:
    """Makes the training batches.

    Args:
      config: The whole config.
      data: The splits, vocabulary and tokens.
      models: All models that read the batches.
      sources: All sources that read the batches.
      augmentation: The augmentation of the examples.
      mined_later: See `load_offline`.

    Raises:
      UserError: If mined negatives, a relevance or scene graphs cannot be read, or augmentation is of regions and no
        model reads them.
    """
    reads = {field for model in models.values() for field in model.reads}
    if 'regions' not in reads and (augmentation.drop_regions > 0 or augmentation.num_views > 1):
        raise UserError(
            "config keys 'augmentation.drop_regions' and 'augmentation.num_views' are for models of regions: set them "
            'to 0 and 1'
        )
    limits = [model.text_format.max_length for model in models.values() if model.text_format.max_length]
    return Pipeline(
        split=data.train,
        tokens=data.train_tokens,
        vocabulary=data.vocabulary,
        batch_size=config['batch_size'],
        seed=config['seed'],
        length_multiple=config['length_multiple'],
        augmentation=augmentation,
        relevance=load_relevance(config['relevance'], data.train),
        max_length=min(limits, default=None),
        offline=load_offline(config['offline'], data.train, mined_later),
        reads=tuple(sorted(reads)),
        num_extra=sum(source.num_extra for source in sources),
        mismatched=any(source.mismatched for source in sources),
        masked=load_masked_words(config, data),
        perturbed=load_perturbed(config, data.train, [kind for source in sources for kind in source.perturbations]),
        drop_last=config['drop_last'],
        num_devices=jax.device_count(),
    )
