"""SCAN t-i AVG on Flickr30K (Lee et al., 2018)."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.model = dict(
        name='scan.SCAN',
        embed_dim=1024,
        image=config.model.image.to_dict(),
        text=dict(config.model.text.to_dict(), bidirectional=True),
        direction='t2i',  # words attend to regions; 'i2t': regions to words
        raw_feature_norm='clipped_l2norm',
        slope=0.1,  # of the clip's leaky ReLU, as released; the paper's is 0
        lambda_softmax=9.0,  # lambda 1
        aggregation='Mean',  # or 'LogSumExp', 'Max', 'Sum'
        lambda_lse=6.0,  # lambda 2, of 'LogSumExp'
    )
    return config
