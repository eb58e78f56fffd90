"""VSRN, w/o OfflineAdap, on COCO (paper 000, Table 3; alpha and beta were tuned anew, to what is not said)."""

from ml_collections import ConfigDict

from configs import vsrn_coco
from configs.vsrn_adapoffquin_f30k import as_published


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_coco.get_config(), vsrn_coco.get_config()
    return as_published(config, first, 'adaptive_offline_quintuplet', alpha=0.3, beta=1.5, weigh_by_positive=True)
