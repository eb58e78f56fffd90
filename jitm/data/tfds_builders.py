"""The `*_precomp` folders as a TensorFlow Datasets builder, prepared and read without TensorFlow.

    import tensorflow_datasets as tfds
    import jitm.data.tfds_builders  # registers the builder

    builder = tfds.builder('jitm_precomp/f8k', data_dir='tfds', file_format='array_record')
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir='data'))  # data/f8k_precomp
    source = builder.as_data_source(split='train')
    source[0]['regions']  # float16 [36, 256]

Record n is image n of the folder, dev splits are complete, and captions are UTF-8 bytes.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jitm.data import precomp
from jitm.data.splits import Split
from jitm.errors import UserError


@dataclasses.dataclass(kw_only=True)
class PrecompConfig(tfds.core.BuilderConfig):
    """The features of one data set.

    Attributes:
      regions: R, number of regions of each image.
      features: D, size of a region's features.
      dtype: float16 or float32.
      boxes: whether the folder has the boxes of the regions.
    """

    regions: int
    features: int
    dtype: type[np.floating]
    boxes: bool = False


class JitmPrecomp(tfds.core.GeneratorBasedBuilder):
    """One record per image: `image_id`, `regions` [R, D], its `captions`, and optionally `boxes` [R, 4]."""

    VERSION = tfds.core.Version('1.0.0')
    # Nothing is downloaded. To look for checksums, TFDS 4.9.10 imports a package that is not among its dependencies.
    url_infos = None
    MANUAL_DOWNLOAD_INSTRUCTIONS = 'Put the folder <config>_precomp, such as f30k_precomp, into the manual_dir.'
    BUILDER_CONFIGS = (
        PrecompConfig(name='f8k', regions=36, features=256, dtype=np.float16, boxes=True),
        PrecompConfig(name='f30k', regions=36, features=2048, dtype=np.float32),
        PrecompConfig(name='coco', regions=36, features=2048, dtype=np.float32),
    )

    def _info(self) -> tfds.core.DatasetInfo:
        config = self.builder_config
        shape = (config.regions, config.features)
        features = {
            'image_id': tfds.features.Text(),
            'regions': tfds.features.Tensor(shape=shape, dtype=config.dtype, encoding='bytes'),
            'captions': tfds.features.Sequence(tfds.features.Text()),
        }
        if config.boxes:
            features['boxes'] = tfds.features.Tensor(shape=(config.regions, 4), dtype=np.float32)
        return tfds.core.DatasetInfo(
            builder=self,
            description='Images as region features, with their captions.',
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        root = os.path.join(dl_manager.manual_dir, f'{self.builder_config.name}_precomp')
        return {name: self._generate_examples(self._load(name, root)) for name in precomp.splits(root)}

    def _load(self, name: str, root: str) -> Split:
        config = self.builder_config
        split = precomp.load(name, root=root, dev_images=None)
        found = (*split.regions.shape[1:], split.regions.dtype)
        wanted = (config.regions, config.features, np.dtype(config.dtype))
        path = os.path.join(root, f'{name}_ims.npy')
        if found != wanted:
            raise UserError(
                f'{path} has {found[0]} regions of {found[1]} features in {found[2]}, but jitm_precomp/{config.name} '
                f'is {wanted[0]} of {wanted[1]} in {wanted[2]}: give the folder of that data set'
            )
        if config.boxes and split.boxes is None:
            raise UserError(f'{path} has no boxes, but jitm_precomp/{config.name} needs them: add boxes.npy')
        return split

    def _generate_examples(self, split: Split) -> Iterator[tuple[int, dict[str, Any]]]:
        texts, starts = split.texts_of_image
        for image, image_id in enumerate(split.image_ids):
            captions = [split.captions[text] for text in texts[starts[image] : starts[image + 1]]]
            record = {'image_id': image_id, 'regions': split.regions[image], 'captions': captions}
            if self.builder_config.boxes:
                record['boxes'] = split.boxes[image]
            yield image, record
