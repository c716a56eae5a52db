"""Outcomes of episodes: who says whether an episode succeeded, and how sure that is."""

from vla_rl.outcomes.detector import Judgment, OutcomeDetector, Window, window_at
from vla_rl.outcomes.ensemble import SuccessDetector

__all__ = ["Judgment", "OutcomeDetector", "SuccessDetector", "Window", "window_at"]
