"""Exports the vectors of an index to a library of approximate search, for more images than an exact search reads."""

from pathlib import Path

from jitm.errors import require
from jitm.outputs import MARK, check_own, replacing_own
from jitm.serving.index import Index

NEIGHBOURS = 32  # per vector of the graph (HNSW: Malkov and Yashunin, 2020)
BLOCK = 2**16  # vectors that are added at a time


def check_export(path: Path) -> None:
    """Raises a UserError if the file was written by somebody else, or FAISS is not installed."""
    check_own(path)
    require('faiss', extra='export')


def export(index: Index, path: Path) -> None:
    """Writes an HNSW graph of inner products that `faiss.read_index` reads; its ids are the rows of the index.

    Args:
      index: The vectors.
      path: The output file, new or of jitm.

    Raises:
      UserError: If the file was written by somebody else or cannot be written, or FAISS is not installed.
    """
    check_export(path)
    import faiss

    graph = faiss.IndexHNSWFlat(index.vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(index), BLOCK):
        graph.add(index.vectors[start : start + BLOCK])
    with replacing_own(path) as file:
        file.write(faiss.serialize_index(graph))
        file.write(MARK)  # FAISS reads as far as the graph
