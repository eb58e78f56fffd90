"""DBL's network and an anchor trained beside it, RM, on Flickr30K (paper 002, tables II and IV: OSS, model F)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k


def boost(
    config: ConfigDict,
    scenario: str,
    loss: str,
    *,
    anchor: str = '',
    branches: int = 2,
    momentum: float = 0.99995,
    weight: float = 1.0,
    reduction: str = '',
    **arguments: float | bool,
) -> ConfigDict:
    """Adds a loss against an anchor branch, and the anchor, to a setting (paper 002, section III-C).

    Args:
      config: the setting, with the term `ranking`.
      scenario: 'oas', a run of the setting that both branches begin with and the anchor stays; 'oss', the anchor trains
        alone beside; 'mutual', each learns from the other; 'mss', the anchor averages the target.
      loss: one that takes anchor scores; its last part names the term.
      anchor: the run directory, for OAS.
      branches: how many in all, for OSS; each learns from those before.
      momentum: of the average, for MSS; a shorter run has a lower one, to move as far.
      weight: of the term.
      reduction: of the term; '' for that of the ranking term.
      **arguments: of the loss.
    """
    anchors = ('anchor', *(f'anchor_{n}' for n in range(2, branches)))
    target = dict(rule='gradient', learn_from=anchors, init_from=anchor)
    if scenario == 'oas':
        members = dict(anchor=dict(rule='frozen', init_from=anchor))
    elif scenario == 'mss':
        members = dict(anchor=dict(rule='ema', of='target', momentum=momentum))
    elif scenario == 'mutual':
        members = dict(anchor=dict(rule='gradient', learn_from=('target',), init_from=''))
    else:
        members = {name: dict(rule='gradient', learn_from=anchors[:n], init_from='') for n, name in enumerate(anchors)}
    config.members = dict(members, target=target)
    return add_term(config, loss, weight=weight, reduction=reduction, **arguments)


def add_term(config: ConfigDict, loss: str, *, weight: float, reduction: str = '', **arguments: float) -> ConfigDict:
    """Adds a term that counts from when the ranking term does; see `boost`."""
    ranking = config.terms.ranking
    counts = dict(weight=weight, start_epoch=ranking.start_epoch, end_epoch=None, reduction=reduction or ranking.reduction)
    term = {loss.rpartition('.')[2]: dict(loss=loss, **counts, **arguments)}
    config.terms = dict(config.terms.to_dict(), **term)
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(dbl_baseline_f30k.get_config(), 'oss', 'anchored.relative_max', margin=0.2)
