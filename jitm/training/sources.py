"""The objective of a config, and the sources of the rankings and token losses that it sums."""

import fnmatch
import functools
from collections.abc import Mapping
from typing import Any

from jitm import names
from jitm.config import bind, check_member, choose, flatten
from jitm.data.load import source_of
from jitm.data.masking import Masking
from jitm.data.perturbations import reads_graphs
from jitm.errors import UserError
from jitm.hints import check_keys
from jitm.synthesis.generator import Synthesis
from jitm.training.generated import HEADS, MASKED, generate, generated_captions, masked_captions, matcher_predictions
from jitm.training.labels import Labels
from jitm.training.objective import GENERATED, Term, TokenTerm, make_terms, ranking_terms, token_terms
from jitm.training.step import Source

CHANGES = ('augmentation.drop_regions', 'augmentation.change_words', 'augmentation.num_views')
UNSET = {'augmentation.num_views': 1}  # values that stand for none; of other keys False, 0, '' and ()
EXCLUDES = {  # a key or predictions -> patterns of the keys that must not be set with it, and why, as `Source.excludes`
    'masking.num_views': dict.fromkeys(CHANGES, 'masked captions are not augmented'),
    'offline.path': dict.fromkeys(CHANGES, 'pairs with mined negatives are not augmented'),
    'data.token_vectors': {'augmentation.change_words': "they are read already; 'model.text.dropout' changes vectors"},
    'captioning': {'augmentation.change_words': 'it would learn to write them'},
}


def make_objective(config: Mapping[str, Any]) -> tuple[dict[str, Term], tuple[Source, ...]]:
    """Builds the terms of a config and the sources of their inputs.

    Args:
      config: The whole config, a nested dict.

    Returns:
      The terms by name, and the sources in the order in which they are computed.

    Raises:
      UserError: If a key is wrong.
    """
    terms, retrieval = make_terms(config['terms']), make_retrieval(config['candidates'])
    masked = bind(Masking, config['masking'], where='masking')().num_views > 0
    for section in ('relevance', 'scene_graphs'):
        source_of(config[section], section)
    choose(config['offline'], 'path', where='offline')
    choose(config['labels'], 'source', where='labels')
    synthesis = make_synthesis(config)
    check_used(config, terms)
    check_exclusions(config, terms, retrieval)
    check_candidates(config)
    return terms, make_sources(terms, retrieval, masked, synthesis)


def make_sources(
    terms: Mapping[str, Term], retrieval: Source, masked: bool, synthesis: Synthesis | None
) -> tuple[Source, ...]:
    """Makes all sources, each with the token terms whose predictions it makes.

    Args:
      terms: The objective.
      retrieval: The source of retrieval candidates.
      masked: Whether captions are masked.
      synthesis: The synthesis of captions; None for none.
    """

    def terms_with(*predictions: str) -> dict[str, TokenTerm]:
        return {name: term for name, term in token_terms(terms).items() if term.predictions in predictions}

    if retrieval.by_term:
        retrieval = retrieval._replace(rank=functools.partial(retrieval.rank, terms=ranking_terms(terms)))
    sources = [retrieval]
    from_matcher = {term.predictions for term in token_terms(terms).values()} - {MASKED, *HEADS}
    if masked:
        sources.append(Source(functools.partial(masked_captions, terms=terms_with(MASKED))))
    if synthesis:
        rank = functools.partial(generated_captions, terms=terms_with(*HEADS))
        sources.append(Source(rank, functools.partial(generate, synthesis=synthesis)))
    if from_matcher:
        sources.insert(0, Source(functools.partial(matcher_predictions, terms=terms_with(*from_matcher))))
    return tuple(sources)


def make_retrieval(section: Mapping[str, Any]) -> Source:
    """Makes the source of retrieval candidates from a config's `candidates`: dict(source='in_batch', ...)."""
    name, keywords = choose(section, 'source', where='candidates')
    make = names.resolve('jitm.training.candidates', name, where='candidates.source')
    return bind(make, keywords, where='candidates')()


def check_candidates(config: Mapping[str, Any]) -> None:
    """Raises a UserError if the config's `candidates` lack something, or have more than there is."""
    section, retrieval = config['candidates'], make_retrieval(config['candidates'])
    if retrieval.queue:
        check_member(config, 'candidates.encoder')
    if reads_graphs(retrieval.perturbations) and not config['scene_graphs']['source']:
        raise UserError(
            "config key 'scene_graphs.source' is '', but 'candidates.perturbations' takes scene graphs: set it, such "
            "as to 'scene_graphs.rules'"
        )
    if (count := section.get('num_negatives')) is not None and count >= config['batch_size']:
        raise UserError(
            f"config key 'candidates.num_negatives' is {count}, but a batch of {config['batch_size']} has "
            f'{config["batch_size"] - 1} other pairs: lower it, or set it to None for all'
        )
    if (count := section.get('num_hard', 0)) > (candidates := config['batch_size'] + retrieval.num_extra - 1):
        raise UserError(f"config key 'candidates.num_hard' is {count}, but a query has {candidates} candidates")


def check_exclusions(config: Mapping[str, Any], terms: Mapping[str, Term], retrieval: Source) -> None:
    """Raises a UserError if a key is set that another one excludes."""
    values = flatten(config)

    def is_set(key: str) -> bool:
        return bool(values.get(key)) and values[key] != UNSET.get(key)

    stated = {'candidates.source': retrieval.excludes, **EXCLUDES}
    stated |= {f'terms.{name}.loss': EXCLUDES.get(term.predictions, {}) for name, term in token_terms(terms).items()}
    for key, excluded in stated.items():
        for pattern, reason in excluded.items() if is_set(key) else ():
            for other in filter(is_set, fnmatch.filter(values, pattern)):
                empty = UNSET.get(other, type(values[other])())
                raise UserError(f"config key '{other}' must be {empty!r} where '{key}' is {values[key]!r}: {reason}")


def make_synthesis(config: Mapping[str, Any]) -> Synthesis | None:
    """Makes the synthesis of captions; None if the config names no generator.

    Raises:
      UserError: If the generator is not a model of `members`, or captions are not masked for it.
    """
    synthesis = bind(Synthesis, config['synthesis'], where='synthesis')()
    generator, num_views = synthesis.generator, config['masking']['num_views']
    if not generator:
        return None
    check_member(config, 'synthesis.generator')
    if not num_views:
        raise UserError(
            "config key 'masking.num_views' is 0, but config key 'synthesis' refills masked captions: set it"
        )
    if synthesis.num_hard > (most := num_views * synthesis.num_samples):
        raise UserError(
            f"config key 'synthesis.num_hard' is {synthesis.num_hard}, more than the synthetic captions of an image "
            f"('masking.num_views' x 'synthesis.num_samples' = {most})"
        )
    return synthesis


def make_labels(section: Mapping[str, Any]) -> Labels | None:
    """Makes the way to learn the labels of pairs that a config's `labels` names; None for source ''."""
    source, keywords = choose(section, 'source', where='labels')
    if not source:
        check_keys(keywords, (), where='labels')
        return None
    return bind(names.resolve('jitm.training.labels', source, where='labels.source'), keywords, where='labels')()


def check_used(config: Mapping[str, Any], terms: Mapping[str, Term]) -> None:
    """Raises a UserError if a config names data that no term reads; what a term lacks is found in its first step."""
    inputs = {name for term in ranking_terms(terms).values() for name in (*term.inputs, *term.rankings)}
    predictions = {term.predictions for term in token_terms(terms).values()}
    generator, reads_generated = config['synthesis']['generator'], not predictions.isdisjoint(HEADS)
    readers = {
        'relevance.source': ({'margins', 'relevance'} & inputs, 'a term with margins'),
        'labels.source': ('labels' in inputs, 'a term with labels'),
        'offline.path': (any(name.startswith('offline') for name in inputs), 'a term of mined negatives'),
        'synthesis.generator': (reads_generated or GENERATED in inputs, 'a term of these captions'),
        'masking.num_views': (generator or reads_generated or MASKED in predictions, 'a term of masked words'),
        'scene_graphs.source': (
            config['masking']['num_views'] or reads_graphs(config['candidates'].get('perturbations', ())),
            'masked captions (masking.num_views)',
        ),
    }
    for key, (is_read, reader) in readers.items():
        section, name = key.split('.')
        if config[section][name] and not is_read:
            empty = 'set it to 0' if name == 'num_views' else "set it to ''"
            raise UserError(f"config key '{key}' is set but unused: add {reader}, or {empty}")
