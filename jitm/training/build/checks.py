"""What the parts of a config ask of each other, checked before anything is written."""

from collections.abc import Mapping
from typing import Any

from jitm import config as config_lib
from jitm.data.augmentation import Augmentation
from jitm.data.text import Vocabulary
from jitm.data.vocabularies import kind_of
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.models.matcher import Matcher
from jitm.training.candidates import InBatch, Source
from jitm.training.generated import HEADS, MASKED
from jitm.training.members import Member
from jitm.training.objective import Term
from jitm.types import Batch

GIVE = {'words': "a JSON vocabulary, or '' to build one", 'word pieces': 'the vocab.txt of a BERT'}


def check_token_terms(terms: Mapping[str, Term], members: Mapping[str, Member], batch: Batch) -> None:
    """Raises a UserError if a term takes predictions of tokens that a member's model does not make."""
    for name, term in terms.items():
        for member in (member for member in members.values() if member.trains):
            if term.predictions in (None, MASKED, *HEADS):
                continue  # heads of the model, which it looks for itself
            if term.predictions not in member.predicted_tokens(batch.images, batch.texts):
                raise UserError(
                    f"'terms.{name}' needs predictions for '{term.predictions}', which {type(member.model).__name__} "
                    "as configured does not make: change config key 'model', or leave the term out"
                )


def check_captioning(terms: Mapping[str, Term]) -> None:
    """Raises a UserError if a term would teach the words that augmentation has changed."""
    for name, term in terms.items():
        if term.predictions == 'captioning':
            raise UserError(
                f"'terms.{name}' would learn to write the words that augmentation changes: set config key "
                "'augmentation.change_words' to 0, or leave the term out"
            )


def check_kind(vocabulary: Vocabulary | WordPiece, path: str, model: Matcher, section: Mapping[str, Any]) -> None:
    """Raises a UserError if the vocabulary from a path is not of the kind that a model, from its config, reads."""
    got, wanted = kind_of(vocabulary), model.text_format.kind
    if wanted not in (got, None):
        key = 'text.name' if 'text' in section else 'name'
        raise UserError(
            f"config key 'vocabulary.path' is '{path}', which gives {got}, but 'model.{key}' is "
            f"'{config_lib.flatten(section)[key]}', which reads {wanted}: give {GIVE[wanted]}, or change the model"
        )


def check_words(terms: Mapping[str, Term], config: Mapping[str, Any], augmentation: Augmentation) -> None:
    """Raises a UserError if terms of masked or generated words have none, or training would change them first."""
    needed = {MASKED: ('masking.num_views', config['masking']['num_views'])}
    needed |= dict.fromkeys(HEADS, ('synthesis.generator', config['synthesis']['generator']))
    for name, term in terms.items():
        if term.predictions in needed and not needed[term.predictions][1]:
            raise UserError(f"'terms.{name}' needs '{needed[term.predictions][0]}': set it, or leave the term out")
    if config['masking']['num_views'] and augmentation.changes:
        raise UserError("config keys 'augmentation' must leave examples as they are: masked sentences are not changed")
    if (
        config['masking']['num_views']
        and not any(term.predictions == MASKED for term in terms.values())
        and (not config['synthesis']['generator'])
    ):
        raise UserError("config key 'masking.num_views' masks sentences for nothing: add a term, or set it to 0")


def check_source(source: Source, config: Mapping[str, Any], num_texts: int) -> None:
    """Raises a UserError if a source has too few candidates, or is given what it does not look at."""
    if isinstance(source, InBatch):
        return
    given = {
        'relevance.source': config['relevance']['source'],
        'offline.path': config['offline']['path'],
        'members': any(member.get('learn_from') for member in config['members'].values()),
    }
    for key in (key for key, value in given.items() if value):
        raise UserError(f"config key '{key}' needs 'candidates.source' 'in_batch', which compares all pairs of a batch")
    if config['augmentation']['num_views'] != 1:
        raise UserError(
            "config key 'augmentation.num_views' must be 1: 'candidates.source' 'shortlist' has each pair once"
        )
    if source.num_extra > num_texts:
        raise UserError(
            f"config key 'candidates.num_extra' is {source.num_extra}, but there are {num_texts} texts for training"
        )
    candidates = config['batch_size'] + source.num_extra - 1
    if source.num_hard > candidates:
        raise UserError(
            f"config key 'candidates.num_hard' is {source.num_hard}, but a query has {candidates} candidates"
        )


def check_anchors(terms: Mapping[str, Term], members: Mapping[str, Member]) -> None:
    """Raises a UserError if a member learns from others, but no term looks at their scores."""
    if any('anchor_scores' in term.inputs for term in terms.values()):
        return
    for name, member in members.items():
        if member.learn_from:
            raise UserError(
                f"'members.{name}' has learn_from, but no term takes anchor_scores: add one of jitm.losses.anchored"
            )
