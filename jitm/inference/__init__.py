"""Encoding and scoring with trained models, in calls of fixed shape: one engine for evaluation, mining and search."""
