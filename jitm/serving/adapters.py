"""A loaded run with the interfaces of evaluation libraries, which load torch: CLIP_benchmark and MTEB.

    run = jitm.load('runs/clip')
    model = adapters.CLIPBenchmark(run)
    zeroshot_retrieval.evaluate(model, dataloader, model.tokenize, 'cpu', amp=False)
    mteb.evaluate(adapters.MTEB(run, 'mine/clip'), task, cache=None)

Both score by inner products of vectors, so they require dual encoders. Images are the model's inputs: photos for a
model of pixels, region features else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jitm.errors import require
from jitm.serving.loaded_run import LoadedRun


class CLIPBenchmark:
    """The model of `clip_benchmark.metrics.zeroshot_retrieval.evaluate`; `tokenize` is its tokenizer.

    Captions stay strings: `tokenize` returns their numbers, which `encode_text` looks up.
    """

    def __init__(self, run: LoadedRun):
        """Raises a UserError if the run has no vectors or torch is not installed."""
        run.check_vectors()
        self._torch = require('torch', extra='clip-benchmark')
        self._run = run
        self._captions = []

    def tokenize(self, captions: Sequence[str]) -> Any:
        """Returns the numbers of captions, a tensor [T]."""
        first = len(self._captions)
        self._captions += captions
        return self._torch.arange(first, len(self._captions))

    def encode_text(self, numbers: Any) -> Any:
        """Encodes captions by their numbers from `tokenize`: a tensor [T, D]."""
        return self._run.encode([self._captions[number] for number in numbers.tolist()], convert_to_tensor=True)

    def encode_image(self, images: Any) -> Any:
        """Encodes a tensor of images, uint8 [I, H, W, 3] or features [I, R, F]: a tensor [I, D]."""
        return self._run.encode(images.cpu().numpy(), convert_to_tensor=True)


class MTEB:
    """The encoder of `mteb.evaluate` for tasks with images and texts.

    Attributes:
      mteb_model_meta: What MTEB reports about the model.
    """

    def __init__(self, run: LoadedRun, name: str):
        """Describes the model to MTEB.

        Args:
          run: A dual encoder.
          name: The name for MTEB's reports, such as 'organization/model'.

        Raises:
          UserError: If the run has no vectors, or torch or mteb is not installed.
        """
        run.check_vectors()
        self._torch = require('torch', extra='mteb')
        self._run = run
        meta = require('mteb.models', extra='mteb').ModelMeta
        unknown = dict.fromkeys(
            field for field, value in meta.model_fields.items() if value.is_required() and field != 'loader'
        )
        metadata = {
            'name': name,
            'revision': f'step {run.run.step}',
            'languages': ['eng-Latn'],
            'modalities': ['text', 'image'],
            'framework': [],
            'similarity_fn_name': 'dot',
        }
        self.mteb_model_meta = meta(**{'loader': None} | unknown | metadata)

    def encode(self, inputs: Iterable[Mapping[str, Any]], **description: Any) -> np.ndarray:
        """Encodes batches with the key 'image', a list of photos, or 'text', a list of captions: float32 [N, D]."""
        del description  # the encodings do not depend on the task
        return np.concatenate([self._run.encode(batch['image' if 'image' in batch else 'text']) for batch in inputs])

    def similarity(self, queries: Any, candidates: Any) -> Any:
        """Returns the inner products of all queries with all candidates: a tensor [Q, C]."""
        queries, candidates = (self._torch.as_tensor(side) for side in (queries, candidates))
        return queries @ candidates.T

    def similarity_pairwise(self, queries: Any, candidates: Any) -> Any:
        """Returns the inner product of query n and candidate n: a tensor [N]."""
        queries, candidates = (self._torch.as_tensor(side) for side in (queries, candidates))
        return (queries * candidates).sum(dim=-1)
