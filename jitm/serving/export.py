"""Exports the vectors of an index to a library of approximate search, for more images than an exact search reads."""

import importlib.util
import os
from pathlib import Path

from jitm.errors import UserError
from jitm.files import replacing
from jitm.serving.index import Index

NEIGHBOURS = 32  # per vector of the graph (HNSW: Malkov and Yashunin, 2020)
BLOCK = 2**16  # vectors that are added at a time


def check_export(path: Path) -> None:
    """Raises a UserError if FAISS is not installed, or the file exists: its format has no place for who wrote it."""
    if os.path.lexists(path):
        raise UserError(f'{path} exists; choose another file, or remove it')
    if importlib.util.find_spec('faiss') is None:
        raise UserError("--export needs FAISS; pip install 'jitm[export]'")


def export(index: Index, path: Path) -> None:
    """Writes an HNSW graph of inner products that `faiss.read_index` reads; its ids are the rows of the index.

    Args:
      index: the vectors.
      path: the output file, which must not exist.

    Raises:
      UserError: if FAISS is not installed, or the file exists or cannot be written.
    """
    check_export(path)
    import faiss

    graph = faiss.IndexHNSWFlat(index.vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(index), BLOCK):
        graph.add(index.vectors[start : start + BLOCK])
    with replacing(path) as file:
        file.write(faiss.serialize_index(graph))
