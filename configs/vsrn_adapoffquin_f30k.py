"""VSRN + AdapOffQuin on Flickr30K (paper 000, Table 2): VSRN mines the negatives that it is then trained with."""

from ml_collections import ConfigDict

from configs import vsrn_f30k


def make_second_round(
    config: ConfigDict, first: ConfigDict, loss: str, fine_tune: bool = False, **arguments: float
) -> ConfigDict:
    """Trains a setting with mined negatives, after another that mines them (paper 000, section 4.2).

    Args:
      config: the setting, with the term `ranking`.
      first: the whole config of the first round.
      loss: of `jitm.losses.offline`, in place of the one of `ranking`.
      fine_tune: goes on from the first round's weights instead of from scratch (Table 3).
      **arguments: the loss' own besides both margins.
    """
    kept = {key: config.terms.ranking[key] for key in ('weight', 'start_epoch', 'end_epoch', 'reduction')}
    margins = dict(online_margin=0.2, offline_margin=0.0)
    config.terms.ranking = dict(loss=f'offline.{loss}', **margins, **arguments, **kept)
    config.stages = dict(first=first.to_dict(), top_h_texts=300, top_h_images=60, fine_tune=fine_tune)
    return config


def as_published(config: ConfigDict, first: ConfigDict, loss: str, **arguments: float) -> ConfigDict:
    """The second round on Flickr30K and COCO, after VSRN, with the paper's schedule in both rounds.

    Args:
      config: SCAN, BFAN or VSRN.
      first: VSRN.
      loss: see `make_second_round`, as are
      **arguments: of it.
    """
    first.epochs = 2 * first.optimizer.decay_epochs
    config.optimizer.learning_rate, config.epochs = (2e-4, 20) if config.model.name == 'vsrn.VSRN' else (5e-4, 15)
    config.optimizer.decay_epochs = 10
    return make_second_round(config, first, loss, **arguments)


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_f30k.get_config(), vsrn_f30k.get_config()
    return as_published(config, first, 'adaptive_offline_quintuplet', alpha=0.3, beta=1.5)
