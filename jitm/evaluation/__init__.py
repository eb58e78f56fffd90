"""Evaluation: retrieval protocols, scoring, re-ranking, published results, explanations, word-level tasks."""
