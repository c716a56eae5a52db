"""Robots and what stands around them: safety gate, takeover, recorder, mock robot, environments as robots."""
