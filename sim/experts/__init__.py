"""Scripted experts: one file per task."""
