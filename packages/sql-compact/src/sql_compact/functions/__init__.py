"""Elementwise SQL functions: torch lowerings, registration with DataFusion, macros and dropout."""
